//! Resume requires the same data, model, settings and workers, and does not change the result.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use burn::tensor::Device;
use switchyard::method::Recipe;
use switchyard::train::pipeline::{Options, RunEnd, run};
use switchyard::world::World;
use tempfile::TempDir;

use super::common::run_files::difference;
use crate::common::programs::text_of;

/// A run on a problem file and a pretrained model, a few steps per phase.
const MINI: &str = r#"
name = "mini"
seed = 0
methods = ["switch"]
[data]
rows = 40
template = "words"
test_rows = 8
max_tokens = 200
[annotate.spans]
snap_to_clause = true
latents_per_token = 1
max_stage = 5
min_length = 5
max_length = 5
[base]
steps = 2
batch = 8
[boundary]
steps = 2
batch = 8
[latent]
batch = 8
c = 1
k_max = 5
stages = [{ k = 5, steps = 2 }]
[grpo]
steps = 2
questions = 2
group = 3
learning_rate = 2e-4
temperature = 0.7
k_min = 5
cosine_every = 0
[evaluation]
problems = 8
k_min = 5
k_cap = 5
max_new_tokens = 48
"#;

struct MiniRun(TempDir);

impl MiniRun {
    fn new() -> Self {
        let home = Self(tempfile::tempdir().expect("a folder"));
        std::fs::write(home.at("mini.toml"), MINI).expect("written");
        home.write_problems(|n| n % 7);
        let model = home.at("model");
        std::fs::create_dir(&model).expect("made");
        let micro = Path::new(switchyard::store::CHECKOUT).join("fixtures/micro/base/annotator");
        for file in std::fs::read_dir(micro).expect("a fixture").flatten() {
            std::fs::copy(file.path(), model.join(file.file_name())).expect("copied");
        }
        home
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// `a = n` and one step; `answer` is the gold answer.
    fn write_problems(&self, answer: impl Fn(usize) -> usize) {
        let line = |i: usize| {
            let (n, more) = (i % 7, i / 7 % 7);
            let right = answer(n + more);
            let [question, solution] =
                [format!("a = {n} ; c = a + {more} ; ? c :"), format!("c = {n} + {more} = {right} ; # {right}")];
            let step = serde_json::json!({
                "value": right,
                "clause": format!("{n} + {more} = {right}"),
                "words": { "start": 2, "end": 7 },
                "value_words": { "start": 6, "end": 7 },
            });
            serde_json::json!({
                "id": format!("p{i}"), "question": question, "solution": solution, "answer": right.to_string(), "steps": [step],
            })
        };
        let lines: String = (0..48).map(|i| line(i).to_string() + "\n").collect();
        std::fs::write(self.at("data.jsonl"), lines).expect("written");
    }

    fn train(&self, out: &str, args: &[&str]) -> Output {
        let threads: &[&str] = if args.contains(&"--threads") { &[] } else { &["--threads", "1"] };
        let recipe = ["--preset", "mini.toml", "--model", "model", "--data", "data.jsonl", "--out", out];
        self.typed(&[&recipe, threads, args].concat())
    }

    fn typed(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_train"));
        command.current_dir(self.0.path()).args(args).stdin(Stdio::null()).output().expect("train runs")
    }

    fn manifest(&self, out: &str) -> serde_json::Value {
        let text = std::fs::read_to_string(self.at(out).join("manifest.json")).expect("a manifest");
        serde_json::from_str(&text).expect("JSON")
    }
}

/// Flips one bit in the middle of a file.
fn damage(file: &Path) {
    let mut bytes = std::fs::read(file).expect("a file");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(file, bytes).expect("written");
}

#[test]
fn the_content_of_a_path_counts() {
    let home = MiniRun::new();
    let begun = home.train("run", &["--only", "base,annotate,boundary"]);
    assert!(begun.status.success(), "{}", text_of(&begun));
    let before = home.manifest("run");
    for key in ["data_sha256", "test_sha256", "model_sha256"] {
        assert_eq!(before[key].as_str().map(str::len), Some(64), "{key}");
    }
    let refused = |needle: &str, args: &[&str]| {
        let output = home.train("run", &[&["--resume"], args].concat());
        let said = text_of(&output);
        assert_eq!(output.status.code(), Some(2), "{needle}: {said}");
        assert!(said.contains(needle) && said.contains("manifest.json"), "{needle}: {said}");
        assert_eq!(home.manifest("run"), before, "{needle}: the manifest was overwritten");
        assert!(!home.at("run/sft").exists(), "{needle}: work was done");
    };
    // Other gold answers to the same questions: of the training problems, then only of the held-out ones.
    home.write_problems(|n| (n + 1) % 7);
    refused("data_sha256", &[]);
    home.write_problems(|n| n % 7);
    let data = std::fs::read_to_string(home.at("data.jsonl")).expect("data");
    let last = data.rfind("\"answer\":\"").expect("an answer") + 10;
    let other = if data[last..].starts_with('1') { 2 } else { 1 };
    std::fs::write(home.at("data.jsonl"), format!("{}{other}{}", &data[..last], &data[last + 1..])).expect("written");
    refused("test_sha256", &[]);
    std::fs::write(home.at("data.jsonl"), &data).expect("written");
    // Other weights, and other settings of the same weights.
    for file in ["model/model.safetensors", "model/config.json"] {
        let held = std::fs::read(home.at(file)).expect("a file");
        if file.ends_with("json") {
            let text = String::from_utf8(held.clone()).expect("text");
            std::fs::write(home.at(file), text.replace("10000", "20000")).expect("written");
        } else {
            damage(&home.at(file));
        }
        refused("model_sha256", &[]);
        std::fs::write(home.at(file), held).expect("written");
    }
    refused("--threads", &["--threads", "2"]);
    // Without a manifest the inputs of a run are unknown.
    std::fs::rename(home.at("run/manifest.json"), home.at("aside")).expect("moved");
    let output = home.train("run", &["--resume", "--threads", "2"]);
    assert!(
        output.status.code() == Some(2) && text_of(&output).contains("manifest.json: is missing"),
        "{}",
        text_of(&output)
    );
    std::fs::rename(home.at("aside"), home.at("run/manifest.json")).expect("moved back");
    // Without its recipe the settings are unknown; a changed recipe is not the run's.
    let recipe = std::fs::read_to_string(home.at("run/recipe.toml")).expect("a recipe");
    let own = |needle: &str| {
        let said = home.typed(&["--out", "run", "--resume", "--threads", "1"]);
        let text = text_of(&said);
        assert!(said.status.code() == Some(2) && text.contains(needle), "{needle}: {text}");
        assert!(!home.at("run/sft/result.json").exists(), "{needle}: work was done");
    };
    std::fs::remove_file(home.at("run/recipe.toml")).expect("removed");
    let again = home.train("run", &["--set", "base.steps=3"]);
    let text = text_of(&again);
    assert!(again.status.code() == Some(2) && text.contains("recipe.toml: is missing"), "{text}");
    assert!(!home.at("run/recipe.toml").exists(), "a recipe was written");
    std::fs::write(home.at("run/recipe.toml"), recipe.replace("steps = 2", "steps = 999")).expect("written");
    own("settings_sha256");
    std::fs::write(home.at("run/recipe.toml"), &recipe).expect("written");
    // A finished phase whose weights were changed.
    let weights = home.at("run/boundary/checkpoint/model.safetensors");
    let held = std::fs::read(&weights).expect("weights");
    damage(&weights);
    own("is not the file that this run wrote");
    std::fs::write(&weights, held).expect("written");
    // By default, with the run's recipe.
    let done = home.typed(&["--out", "run", "--resume", "--threads", "1"]);
    assert!(done.status.success(), "{}", text_of(&done));
    assert_eq!(home.manifest("run"), before, "the command that began a run stays in its manifest");
    // A branch with other data or another model is an error, too.
    home.write_problems(|n| (n + 1) % 7);
    let branch = home.train("branch", &["--from", "run"]);
    assert!(branch.status.code() == Some(2) && text_of(&branch).contains("data_sha256"), "{}", text_of(&branch));
    home.write_problems(|n| n % 7);
    let _ = std::fs::remove_dir_all(home.at("branch"));
    let branch = home.train("branch", &["--from", "run", "--phase", "base"]);
    assert!(branch.status.success(), "{}", text_of(&branch));
    damage(&home.at("branch/base/checkpoint/model.safetensors"));
    let changed = home.train("branch", &["--resume"]);
    assert!(
        changed.status.code() == Some(2) && text_of(&changed).contains("weights have changed"),
        "{}",
        text_of(&changed)
    );
}

/// Replacing a state removes the folder that it names: it may only name its own.
#[test]
fn a_state_cannot_name_other_folders() {
    let home = MiniRun::new();
    let begun = home.train("run", &["--only", "base,annotate,boundary"]);
    assert!(begun.status.success(), "{}", text_of(&begun));
    let (phase, kept) = (home.at("run/sft"), home.at("kept"));
    for folder in [&phase, &kept] {
        std::fs::create_dir(folder).expect("made");
    }
    std::fs::write(kept.join("file"), "kept").expect("written");
    for named in ["../../kept", &kept.display().to_string(), "..", ".", "", "checkpoint", "state-0000002"] {
        let state = serde_json::json!({ "folder": named, "step": 1, "sums": ["", ""] }).to_string();
        std::fs::write(phase.join("state.json"), state).expect("written");
        let output = home.train("run", &["--resume"]);
        let said = text_of(&output);
        assert_eq!(output.status.code(), Some(2), "{named}: {said}");
        assert!(said.contains("state.json: not a training state"), "{named}: {said}");
        assert!(kept.join("file").is_file() && home.at("run/base/checkpoint").is_dir(), "{named}");
    }
}

/// A phase without learning reports that, and no test next to it.
#[test]
fn a_phase_without_learning_is_not_a_result() {
    let home = MiniRun::new();
    let begun = home.train("trunk", &["--only", "base,annotate,boundary,sft", "--set", "grpo.steps=0"]);
    assert!(begun.status.success() && !text_of(&begun).contains("learnt nothing"), "{}", text_of(&begun));
    for (name, set, needles) in [
        (
            "dropped",
            "grpo.max_positions=3",
            ["12 of 12 rollouts were dropped", "12 longer than grpo.max_positions = 3"],
        ),
        ("equal", "evaluation.max_new_tokens=1", ["4 of 4 groups had equal rewards", "no update in 2 steps"]),
    ] {
        let output = home.train(name, &["--from", "trunk", "--set", set]);
        let said = text_of(&output);
        assert!(output.status.success(), "{said}");
        let summary = std::fs::read_to_string(home.at(name).join("summary.md")).expect("a summary");
        for place in [&said, &summary] {
            assert!(place.contains("warning: grpo learnt nothing"), "{name}: {place}");
            assert!(needles.iter().all(|needle| place.contains(needle)), "{name}: {place}");
            assert!(!place.contains("McNemar") && !place.contains("-0.000"), "{name}: {place}");
        }
        let rows = switchyard::store::read_flat(&home.at(name).join("grpo/metrics.parquet")).expect("rows");
        assert!(rows.iter().all(|row| row["updates"] == 0), "{rows:?}");
        let none = rows.iter().all(|row| row["reward"].is_null() && row["accuracy"].is_null());
        assert_eq!(none, name == "dropped", "terms without rollouts are absent: {rows:?}");
    }
    let idle = home
        .train("idle", &["--from", "trunk", "--phase", "annotate", "--set", "boundary.steps=0", "--only", "boundary"]);
    assert!(text_of(&idle).contains("warning: boundary learnt nothing"), "{}", text_of(&idle));
    // Reused and measured again, it learnt no more.
    let set = ["--set", "boundary.steps=0", "--set", "evaluation.max_new_tokens=1"];
    let again = home.train("again", &[&["--from", "idle", "--only", "boundary"][..], &set].concat());
    assert!(text_of(&again).contains("warning: boundary learnt nothing"), "{}", text_of(&again));
}

/// Runs in this process, stopped after every step and resumed, to the end.
fn lives(preset: &str, set: &[&str], out: &Path, stop: fn() -> bool) -> Result<usize, String> {
    let short = ["data.rows=40", "evaluation.problems=6", "grpo.questions=2", "grpo.group=4", "grpo.cosine_every=0"];
    let set: Vec<String> = short.iter().chain(set).map(|set| (*set).to_owned()).collect();
    for life in 0.. {
        let mut recipe = Recipe::resolve(preset, &set).expect("a recipe");
        recipe.methods = vec!["switch".into()];
        let options = Options {
            dry: false,
            out: out.to_owned(),
            resume: out.join("recipe.toml").exists(),
            only: vec![],
            from: vec![],
            threads: 1,
            command: "train".into(),
            device: Device::flex(),
            world: World::ALONE,
            stop,
        };
        match run(recipe, options) {
            Ok(RunEnd::Finished(_)) => return Ok(life),
            Ok(RunEnd::Stopped) => {}
            Err(why) => return Err(format!("{why:#}").replace(&out.display().to_string(), "OUT")),
        }
    }
    unreachable!("a run ends")
}

/// A run that is stopped after each step ends like an uninterrupted one: same files, result and error.
#[test]
fn a_run_stopped_at_every_step_equals_an_uninterrupted_one() {
    let steps = ["base.steps=5", "boundary.steps=3", "latent.stages=[{k=1,steps=2},{k=5,steps=3}]", "grpo.steps=5"];
    let (mut finished, mut failed) = (0, vec![]);
    for more in [
        vec!["grpo.early_stop_window=2", "grpo.from_step=2", "grpo.keep_every=2"],
        // Never finite after the first step: the third such step in a row ends the run, despite the stops.
        vec!["base.learning_rate=1e18", "base.warmup=0"],
        vec!["latent.learning_rate=1e18", "latent.warmup=0"],
        vec!["grpo.learning_rate=1e18", "grpo.inner_epochs=1"],
        vec!["grpo.learning_rate=1e18", "grpo.inner_epochs=2"],
    ] {
        let home = tempfile::tempdir().expect("a folder");
        let [whole, broken] = ["whole", "broken"].map(|name| home.path().join(name));
        let set = [steps.as_slice(), &more].concat();
        let undisturbed = lives("smoke", &set, &whole, || false);
        let stopped = lives("smoke", &set, &broken, || true);
        match (undisturbed, stopped) {
            (Ok(one), Ok(many)) => {
                assert!(one == 0 && many > 10, "{more:?}: {many} lives");
                assert_eq!(difference(&whole, &broken), None, "{more:?}");
                finished += 1;
            }
            (Err(one), Err(many)) => {
                assert_eq!(one, many, "{more:?}");
                failed.push(one);
            }
            other => panic!("{more:?}: undisturbed and stopped end otherwise: {other:?}"),
        }
    }
    assert!(
        finished > 0 && failed.iter().any(|why| why.contains("3 steps in a row")),
        "{finished} finished, {failed:?}"
    );
}

/// The same with LoRA: states contain the trained parameters, checkpoints are adapters, and the rest is read from the base.
#[test]
fn a_lora_run_stopped_at_every_step_equals_an_uninterrupted_one() {
    for (lora, dtype) in [
        ("lora={ rank = 2, alpha = 4.0, only_new_rows = true }", "f32"),
        ("lora={ rank = 2, alpha = 4.0 }", "f32"),
        ("lora={ rank = 2, alpha = 4.0, only_new_rows = false, train_embeddings = false }", "bf16"),
    ] {
        let home = MiniRun::new();
        let [model, data, preset] =
            ["model", "data.jsonl", "mini.toml"].map(|name| home.at(name).display().to_string());
        let (pretrained, data) = (format!("pretrained={model:?}"), format!("data.path={data:?}"));
        let dtype = format!("optimizer.dtype={dtype:?}");
        let set = [lora, &pretrained, &data, &dtype, "optimizer.weight_decay=0.0", "grpo.keep_every=1"];
        let [whole, broken] = ["whole", "broken"].map(|name| home.at(name));
        assert_eq!(lives(&preset, &set, &whole, || false), Ok(0), "{lora}");
        let many = lives(&preset, &set, &broken, || true).expect("it ends");
        assert!(many > 6, "{lora}: {many} lives");
        assert_eq!(difference(&whole, &broken), None, "{lora}");
        for phase in ["base", "boundary", "sft", "grpo_step1", "grpo"] {
            let folder = broken.join(phase);
            assert!(folder.join("checkpoint/adapter_model.safetensors").is_file(), "{lora}: {phase}");
            assert!(!folder.join("checkpoint/model.safetensors").exists(), "{lora}: {phase}");
            assert!(!folder.join("state.json").exists(), "{lora}: {phase}");
        }
    }
}

/// A run's manifest has the hash of the recipe as written at its start: the order of tables must not change.
#[test]
fn tables_of_a_recipe_have_the_order_of_committed_runs() {
    let tables = |text: &str| text.lines().filter(|line| line.starts_with('[')).map(str::to_owned).collect::<Vec<_>>();
    let text = std::fs::read_to_string("fixtures/micro-paper/recipe.toml").expect("a recipe");
    let recipe: Recipe = toml::from_str(&text).expect("a recipe");
    assert_eq!(tables(&toml::to_string(&recipe).expect("TOML")), tables(&text));
}
