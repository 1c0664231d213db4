//! Accuracy, traces, positions and lenses on the committed micro checkpoints, and on SmolLM2 if available.

use std::path::Path;

use crate::common::known::{micro, micro_on};
use crate::common::programs::{done, program, refused};
use crate::common::{real_data, smollm2};
use switchyard::evaluation::evaluate;
use switchyard::experiments::{accuracy, entropy, logit_lens, outcomes, positions, traces};
use switchyard::latent::Switching;
use switchyard::latent::trace::{End, PositionRole};
use switchyard::machine::Machine;
use switchyard::method::Recipe;
use switchyard::nth::Nth;
use switchyard::schema::{AccuracyRow, Lens, LensRow, Opening};
use switchyard::study::{ProblemChoice, Study};

fn of<'r>(rows: &'r [AccuracyRow], group: &str) -> &'r AccuracyRow {
    rows.iter().find(|r| r.group == group).unwrap_or_else(|| panic!("no row `{group}`"))
}

/// The summaries that training wrote (reports/micro/summary.md), within a problem or two of another processor's rounding.
#[test]
fn accuracy_equals_that_of_training() {
    for (phase, all, latent, switched, text_only) in
        [("sft", 0.928, 0.913, 358, 0.922), ("grpo_start", 0.710, 0.621, 359, 0.838), ("grpo", 0.886, 0.851, 47, 0.892)]
    {
        let study = Study::open(Path::new("fixtures/micro"), phase, None, 0).expect("the micro fixture");
        let rows = accuracy::rows(&study, &accuracy::Config::default()).expect("rows");
        let near = |group: &str, expected: f64, slack: f64| {
            let row = of(&rows, group);
            assert!((row.accuracy.value - expected).abs() <= slack, "{phase} {group}: {:.3}", row.accuracy);
        };
        near("all", all, 0.0041);
        near("switched", latent, 0.012);
        near("text_only", text_only, 0.0041);
        assert_eq!(of(&rows, "all").accuracy.n, 500);
        assert!(of(&rows, "switched").identity.n.abs_diff(switched) <= 4);
        let Study { model, corpus, recipe, reasoning, .. } = &study;
        let (scores, _) = evaluate(model, corpus, &recipe.evaluation, reasoning, Switching::Free, 1).expect("scores");
        assert_eq!(of(&rows, "all").accuracy, scores.accuracy, "the study's threads must not matter");
        assert_eq!(of(&rows, "switched").accuracy, scores.latent_accuracy.expect("some switched"));
        assert_eq!(of(&rows, "all").visible_tokens.expect("a mean").value, scores.visible_tokens);
        assert_eq!(of(&rows, "all").latent_calls.expect("a mean").value, scores.latent_calls);

        assert_eq!(of(&rows, "text_only").switch_rate.value, 0.0);
        assert_eq!(of(&rows, "text_only").latent_calls.expect("a mean").value, 0.0);
        assert_eq!(of(&rows, "forced").switch_rate.value, 1.0);
        assert!(of(&rows, "forced").blocks.expect("a mean").low >= 1.0);
        assert_eq!(of(&rows, "k_min:5").accuracy, scores.accuracy, "the evaluation's own K_min is 5");
        assert!(rows.iter().all(|r| r.group != "k_min:8"), "K_min 8 lies above the cap of 5");
        let lowest = of(&rows, "k_min:0");
        assert!(lowest.lost == Some(0) && lowest.gained == Some(0), "it leaves by itself after 5 steps: {lowest:?}");
        assert!(lowest.forced_exits.is_some_and(|e| e.value < 0.02 && e.high > 0.0));
        let levels: usize = rows.iter().filter(|r| r.group.starts_with("level:")).map(|r| r.identity.n).sum();
        assert_eq!(levels, 500, "every problem has one level");
        if phase == "sft" {
            let config = accuracy::Config { k_min: vec![8], raise_cap: true };
            let rows = accuracy::rows(&study, &config).expect("rows");
            let longer = of(&rows, "k_min:8");
            assert_eq!((longer.k_min, longer.k_cap), (8, 8));
            assert!(longer.lost > longer.gained, "it was trained on 5 steps: {longer:?}");
        }

        let each = outcomes::rows(&study, &outcomes::Config {}).expect("rows");
        let right = each.iter().filter(|r| r.correct).count();
        assert_eq!((each.len(), right as f64 / 500.0), (500, scores.accuracy.value));
        assert!(each.iter().all(|r| r.correct == (r.answer.as_ref() == Some(&r.gold))));
    }
}

#[test]
fn the_papers_rows_of_traces_add_up() {
    let study = micro("sft", 200);
    let rows = traces::rows(&study, &traces::Config {}).expect("rows");
    let (scores, decoded) = study.decoded().expect("the decode");
    let of = |group: &str| rows.iter().find(|r| r.group == group).unwrap_or_else(|| panic!("no row `{group}`"));
    let parts = ["correct_no_swi", "correct_swi", "wrong_no_swi", "wrong_swi"];
    let n = |group: &str| rows.iter().find(|r| r.group == group).map_or(0, |r| r.identity.n);
    assert_eq!(parts.map(n).iter().sum::<usize>(), 200);
    assert_eq!(n("correct") + n("wrong"), 200);
    assert_eq!(of("all").switch_rate, scores.switch_rate);
    let (none, some) = (of("correct_no_swi"), of("correct_swi"));
    assert_eq!((none.blocks.expect("a mean").value, none.p_swi), (0.0, None));
    assert_eq!(some.switch_rate.value, 1.0);
    // Greedy: an emitted <swi> was the most probable token.
    assert!(some.p_swi.expect("switched").low > 0.2);
    let first = some.first_swi.expect("switched");
    assert!(first.low > 0.0 && first.high < 1.0);

    let kinds = entropy::rows(&study, &entropy::Config {}).expect("rows");
    let positions: usize = kinds.iter().map(|r| r.positions).sum();
    assert_eq!(positions, decoded.iter().map(|t| t.positions.len()).sum::<usize>());
    for row in &kinds {
        assert!(row.entropy.is_some_and(|e| e.low >= 0.0), "{row:?}");
        assert_eq!(row.logprob.is_none(), row.kind == "latent", "{row:?}");
    }
}

#[test]
fn positions_rebuild_the_traces() {
    let study = micro("sft", 40);
    let rows = positions::rows(&study, &positions::Config::default()).expect("rows");
    let (scores, decoded) = study.decoded().expect("the decode");
    let corpus = &study.corpus;
    for trace in &decoded[..24] {
        let mine: Vec<_> = rows.iter().filter(|r| r.problem == trace.problem).collect();
        assert_eq!(mine.len(), trace.positions.len());
        for (i, (row, p)) in mine.iter().zip(&trace.positions).enumerate() {
            assert_eq!((row.index, row.id), (i, p.token));
            // Rows and traces have the same token at each position.
            assert_eq!(serde_json::to_value(row.kind).ok(), serde_json::to_value(p.kind).ok());
            assert_eq!((row.logprob, row.entropy, row.p_swi, row.p_exit), (p.logprob, p.entropy, p.p_swi, p.p_exit));
            assert_eq!(row.lens.is_some(), p.kind == PositionRole::Latent);
            let Some(lens) = &row.lens else { continue };
            let lens: Vec<(String, f64)> = serde_json::from_str(lens).expect("[[token, p], …]");
            assert_eq!(lens.len(), 5);
            assert!(lens.is_sorted_by(|a, b| a.1 >= b.1));
            let exit = lens.iter().find(|(token, _)| token == "</swi>").map_or(0.0, |(_, p)| *p);
            let held = p.p_exit.expect("an exit probability");
            assert!((exit - held).abs() < 1e-4 || held < lens[4].1, "exit {exit} in the lens, {held} in the trace");
        }
        let ids: Vec<u32> = trace.positions.iter().map(|p| p.token).collect();
        let text: String = mine.iter().map(|r| r.token.as_str()).collect();
        assert_eq!(text, corpus.vocabulary.decode(&ids).expect("text"));
        let prompt = corpus.vocabulary.decode(&trace.prompt).expect("text");
        assert_eq!(mine[0].prompt, Some(prompt));
        assert!(mine[1..].iter().all(|r| r.prompt.is_none()));
        assert!(mine.iter().all(|r| r.correct == scores.outcomes[trace.problem].correct));
        assert_ne!(trace.end, End::NonFinite);
    }
    assert!(rows.iter().all(|r| r.problem < 24));
}

#[test]
fn the_last_layer_is_the_model_and_the_tuned_lens_is_closer_to_it() {
    let study = micro("sft", 200);
    let rows = logit_lens::rows(&study, &logit_lens::Config::default()).expect("rows");
    let at = |lens, step, layer| {
        let step = Nth::try_from(step).ok();
        let found = rows.iter().find(|r| (r.lens, r.step, r.layer) == (lens, step, layer));
        found.unwrap_or_else(|| panic!("no row of {lens:?}, step {step:?}, layer {layer}"))
    };
    assert_eq!(rows.len(), 2 * 6 * 5, "two lenses, text and five steps, the embedding and four blocks");
    let (_, decoded) = study.decoded().expect("the decode");
    for step in 0..=5 {
        for lens in [Lens::Logit, Lens::Tuned] {
            let last = at(lens, step, 4);
            assert!(last.kl.high < 1e-6, "{last:?}");
            assert_eq!(last.agreement.value, 1.0);
        }
    }
    // The decoder's lens at each latent, by wave and batch, equals the lens of known ids.
    for step in 1..=5 {
        let held: Vec<f64> = decoded.iter().flat_map(|t| t.blocks()).map(|block| block.p_exit[step - 1]).collect();
        let last = at(Lens::Logit, step, 4);
        assert_eq!(last.positions, held.len());
        // Blocks weigh the same in both means.
        assert!((last.p_exit.value - held.iter().sum::<f64>() / held.len() as f64).abs() < 1e-4, "{last:?}");
    }
    assert!(at(Lens::Logit, 5, 4).exit_rank.value < 1.01, "after five steps </swi> is the most probable token");
    for layer in 0..3 {
        let (logit, tuned) = (at(Lens::Logit, 0, layer), at(Lens::Tuned, 0, layer));
        assert!(tuned.kl.high < logit.kl.low, "layer {layer}: tuned {}, logit {}", tuned.kl, logit.kl);
        assert!(tuned.agreement.low > logit.agreement.high, "layer {layer}");
        assert_eq!(tuned.positions, logit.positions);
    }
    // Each latent replaces a token of the clause (`h * 2 = 3`): the fourth predicts the value.
    let own = |step, layer| at(Lens::Logit, step, layer).own_value.expect("known values");
    assert!(own(4, 4).low > 0.85, "{}", own(4, 4));
    for (step, layer) in [(5, 4), (3, 4), (4, 0)] {
        assert!(own(step, layer).high < 0.5, "step {step}, layer {layer}: {}", own(step, layer));
    }
    assert!(at(Lens::Logit, 0, 4).own_value.is_none(), "text has no step");
    // The embedding layer of a latent is the hidden state of the position before it: its own next-token distribution.
    for step in 2..=5 {
        assert_eq!(top(at(Lens::Logit, step, 0)), top(at(Lens::Logit, step - 1, 4)), "step {step}");
    }
}

/// The most probable token of a row.
fn top(row: &LensRow) -> String {
    let tokens: Vec<(String, f64)> = serde_json::from_str(&row.top).expect("[[token, p], …]");
    tokens[0].0.clone()
}

#[test]
fn lens_settings_are_checked_before_any_work() {
    let study = micro("sft", 20);
    let with = |config| logit_lens::rows(&study, &config).expect_err("refused").to_string();
    assert!(with(logit_lens::Config { layers: vec![5], ..Default::default() }).contains("layer 5"));
    assert!(with(logit_lens::Config { folds: 1, ..Default::default() }).contains("folds"));
    assert!(with(logit_lens::Config { learning_rate: 0.0, ..Default::default() }).contains("learning_rate"));
    let plain = logit_lens::Config { layers: vec![2], steps: 0, ..Default::default() };
    let rows = logit_lens::rows(&study, &plain).expect("rows");
    assert!(rows.iter().all(|r| r.lens == Lens::Logit && [2, 4].contains(&r.layer)), "no steps, no tuned lens");
}

/// SmolLM2 with rows for switch tokens that were never trained.
fn smollm2_study(problems: usize) -> Option<Study> {
    let (model, data) = (smollm2()?, real_data("SmolLM2")?.join("gsm8k/test.jsonl"));
    let mut like = Recipe::like("smollm2-gsm8k").expect("the preset");
    like.evaluation.max_new_tokens = 24;
    like.evaluation.k_min = 2;
    like.evaluation.k_cap = 3;
    let machine = Machine { threads: 2, ..Machine::default() };
    let model = model.to_str().expect("a path");
    let asked = ProblemChoice { data: Some(data), problems: Some(problems), ..ProblemChoice::default() };
    Some(Study::open_model(model, None, &like, &asked, &machine).expect("SmolLM2"))
}

#[test]
fn a_model_without_training_on_swi_has_rows() {
    let Some(study) = smollm2_study(3) else { return };
    let rows = accuracy::rows(&study, &accuracy::Config::default()).expect("rows");
    assert_eq!(of(&rows, "text_only").switch_rate.value, 0.0);
    assert_eq!(of(&rows, "forced").switch_rate.value, 1.0);
    assert_eq!(outcomes::rows(&study, &outcomes::Config {}).expect("rows").len(), 3);
    assert_eq!(traces::rows(&study, &traces::Config {}).expect("rows")[0].identity.n, 3);
    assert!(
        entropy::rows(&study, &entropy::Config {})
            .expect("rows")
            .iter()
            .any(|r| r.kind == "text" && r.entropy.is_some())
    );
    assert!(!positions::rows(&study, &positions::Config::default()).expect("rows").is_empty());
    let lens = logit_lens::Config { layers: vec![0, 15, 29], steps: 6, text_positions: 4, ..Default::default() };
    let rows = logit_lens::rows(&study, &lens).expect("rows");
    assert!(rows.iter().any(|r| r.step.is_some() && r.layer == 15 && r.lens == Lens::Tuned));
    assert!(rows.iter().filter(|r| r.layer == 30).all(|r| r.kl.high < 1e-5 && r.agreement.value == 1.0));
    let entropy = |r: &LensRow| r.entropy.low >= 0.0 && r.entropy.high <= f64::ln(49_200.0);
    assert!(rows.iter().all(|r| entropy(r) && r.switching == Opening::Forced));
}

#[test]
fn a_jacobian_lens_is_fitted_on_texts_saved_and_read_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let [texts, lens] = ["texts.txt", "lens.pt"].map(|name| folder.path().join(name).display().to_string());
    let lines =
        ["<bos> a = 5 ; h = a + 4 ; ? h : h = 5 + 4 = 2 ; # 2", "<bos> c = 1 ; d = c * 3 ; ? d : d = 1 * 3 = 3 ; # 3"];
    std::fs::write(&texts, lines.join("\n")).expect("texts");
    let read = |args: &[&str]| {
        let mut command = program("probe");
        command.args(["lens", "fixtures/micro", "--phase", "sft", "--prompt", "<bos> a = 5 ; h = a + 4", "--json"]);
        command.args(args);
        command
    };
    let json = |args: &[&str]| serde_json::from_str::<serde_json::Value>(&done(&mut read(args)).0).expect("JSON");
    let fitted = json(&["--kind", "jacobian", "--fit", &texts, "--save", &lens, "--skip", "2"]);
    let (again, logit) = (json(&["--kind", "jacobian", "--lens", &lens]), json(&[]));
    assert_eq!(fitted["read_layers"], serde_json::json!([0, 1, 2, 3]));
    let p = |of: &serde_json::Value, layer: usize| of["layers"][layer][7][0][1].as_f64().expect("a probability");
    for layer in 0..4 {
        assert!((p(&fitted, layer) - p(&again, layer)).abs() < 0.02, "half precision, layer {layer}");
    }
    assert_eq!(fitted["layers"][3], logit["layers"][3], "the last layer is the model's own");
    assert_ne!(fitted["layers"][0], logit["layers"][0]);
    for (args, why) in [
        (vec!["--kind", "jacobian"], "give --lens FILE.pt or --fit FILE.txt"),
        (vec!["--lens", lens.as_str()], "give --lens FILE.pt or --fit FILE.txt"),
        (vec!["--kind", "jacobian", "--lens", "fixtures/latent/lens.pt"], "the lens has width 32, the model 64"),
        (vec!["--kind", "jacobian", "--fit", texts.as_str(), "--skip", "90"], "none of 2 prompts is long enough"),
    ] {
        refused(&mut read(&args), &[why]);
    }
}

/// The few problems on which this checkpoint switches fit in one batch on any number of threads.
#[test]
fn lens_rows_do_not_depend_on_threads() {
    let config = logit_lens::Config { steps: 0, ..Default::default() };
    let on = |threads| logit_lens::rows(&micro_on(threads, "grpo", 40), &config).expect("rows");
    assert_eq!(on(1), on(2));
}
