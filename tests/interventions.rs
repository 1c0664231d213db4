//! Interventions on the committed micro checkpoints and on hand-built models: controls that are inert under every setting, effects
//! of each setting, and the value in a latent.

use std::collections::BTreeMap;

use crate::common::known::{EXIT_STEP, Purpose, micro};
use crate::common::programs::{done, program, refused};
use switchyard::experiments::activation_patching::{self, Config as Patching, run_pairs};
use switchyard::experiments::latent_intervention::{Config, rows, run_on};
use switchyard::experiments::switch_benefit;
use switchyard::interventions::{At, Later, Steps, Zero};
use switchyard::latent::Switching;
use switchyard::schema::{Axis, BlockOrigin, Holds, InterventionRow, KnownValueRow, PatchRow, benefit};
use switchyard::store::Measurements;
use switchyard::study::Study;
use switchyard::study::arithmetic::Arithmetic;
use switchyard::study::sweep::Continuation;

const CHANNELS: [At; 3] = [At::Both, At::Embedding, At::Kv];
const LATERS: [Later; 2] = [Later::Recompute, Later::Frozen];

fn config(modes: &[&str], steps: &[Steps]) -> Config {
    let modes = modes.iter().map(|m| (*m).to_owned()).collect();
    Config { modes, steps: steps.to_vec(), draws: 2, ..Config::default() }
}

fn of<'r>(rows: &'r [InterventionRow], mode: &str) -> &'r InterventionRow {
    rows.iter().find(|r| r.mode == mode).expect("a row of the mode")
}

#[test]
fn self_patch_is_bit_identical_under_every_setting() {
    for phase in ["sft", "grpo"] {
        let study = micro(phase, 60);
        for later in LATERS {
            for at in CHANNELS {
                let steps = [Steps::All, Steps::Only(0), Steps::Only(4), Steps::From(2)];
                let config = Config { later: vec![later], at: vec![at], ..config(&["self_patch"], &steps) };
                let rows = rows(&study, &config).expect("no answer changes").rows;
                assert_eq!(rows.len(), 5, "normal and four choices of steps");
                assert!(
                    rows[1..].iter().all(|r| r.firings > 0 && r.mean_change == 0.0 && r.answer_changed.value == 0.0)
                );
            }
        }
    }
}

#[test]
fn doing_nothing_flips_nothing() {
    let rows = rows(&micro("sft", 150), &config(&["null_batch", "scale:0.999999"], &[Steps::All])).expect("rows").rows;
    assert_eq!((of(&rows, "null_batch").lost, of(&rows, "null_batch").gained), (0, 0));
    assert_eq!(of(&rows, "null_batch").answer_changed.value, 0.0);
    assert_eq!(of(&rows, "scale").answer_changed.value, 0.0);
}

#[test]
fn a_fork_equals_the_same_mode_from_its_prompt() {
    let study = micro("sft", 80);
    let (_, suppressed) = study.decode(Switching::Suppressed, study.recipe.evaluation.k_min).expect("decoded");
    let (scores, free) = study.decoded().expect("decoded");
    let sweep = study.sweep().expect("a sweep");
    let tokens = |traces: &[switchyard::latent::Trace]| traces.iter().map(|t| t.visible()).collect::<Vec<_>>();
    assert_eq!(tokens(&sweep.traces), tokens(free));
    assert_eq!(sweep.normal.iter().filter(|o| o.correct).count() as f64 / 80.0, scores.accuracy.value);
    let skip = Continuation { switching: Switching::Suppressed, ..Continuation::default() };
    let done = sweep.run(&[skip], Later::Recompute, At::Both).expect("skip").remove(0);
    for (outcome, trace) in done.iter().zip(&suppressed) {
        let text = study.corpus.vocabulary.decode_visible(&trace.text()).expect("text");
        assert_eq!(outcome.answer, study.corpus.answer("", &text));
    }
}

#[test]
fn settings_have_their_effect() {
    // One replaced step of several. With later steps frozen and no cache row, a change has no effect.
    let study = micro("sft", 100);
    let with = |later, at| {
        let config = Config { later: vec![later], at: vec![at], ..config(&["zero"], &[Steps::Only(1)]) };
        rows(&study, &config).expect("rows").rows.remove(1)
    };
    let row = with(Later::Frozen, At::Embedding);
    assert!(row.firings > 0 && row.mean_change > 1.0 && row.answer_changed.value == 0.0, "{row:?}");
    let changed = |later, at| with(later, at).answer_changed.value;
    assert!(changed(Later::Recompute, At::Both) > 0.2);
    assert!(changed(Later::Recompute, At::Embedding) > 0.2, "through the next latent");
    assert!(changed(Later::Recompute, At::Kv) > 0.2, "through attention");
    assert!(changed(Later::Frozen, At::Both) <= changed(Later::Recompute, At::Both));
}

#[test]
fn a_replaced_latent_changes_only_the_selected_half() {
    let study = crate::common::known::study(Purpose::Working, 30, 7);
    let sweep = study.sweep().expect("a sweep");
    let right = |at, steps| {
        let zero = Continuation { inputs: Some((&Zero, steps)), ..Continuation::default() };
        let done = sweep.run(&[zero], Later::Recompute, at).expect("zero").remove(0);
        done.iter().filter(|o| o.switched && o.correct).count()
    };
    let switched = sweep.normal.iter().filter(|o| o.switched).count();
    assert!(switched > 8);
    // The last latent is read through its keys and values; its output only decides the exit, and nothing reads the extra steps of a
    // longer block.
    let last = Steps::Only(EXIT_STEP - 1);
    assert_eq!(right(At::Embedding, last), switched);
    assert_eq!(right(At::Kv, last), 0);
    // The first latent passes its state on through its output; no head attends to it.
    assert_eq!(right(At::Kv, Steps::Only(0)), switched);
    assert_eq!(right(At::Embedding, Steps::Only(0)), 0);
}

#[test]
fn the_value_in_a_latent_decides_the_answer() {
    let study = crate::common::known::study(Purpose::Working, 80, 8);
    // The value of the only step is the answer.
    let predict = |_: usize, step: usize, value: i64| (step == 0).then(|| value.to_string());
    let known = |study: &Study, steps: &[Steps]| {
        run_on(study, &config(&["known_value"], steps), Some(&predict)).expect("rows").known
    };
    let rows = known(&study, &[Steps::All, Steps::Only(0), Steps::Only(2)]);
    assert_eq!(rows.len(), 3);
    for row in rows {
        assert_eq!((row.hit_rate.value, row.kept.value), (1.0, 0.0), "steps {}", row.steps);
        assert!((row.chance.value - 1.0 / 6.0).abs() < 0.05, "{}", row.chance);
    }
    let inert = &known(&crate::common::known::study(Purpose::Inert, 80, 8), &[Steps::All])[0];
    assert_eq!((inert.hit_rate.value, inert.kept.value), (0.0, 1.0));
}

/// Problems of one step that adds 0 or 1 to the value in a hand-built model's latents, or to the value before it.
struct Steps01 {
    /// Per problem: operand of the step, and the number added.
    steps: Vec<(i64, i64)>,
}

impl Arithmetic for Steps01 {
    fn answer_if(&self, _problem: usize, _step: usize, value: i64) -> Option<String> {
        Some(value.to_string())
    }

    fn operand(&self, problem: usize, _step: usize) -> Option<i64> {
        Some(self.steps[problem].0)
    }

    fn apply(&self, problem: usize, _step: usize, operand: i64) -> Option<i64> {
        Some((operand + self.steps[problem].1) % 7)
    }
}

/// Both rows of a hand-built model with problems `letter letter s digit :`. `adds` returns the number that a problem's step adds.
fn by_both(kind: Purpose, adds: &dyn Fn(usize, &[&str]) -> i64) -> [KnownValueRow; 2] {
    let study = crate::common::known::study(kind, 120, 8);
    let of = |(i, problem): (usize, &switchyard::text::Problem)| {
        let words: Vec<&str> = problem.question.split_whitespace().collect();
        let (value, adds) = (problem.answer.parse::<i64>().expect("a digit"), adds(i, &words[..2]));
        ((value - adds).rem_euclid(7), adds)
    };
    let arithmetic = Steps01 { steps: study.corpus.test.iter().enumerate().map(of).collect() };
    let known = run_on(&study, &config(&["known_value"], &[Steps::All]), Some(&arithmetic)).expect("rows").known;
    known.try_into().expect("two rows")
}

#[test]
fn an_operand_in_a_latent_is_distinguished_from_a_value() {
    // The step is computed after the block from the prompt's letters: donor value and recipient letters give the answer.
    let code = |letter: &str| [3, -7, 9, -2, 1]["abcde".find(letter).expect("a letter")];
    let [value, operand] = by_both(Purpose::Operand, &|_, letters| i64::from(code(letters[0]) + code(letters[1]) > 0));
    assert_eq!([value.holds, operand.holds], [Holds::Value, Holds::Operand]);
    assert_eq!((operand.hit_rate.value, operand.kept.value), (1.0, 0.0), "{operand:?}");
    assert!(operand.chance.value < 0.3 && operand.follows(), "{operand:?}");
    // The donor's value includes the donor's step: right if both steps are equal, else never.
    assert!((0.3..0.7).contains(&value.hit_rate.value) && value.identity.n >= operand.identity.n, "{value:?}");

    // The latents contain the result: nothing is added after the block.
    let [value, operand] = by_both(Purpose::Working, &|problem, _| (problem % 2) as i64);
    assert_eq!((value.hit_rate.value, operand.hit_rate.value), (1.0, 0.0), "{value:?} {operand:?}");
    assert!(value.follows() && !operand.follows() && operand.chance.value > 0.05, "{operand:?}");
}

#[test]
fn the_micro_checkpoint_holds_its_intermediate_values_in_its_latents() {
    let known = rows(&micro("sft", 150), &config(&["known_value"], &[Steps::All])).expect("rows").known;
    let [value, operand]: [KnownValueRow; 2] = known.try_into().expect("by value and by operand");
    assert!(value.hit_rate.low > 0.8 && value.chance.high < 0.3, "{value:?}");
    assert!(operand.hit_rate.high < operand.chance.low, "its answers follow the value: {operand:?}");
}

#[test]
fn modes_that_cannot_run_give_the_reason() {
    let mut study = crate::common::known::study(Purpose::Working, 40, 9);
    let error = rows(&study, &config(&["known_value"], &[Steps::All])).expect_err("other problems");
    assert!(error.to_string().contains("known_value"), "{error}");
    study.recipe.task = None;
    let error = rows(&study, &config(&["known_value"], &[Steps::All])).expect_err("no task");
    assert!(error.to_string().contains("generated task"), "{error}");
    let error = rows(&study, &config(&["scale:1"], &[Steps::All])).expect_err("inert");
    assert!(error.to_string().contains("changed nothing"), "{error}");
    let error = rows(&study, &config(&["zero"], &[Steps::Only(7)])).expect_err("never reached");
    assert!(error.to_string().contains("never fired"), "{error}");
}

#[test]
fn rules_open_and_close_blocks() {
    let modes = ["empty_block", "force_switch", "suppress_switch", "gaussian", "sibling", "embedding_argmax"];
    let rows = rows(&micro("sft", 100), &config(&modes, &[Steps::All])).expect("rows").rows;
    assert_eq!(rows.len(), 7);
    let by: BTreeMap<&str, &InterventionRow> = rows.iter().map(|r| (r.mode.as_str(), r)).collect();
    assert!(by["empty_block"].diagnostic_accuracy.is_some_and(|e| e.high < 0.5));
    assert_eq!(by["force_switch"].diagnostic_accuracy.map(|e| e.value), Some(1.0), "own switches are left alone");
    assert!(by["sibling"].mean_change < by["gaussian"].mean_change);
}

#[test]
fn activation_patching_finds_the_state_where_it_was_put() {
    let study = crate::common::known::study(Purpose::Working, 10, 11);
    let vocabulary = &study.corpus.vocabulary;
    let prompt = |digit: usize| {
        let question = format!("a b s {digit} :");
        study.corpus.template.encode_prompt(vocabulary, &question).expect("a prompt")
    };
    let pairs: Vec<_> = (0..7).map(|v| (prompt(v), prompt((v + 3) % 7))).collect();
    let rows = run_pairs(&study, &Patching::default(), &pairs).expect("rows");
    let at = |axis, layer, index| {
        let row = rows.iter().find(|r| r.axis == axis && r.layer == layer && r.index == index);
        row.expect("a cell").effect.value
    };
    let near = |effect: f64, wanted: f64| assert!((effect - wanted).abs() < 0.15, "{effect}, not {wanted}");
    // Layer 2 (index 2: after block 1) makes the state, block 2 lets `#` read that of the last latent.
    for step in 1..=EXIT_STEP {
        near(at(Axis::Step, 0, step), 1.0);
        near(at(Axis::Step, 2, step), 1.0);
    }
    // After the last layer a latent's state is passed on, except that of the last latent.
    near(at(Axis::Step, 4, 1), 1.0);
    near(at(Axis::Step, 4, EXIT_STEP), 0.0);
    // `<bos> a b s 3 :`: the digit, and the letters without meaning.
    near(at(Axis::Position, 0, 4), 1.0);
    near(at(Axis::Position, 0, 1), 0.0);
    let digit = rows.iter().find(|r| r.axis == Axis::Position && r.index == 4).expect("the digit");
    assert_eq!(digit.token.as_deref(), Some("*"), "pairs differ there");
}

#[test]
fn activation_patching_of_micro_peaks_in_the_block() {
    let study = micro("sft", 10);
    let rows = activation_patching::rows(&study, &Patching { candidates: 120, pairs: 12 }).expect("rows");
    let steps: Vec<_> = rows.iter().filter(|r| r.axis == Axis::Step).collect();
    assert_eq!(steps.len(), 5 * 5, "five layers, embeddings counted, by five latent steps");
    assert!(steps.iter().any(|r| r.effect.value > 0.5), "{steps:?}");
    let error = activation_patching::rows(&study, &Patching { candidates: 1, pairs: 1 }).expect_err("no pairs");
    assert!(error.to_string().contains("activation_patching needs 2"), "{error}");
}

#[test]
fn the_benefit_of_switching_comes_from_the_latents() {
    let of = |which| {
        let study = crate::common::known::study(which, 60, 12);
        let mut problems = Measurements::in_memory();
        switch_benefit::measure(&study, &switch_benefit::Config::default(), &mut problems).expect("problems");
        let problems = problems.sorted(|p| p.problem).expect("sorted");
        assert_eq!(problems.len(), 60);
        benefit(&problems)
            .expect("rows")
            .into_iter()
            .find(|r| r.group == "chosen")
            .expect("problems that switch")
            .benefit
    };
    assert_eq!(of(Purpose::Working).value, 1.0);
    assert_eq!(of(Purpose::Inert).value, 0.0);
}

#[test]
fn blocks_can_be_forced() {
    // Half of the problems are answered as text.
    let study = crate::common::known::study(Purpose::Working, 40, 13).with_blocks(BlockOrigin::Forced);
    let sweep = study.sweep().expect("a sweep");
    assert!(sweep.normal.iter().all(|o| o.switched));
    let own = study.decoded().expect("decoded").1;
    let forced = |i: usize| sweep.force_at[i].is_some();
    assert!(own.iter().all(|t| t.switched() != forced(t.problem)) && sweep.force_at.iter().any(Option::is_some));
    let modes = ["self_patch", "zero", "skip", "empty_block", "resample", "null_batch"];
    let rows = run_on(&study, &config(&modes, &[Steps::All]), None).expect("rows").rows;
    assert!(rows.iter().all(|r| r.blocks == BlockOrigin::Forced));
    assert_eq!(of(&rows, "null_batch").answer_changed.value, 0.0);
    let error = run_on(&study, &config(&["force_switch"], &[Steps::All]), None).expect_err("nothing to do");
    assert!(error.to_string().contains("force_switch"), "{error}");
}

#[test]
fn without_arguments_it_runs_on_the_fixture_and_names_the_next_command() {
    let temp = tempfile::tempdir().expect("a temporary folder");
    let mut command = program("intervene");
    // The committed checkpoints are found from every folder.
    let command = command.current_dir(temp.path()).args(["--problems", "24", "--draws", "1", "--pairs", "2", "--out"]);
    let (said, _) = done(command.arg(temp.path().join("out")));
    assert!(said.contains("a page next to the paper's:") && said.contains("report"), "{said}");
    for name in ["latent_intervention", "known_value", "switch_benefit", "switch_problems", "activation_patching"] {
        for phase in ["sft", "grpo"] {
            let file = temp.path().join(format!("out/{name}-{phase}.parquet"));
            assert!(file.is_file(), "{} is missing", file.display());
        }
    }
    assert!(temp.path().join("out/manifest.json").is_file());
}

#[test]
fn a_mode_that_cannot_run_is_named_and_the_others_have_rows() {
    let temp = tempfile::tempdir().expect("a temporary folder");
    let out = temp.path().join("out");
    let run = |modes: &str| {
        let mut command = program("intervene");
        command.args(["fixtures/micro", "--phase", "sft", "--problems", "12", "--replace", "--out"]);
        command.arg(&out).args(["--only", "latent_intervention", "--modes", modes]);
        command
    };
    let (said, _) = done(&mut run("zero,scale:1,known_value"));
    assert!(said.contains("skipped: scale:1 (all) fired") && said.contains("changed nothing"), "{said}");
    let folder = switchyard_programs::report::folder::Folder::open(&out).expect("rows");
    let modes: Vec<&str> = folder.rows::<InterventionRow>("sft").iter().map(|row| row.mode.as_str()).collect();
    assert_eq!(modes, ["normal", "zero", "known_value"]);
    refused(&mut run("scale:1"), &["no mode is informative: scale:1"]);
}

#[test]
fn unknown_values_do_not_stop_the_other_modes() {
    let temp = tempfile::tempdir().expect("a temporary folder");
    let (data, out) = (temp.path().join("data.jsonl"), temp.path().join("out"));
    let line = |i: usize| {
        let question = format!("h = {i} ; a = h * 2 ; g = a + 3 ; ? g :");
        format!("{{\"question\": \"{question}\", \"answer\": \"{}\"}}\n", (2 * i + 3) % 7)
    };
    std::fs::write(&data, (0..7).map(line).collect::<String>()).expect("problems");
    let mut command = program("intervene");
    command.args(["fixtures/micro", "--phase", "sft", "--draws", "1", "--modes", "zero,known_value", "--out"]);
    let (said, told) = done(command.arg(&out).args(["--only", "latent_intervention", "--data"]).arg(&data));
    assert!(told.contains("skipped: known_value: ") && told.contains("has neither"), "{told}");
    assert!(said.contains("skipped: known_value") && said.lines().any(|line| line.starts_with("zero ")), "{said}");
}

#[test]
fn values_of_a_users_own_file_are_exchanged() {
    let temp = tempfile::tempdir().expect("a temporary folder");
    let (data, out) = (temp.path().join("own.jsonl"), temp.path().join("out"));
    let mut lines = String::new();
    for (number, letters) in ["hag", "bcd", "efj", "klm", "adg", "hbf"].into_iter().enumerate() {
        let [a, b, c]: [char; 3] = letters.chars().collect::<Vec<_>>().try_into().expect("three letters");
        for (start, first, second) in [(1, 1, 1), (1, 2, 1), (2, 1, 2), (2, 2, 2)] {
            let (one, two) = (start + first, start + first + second);
            let question = format!("{a} = {start} ; {b} = {a} + {first} ; {c} = {b} + {second} ; ? {c} :");
            let solution = format!("{b} = {start} + {first} = {one} ; {c} = {one} + {second} = {two} ; # {two}");
            let steps = serde_json::json!([
                { "expression": format!("{start}+{first}"), "value": one, "span": format!("{start} + {first} = {one}") },
                { "expression": format!("s1+{second}"), "value": two, "span": format!("{one} + {second} = {two}") },
            ]);
            let id = format!("{number}-{start}-{first}-{second}");
            lines += &serde_json::json!({ "id": id, "question": question, "solution": solution, "answer": two.to_string(), "steps": steps })
                .to_string();
            lines.push('\n');
        }
    }
    std::fs::write(&data, lines).expect("problems");
    let mut command = program("intervene");
    command.args(["fixtures/micro", "--phase", "sft", "--draws", "2", "--modes", "zero,known_value", "--out"]);
    let (_, told) = done(command.arg(&out).args(["--only", "latent_intervention", "--data"]).arg(&data));
    assert!(told.contains("known values: 48 in 24 of 24 held-out solutions"), "{told}");
    let folder = switchyard_programs::report::folder::Folder::open(&out).expect("rows");
    let known = folder.rows::<KnownValueRow>("sft");
    let row = known.iter().find(|row| row.holds == Holds::Value).expect("exchanges");
    assert!(row.hit_rate.value > 0.5 && row.identity.n > 10, "{row:?}");
    // Each four problems with the same names give two pairs, by the value of the first step.
    let mut command = program("intervene");
    command.args(["fixtures/micro", "--phase", "sft", "--only", "activation_patching", "--data"]).arg(&data);
    done(command.arg("--out").arg(temp.path().join("patched")));
    let folder = switchyard_programs::report::folder::Folder::open(&temp.path().join("patched")).expect("rows");
    let patched = folder.rows::<PatchRow>("sft");
    assert!(patched.iter().all(|row| row.identity.n > 6 && row.identity.n <= 12), "{:?}", patched.first());
    let most = patched.iter().filter(|row| row.axis == Axis::Step).map(|row| row.effect.value).fold(0.0, f64::max);
    assert!(most > 0.8, "a latent step carries the value: {most}");
}
