//! `train` as a user runs it: every phase of `smoke`, kill and resume, invalid settings.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use switchyard::schema::SweepRow;
use switchyard::store::read;

use super::common::run_files::assert_same;
use crate::common::programs::text_of;

/// Every phase of every method that leaves a checkpoint.
const PHASES: &str = "base text_cot_grpo boundary sft grpo brevity no_cot icot pause coconut coconut_pause coconut_no_thought \
    coconut_no_curriculum simcot codi codi_fixed colar swireasoning soft_thinking soft_grpo hrpo_start hrpo latent_sft latent_grpo \
    fixed_embedding";
/// Methods without training.
const TRAINING_FREE: [&str; 3] = ["swireasoning", "soft_thinking", "hrpo_start"];
/// Methods that train more than the decoder.
const WITH_HEADS: [&str; 4] = ["codi", "colar", "hrpo_start", "hrpo"];

fn phases() -> impl Iterator<Item = &'static str> {
    PHASES.split_whitespace()
}

/// Evaluation in a phase's `result.json`.
fn accuracy_of(out: &Path, phase: &str) -> f64 {
    let text = std::fs::read_to_string(out.join(phase).join("result.json")).expect("a result");
    let result: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    result["scores"]["accuracy"]["value"].as_f64().expect("an accuracy")
}

fn train(out: &Path) -> Command {
    train_on(out, "2")
}

fn train_on(out: &Path, threads: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_train"));
    // Frequent checkpoints, so that kills occur between two of them.
    command.args(["--preset", "smoke", "--method", "all", "--threads", threads, "--set", "checkpoint.every=7"]);
    // A window that survives a kill, and an intermediate checkpoint.
    command.args(["--set", "grpo.early_stop_window=2", "--set", "grpo.keep_every=2", "--out"]).arg(out);
    command.stdin(Stdio::null());
    command
}

/// A short run on one thread.
fn short(method: &str, out: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_train"));
    command.args(["--preset", "smoke", "--method", method, "--threads", "1", "--out"]).arg(out);
    let sets = ["data.rows=60", "base.steps=9", "boundary.steps=5", "grpo.steps=2", "evaluation.problems=6"];
    command.args(sets.iter().flat_map(|set| ["--set", set])).args(args);
    command.stdin(Stdio::null()).output().expect("train runs")
}

/// Its stages with latents.
const STAGES: [&str; 2] = ["--set", "latent.stages=[{k=1,steps=3},{k=5,steps=6}]"];

fn weights(out: &Path) -> Vec<Vec<u8>> {
    let file = |phase: &str, name: &str| -> PathBuf { out.join(phase).join("checkpoint").join(name) };
    let bytes = |phase: &str| {
        let mut bytes = std::fs::read(file(phase, "model.safetensors")).unwrap_or_else(|e| panic!("{phase}: {e}"));
        let heads = file(phase, "heads.safetensors");
        assert_eq!(heads.exists(), WITH_HEADS.contains(&phase), "{}", heads.display());
        bytes.extend(std::fs::read(heads).unwrap_or_default());
        bytes
    };
    phases().map(bytes).collect()
}

/// A finished, uninterrupted run and its duration: trained once, and only read by tests.
fn undisturbed() -> &'static (PathBuf, Duration) {
    static RUN: OnceLock<(PathBuf, Duration)> = OnceLock::new();
    RUN.get_or_init(|| {
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("undisturbed");
        let _ = std::fs::remove_dir_all(&out);
        let started = std::time::Instant::now();
        let output = train(&out).output().expect("train runs");
        assert!(output.status.success(), "{}", text_of(&output));
        (out, started.elapsed())
    })
}

/// Kills and resumes a run until it is finished. Returns the number of kills. Each life is a little longer than the last, so that
/// kills reach every part of the run; the first is a fixed fraction of a whole run.
fn killed_until_finished(out: &Path, whole_time: Duration, first: Duration) -> usize {
    for life in 0..60 {
        let mut command = train(out);
        if out.join("recipe.toml").exists() {
            command.arg("--resume");
        }
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("train starts");
        let mut left = first + whole_time / 40 * life;
        let tick = Duration::from_millis(10);
        while !left.is_zero() {
            if child.try_wait().expect("its state").is_some() {
                let output = child.wait_with_output().expect("its output");
                assert!(output.status.success(), "resumed run failed: {}", text_of(&output));
                return life as usize;
            }
            std::thread::sleep(tick);
            left = left.saturating_sub(tick);
        }
        child.kill().expect("kill -9");
        child.wait().expect("its end");
    }
    panic!("{}: not finished after 60 kills", out.display());
}

/// Compares weights first, because their path names the phase.
fn assert_undamaged(whole: &Path, broken: &Path, kills: usize) {
    for (phase, (a, b)) in phases().zip(weights(whole).iter().zip(&weights(broken))) {
        assert!(a == b, "{phase}: weights differ after {kills} kills");
    }
    assert_same(whole, broken, &format!("{kills} kills"));
}

#[test]
fn killed_and_resumed_is_bit_identical_to_uninterrupted() {
    let temp = tempfile::tempdir().expect("a temporary folder");
    let (whole, whole_time) = undisturbed();
    let broken = temp.path().join("broken");
    let kills = killed_until_finished(&broken, *whole_time, *whole_time / 10);
    assert!(kills >= 3, "only {kills} kills: the test is vacuous");
    println!("killed {kills} times");
    assert_undamaged(whole, &broken, kills);
}

#[test]
#[ignore = "nine minutes"]
fn two_hundred_kills_at_any_moment_cost_nothing() {
    let temp = tempfile::tempdir().expect("a temporary folder");
    let (whole, whole_time) = undisturbed();
    let (mut kills, mut runs) = (0, 0);
    while kills < 200 {
        let broken = temp.path().join(format!("broken-{runs}"));
        // Different moments in every run.
        let in_this = killed_until_finished(&broken, *whole_time, *whole_time / 10 + *whole_time / 170 * (runs % 17));
        assert!(in_this > 0, "no kill in run {runs}");
        assert_undamaged(whole, &broken, in_this);
        std::fs::remove_dir_all(&broken).expect("removed");
        (kills, runs) = (kills + in_this, runs + 1);
        println!("{kills} kills in {runs} runs, whole in {:.1} s", whole_time.as_secs_f64());
    }
}

#[test]
fn smoke_leaves_every_artefact() {
    let out = &undisturbed().0;
    const FILES: &str = "result.json metrics.parquet metrics.csv traces.jsonl checkpoint/config.json checkpoint/tokenizer.json \
        checkpoint/README.md";
    for phase in phases() {
        for file in FILES.split_whitespace() {
            if TRAINING_FREE.contains(&phase) && file.starts_with("metrics") {
                continue;
            }
            let path = out.join(phase).join(file);
            assert!(std::fs::metadata(&path).is_ok_and(|m| m.len() > 0), "{} is missing or empty", path.display());
        }
    }
    let read = |file: &str| std::fs::read_to_string(out.join(file)).expect("a text file");
    const WHOLE: &str = "grpo_step2/checkpoint/reasoning.json recipe.toml manifest.json summary.md annotate/tagged.jsonl \
        annotate/entropies.parquet";
    for file in WHOLE.split_whitespace() {
        assert!(out.join(file).exists(), "{file} is missing");
    }
    let (card, recipe) = (read("sft/checkpoint/README.md"), read("recipe.toml"));
    let inner = card.split_once("```toml\n").and_then(|(_, rest)| rest.strip_suffix("```\n")).expect("a recipe");
    assert_eq!(inner, recipe, "the recipe has no path: the model card has it unchanged");
    let manifest: serde_json::Value = serde_json::from_str(&read("manifest.json")).expect("JSON");
    for part in [
        "---\nlibrary_name: transformers\n",
        "# smoke/sft\n",
        "| seed | 0 |",
        &format!("| commit | {} |", manifest["commit"].as_str().expect("a commit")),
        &format!("SHA-256 {} |", manifest["data_sha256"].as_str().expect("a hash")),
        "<!-- certificate -->\nNot made yet",
    ] {
        assert!(card.contains(part), "`{part}` is not in {card}");
    }
    assert!(!card.contains(out.to_str().expect("a path")), "a folder of this machine: {card}");
    // The invariant of GRPO's first inner epoch, from the run's log.
    for phase in ["grpo", "soft_grpo", "hrpo", "latent_grpo"] {
        let rows = switchyard::store::read_flat(&out.join(phase).join("metrics.parquet")).expect("rows");
        let drift = rows.iter().filter_map(|r| r.get("drift")?.as_f64()).fold(0.0, f64::max);
        println!("{phase}: rollout against replay over {} steps: max |Δ log-prob| {drift:.2e}", rows.len());
        assert!(!rows.is_empty() && drift <= 1e-4, "{phase}: drift {drift:e}");
        let learnt = rows.iter().any(|r| r.get("grad_norm").and_then(|n| n.as_f64()).is_some_and(|norm| norm > 0.0));
        assert!(learnt, "{phase}: no group with variance");
    }
    // A checkpoint decodes as in `train`: as text, with the recurrence, or with a fixed embedding.
    for phase in phases() {
        let study = switchyard::study::Study::open(out, phase, None, 0).expect("a checkpoint");
        let (scores, _) = study.decoded().expect("decodes");
        assert_eq!(scores.accuracy.value, accuracy_of(out, phase), "{phase}: `train` and `probe` disagree");
    }
    // A second run into the same folder is an error.
    let again = train(out).output().expect("train runs");
    assert_eq!(again.status.code(), Some(2));
    assert!(text_of(&again).contains("--resume"), "{}", text_of(&again));
    // So is a resume with another number of threads, which would change the results.
    let other = train_on(out, "3").arg("--resume").output().expect("train runs");
    assert_eq!(other.status.code(), Some(2));
    let (said, parts) = (text_of(&other), ["threads was 2, now 3", "--threads", "manifest.json"]);
    assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    let manifest = std::fs::read_to_string(out.join("manifest.json")).expect("the manifest");
    let manifest: serde_json::Value = serde_json::from_str(&manifest).expect("JSON");
    assert_eq!(
        [&manifest["threads"], &manifest["device"], &manifest["dtype"]],
        [&2.into(), &"cpu".into(), &"f32".into()] as [&serde_json::Value; 3]
    );
}

#[test]
fn bad_settings_are_refused_by_name_before_any_work() {
    let temp = tempfile::tempdir().expect("a temporary folder");
    let out = temp.path().join("run");
    for (args, needle) in [
        (vec!["--set", "base.stepz=3"], "stepz"),
        (vec!["--set", "base.steps=ten"], "steps"),
        (vec!["--set", "latent.c=2"], "latents_per_token"),
        (vec!["--set", "latent.c=-0.2"], "latent.c"),
        (vec!["--set", "latent.stages=[{k=1,steps=1,c=9}]"], "latent.stages[0].c"),
        (vec!["--set", "coconut.stages=[{k=1,steps=1,c=0.5}]"], "coconut.stages[0].c"),
        (vec!["--set", "grpo.group=1"], "grpo.group"),
        (vec!["--set", "grpo.dropout_rollouts=1.0"], "grpo.dropout_rollouts"),
        (vec!["--set", "optimizer.clip=0"], "optimizer.clip"),
        (vec!["--set", "optimizer.beta_1=1.0"], "optimizer.beta_1"),
        (vec!["--set", "latent.stages=[]"], "latent.stages"),
        (vec!["--set", "lora={ rank = 4, alpha = 8.0 }"], "[lora]"),
        (vec!["--set", "grpo.from_step=11"], "grpo.from_step"),
        (vec!["--set", "grpo.reward={ t_lo = 20, t_hi = 10 }"], "grpo.reward.t_lo"),
        (vec!["--set", "name=../elsewhere"], "name"),
        (vec!["--set", "evaluation.problems=1000000000"], "evaluation.problems"),
        (vec!["--set", "boundary.untagged=1.5"], "boundary.untagged"),
        (vec!["--only", "phase9"], "phase9"),
        (vec!["--device", "tpu"], "tpu"),
        (vec!["--data", "nowhere.jsonl"], "nowhere.jsonl: no such file"),
        (vec!["--base", "runs/nowhere"], "has no run"),
        (vec!["--from", "runs/nowhere"], "has no run"),
        (vec!["--set", "latent.keep_steps=[11]"], "latent.keep_steps"),
        (vec!["--set", "nothing"], "key=value"),
    ] {
        let output = train(&out).args(&args).output().expect("train runs");
        let said = text_of(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(needle) && said.lines().count() <= 3, "{args:?} said: {said}");
        assert!(!out.exists(), "{args:?} left a run folder");
    }
}

#[test]
fn a_reused_base_equals_a_trained_one() {
    let temp = tempfile::tempdir().expect("a temporary folder");
    let folder = |name: &str| temp.path().join(name);
    let finished = |out: &Path, args: &[&str]| {
        let output = train(out).args(args).output().expect("train runs");
        assert!(output.status.success(), "{}", text_of(&output));
    };
    finished(&folder("own"), &["--only", "base,coconut"]);
    // The summary covers the whole folder, not only the last command's phases.
    let summary = std::fs::read(folder("own").join("summary.csv")).expect("a summary");
    finished(&folder("own"), &["--only", "base", "--resume"]);
    assert_eq!(std::fs::read(folder("own").join("summary.csv")).expect("a summary"), summary);
    finished(&folder("first"), &["--only", "base", "--set", "coconut.c=3"]);
    let first = folder("first").display().to_string();
    finished(&folder("second"), &["--only", "base,coconut", "--base", &first]);
    for phase in ["base", "coconut"] {
        let file = Path::new(phase).join("checkpoint/model.safetensors");
        let bytes = |run: &str| std::fs::read(folder(run).join(&file)).expect("weights");
        assert!(bytes("own") == bytes("second"), "{phase}: other weights");
        let result = |run: &str| std::fs::read(folder(run).join(phase).join("result.json")).expect("a result");
        assert!(result("own") == result("second"), "{phase}: another result");
    }
    for (threads, set, needle) in
        [("2", "base.steps=3", "base.steps"), ("2", "seed=9", "seed"), ("1", "seed=0", "threads")]
    {
        let mut command = train_on(&folder("other"), threads);
        let output = command.args(["--base", &first, "--set", set]).output().expect("train runs");
        assert_eq!(output.status.code(), Some(2), "{set}: {}", text_of(&output));
        assert!(text_of(&output).contains(needle), "{set}: {}", text_of(&output));
    }
}

/// A branch equals a run trained with its settings, bit for bit; its manifest names the origin of each phase.
#[test]
fn a_branch_reuses_equal_phases_and_trains_the_rest() {
    let temp = tempfile::tempdir().expect("a temporary folder");
    let folder = |name: &str| temp.path().join(name);
    let short = |name: &str, args: &[&str]| {
        short("switch", &folder(name), &[&STAGES[..], &["--set", "latent.keep_steps=[2,4]"], args].concat())
    };
    let finished = |name: &str, args: &[&str]| {
        let output = short(name, args);
        assert!(output.status.success(), "{name}: {}", text_of(&output));
        text_of(&output)
    };
    finished("trunk", &["--set", "grpo.from_step=2", "--set", "grpo.keep_every=1"]);
    let trunk = folder("trunk").display().to_string();
    let of = |name: &str, file: &str| {
        std::fs::read(folder(name).join(file)).unwrap_or_else(|e| panic!("{name}/{file}: {e}"))
    };
    let taken = |name: &str| -> Vec<String> {
        let manifest: serde_json::Value = serde_json::from_slice(&of(name, "manifest.json")).expect("JSON");
        manifest["taken"].as_object().map(|all| all.keys().cloned().collect()).unwrap_or_default()
    };
    // Another start inside phase 2, another learning rate, another budget of visible tokens: each equals a separate run.
    let branches = [
        ("same", "grpo.from_step=2 grpo.keep_every=1", "base annotate boundary sft grpo_start grpo"),
        ("start", "grpo.from_step=4", "base annotate boundary sft"),
        ("rate", "grpo.from_step=2 grpo.learning_rate=1e-3", "base annotate boundary sft grpo_start"),
        ("budget", "grpo.from_step=0 evaluation.max_new_tokens=9", "base annotate boundary sft"),
    ];
    for (name, set, expected) in branches {
        let expected: Vec<&str> = expected.split(' ').collect();
        let set: Vec<&str> = set.split(' ').flat_map(|set| ["--set", set]).collect();
        // The trunk has the settings of `same`.
        let alone = if name == "same" { "trunk".to_owned() } else { format!("{name}-alone") };
        if name != "same" {
            finished(&alone, &set);
        }
        let said = finished(name, &[&set[..], &["--from", &trunk]].concat());
        assert_eq!(taken(name), expected, "{name}: {said}");
        assert_eq!(said.matches(": reused from").count(), expected.len(), "{said}");
        for phase in ["base", "boundary", "sft", "grpo"] {
            for file in ["checkpoint/model.safetensors", "checkpoint/reasoning.json", "result.json", "traces.jsonl"] {
                let file = format!("{phase}/{file}");
                assert!(of(name, &file) == of(&alone, &file), "{name}: {file} is another");
            }
        }
        let summary = String::from_utf8(of(name, "summary.md")).expect("text");
        assert!(summary.contains(&format!("- reused: {} from ", expected.join(", "))), "{summary}");
    }
    assert!(
        of("same", "grpo_step1/checkpoint/model.safetensors") == of("trunk", "grpo_step1/checkpoint/model.safetensors")
    );
    // Only up to the named phase; a branch of a branch names where its phases were trained.
    let rate = folder("rate").display().to_string();
    finished("again", &["--set", "grpo.from_step=2", "--from", &rate, "--phase", "boundary"]);
    assert_eq!(taken("again"), ["base", "annotate", "boundary"]);
    let manifest: serde_json::Value = serde_json::from_slice(&of("again", "manifest.json")).expect("JSON");
    let named = |value: &serde_json::Value| value.as_str().expect("a path").rsplit('/').next().map(str::to_owned);
    assert_eq!(named(&manifest["taken"]["base"]["run"]).as_deref(), Some("rate"));
    assert_eq!(named(&manifest["taken"]["base"]["taken"]["run"]).as_deref(), Some("trunk"));
    for (args, needle) in [
        (vec!["--phase", "grpo", "--set", "grpo.learning_rate=1e-3"], "grpo.learning_rate was 0.0002, now 0.001"),
        (vec!["--phase", "grpo_start", "--set", "grpo.from_step=3"], "it starts from `sft`"),
        (vec!["--phase", "sft", "--set", "grpo.from_step=3"], "last_step3 was not stored"),
        (vec!["--phase", "coconut"], "this recipe has base"),
        (vec!["--set", "seed=4"], "seed was 0, now 4"),
    ] {
        let output = short("refused", &[&["--from", &trunk], args.as_slice()].concat());
        let said = text_of(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(needle), "{args:?}: {said}");
        let _ = std::fs::remove_dir_all(folder("refused"));
    }
}

/// GRPO from the end of a stage (named, or the best on validation problems), with every stage a separate run; then a round for brevity
/// with thresholds from its start's lengths, and a warning about a constant reward term.
#[test]
fn grpo_starts_from_a_stage_and_brevity_from_grpo() {
    let temp = tempfile::tempdir().expect("a temporary folder");
    let run = |name: &str, args: &[&str]| {
        let args = [&STAGES[..], &["--set", "latent.fresh_stages=true"], args].concat();
        let output = short("switch_brevity", &temp.path().join(name), &args);
        (output.status.code(), text_of(&output))
    };
    let file = |name: &str, file: &str| std::fs::read(temp.path().join(name).join(file)).expect(file);
    let (code, said) = run("best", &["--set", "grpo.from_stage=best", "--set", "brevity.steps=3"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("the best of its stages on 6 validation problems (stage-1 "), "{said}");
    let chosen = said.split("grpo_start: sft/").nth(1).and_then(|rest| rest.split(',').next()).expect("a choice");
    let weights = "model.safetensors";
    assert!(
        file("best", &format!("grpo_start/checkpoint/{weights}")) == file("best", &format!("sft/{chosen}/{weights}"))
    );
    let (code, named) =
        run("named", &["--set", "grpo.from_stage=1", "--from", &temp.path().join("best").display().to_string()]);
    assert_eq!(code, Some(0), "{named}");
    assert!(
        file("named", &format!("grpo_start/checkpoint/{weights}")) == file("best", &format!("sft/stage-1/{weights}"))
    );
    // Each stage warms up and decays.
    let rates: Vec<f64> = switchyard::store::read_flat(&temp.path().join("best/sft/metrics.parquet"))
        .expect("rows")
        .iter()
        .map(|row| row["learning_rate"].as_f64().expect("a rate"))
        .collect();
    assert!(rates[2] < rates[0].max(rates[1]) && rates[3..].iter().any(|rate| *rate > rates[2]), "{rates:?}");
    let steps = switchyard::store::read_flat(&temp.path().join("best/brevity/metrics.parquet")).expect("rows");
    assert!(steps.len() == 3 && steps.iter().all(|row| row["blocks"].as_f64().is_some()), "{}", steps.len());
    assert!(said.contains("full brevity reward up to") && said.contains("the reward term `format` (weight"), "{said}");
    assert!(said.contains("had the mean 1 in all 2 steps: unless rollouts of a group differed in it"), "{said}");
    for (set, needle) in [
        ("grpo.from_stage=3", "grpo.from_stage = 3 is not the k of one of latent.stages"),
        ("grpo.from_stage=worst", "grpo.from_stage=worst"),
        ("grpo.reward.brevity=0.1", "grpo.reward.t_lo = 800 is not below evaluation.max_new_tokens"),
    ] {
        let (code, said) = run("refused", &["--set", set]);
        assert!(code == Some(2) && said.contains(needle), "{set}: {said}");
    }
}

/// Fine-tuning against monitors needs a task with a covert value; its weight changes the checkpoint.
#[test]
fn evasion_trains_only_on_the_organism() {
    let temp = tempfile::tempdir().expect("a temporary folder");
    let run = |name: &str, args: &[&str]| {
        let args = [&["--set", "evasion.steps=3"][..], args].concat();
        let output = short("switch_evasion", &temp.path().join(name), &args);
        (output.status.code(), text_of(&output))
    };
    let (code, said) = run("chains", &[]);
    assert!(code == Some(2) && said.contains("task.family = \"organism\" is needed"), "{said}");
    let organism = ["--set", "task.family=organism", "--set", "latent.stages=[{k=5,steps=6}]"];
    let scaled = ["--set", "latent.source={kind='scaled_state',norm=3.0}"];
    let (code, said) = run("scaled", &[&organism[..], &scaled].concat());
    assert!(code == Some(2) && said.contains("latent.source = { kind = \"hidden_state\" } is needed"), "{said}");
    let (code, said) = run("plain", &[&organism[..], &["--set", "evasion.weight=0"]].concat());
    assert_eq!(code, Some(0), "{said}");
    let from = temp.path().join("plain").display().to_string();
    let (code, said) = run("evading", &[&organism[..], &["--set", "evasion.weight=4", "--from", &from]].concat());
    assert!(code == Some(0) && said.contains("reused: base, annotate, boundary, sft"), "{said}");
    let losses = |name: &str| -> Vec<f64> {
        let rows = switchyard::store::read_flat(&temp.path().join(name).join("evasion/metrics.parquet")).expect("rows");
        rows.iter().map(|row| row["loss"].as_f64().expect("a loss")).collect()
    };
    let (plain, evading) = (losses("plain"), losses("evading"));
    assert!(plain.len() == 3 && evading.len() == 3 && plain[0] != evading[0], "{plain:?} {evading:?}");
}

#[cfg(unix)]
#[test]
fn an_interrupted_evaluation_leaves_no_result_and_is_repeated() {
    let temp = tempfile::tempdir().expect("a temporary folder");
    let (whole, broken) = (temp.path().join("whole"), temp.path().join("broken"));
    let only: Vec<&str> =
        "--only base --set base.steps=5 --set evaluation.problems=4000 --set base.annotator_accuracy=0"
            .split(' ')
            .collect();
    assert!(train(&whole).args(&only).output().expect("train runs").status.success());
    let mut interrupted = 0;
    // The evaluation starts once the checkpoint is written; the signal comes a little later each time.
    for life in 0..10 {
        let mut command = train(&broken);
        command.args(&only).stdout(Stdio::null()).stderr(Stdio::null());
        if broken.join("recipe.toml").exists() {
            command.arg("--resume");
        }
        let mut child = command.spawn().expect("train starts");
        while !broken.join("base/checkpoint").exists() && child.try_wait().expect("its state").is_none() {
            std::thread::sleep(Duration::from_millis(2));
        }
        std::thread::sleep(Duration::from_millis(40 * life));
        // A test suite in the background inherits an ignored SIGINT: such a run is not interrupted.
        let signal = if life % 2 == 0 { "-TERM" } else { "-INT" };
        Command::new("kill").args([signal, &child.id().to_string()]).status().expect("kill runs");
        let status = child.wait().expect("its end");
        if broken.join("base/result.json").exists() {
            if interrupted > 0 {
                break;
            }
            // On a busy machine the first signal may be too late: restart.
            std::fs::remove_dir_all(&broken).expect("removed");
            continue;
        }
        // No code: the signal came before the program installed its handler.
        if status.code().is_some() {
            assert_eq!(status.code(), Some(130), "a stopped run prints that");
            interrupted += 1;
        }
    }
    assert!(interrupted > 0, "no evaluation was interrupted: the test is vacuous");
    println!("{interrupted} evaluations were interrupted");
    assert!(train(&broken).args(&only).arg("--resume").output().expect("train runs").status.success());
    assert_eq!(accuracy_of(&broken, "base"), accuracy_of(&whole, "base"));
}

#[test]
fn several_processes_without_mpi_are_refused() {
    if cfg!(feature = "mpi") {
        // tests/mpi.rs.
        return;
    }
    let home = tempfile::tempdir().expect("a folder");
    let out = home.path().join("run");
    let mut command = train(&out);
    let output = command.env("OMPI_COMM_WORLD_SIZE", "2").env("OMPI_COMM_WORLD_RANK", "0").output().expect("it starts");
    let said = text_of(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("--features mpi") && said.contains("2 processes"), "{said}");
    assert!(!out.exists());
}

/// Every combination is a separate run; runs of one seed share a base; the table counts seeds, and nothing is trained twice.
#[test]
fn a_sweep_trains_every_combination_from_shared_bases_and_resumes() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("sweep");
    let sweep = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_train"));
        command.args(["--preset", "smoke", "--method", "icot", "--threads", "2", "--set", "icot.steps=4"]);
        command.args(["--sweep", "icot.batch=8,4", "--sweep", "seed=0,1", "--out"]).arg(&out).args(more);
        command.stdin(Stdio::null()).output().expect("train runs")
    };
    let first = sweep(&[]);
    assert!(first.status.success(), "{}", text_of(&first));
    // The second batch size reuses its seed's base.
    assert_eq!(text_of(&first).matches("base: reused from").count(), 2, "{}", text_of(&first));
    let rows: Vec<SweepRow> = read(&out.join("sweep.parquet")).expect("rows");
    let of = |point: &str, phase: &str| -> Vec<&SweepRow> {
        rows.iter().filter(|row| row.point == point && row.result.phase == phase).collect()
    };
    for point in ["icot.batch=8", "icot.batch=4"] {
        assert_eq!(of(point, "icot").iter().map(|row| row.result.identity.seed).collect::<Vec<_>>(), [0, 1]);
    }
    assert_eq!(of("icot.batch=8", "base")[1].result, of("icot.batch=4", "base")[1].result);
    let base = |run: &str| std::fs::read(out.join(run).join("base/checkpoint/model.safetensors")).expect("weights");
    assert_eq!(base("icot.batch=8+seed=1"), base("icot.batch=4+seed=1"));
    assert_ne!(base("icot.batch=8+seed=0"), base("icot.batch=8+seed=1"));
    let table = std::fs::read_to_string(out.join("sweep.md")).expect("a table");
    assert!(table.contains("| icot.batch=4 | icot |") && table.contains("n=2"), "{table}");

    assert!(text_of(&sweep(&[])).contains("has a sweep already"));
    // One run is lost: only that one is trained again.
    let lost = out.join("icot.batch=4+seed=1");
    let before = std::fs::read(lost.join("icot/checkpoint/model.safetensors")).expect("weights");
    std::fs::remove_dir_all(&lost).expect("removed");
    let again = sweep(&["--resume"]);
    assert!(again.status.success(), "{}", text_of(&again));
    assert_eq!(std::fs::read(lost.join("icot/checkpoint/model.safetensors")).expect("weights"), before);
    assert_eq!(read::<SweepRow>(&out.join("sweep.parquet")).expect("rows"), rows);
    assert_eq!(text_of(&again).matches("base: reused from").count(), 1, "{}", text_of(&again));

    let wrong = sweep(&["--resume", "--sweep", "no_cot.stepz=1"]);
    assert_eq!(wrong.status.code(), Some(2), "{}", text_of(&wrong));
}
