//! Published latent reasoners in their authors' file layouts (`fixtures/make_latent_reasoners.py`), imported and run.

use std::path::Path;
use std::process::Command;

use crate::common::{relative, save_tensors};
use switchyard::latent::{Blocks, DecodeSettings, Request, Sequence, Source, decode};
use switchyard::loading::Loaded;
use switchyard::model::Hooks;
use switchyard::model::checkpoint::SafetensorsFile;

const FOLDER: &str = "fixtures/reasoners";

/// Added tokens of each, after the 37 of its base.
const STEPS: usize = 3;

fn import(from: &str, kind: &str, base: &str, out: &Path) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_probe"));
    command.args(["import", &format!("{FOLDER}/{from}"), "--as", kind, "--base", &format!("{FOLDER}/{base}")]);
    let output = command.args(["--latents", "3", "--out"]).arg(out).output().expect("probe runs");
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn imported_reasoners_agree_with_the_authors_code() {
    let root = tempfile::tempdir().expect("temp");
    let reference = SafetensorsFile::open(&Path::new(FOLDER).join("reference.safetensors")).expect("opens");
    for (name, from, kind, base) in [
        ("codi-gpt2", "codi-gpt2", "codi", "gpt2"),
        ("codi-llama", "codi-llama", "codi", "llama"),
        ("coconut", "coconut", "coconut", "gpt2"),
        ("simcot", "simcot/checkpoint_3", "simcot", "gpt2"),
    ] {
        let out = root.path().join(name);
        let (code, said) = import(from, kind, base, &out);
        assert_eq!(code, Some(0), "{name}: {said}");
        assert_eq!(said.contains("expainable_llm"), name == "simcot", "{said}");
        assert_eq!(said.contains("rank 4 with alpha 32"), kind == "codi", "{said}");
        let loaded = Loaded::open(out.to_str().expect("a path")).expect("opens");
        let source = if kind == "codi" { Source::Projection } else { Source::HiddenState };
        assert_eq!(
            (loaded.reasoning.source, loaded.reasoning.blocks.clone()),
            (source, Blocks::AfterPrompt { steps: STEPS })
        );
        let read = |what: &str| reference.tensor(&format!("{name}.{what}")).expect("a reference");
        let ids: Vec<u32> = ids(&reference, name);
        let switch = loaded.switch.expect("switch tokens");
        assert_eq!((ids[5], ids[6], ids[9]), (switch.swi, switch.latent, switch.swi_end), "{name}");
        let row = Sequence::new(0, ids, 6, Some(switch.latent)).expect("a row");
        let cache =
            loaded.run_with_cache(&[row], &["latent.hook_injected", "logits"], Hooks::none()).expect("a forward");
        let latents = relative(&cache["latent.hook_injected"].data, &read("latents").data);
        let (logits, theirs) = (&cache["logits"], read("logits"));
        let (wide, narrow) = (logits.shape[2], theirs.shape[1]);
        let cut: Vec<f32> = logits.data.chunks(wide).flat_map(|row| &row[..narrow]).copied().collect();
        let logits = relative(&cut, &theirs.data);
        println!("{name}: latents {latents:.1e}, logits {logits:.1e}");
        assert!(latents <= 1e-5 && logits <= 1e-5, "{name}: latents {latents:e}, logits {logits:e}");
    }
}

/// Integers of the reference, stored as f32.
fn ids(reference: &SafetensorsFile, name: &str) -> Vec<u32> {
    let ids = reference.tensor(&format!("{name}.ids")).expect("ids").data;
    ids.into_iter().map(|id| id as u32).collect()
}

/// Decoding opens the block after the prompt, and the text after it matches the reference's logits.
#[test]
fn an_imported_reasoner_decodes_with_its_block() {
    let root = tempfile::tempdir().expect("temp");
    let reference = SafetensorsFile::open(&Path::new(FOLDER).join("reference.safetensors")).expect("opens");
    for (name, kind) in [("codi-gpt2", "codi"), ("coconut", "coconut")] {
        let out = root.path().join(name);
        assert_eq!(import(name, kind, "gpt2", &out).0, Some(0));
        let loaded = Loaded::open(out.to_str().expect("a path")).expect("opens");
        let prompt = loaded.vocabulary.as_ref().and_then(|v| v.encode_row("w5 w9 w30 w2 w17").ok()).expect("ids");
        // The tiny models have 48 positions.
        let settings = DecodeSettings { max_new_tokens: 4, ..loaded.settings() };
        let traces =
            decode(loaded.decode(&settings), &Request::all([prompt]), 1, &mut Hooks::none()).expect("a response");
        let trace = &traces[0];
        assert_eq!(loaded.row(trace).expect("a row").latents(), STEPS, "{name}");
        let logits = reference.tensor(&format!("{name}.logits")).expect("logits");
        // After `</swi>`, among the base's tokens.
        let after = &logits.data[9 * logits.shape[1]..][..37];
        let best = after.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map(|(token, _)| token as u32);
        assert_eq!(trace.text().first().copied(), best, "{name}");
    }
}

/// A folder saved by Latent-SFT's code: a whole model with `<think>` and `</think>` around a block of superpositions.
#[test]
fn a_folder_of_latent_sft_feeds_superpositions_between_its_tags() {
    let root = tempfile::tempdir().expect("temp");
    let base = Path::new("fixtures/released/base");
    let id = |name: &str| {
        let text = std::fs::read_to_string(base.join("tokenizer.json")).expect("a tokenizer");
        let file: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let all = file["added_tokens"].as_array().expect("tokens");
        all.iter().find(|token| token["content"] == name).expect("there")["id"].as_u64().expect("an id") as u32
    };
    let out = root.path().join("imported");
    let mut command = Command::new(env!("CARGO_BIN_EXE_probe"));
    command.arg("import").arg(base).args(["--as", "latent_grpo", "--latents", "5", "--out"]).arg(&out);
    let output = command.output().expect("probe runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let loaded = Loaded::open(out.to_str().expect("a path")).expect("opens");
    let switch = loaded.switch.expect("switch tokens");
    assert_eq!((switch.swi, switch.swi_end), (id("<think>"), id("</think>")));
    assert_eq!(loaded.reasoning.blocks, Blocks::Thinking { limit: 5 });
    let vocabulary = loaded.vocabulary.as_ref().expect("a vocabulary");
    let chat = vocabulary.chat(None).expect("read").expect("a template");
    let prompt = chat.prompt("2 + 2?").expect("renders");
    assert!(prompt.contains("within \\boxed{}.\n2 + 2?<|im_end|>") && prompt.ends_with("assistant\n"), "{prompt:?}");
    let prompt = chat.encode(vocabulary, "2 + 2?").expect("ids");
    let settings = DecodeSettings { max_new_tokens: 3, ..loaded.settings() };
    let request = Request::all([prompt.clone()]);
    let trace = decode(loaded.decode(&settings), &request, 1, &mut Hooks::none()).expect("a response").remove(0);
    let row = loaded.row(&trace).expect("a row");
    let latents = row.latents();
    assert!((1..=5).contains(&latents), "{latents}");
    // The loop of the authors' `one_example_generate_hf`.
    let cache = loaded.run_with_cache(&[row], &["latent.hook_injected", "logits"], Hooks::none()).expect("a forward");
    let (logits, injected) = (&cache["logits"], &cache["latent.hook_injected"]);
    let width = logits.shape[2];
    let table = SafetensorsFile::open(&out.join("model.safetensors"))
        .expect("opens")
        .tensor("model.embed_tokens.weight")
        .expect("a table");
    let d = table.shape[1];
    for step in 0..latents {
        let at = prompt.len() + step;
        let mut best: Vec<(usize, f32)> = logits.data[at * width..][..width].iter().copied().enumerate().collect();
        best.sort_by(|a, b| b.1.total_cmp(&a.1));
        let weights: Vec<f64> = best[..10].iter().map(|(_, logit)| f64::from(logit - best[0].1).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let mixed: Vec<f32> = (0..d)
            .map(|i| {
                best.iter()
                    .zip(&weights)
                    .map(|((token, _), w)| w / sum * f64::from(table.data[token * d + i]))
                    .sum::<f64>() as f32
            })
            .collect();
        let worst = relative(&injected.data[step * d..][..d], &mixed);
        assert!(worst <= 1e-5, "latent {step}: {worst:e}");
    }
    // Without a vocabulary the start of a block is unknown.
    let plain = root.path().join("plain");
    let output = Command::new(env!("CARGO_BIN_EXE_probe"))
        .args(["import", "fixtures/tiny/qwen3_tied", "--as", "latent_sft", "--out"])
        .arg(&plain)
        .output()
        .expect("probe runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && said.contains("no tokenizer.json") && !plain.exists(), "{said}");
}

/// `tokenizer_config.json` may have a list of named templates.
#[test]
fn the_default_of_named_templates_is_imported() {
    let root = tempfile::tempdir().expect("temp");
    let (named, out) = (root.path().join("named"), root.path().join("imported"));
    crate::common::programs::copy(Path::new("fixtures/released/base"), &named);
    std::fs::remove_file(named.join("chat_template.jinja")).expect("there");
    let config = named.join("tokenizer_config.json");
    let text = std::fs::read_to_string(&config).expect("there");
    let mut json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    json["chat_template"] = serde_json::json!([{"name": "default", "template": "ours {{ messages[-1]['content'] }}"}]);
    std::fs::write(&config, json.to_string()).expect("written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_probe"));
    command.arg("import").arg(&named).args(["--as", "latent_sft", "--out"]).arg(&out);
    let output = command.output().expect("probe runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let template = std::fs::read_to_string(out.join("chat_template.jinja")).expect("a template");
    assert!(template.contains("%}ours {{"), "{template}");
}

/// Qwen3's table is padded beyond its tokenizer; Coconut's code cuts it to the tokenizer plus three tokens.
#[test]
fn a_padded_base_and_other_numbers_of_added_tokens_are_read() {
    let root = tempfile::tempdir().expect("temp");
    let padded = root.path().join("padded");
    crate::common::programs::copy(&Path::new(FOLDER).join("gpt2"), &padded);
    let config = std::fs::read_to_string(padded.join("config.json")).expect("a config");
    std::fs::write(padded.join("config.json"), config.replace("\"vocab_size\": 37", "\"vocab_size\": 64"))
        .expect("written");
    let command = |from: &Path, kind: &str, out: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_probe"));
        command
            .arg("import")
            .arg(from)
            .args(["--as", kind, "--latents", "3", "--base"])
            .arg(&padded)
            .arg("--out")
            .arg(out);
        let output = command.output().expect("probe runs");
        (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let out = root.path().join("coconut");
    let (worked, said) = command(&Path::new(FOLDER).join("coconut"), "coconut", &out);
    assert!(worked && said.contains("token 37") && said.contains("token 38"), "{said}");
    assert_eq!(Loaded::open(out.to_str().expect("a path")).expect("opens").model.config().vocab_size, 40);

    // CODI adds two tokens to a base with a padding token, plus one for the latent.
    let file = SafetensorsFile::open(&Path::new(FOLDER).join("codi-gpt2/model.safetensors")).expect("opens");
    for (rows, swi) in [(39, 37), (41, 38)] {
        let tensor = |name: &str| {
            let mut read = file.tensor(name).expect("a tensor");
            if read.shape.first() == Some(&40) {
                read.data.resize(rows * read.shape[1], 0.25);
                read.shape[0] = rows;
            }
            (name.to_owned(), read)
        };
        let tensors: Vec<_> = file.names().map(tensor).collect();
        let from = root.path().join(format!("codi-{rows}.safetensors"));
        save_tensors(&from, tensors.iter().map(|(name, t)| (name.clone(), t)));
        let (worked, said) = command(&from, "codi", &root.path().join(format!("codi-{rows}")));
        assert!(worked && said.contains(&format!("(token {swi})")), "{rows}: {said}");
    }
}

#[test]
fn mismatched_files_are_errors_by_name() {
    let root = tempfile::tempdir().expect("temp");
    let out = root.path().join("out");
    for (from, kind, base, says) in [
        ("coconut", "codi", "gpt2", &["Coconut", "Codi"][..]),
        ("simcot", "coconut", "gpt2", &["expainable_llm", "--as simcot"]),
        ("codi-gpt2", "codi", "llama", &["codi-gpt2", "wrong shape"]),
        ("gpt2", "codi", "gpt2", &["fixtures/reasoners/gpt2", "no file of weights"]),
        ("nowhere", "codi", "gpt2", &["nowhere", "no such"]),
        ("coconut", "coconut", "nowhere", &["nowhere"]),
    ] {
        let (code, said) = import(from, kind, base, &out);
        assert_eq!(code, Some(2), "{said}");
        says.iter().for_each(|part| assert!(said.contains(part), "`{part}` is not in {said}"));
        assert!(!out.exists());
    }
    std::fs::create_dir(&out).expect("creates");
    assert!(import("coconut", "coconut", "gpt2", &out).1.contains("already exists"));
}
