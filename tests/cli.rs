//! The binary `probe`: its output, its files, and its errors for bad input.

use std::path::{Path, PathBuf};
use std::process::Output;

use crate::common::programs::{copy, done, offline, probe_refuses, program, run_probe, text_of};
use crate::common::{load_tensors, tiny_config, word_vocabulary};
use serde_json::{Value, json};
use switchyard::model::checkpoint::{HostTensor, SaveOptions, save_hf_folder};
use switchyard::model::config::{Family, ModelConfig};
use switchyard::model::{Decoder, Hooks};
use tempfile::TempDir;

fn probe(args: &[&str]) -> Output {
    offline("probe", args).output().expect("the binary runs")
}

/// A folder with a tiny word-level model that often switches.
struct Fixture {
    dir: TempDir,
    config: ModelConfig,
}

impl Fixture {
    fn new() -> Self {
        let vocabulary = word_vocabulary();
        let config =
            ModelConfig { vocab_size: vocabulary.size(), eos_token_ids: vec![2], ..tiny_config(Family::Qwen3, true) };
        let model = Decoder::random(&config, 2, &burn::tensor::Device::flex()).expect("a model");
        let switch = vocabulary.switch().expect("switch tokens");
        let mut weights = model.export().expect("weights");
        for (name, table) in &mut weights {
            if name.as_str() == "model.embed_tokens.weight" {
                for id in [switch.swi, switch.swi_end] {
                    let row = id as usize * 16;
                    table.data[row..row + 16].iter_mut().for_each(|x| *x *= 2.0);
                }
            }
        }
        let fixture = Self { dir: tempfile::tempdir().expect("a folder"), config };
        fixture.save("model", weights);
        vocabulary.save(fixture.path("model")).expect("a tokenizer");
        fixture
    }

    fn save(&self, name: &str, weights: Vec<(String, HostTensor)>) {
        let weights = weights.into_iter().map(Ok);
        save_hf_folder(&self.path(name), &self.config, weights, &SaveOptions::default()).expect("saves");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// A copy of the model folder, to be damaged.
    fn copy(&self, name: &str) -> PathBuf {
        let to = self.path(name);
        copy(&self.path("model"), &to);
        to
    }
}

/// Settings of `generation_config.json` that decoding here ignores give a warning; neutral ones do not.
#[test]
fn ignored_settings_of_a_generation_config_give_a_warning() {
    let fixture = Fixture::new();
    let model = fixture.text("model");
    let said = |generation: &Value| {
        std::fs::write(Path::new(&model).join("generation_config.json"), generation.to_string()).expect("written");
        let output = probe(&["generate", "--model", &model, "--ids", "5,6", "--max-new-tokens", "1"]);
        assert!(output.status.success());
        String::from_utf8(output.stderr).expect("UTF-8")
    };
    let neutral = json!({ "repetition_penalty": 1.0, "num_beams": 1, "suppress_tokens": [], "temperature": 0.6, "min_length": 0 });
    assert!(!said(&neutral).contains("generation_config"), "{}", said(&neutral));
    let asked = said(&json!({ "repetition_penalty": 1.5, "suppress_tokens": [3], "bad_words_ids": null }));
    assert!(asked.contains("`repetition_penalty` = 1.5") && asked.contains("`suppress_tokens` = [3]"), "{asked}");
    assert!(asked.contains("not applied") && !asked.contains("bad_words"), "{asked}");
}

#[test]
fn generate_prints_text_ids_and_json() {
    let fixture = Fixture::new();
    let model = fixture.text("model");
    let base = ["generate", "--model", &model, "--max-new-tokens", "12", "--ignore-eos", "--temperature", "1"];
    let json = run_probe(&[&base[..], &["--prompt", "w1 w2", "--json"]].concat());
    let value: Value = serde_json::from_str(&json).expect("one JSON object");
    let keys: Vec<&String> = value.as_object().expect("an object").keys().collect();
    assert_eq!(keys, ["tokens", "text", "shown", "trace"]);
    assert_eq!(value["tokens"].as_array().map(Vec::len), Some(12));
    assert!(value["text"].is_string() && value["trace"]["positions"].is_array());

    // Ids instead of text give the same answer, and so does the same seed.
    let prompt: Vec<String> =
        value["trace"]["prompt"].as_array().expect("ids").iter().map(ToString::to_string).collect();
    let again = run_probe(&[&base[..], &["--ids", &prompt.join(","), "--json"]].concat());
    assert_eq!(again, json);
    let other = run_probe(&[&base[..], &["--ids", &prompt.join(","), "--json", "--seed", "9"]].concat());
    assert_ne!(other, json);

    let plain = run_probe(&[&base[..], &["--prompt", "w1 w2"]].concat());
    assert!(!plain.contains('\x1b'), "colours in a pipe: {plain:?}");
}

#[test]
fn blocks_are_shown_as_chips() {
    let fixture = Fixture::new();
    let model = fixture.text("model");
    let run = |more: &[&str]| {
        let base = ["generate", "--model", &model, "--prompt", "w1 w2", "--temperature", "1.5", "--ignore-eos"];
        run_probe(&[&base[..], &["--max-new-tokens", "40", "--k-min", "3", "--k-cap", "3"], more].concat())
    };
    let plain = run(&[]);
    assert!(plain.contains("⟨swi 3⟩[0."), "no chip with its exits: {plain}");
    let value: Value = serde_json::from_str(&run(&["--json"])).expect("JSON");
    let positions = value["trace"]["positions"].as_array().expect("positions");
    let kinds: Vec<&str> = positions.iter().filter_map(|p| p["kind"].as_str()).collect();
    let starts = kinds.iter().filter(|k| **k == "swi").count();
    assert_eq!(plain.matches("⟨swi").count(), starts);

    // With the logit lens of each latent step, in the same run: an intervention changes it.
    let micro =
        ["generate", "fixtures/micro", "--phase", "sft", "--prompt", "<bos> a = 5 ; h = a + 4 ; ? h :", "--lens"];
    let read = run_probe(&micro);
    assert_eq!(read, "h = ⟨swi 5: + 4 = 2 </swi>⟩[0.00 0.00 0.00 0.00 1.00] ; # 2\n");
    let listed = run_probe(&[&micro[..micro.len() - 1], &["--lens=2"]].concat());
    let (first, steps) = listed.split_once('\n').expect("lines");
    assert_eq!(format!("{first}\n"), read);
    let steps: Vec<&str> = steps.lines().collect();
    assert!(steps.len() == 5 && steps.iter().all(|line| line.split_whitespace().count() == 5), "{listed}");
    assert!(steps[3].starts_with("latent[1,4]  2 0.9"), "{listed}");
    let changed = run_probe(&[&micro[..], &["--hook", "latent.hook_injected=zero"]].concat());
    assert!(changed.contains("⟨swi 5: ") && !changed.contains("+ 4 = 2"), "{changed}");
    let latents = positions.iter().filter(|p| p["kind"] == "latent");
    assert!(latents.clone().count() > 0);
    assert_eq!(value["tokens"].as_array().map(Vec::len), Some(kinds.len() - latents.count()));
}

#[test]
fn a_model_without_tokenizer_runs_on_ids() {
    let fixture = Fixture::new();
    let dir = fixture.copy("bare");
    std::fs::remove_file(dir.join("tokenizer.json")).expect("removes");
    let bare = fixture.text("bare");
    let json =
        run_probe(&["generate", "--model", &bare, "--ids", "5,6", "--json", "--max-new-tokens", "4", "--ignore-eos"]);
    let value: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((value["tokens"].as_array().map(Vec::len), &value["text"]), (Some(4), &Value::Null));
    probe_refuses(&["generate", "--model", &bare, "--prompt", "w1"], &["bare", "--ids"]);
}

#[test]
fn activations_are_those_of_the_model() {
    let fixture = Fixture::new();
    let (model, out) = (fixture.text("model"), fixture.text("acts.safetensors"));
    let hooks = "blocks.*.hook_resid_post,blocks.-1.attn.hook_pattern,hook_embed@pos[1]";
    run_probe(&["activations", "--model", &model, "--ids", "5,6,7", "--hooks", hooks, "--logits", "--out", &out]);
    let found = load_tensors(Path::new(&out));
    let shapes: Vec<(&str, &[usize])> = found.iter().map(|(n, (s, _))| (n.as_str(), s.as_slice())).collect();
    let v = fixture.config.vocab_size;
    assert_eq!(
        shapes,
        [
            ("blocks.0.hook_resid_post", &[1, 3, 16][..]),
            ("blocks.1.attn.hook_pattern", &[1, 4, 3, 3]),
            ("blocks.1.hook_resid_post", &[1, 3, 16]),
            ("hook_embed@pos[1]", &[1, 1, 16]),
            ("logits", &[1, 3, v]),
        ]
    );
    let checkpoint = switchyard::model::checkpoint::ModelFiles::open(&model).expect("opens");
    let decoder = Decoder::load(&checkpoint, &burn::tensor::Device::flex()).expect("loads");
    let logits = decoder.logits(&[vec![5, 6, 7]], &mut Hooks::none()).expect("a forward");
    assert!(crate::common::relative(&found["logits"].1, &crate::common::values(&logits)) < 1e-6);
    for row in found["blocks.1.attn.hook_pattern"].1.chunks(3) {
        assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-5);
    }
}

#[test]
fn prompts_of_a_file_equal_separate_calls() {
    let fixture = Fixture::new();
    let rows: Vec<Vec<u32>> = (0..5).map(|i| (0..2 + i % 3).map(|t| 4 + (i * 3 + t) % 8).collect()).collect();
    let lines: Vec<String> = rows.iter().map(|ids| json!({ "ids": ids }).to_string()).collect();
    std::fs::write(fixture.path("rows.jsonl"), lines.join("\n")).expect("writes");
    let (model, file) = (fixture.text("model"), fixture.text("rows.jsonl"));
    let tokens = |args: &[&str]| -> Vec<Value> {
        let base = ["generate", "--model", &model, "--max-new-tokens", "6", "--json"];
        let lines = run_probe(&[&base[..], args].concat());
        lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON")["tokens"].clone()).collect()
    };
    let alone = rows.iter().flat_map(|ids| {
        let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
        tokens(&["--ids", &ids.join(",")])
    });
    assert_eq!(tokens(&["--prompts", &file]), alone.collect::<Vec<_>>());
}

#[test]
fn activations_of_many_rows_equal_separate_calls() {
    let fixture = Fixture::new();
    let model = fixture.text("model");
    let switch = word_vocabulary().switch().expect("switch tokens");
    // More rows than one batch, one with a latent block.
    let mut rows: Vec<Vec<u32>> = (0..18).map(|i| (0..2 + i % 4).map(|t| 4 + (i * 3 + t) % 8).collect()).collect();
    rows[1] = vec![5, switch.swi, switch.latent, switch.latent, switch.swi_end, 6];
    let lines: Vec<String> = rows.iter().map(|ids| json!({ "ids": ids }).to_string()).collect();
    std::fs::write(fixture.path("rows.jsonl"), lines.join("\n")).expect("writes");
    let hooks = "blocks.1.hook_resid_post,blocks.0.attn.hook_pattern,latent.hook_source";
    let (file, out) = (fixture.text("rows.jsonl"), fixture.text("all.safetensors"));
    run_probe(&["activations", "--model", &model, "--prompts", &file, "--hooks", hooks, "--out", &out]);
    let all = load_tensors(Path::new(&out));
    let source = &all["latent.hook_source"];
    assert_eq!(source.0, [18, 2, 16]);
    assert!(source.1[..32].iter().all(|x| *x == 0.0), "row 0 has no latents");
    for (i, ids) in rows.iter().enumerate() {
        let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
        let one = fixture.text("one.safetensors");
        let hooks = "blocks.1.hook_resid_post,blocks.0.attn.hook_pattern";
        run_probe(&["activations", "--model", &model, "--ids", &ids.join(","), "--hooks", hooks, "--out", &one]);
        let one = load_tensors(Path::new(&one));
        let n = ids.len();
        let resid = &all["blocks.1.hook_resid_post"].1[i * 6 * 16..(i * 6 + n) * 16];
        assert!(crate::common::relative(resid, &one["blocks.1.hook_resid_post"].1) < 1e-5, "row {i}");
        for h in 0..4 {
            for q in 0..n {
                let from = ((i * 4 + h) * 6 + q) * 6;
                let row = &all["blocks.0.attn.hook_pattern"].1[from..from + n];
                let alone = &one["blocks.0.attn.hook_pattern"].1[(h * n + q) * n..(h * n + q + 1) * n];
                assert!(crate::common::relative(row, alone) < 1e-5, "row {i}, head {h}, query {q}");
            }
        }
    }
}

#[test]
fn bf16_decodes_other_probabilities_than_f32() {
    let fixture = Fixture::new();
    let model = fixture.text("model");
    let json = |dtype: &str| {
        let args = ["generate", "--model", &model, "--ids", "5,6", "--json", "--ignore-eos", "--dtype", dtype];
        serde_json::from_str::<Value>(&run_probe(&args)).expect("JSON")
    };
    assert_eq!(json("bf16")["tokens"].as_array().map(Vec::len), Some(256));
    assert_ne!(json("bf16"), json("f32"), "256 tokens with their log-probs, to the last digit");
}

#[test]
fn devices_are_chosen_listed_and_rejected_by_name() {
    let fixture = Fixture::new();
    let model = fixture.text("model");
    let list = run_probe(&["--list-devices"]);
    assert!(list.lines().any(|line| line.starts_with("cpu") && line.contains("f32, bf16")), "{list}");
    assert_eq!(run_probe(&["generate", "--list-devices"]), list);
    for name in ["train", "intervene"] {
        assert_eq!(done(program(name).arg("--list-devices")).0, list);
    }
    let report = program("report").args(["--device", "cpu"]).output().expect("it runs");
    assert_eq!(report.status.code(), Some(2), "report has no model to compute");

    fn generate<'a>(model: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        [&["generate", "--model", model, "--ids", "5"], more].concat()
    }
    probe_refuses(&generate(&model, &["--device", "tpu"]), &["--device tpu", "cpu"]);
    if !cfg!(feature = "cuda") {
        probe_refuses(&generate(&model, &["--device", "cuda:1"]), &["--device cuda:1", "--features cuda"]);
    }
    for (flag, bad) in [("--threads", "0"), ("--threads", "100000"), ("--dtype", "f8")] {
        let output = probe(&generate(&model, &[flag, bad]));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(flag) && said.contains(bad), "{said}");
    }
    // One prompt is one row: the thread count changes rounding, not tokens.
    let tokens = |threads: &str| {
        let args = generate(&model, &["--json", "--ignore-eos", "--max-new-tokens", "40", "--threads", threads]);
        serde_json::from_str::<Value>(&run_probe(&args)).expect("JSON")["tokens"].clone()
    };
    assert_eq!(tokens("1"), tokens("3"));
}

#[test]
fn whole_models_in_sixteen_bits_are_checked_against_f32() {
    let said = run_probe(&["check", "--part", "halves"]);
    for name in ["qwen3_tied", "llama_gqa"] {
        for what in ["logits, in one call", "logits, token by token", "gradient of the embeddings"] {
            let line = format!("{name} in bf16: {what}");
            let found =
                said.lines().find(|said| said.starts_with(&line)).unwrap_or_else(|| panic!("no {line}: {said}"));
            let off: f64 =
                found[line.len()..].split_whitespace().next().and_then(|x| x.parse().ok()).expect("a number");
            // bf16 has 8 significant bits: a difference of 0 would mean that f32 was compared with itself.
            assert!(off > 1e-3 && found.ends_with("pass"), "{found}");
        }
    }
    probe_refuses(&["check", "--part", "half"], &["`half`", "halves"]);
    probe_refuses(&["check", "--dtype", "bf16"], &["--dtype", "halves"]);
}

#[test]
fn a_bench_prints_every_requested_rate() {
    let fixture = Fixture::new();
    let model = fixture.text("model");
    let asked = ["--prompt", "40", "--new", "3", "--rows", "1,2", "--rounds", "2", "--train", "2", "--grpo", "2"];
    let said = run_probe(&[&["bench", &model, "--peak-tflops", "1"], &asked[..]].concat());
    assert!(said.lines().any(|line| line.starts_with("limit") && line.contains("1000.0 GFLOP/s")), "{said}");
    let decoded = ["decode 1 x 3 tokens", "decode 1 x 3 latents", "decode 2 x 3 tokens", "decode 2 x 3 latents"];
    for line in ["prefill 40", "train 2 x 40, f32", "grpo 2 x 3, f32"].iter().chain(&decoded) {
        let found = said.lines().find(|said| said.starts_with(line)).unwrap_or_else(|| panic!("no `{line}` in {said}"));
        let rate = found.split("tokens/s").next().and_then(|rate| rate.split_whitespace().last());
        let rate: f64 = rate.and_then(|rate| rate.parse().ok()).unwrap_or_else(|| panic!("no rate: {found}"));
        assert!(rate > 0.0 && found.contains("n = 2") && found.contains("% of the limit"), "{found}");
    }
    assert!(said.contains("peak resident memory") || !cfg!(target_os = "linux"), "{said}");
    let said = run_probe(&["bench", &model, "--training-only", "--train", "2", "--prompt", "40", "--rounds", "1"]);
    assert!(said.starts_with("train 2 x 40, f32"), "{said}");
    let forced = ["--cpu", "scalar", "--prompt", "3", "--new", "2", "--rows", "1", "--rounds", "1"];
    let said = run_probe(&[&["bench", &model], &forced[..]].concat());
    assert!(said.lines().any(|line| line.starts_with("vector instructions") && line.ends_with(" scalar")), "{said}");
    let refusal = offline("probe", &["bench", &model]).env("SWITCHYARD_CPU", "sse").output().expect("runs");
    let said = String::from_utf8_lossy(&refusal.stderr);
    assert!(!refusal.status.success() && said.contains("SWITCHYARD_CPU") && said.contains("\"sse\""), "{said}");
    for (bad, why) in [
        (&["--cpu", "sse"][..], "\"sse\" names no vector instructions"),
        (&["--rows", "0"], "--rows"),
        (&["--grpo", "1"], "advantage"),
        (&["--lora", "2"], "--train"),
        (&["--training-only"], "--train"),
        (&["--peak-tflops", "0"], "--peak-tflops"),
        (&["--launches", "--new", "1"], "--new"),
        (&["--dtype", "stored-bf16"], "no matrix is stored in bf16"),
        (&["--dtype", "stored-q8"], "no matrix is stored as integers"),
        (&["--dtype", "tf32"], "cpu does not compute in it"),
    ] {
        probe_refuses(&[&["bench", &model], bad].concat(), &[why]);
    }
    if !cfg!(feature = "gpu") {
        probe_refuses(&["bench", &model, "--launches"], &["no GPU", "--features"]);
    }
}

#[test]
fn eight_bit_inputs_are_for_decoding_and_their_cost_is_printed() {
    let [model, micro] =
        ["gguf/tiny-q4_0.gguf", "micro"].map(|name| format!("{}/fixtures/{name}", switchyard::store::CHECKOUT));
    let decode = ["generate", "--model", &model, "--ids", "5,6,7", "--max-new-tokens", "2", "--dtype", "stored-q8"];
    let output = probe(&decode);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains("mean KL from stored") && said.contains("of 3 positions"),
        "{said}"
    );
    // Many prompts are not all compared: their logits would fill the memory.
    let prompts = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(prompts.path(), "{\"ids\": [5, 6, 7]}\n".repeat(40)).expect("written");
    let prompts = prompts.path().display().to_string();
    let output =
        probe(&["generate", "--model", &model, "--prompts", &prompts, "--max-new-tokens", "1", "--dtype", "stored-q8"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("of 64 positions"), "{said}");
    probe_refuses(&["lens", "--model", &model, "--ids", "5,6", "--dtype", "stored-q8"], &["stored-q8", "use stored"]);
    probe_refuses(
        &[&micro, "--only", "accuracy,teacher_forced", "--dtype", "stored-q8"],
        &["teacher_forced", "--only"],
    );
    // Its weights are floats.
    probe_refuses(&[&micro, "--only", "accuracy", "--dtype", "stored-q8"], &["no matrix is stored as integers"]);
}

#[test]
fn impossible_requests_are_errors_before_any_work() {
    let fixture = Fixture::new();
    let model = fixture.text("model");
    let out = fixture.text("out.safetensors");
    let acts = |more: &[&str], parts: &[&str]| {
        probe_refuses(&[&["activations", "--model", &model, "--out", &out], more].concat(), parts);
        assert!(!Path::new(&out).exists(), "a file was written for {more:?}");
    };
    acts(&["--ids", "1,2", "--hooks", "blocks.*.hook_resid_pots"], &["hook_resid_pots", "hook_resid_post"]);
    acts(&["--ids", "1,2", "--hooks", "blocks.7.hook_resid_post"], &["blocks.7", "2 layers"]);
    acts(&["--ids", "1,2", "--hooks", "hook_embed@pos[9]"], &["hook_embed@pos[9]", "never fire"]);
    acts(&["--ids", "1,2", "--hooks", "latent.hook_source"], &["latent.hook_source", "never fire"]);
    acts(&["--ids", "1,2"], &["--hooks"]);
    acts(&["--ids", "1,999", "--logits"], &["999", "rows"]);
    acts(&["--ids", "1,x", "--logits"], &["`x`"]);
    acts(&["--ids", "", "--logits"], &["empty"]);
    acts(&["--prompt", "", "--logits"], &["empty"]);
    acts(&["--logits"], &["--ids", "--prompt"]);
    acts(&["--prompts", "/no/such.jsonl", "--logits"], &["/no/such.jsonl"]);
    std::fs::write(fixture.path("bad.jsonl"), "{\"ids\": [1]}\n{\"ids\": []}\n").expect("writes");
    acts(&["--prompts", &fixture.text("bad.jsonl"), "--logits"], &["bad.jsonl:2", "empty"]);
    std::fs::write(fixture.path("worse.jsonl"), "{\"ids\": [1]\n").expect("writes");
    acts(&["--prompts", &fixture.text("worse.jsonl"), "--logits"], &["worse.jsonl:1"]);
    probe_refuses(
        &["activations", "--model", &model, "--ids", "1", "--logits", "--out", "/no/folder/x.safetensors"],
        &["/no/folder"],
    );

    let generate = |more: &[&str], parts: &[&str]| {
        probe_refuses(&[&["generate", "--model", &model], more].concat(), parts);
    };
    generate(&["--prompt", ""], &["empty"]);
    generate(&[], &["--prompt", "--ids"]);
    generate(&["--ids", "1,999"], &["999"]);
    generate(&["--ids", "1", "--temperature", "-1"], &["temperature", "-1"]);
    generate(&["--ids", "1", "--temperature", "NaN"], &["temperature", "NaN"]);
    generate(&["--ids", "1", "--top-p", "0"], &["top_p"]);
    generate(&["--ids", "1", "--k-min", "9", "--k-cap", "3"], &["k_min", "k_cap"]);
    generate(&["--ids", "1", "--max-new-tokens", "0"], &["max_new_tokens"]);
    generate(&["--prompt", "w1", "--chat"], &["chat template"]);
    let latent = word_vocabulary().switch().expect("switch tokens").latent.to_string();
    generate(&["--ids", &format!("1,{latent}")], &["<latent>"]);
    let batch = format!("{{\"ids\": [1]}}\n{{\"ids\": [1, {latent}]}}\n");
    std::fs::write(fixture.path("batch.jsonl"), batch).expect("writes");
    generate(&["--prompts", &fixture.text("batch.jsonl")], &["prompts[1]", "<latent>"]);
}

#[test]
fn models_that_cannot_be_read_are_named() {
    let fixture = Fixture::new();
    let out = fixture.text("out.safetensors");
    let bad = |model: &str, parts: &[&str]| {
        probe_refuses(&["generate", "--model", model, "--ids", "1"], parts);
        probe_refuses(&["activations", "--model", model, "--ids", "1", "--logits", "--out", &out], parts);
        assert!(!Path::new(&out).exists());
    };
    bad("/no/such/folder", &["/no/such/folder"]);
    bad("some-org/no-such-model", &["some-org/no-such-model"]);

    let dir = fixture.copy("truncated");
    let file = dir.join("model.safetensors");
    let bytes = std::fs::read(&file).expect("reads");
    std::fs::write(&file, &bytes[..bytes.len() - 7]).expect("writes");
    bad(&fixture.text("truncated"), &["truncated/model.safetensors"]);

    // A tokenizer with more ids than the embedding has rows.
    let dir = fixture.copy("tokenizer");
    let words = (0..200).map(|i| format!("x{i}"));
    switchyard::text::Vocabulary::from_words(words).and_then(|v| v.save(&dir)).expect("a tokenizer");
    let rows = fixture.config.vocab_size.to_string();
    // Only text prompts fail.
    let output = probe(&["generate", "--model", &fixture.text("tokenizer"), "--prompt", "x1"]);
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(["text side", "x199", "203", &rows].iter().all(|part| said.contains(part)), "{said}");

    let q2 = "fixtures/gguf/unsupported-q2_k.gguf";
    bad(q2, &["unsupported-q2_k.gguf", "blk.0.ffn_down.weight", "Q2_K"]);
    let model = fixture.text("model");
    probe_refuses(
        &["generate", "--model", &model, "--ids", "1", "--adapter", "/no/adapter"],
        &["/no/adapter", "adapter_config.json"],
    );
}

#[test]
fn values_that_are_not_finite_are_an_error() {
    let fixture = Fixture::new();
    let checkpoint = switchyard::model::checkpoint::ModelFiles::open(&fixture.text("model")).expect("opens");
    let mut weights: Vec<(String, HostTensor)> = checkpoint.tensors().collect::<Result<_, _>>().expect("weights");
    for (name, tensor) in &mut weights {
        if name.as_str() == "model.layers.1.mlp.up_proj.weight" {
            tensor.data[0] = f32::NAN;
        }
    }
    fixture.save("nan", weights);
    let (nan, out) = (fixture.text("nan"), fixture.text("nan.safetensors"));
    probe_refuses(&["generate", "--model", &nan, "--ids", "5"], &["not finite"]);
    let args = ["activations", "--model", &nan, "--ids", "5", "--hooks", "blocks.*.hook_mlp_out", "--out", &out];
    probe_refuses(&args, &["model.layers.1.mlp.up_proj.weight", "not finite"]);
    assert!(!Path::new(&out).exists());
    run_probe(&[&args[..], &["--allow-non-finite"]].concat());
    assert!(load_tensors(Path::new(&out))["blocks.1.hook_mlp_out"].1.iter().any(|x| x.is_nan()));
}

/// A pipe is read once, and works like a file.
#[cfg(unix)]
#[test]
fn problems_and_pairs_come_through_a_pipe() {
    use std::io::Write;
    let home = tempfile::tempdir().expect("a folder");
    let problems: String = (1..4)
        .map(|a| format!("{{\"question\": \"a = {a} ; h = a + 4 ; ? h :\", \"answer\": \"{}\"}}\n", (a + 4) % 7))
        .collect();
    let pairs = "{\"gold\": \"3\", \"pred\": \"3\"}\n";
    let out = home.path().join("rows");
    let graded = home.path().join("graded.jsonl");
    let (out, graded_at) = (out.display().to_string(), graded.display().to_string());
    let look =
        ["fixtures/micro", "--phase", "sft", "--only", "accuracy", "--threads", "1", "--data", "-", "--out", &out];
    let patches: String = ["5 4", "6 4"]
        .map(|two| {
            let (a, b) = two.split_once(' ').expect("two numbers");
            format!(
                "{{\"clean\": \"<bos> a = {a} ; ? a :\", \"corrupt\": \"<bos> a = {b} ; ? a :\", \"answer\": \"{a}\", \"wrong\": \"{b}\"}}\n"
            )
        })
        .concat();
    let patched_at = home.path().join("patched").display().to_string();
    let patch = ["pairs", "-", "fixtures/micro", "--phase", "sft", "--components", "mlp", "--out", &patched_at];
    for (name, args, input, said) in [
        ("probe", &look[..], problems.as_str(), "grader: math"),
        ("intervene", &patch[..], patches.as_str(), "pair_patching-sft.parquet"),
        ("report", &["grade", "--pairs", "/dev/stdin", "--out", &graded_at], pairs, "1 pairs, 1 equal"),
        ("report", &["grade", "--pairs", "-", "--out", &graded_at], pairs, "1 pairs, 1 equal"),
    ] {
        let mut command = program(name);
        let mut child = command
            .args(args)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .expect("it starts");
        child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("written");
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success() && text_of(&output).contains(said), "{name} {args:?}: {}", text_of(&output));
    }
    let manifest = std::fs::read_to_string(home.path().join("rows/manifest.json")).expect("a manifest");
    assert!(manifest.contains("pipe"), "{manifest}");
}

/// Help that cannot be written is an error, as in GNU's tools.
#[cfg(target_os = "linux")]
#[test]
fn help_on_a_full_disk_is_an_error() {
    for args in [["probe", "--help"], ["train", "--version"], ["report", "--help"], ["intervene", "--version"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").expect("Linux");
        let output = program(args[0]).arg(args[1]).stdout(full).output().expect("it runs");
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text_of(&output).contains("standard output"), "{args:?}: {}", text_of(&output));
        assert!(program(args[0]).arg(args[1]).output().expect("it runs").status.success(), "{args:?}");
    }
}

#[test]
fn info_counts_the_serial_depth_without_weights() {
    // Counted by hand in src/latent/depth.rs: a forward of 436 operations at 256 positions, a readout of 12.
    let said = run_probe(&["info", "fixtures/micro", "--phase", "sft", "--positions", "256"]);
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in ["qwen3, 4 layers", "hidden_state, blocks of up to 5", "4 layers 448", "24 layers 2628", "4 layers 436"]
    {
        assert!(said.contains(part), "`{part}` is not in: {said}");
    }
    let said = run_probe(&["info", "fixtures/micro-compressed/base/annotator"]);
    assert!(said.contains("text only") && !said.contains("block"), "{said}");
    let said = run_probe(&["info", "fixtures/micro/base/annotator"]);
    assert!(said.contains("switch (assumed, it has no reasoning.json)"), "{said}");
    probe_refuses(&["info", "fixtures/micro", "--positions", "4096"], &["--positions", "2048", "4096"]);
    probe_refuses(&["film", "fixtures/micro", "--phase", "sft"], &["phase sft", "latent.keep_steps"]);
    probe_refuses(&["film", "fixtures/micro/sft/checkpoint"], &["not a run folder"]);
}

#[test]
fn a_film_has_every_checkpoint_and_resumes() {
    let temp = tempfile::tempdir().expect("a folder");
    let out = temp.path().join("film").display().to_string();
    let film = |more: &[&str]| {
        let args = ["film", "fixtures/micro", "--problems", "40", "--steps", "2", "--out", &out];
        run_probe(&[&args, more].concat())
    };
    film(&[]);
    let read = |file: &str| std::fs::read(temp.path().join("film").join(file)).expect(file);
    let table = String::from_utf8(read("tables/tab-film.md")).expect("UTF-8");
    // Two steps; the effect and, because the arithmetic is known, the prediction.
    assert!(table.contains("| 1 | effect | 2 |") && table.contains("| 2 | effect | 2 |"), "{table}");
    assert!(table.contains("1 grpo_start, 2 grpo"), "{table}");
    let rows = [read("film-grpo_start.parquet"), read("film-grpo.parquet")];
    let again = film(&["--resume"]);
    assert_eq!(again.matches("done before").count(), 2, "{again}");
    assert_eq!(rows, [read("film-grpo_start.parquet"), read("film-grpo.parquet")]);
    assert!(temp.path().join("film/figures/fig-film.svg").is_file());
}
