//! A user's own model and data: inapplicable experiments are skipped, and errors name their cause.

use crate::common::programs::{self, offline, text};
use crate::common::relative;
use serde_json::json;
use std::path::{Path, PathBuf};
use switchyard::model::checkpoint::peft::Adapter;
use switchyard::model::checkpoint::{Dtype, ModelFiles, SaveOptions, save_hf_folder};
use tempfile::TempDir;

const MICRO: &str = "fixtures/micro/sft/checkpoint";

#[track_caller]
fn refused(program: &str, args: &[&str], parts: &[&str]) {
    programs::refused(&mut offline(program, args), parts);
}

#[track_caller]
fn done(program: &str, args: &[&str]) -> (String, String) {
    programs::done(&mut offline(program, args))
}

/// Sums modulo 7 as JSONL with these keys, in micro's vocabulary.
fn problems(folder: &Path, name: &str, keys: [&str; 2], n: usize) -> PathBuf {
    let line = |i: usize| {
        let (a, b) = (i % 7, (3 * i + 1) % 7);
        json!({ keys[0]: format!("a = {a} ; h = a + {b} ; ? h :"), keys[1]: ((a + b) % 7).to_string() }).to_string()
    };
    let file = folder.join(name);
    std::fs::write(&file, (0..n).map(line).collect::<Vec<_>>().join("\n")).expect("a file");
    file
}

#[test]
fn plain_probe_skips_inapplicable_experiments() {
    let temp = tempfile::tempdir().expect("a folder");
    let (data, out) = (problems(temp.path(), "own.jsonl", ["question", "answer"], 12), temp.path().join("out"));
    let (shown, said) = done("probe", &[MICRO, "--all", "--like", "micro", "--data", text(&data), "--out", text(&out)]);
    for experiment in ["teacher_forced", "switch_window", "layer_probe", "direct_logit"] {
        let lines =
            said.lines().filter(|line| line.starts_with(&format!("{experiment}-checkpoint: left out: "))).count();
        assert_eq!(lines, 1, "{experiment}: {said}");
    }
    assert!(said.contains("have no worked solution"), "{said}");
    for experiment in ["accuracy", "outcomes", "logit_lens"] {
        assert!(out.join(format!("{experiment}-checkpoint.parquet")).is_file(), "{experiment}: {said}");
    }
    let wide: Vec<&str> = shown.lines().filter(|line| line.chars().count() > 80 && line.contains("  ")).collect();
    assert!(wide.is_empty(), "wider than 80 columns: {wide:?}");
    // An experiment requested by name gives an error, too.
    let named = ["--like", "micro", "--data", text(&data), "--out", text(&out), "--only", "teacher_forced"];
    refused("probe", &[&[MICRO][..], &named].concat(), &["teacher_forced", "worked solution"]);
    let (_, said) =
        done("intervene", &[MICRO, "--like", "micro", "--data", text(&data), "--out", text(&out), "--draws", "1"]);
    assert!(said.contains("no activation_patching"), "{said}");
}

#[test]
fn plain_intervene_skips_modes_without_numbers_or_pairs() {
    let temp = TempDir::new().expect("a temporary folder");
    let graph = ["fixtures/micro-graph", "--problems", "40", "--out", text(temp.path())];
    let (_, said) = done("intervene", &graph);
    for experiment in ["activation_patching", "head_patching"] {
        let left_out = format!(
            "no {experiment}: micro-graph/sft: {experiment} needs a generated task to make pairs from; problems of `graph` have no start value"
        );
        assert!(said.contains(&left_out), "{said}");
    }
    let rows = std::fs::read_to_string(temp.path().join("latent_intervention-sft.csv")).expect("rows");
    assert!(rows.contains(",resample,") && !rows.contains("known_value"), "{rows}");
    // An experiment requested by name gives an error.
    let named = |args: &[&'static str]| [&["fixtures/micro-graph", "--out", "/nonexistent/rows"][..], args].concat();
    refused("intervene", &named(&["--modes", "known_value"]), &["whose steps have numbers"]);
    refused("intervene", &named(&["--only", "steering"]), &["steering needs a generated task"]);
}

#[test]
fn custom_keys_have_a_flag() {
    let temp = tempfile::tempdir().expect("a folder");
    let (data, out) = (problems(temp.path(), "eigene.jsonl", ["frage", "antwort"], 6), temp.path().join("out"));
    let base = [MICRO, "--like", "micro", "--data", text(&data), "--out", text(&out), "--only", "outcomes"];
    refused("probe", &base, &["eigene.jsonl:1", "frage"]);
    done("probe", &[&base[..], &["--field", "question=frage,answer=antwort"]].concat());
    for (field, parts) in [
        ("question=frage,answer=loesung", &["eigene.jsonl:1", "loesung"][..]),
        ("qestion=frage", &["did you mean `question`?"]),
        ("frage", &["question=frage"]),
    ] {
        refused("probe", &[&base[..], &["--field", field]].concat(), parts);
    }
    refused("probe", &["--field", "question=frage"], &["--data"]);
}

/// Four problems in micro's vocabulary, with these keys for question, solution and answer.
fn sums(folder: &Path, [question, solution, answer]: [&str; 3]) -> PathBuf {
    let row = |a: usize| {
        let (asked, way) = (format!("a = {a} ; h = a + 2 ; ? h :"), format!("h = {a} + 2 = {} ; # {}", a + 2, a + 2));
        json!({ question: asked, solution: way, answer: (a + 2).to_string() }).to_string()
    };
    let path = folder.join("eigene.jsonl");
    std::fs::write(&path, (0..4).map(row).collect::<Vec<_>>().join("\n")).expect("a file");
    path
}

/// One step per phase.
fn short() -> Vec<&'static str> {
    let settings = "data.template=words data.test_rows=2 evaluation.problems=2 evaluation.max_new_tokens=12 boundary.steps=1 \
        latent.stages=[{k=1,steps=1}] grpo.steps=1 grpo.questions=1";
    settings.split(' ').flat_map(|key| ["--set", key]).collect()
}

/// The base is read in bf16 layer by layer, but not factors, tables and heads: every phase must combine them.
#[test]
fn a_pretrained_model_trains_all_phases_in_bf16() {
    let temp = tempfile::tempdir().expect("a folder");
    let (data, out) = (sums(temp.path(), ["question", "solution", "answer"]), temp.path().join("out"));
    let base = ["--preset", "smollm2-gsm8k", "--model", MICRO, "--data", text(&data), "--out", text(&out)];
    let phases = ["--dtype", "bf16", "--only", "base,annotate,boundary,sft,grpo"];
    let short = short();
    done("train", &[&base[..], &phases, &short].concat());
    for phase in ["sft", "grpo"] {
        let args = ["generate", text(&out), "--phase", phase, "--dtype", "bf16", "--prompt", "? h :"];
        done("probe", &[&args[..], &["--max-new-tokens", "2"]].concat());
    }
}

/// A base in its stored format: every phase writes an adapter over it, and every program opens that.
#[test]
fn a_pretrained_model_trains_all_phases_in_its_stored_format() {
    let temp = tempfile::tempdir().expect("a folder");
    let (data, model) = (sums(temp.path(), ["question", "solution", "answer"]), temp.path().join("model"));
    let micro = ModelFiles::open_folder(MICRO).expect("opens");
    let files = micro.text_files(None).expect("its tokenizer");
    let options = SaveOptions { dtype: Dtype::BF16, files, ..SaveOptions::default() };
    save_hf_folder(&model, &micro.config, micro.tensors(), &options).expect("writes");
    let short = short();
    for (name, only_new_rows) in [("whole", false), ("rows", true)] {
        let out = temp.path().join(name);
        let rows = format!("lora.only_new_rows={only_new_rows}");
        let base = ["--preset", "smollm2-gsm8k", "--model", text(&model), "--data", text(&data), "--out", text(&out)];
        let phases = ["--dtype", "stored", "--only", "base,annotate,boundary,sft,grpo", "--set", &rows];
        done("train", &[&base[..], &phases, &short].concat());
        for phase in ["base", "boundary", "sft", "grpo"] {
            let checkpoint = out.join(phase).join("checkpoint");
            assert!(checkpoint.join("adapter_model.safetensors").is_file(), "{}", checkpoint.display());
            assert!(!checkpoint.join("model.safetensors").exists(), "{}", checkpoint.display());
        }
        // The pretrained model, untrained.
        let adapter = Adapter::open(out.join("base/checkpoint")).expect("opens");
        assert_eq!(adapter.config.r, 1);
        let tokens = |dtype: &str| {
            let args =
                ["generate", text(&out), "--phase", "grpo", "--dtype", dtype, "--prompt", "? h :", "--max-new-tokens"];
            done("probe", &[&args[..], &["6"]].concat()).0
        };
        assert_eq!(tokens("stored"), tokens("f32"), "merged factors equal separate ones");
        let rows = temp.path().join("rows");
        done("probe", &[text(&out), "--phase", "sft", "--only", "accuracy,outcomes", "--out", text(&rows)]);
    }
    // The adapter as the start of another run: written over the first base, or an error if weights would be lost.
    let further = |from: &str, out: &str| {
        let (from, out) = (temp.path().join(from).join("sft/checkpoint"), temp.path().join(out));
        let base = ["--preset", "smollm2-gsm8k", "--data", text(&data), "--dtype", "stored"];
        let base = [&base[..], &["--only", "base,annotate,boundary"]].concat();
        let own = ["--model", text(&from), "--out", text(&out), "--set", "lora.only_new_rows=true"];
        [&base[..], &own, &short].concat().iter().map(|arg| (*arg).to_owned()).collect::<Vec<String>>()
    };
    let args = further("rows", "further");
    done("train", &args.iter().map(String::as_str).collect::<Vec<_>>());
    let adapter = Adapter::open(temp.path().join("further/boundary/checkpoint")).expect("opens");
    let base = std::fs::canonicalize(&model).expect("there");
    assert_eq!(adapter.config.base_model.as_deref(), base.to_str());
    assert_eq!(adapter.config.r, 3 * 32, "boundary and sft of the first run, boundary of this one");
    let args = further("whole", "lost");
    let args = args.iter().map(String::as_str).collect::<Vec<_>>();
    refused("train", &args, &["embed_tokens", "whole weights", "--dtype f32"]);

    // A method with extra heads, which are trained in full next to the factors.
    let out = temp.path().join("heads");
    let base = ["--preset", "smollm2-gsm8k", "--model", text(&model), "--data", text(&data), "--out", text(&out)];
    let phases = ["--dtype", "stored", "--method", "colar", "--set", "colar.steps=1"];
    done("train", &[&base[..], &phases, &short].concat());
    assert!(out.join("colar/checkpoint/heads.safetensors").is_file());
    done("probe", &["generate", text(&out), "--phase", "colar", "--prompt", "? h :", "--max-new-tokens", "2"]);
    refused("train", &["--preset", "smoke", "--dtype", "stored"], &["optimizer.dtype", "stored", "[lora]"]);
    let other = ["--preset", "smollm2-gsm8k", "--model", text(&model), "--data", text(&data), "--dtype", "stored-bf16"];
    refused("train", &other, &["stored-bf16", "examined"]);
}

/// Factors over floats are also written as an adapter: no phase copies the base, and the model equals that of a whole checkpoint.
#[test]
fn factors_over_floats_are_written_as_adapters() {
    let temp = tempfile::tempdir().expect("a folder");
    let (data, model) = (sums(temp.path(), ["question", "solution", "answer"]), temp.path().join("model"));
    programs::copy(Path::new(MICRO), &model);
    let short = short();
    let train = |out: &Path, more: &[&str]| {
        let base = ["--preset", "smollm2-gsm8k", "--model", text(&model), "--data", text(&data), "--out", text(out)];
        let own = ["--set", "lora.rank=2", "--set", "lora.only_new_rows=true", "--set", "grpo.keep_every=1"];
        done("train", &[&base[..], &own, &short, more].concat());
    };
    let [out, whole] = ["run", "whole"].map(|name| temp.path().join(name));
    train(&out, &["--set", "grpo.steps=2"]);
    let config = ModelFiles::open_folder(&model).expect("opens").config;
    let (layers, d, ffn) = (config.num_hidden_layers, config.hidden_size, config.intermediate_size);
    let (q, kv) = (config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim);
    for (nth, phase) in ["base", "boundary", "sft", "grpo_step1", "grpo"].into_iter().enumerate() {
        let folder = out.join(phase).join("checkpoint");
        let adapter = Adapter::open(&folder).unwrap_or_else(|why| panic!("{phase}: {why:#}"));
        // The base was not trained: zeros of rank 1 at the queries only. Reinforcement learns only if rewards differ.
        let (rank, known) = (adapter.config.r, [&[1][..], &[2], &[4], &[4, 6], &[4, 6]][nth]);
        assert!(known.contains(&rank), "{phase}: rank {rank}");
        let factors = if nth == 0 { d + q } else { 2 * (d + q) + 2 * (d + kv) + 3 * (d + ffn) };
        let floats = layers * rank * factors + 3 * d;
        let tensors = layers * if nth == 0 { 2 } else { 14 } + 1;
        let bytes = std::fs::metadata(folder.join("adapter_model.safetensors")).expect("there").len() as usize;
        assert!((4 * floats..4 * floats + 256 * tensors).contains(&bytes), "{phase}: {bytes} for {floats} floats");
        assert!(!folder.join("model.safetensors").exists(), "{phase}");
        let left = std::fs::read_dir(out.join(phase)).expect("a folder").flatten();
        let left: Vec<_> = left.filter(|entry| entry.file_name().to_string_lossy().starts_with("state")).collect();
        assert!(left.is_empty(), "{phase}: {left:?}");
    }
    // Every program opens it, in every dtype.
    for dtype in ["f32", "stored", "bf16"] {
        let args = ["generate", text(&out), "--phase", "grpo", "--dtype", dtype, "--prompt", "? h :"];
        done("probe", &[&args[..], &["--max-new-tokens", "2"]].concat());
    }
    let rows = temp.path().join("rows");
    done("probe", &[text(&out), "--phase", "sft", "--only", "accuracy,outcomes", "--out", text(&rows)]);
    done("intervene", &[text(&out), "--phase", "sft", "--modes", "zero", "--out", text(&rows)]);
    // The same training with whole checkpoints differs only by rounding if the phase began with the same bits.
    train(&whole, &["--set", "checkpoint.whole=true", "--only", "base,annotate,boundary"]);
    let [ours, theirs] = [&out, &whole].map(|run| run.join("boundary/checkpoint"));
    assert!(theirs.join("model.safetensors").is_file() && !theirs.join("adapter_config.json").exists());
    let [ours, theirs] = [ours, theirs].map(|folder| ModelFiles::open_folder(folder).expect("opens"));
    assert_eq!(ours.config.vocab_size, theirs.config.vocab_size);
    for (ours, theirs) in ours.tensors().zip(theirs.tensors()) {
        let ((name, ours), (_, theirs)) = (ours.expect("reads"), theirs.expect("reads"));
        let off = relative(&ours.data, &theirs.data);
        assert!(off < 3e-7, "{name}: off by {off:e}");
    }
    // A branch of a run with whole checkpoints also writes whole ones: their difference from the base is unknown.
    let branch = temp.path().join("branch");
    train(&branch, &["--from", text(&whole), "--only", "base,annotate,boundary,sft"]);
    assert!(branch.join("sft/checkpoint/model.safetensors").is_file());
    // A branch of a run with adapters also writes adapters.
    let branch = temp.path().join("further");
    train(&branch, &["--from", text(&out), "--phase", "boundary", "--only", "base,annotate,boundary,sft"]);
    assert_eq!(Adapter::open(branch.join("sft/checkpoint")).expect("opens").config.r, 4);
    // Another model at the base's path, and none.
    let weights = model.join("model.safetensors");
    let kept = temp.path().join("kept.safetensors");
    std::fs::rename(&weights, &kept).expect("moved");
    let other = ModelFiles::open_folder(MICRO).expect("opens");
    let changed = other.tensors().map(|read| {
        let (name, mut tensor) = read?;
        tensor.data.iter_mut().for_each(|x| *x *= 1.5);
        Ok((name, tensor))
    });
    let elsewhere = temp.path().join("elsewhere");
    save_hf_folder(&elsewhere, &other.config, changed, &SaveOptions::default()).expect("writes");
    std::fs::copy(elsewhere.join("model.safetensors"), &weights).expect("copied");
    let args = ["generate", text(&out), "--phase", "sft", "--prompt", "? h :", "--max-new-tokens", "2"];
    refused("probe", &args, &["sft/checkpoint/base.json", "differs", "--adapter"]);
    std::fs::remove_file(&weights).expect("removed");
    refused("probe", &args, &["sft/checkpoint/adapter_config.json", "base_model_name_or_path", "link"]);
    std::fs::rename(&kept, &weights).expect("moved back");
    done("probe", &args);
    let stored = ["--preset", "smollm2-gsm8k", "--model", text(&model), "--data", text(&data), "--dtype", "stored"];
    refused("train", &[&stored[..], &["--set", "checkpoint.whole=true"]].concat(), &["checkpoint.whole", "stored"]);
}

#[test]
fn training_accepts_custom_keys() {
    let temp = tempfile::tempdir().expect("a folder");
    let (data, out) = (sums(temp.path(), ["frage", "weg", "antwort"]), temp.path().join("out"));
    let base =
        ["--preset", "smollm2-gsm8k", "--model", MICRO, "--data", text(&data), "--out", text(&out), "--only", "base"];
    let small = ["--set", "data.template=words", "--set", "data.test_rows=2", "--set", "evaluation.problems=2"];
    let base = [&base[..], &small[..]].concat();
    refused("train", &base, &["eigene.jsonl:1", "frage"]);
    done("train", &[&base[..], &["--field", "question=frage,answer=antwort,solution=weg"]].concat());
    let recipe = std::fs::read_to_string(out.join("recipe.toml")).expect("the run's recipe");
    assert!(recipe.contains("solution = \"weg\""), "{recipe}");
    refused("train", &["--preset", "smoke", "--field", "question=frage"], &["--field", "--data"]);
}

#[test]
fn missing_files_and_tokens_are_named() {
    for (program, args, parts) in [
        ("probe", &["/no/such/model"][..], ["/no/such/model", "no such folder or file"]),
        ("probe", &["runs/no-such-run"], ["runs/no-such-run", "no such folder or file"]),
        ("probe", &[MICRO, "--like", "micro", "--data", "/no/such.jsonl"], ["--data /no/such.jsonl", "no such file"]),
        ("probe", &["--resume", "--out", "/tmp/no-such-results"], ["--resume", "/tmp/no-such-results"]),
        ("intervene", &["--resume", "--out", "/tmp/no-such-results"], ["--resume", "/tmp/no-such-results"]),
        ("train", &["--preset", "smoke", "--resume", "--out", "/tmp/no-such-run"], ["--resume", "/tmp/no-such-run"]),
    ] {
        refused(program, args, &parts);
    }
    // The named preset's template uses a token that micro lacks.
    let temp = tempfile::tempdir().expect("a folder");
    let data = problems(temp.path(), "own.jsonl", ["question", "answer"], 3);
    refused("probe", &[MICRO, "--like", "smollm2-gsm8k", "--data", text(&data)], &["--like", "<|im_end|>"]);
}

#[test]
fn a_mistyped_name_is_recognised() {
    refused("probe", &["--only", "accurcy"], &["did you mean `accuracy`?"]);
    refused("intervene", &["--phase", "sft", "--modes", "zeroo"], &["did you mean `zero`?"]);
    refused("train", &["--preset", "mikro"], &["did you mean `micro`?"]);
    refused("train", &["--method", "coconutt"], &["did you mean `coconut`?"]);
    refused("probe", &["--only", "entirely_else"], &["there are accuracy"]);
}

#[test]
fn generate_and_activations_accept_runs() {
    let prompt = ["--prompt", "<bos> a = 5 ; h = a + 4 ; ? h :"];
    let of = |more: &[&str]| done("probe", &[&["generate"][..], more, &prompt].concat()).0;
    let run = of(&["fixtures/micro", "--phase", "sft"]);
    assert_eq!(run, of(&["--model", MICRO]));
    assert_eq!(of(&["fixtures/micro"]), of(&["--model", "fixtures/micro/grpo/checkpoint"]), "the last phase");
    assert_eq!(of(&[]), of(&["fixtures/micro"]), "as probe: the committed run");
    for (phase, parts) in
        [("codi", ["phase `codi`", "grpo_start, sft"]), ("sfft", ["did you mean `sft`?", "there are "])]
    {
        refused("probe", &[&["generate", "fixtures/micro", "--phase", phase][..], &prompt].concat(), &parts);
        refused("probe", &["fixtures/micro", "--phase", phase], &parts);
    }
    refused("probe", &[&["generate", MICRO, "--phase", "sft"][..], &prompt].concat(), &["--phase"]);
    let temp = tempfile::tempdir().expect("a folder");
    let out = temp.path().join("acts.safetensors");
    let args = ["activations", "fixtures/micro", "--phase", "sft", "--logits", "--out", text(&out)];
    done("probe", &[&args[..], &prompt].concat());
    assert!(out.is_file());
}

#[test]
fn words_that_the_model_has_no_token_for_are_named() {
    let said = |prompt: &str| {
        let model = "fixtures/micro/sft/checkpoint";
        done("probe", &["generate", "--model", model, "--prompt", prompt, "--max-new-tokens", "2"]).1
    };
    assert!(!said("<bos> a = 5 ; h = a + 4 ; ? h :").contains("warning"));
    assert!(!said("<bos> a = <unk> ; ? a :").contains("warning"), "asked for");
    let warned = said("a = 5 ; ? a :");
    assert!(warned.contains("warning: 1 of 1 prompts do not begin with <bos>"), "{warned}");
    let warned = said("<bos> a = 5 ; h = a + seventeen ; ? zebra :");
    assert!(warned.contains("warning: 1 of 1 prompts") && warned.contains("`seventeen`, `zebra`"), "{warned}");
    let folder = tempfile::tempdir().expect("a folder");
    let (data, out) = (folder.path().join("own.jsonl"), folder.path().join("out"));
    let row = |question: &str| json!({ "question": question, "answer": "3" }).to_string();
    std::fs::write(&data, [row("a = 3 ; ? a :"), row("a = 3 ; ? zebra :")].join("\n")).expect("a file");
    let probe = [MICRO, "--like", "micro", "--data", text(&data), "--only", "outcomes", "--out", text(&out)];
    let warned = done("probe", &probe).1;
    assert!(warned.contains("warning: 1 of 2 problems have words") && warned.contains("`zebra`"), "{warned}");
}

/// Both columns of the main table, each from rows on its own problems.
#[test]
fn two_data_sets_are_side_by_side_in_one_folder() {
    let temp = tempfile::tempdir().expect("a folder");
    let out = temp.path().join("out");
    std::fs::create_dir(temp.path().join("gsm8k")).expect("a folder");
    let first = problems(temp.path(), "math500.jsonl", ["question", "answer"], 12);
    let second = problems(temp.path(), "gsm8k/test.jsonl", ["question", "answer"], 8);
    let common = ["fixtures/micro", "--phase", "grpo", "--only", "accuracy", "--out", text(&out), "--data"];
    done("probe", &[&common[..], &[text(&first)]].concat());
    refused("probe", &[&common[..], &[text(&second)]].concat(), &["--replace"]);
    done("probe", &[&common[..], &[text(&second), "--beside"]].concat());
    assert!(out.join("accuracy-grpo-on-gsm8k.parquet").is_file());
    done("report", &[text(&out), "--paper"]);
    let table = std::fs::read_to_string(out.join("tables/tab-main.md")).expect("a table");
    let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let heads = cells(table.lines().find(|line| line.contains("(paper)")).expect("a heading"));
    let row = cells(table.lines().find(|line| line.contains("after Switch-GRPO")).expect("a row"));
    for column in ["MATH-500 Acc. (ours)", "GSM8K Acc. (ours)"] {
        let at =
            heads.iter().position(|head| head.starts_with(column)).unwrap_or_else(|| panic!("{column}: {heads:?}"));
        assert!(row[at].contains('['), "{column}: {row:?}");
    }
}
