use std::fs;
use std::path::Path;

use serde_json::json;
use switchyard::model::checkpoint::{
    Dtype, HostTensor, ModelFiles, SafetensorsFile, SaveOptions, expected_parameters, save_hf_folder,
};

use switchyard::loading::Checkpoint;
use switchyard::model::checkpoint::peft::Apply;

use super::support::*;
use crate::common::save_tensors;

const Q: &str = "model.layers.1.self_attn.q_proj.weight";

#[test]
fn a_saved_folder_reads_back_in_every_format_single_and_sharded() {
    for (value, dtype, shard_bytes) in [
        (qwen3_json(), Dtype::F32, usize::MAX),
        (qwen3_json(), Dtype::F16, 4000),
        (qwen2_json(), Dtype::F32, 8000),
        (llama_json(), Dtype::BF16, usize::MAX),
        (llama_json(), Dtype::F32, 20_000),
    ] {
        let config = config(&value);
        let root = tempfile::tempdir().expect("temp");
        let dir = root.path().join("model");
        let files = vec![("tokenizer.json".to_string(), b"{}".to_vec())];
        save(&dir, &config, &SaveOptions { dtype, shard_bytes, files, ..Default::default() });
        assert_eq!(fs::read_dir(root.path()).expect("lists").count(), 1, "a temporary folder was left");
        assert_eq!(dir.join("model.safetensors.index.json").exists(), shard_bytes != usize::MAX);

        let read = ModelFiles::open_folder(&dir).expect("opens");
        assert_eq!(read.config, config);
        assert_eq!(read.names().len(), expected_parameters(&config).len());
        for item in tensors(&config) {
            let (name, wanted) = item.expect("made");
            let found = read.tensor(&name).expect("reads");
            assert_eq!(found.shape, wanted.shape);
            assert_eq!(found.data, dtype.decode(&dtype.encode(&wanted.data)), "{name}");
        }
    }
}

/// The `safetensors` crate reads our files.
#[test]
fn the_safetensors_crate_reads_what_we_write() {
    let config = config(&qwen3_json());
    let root = tempfile::tempdir().expect("temp");
    let dir = root.path().join("model");
    save(&dir, &config, &SaveOptions::default());
    let bytes = fs::read(dir.join("model.safetensors")).expect("reads");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("parses");
    assert_eq!(file.len(), expected_parameters(&config).len());
    let (_, meta) = safetensors::SafeTensors::read_metadata(&bytes).expect("parses");
    assert_eq!(meta.metadata().as_ref().and_then(|m| m.get("format")).map(String::as_str), Some("pt"));
    for item in tensors(&config) {
        let (name, wanted) = item.expect("made");
        let view = file.tensor(&name).expect("is there");
        assert_eq!(view.shape(), wanted.shape);
        assert_eq!(Dtype::F32.decode(view.data()), wanted.data);
    }
}

/// A folder written with the crate, with `extra` tensors and without `drop`.
fn foreign(dir: &Path, drop: Option<&str>, extra: &[(&str, Vec<usize>)]) {
    let config = config(&qwen3_json());
    fs::create_dir_all(dir).expect("creates");
    fs::write(dir.join("config.json"), qwen3_json().to_string()).expect("writes");
    let mut list: Vec<_> = expected_parameters(&config).into_iter().filter(|(n, _)| Some(n.as_str()) != drop).collect();
    list.extend(extra.iter().map(|(n, s)| (n.to_string(), s.clone())));
    let empty = |(name, shape): (String, Vec<usize>)| {
        let data = vec![0.0; shape.iter().product()];
        (name, HostTensor::new(shape, data).expect("fits"))
    };
    let all: Vec<(String, HostTensor)> = list.into_iter().map(empty).collect();
    save_tensors(&dir.join("model.safetensors"), all.iter().map(|(name, t)| (name.clone(), t)));
}

#[test]
fn missing_unexpected_and_misshapen_parameters_are_named() {
    let root = tempfile::tempdir().expect("temp");
    let dir = root.path().join("m");
    foreign(&dir, Some(Q), &[]);
    fails(ModelFiles::open_folder(&dir), &["model.safetensors", Q, "missing", "[64, 32]"]);
    foreign(&dir, Some(Q), &[(Q, vec![64, 31])]);
    fails(ModelFiles::open_folder(&dir), &["model.safetensors", Q, "[64, 32]", "[64, 31]"]);
    foreign(&dir, None, &[("model.layers.0.self_attn.q_proj.bias", vec![64])]);
    fails(ModelFiles::open_folder(&dir), &["model.safetensors", "unexpected", "q_proj.bias"]);
    foreign(&dir, None, &[("model.layers.0.self_attn.rotary_emb.inv_freq", vec![8]), ("lm_head.weight", vec![40, 32])]);
    assert!(ModelFiles::open_folder(&dir).is_ok());
}

#[test]
fn damaged_files_are_one_line_errors() {
    let root = tempfile::tempdir().expect("temp");
    let dir = root.path().join("m");
    foreign(&dir, None, &[]);
    let path = dir.join("model.safetensors");
    let whole = fs::read(&path).expect("reads");
    for keep in [0, 4, 8, 100, whole.len() / 2, whole.len() - 1] {
        fs::write(&path, &whole[..keep]).expect("writes");
        fails(ModelFiles::open_folder(&dir), &["model.safetensors", "truncated"]);
    }
    let mut wrong = whole.clone();
    wrong[7] = 0xff;
    fs::write(&path, &wrong).expect("writes");
    fails(ModelFiles::open_folder(&dir), &["not a safetensors file"]);
    let text = String::from_utf8_lossy(&whole[8..]).find("F32").expect("has a dtype");
    let mut wrong = whole.clone();
    wrong[8 + text..8 + text + 3].copy_from_slice(b"I32");
    fs::write(&path, &wrong).expect("writes");
    fails(ModelFiles::open_folder(&dir), &["I32", "F32, F16 or BF16"]);
    fs::remove_file(&path).expect("removes");
    fails(ModelFiles::open_folder(&dir), &["model.safetensors.index.json"]);
    fs::write(dir.join("model.safetensors.index.json"), json!({ "weight_map": { Q: "../x" } }).to_string())
        .expect("writes");
    fails(ModelFiles::open_folder(&dir), &[Q, "../x"]);
    fs::write(dir.join("model.safetensors.index.json"), json!({ "weight_map": { Q: "a.safetensors" } }).to_string())
        .expect("writes");
    fails(ModelFiles::open_folder(&dir), &["shard a.safetensors is missing"]);
    fails(ModelFiles::open_folder(root.path().join("nowhere")), &["nowhere"]);
}

/// Git LFS pointers, HTML pages and other files in place of weights, and weights with unknown file names.
#[test]
fn files_in_place_of_weights_are_named() {
    const POINTER: &str = "version https://git-lfs.github.com/spec/v1\noid sha256:0000\nsize 12345\n";
    let root = tempfile::tempdir().expect("temp");
    let dir = root.path().join("m");
    foreign(&dir, None, &[]);
    let (weights, settings) = (dir.join("model.safetensors"), dir.join("config.json"));
    let (whole, json) = (fs::read(&weights).expect("reads"), fs::read(&settings).expect("reads"));
    for (held, said) in [(POINTER, "git lfs pull"), ("<!DOCTYPE html><html>", "a page"), ("{\"error\": 1}", "a page")] {
        fs::write(&weights, held).expect("writes");
        fails(ModelFiles::open_folder(&dir), &["model.safetensors", said]);
    }
    fs::write(&settings, POINTER).expect("writes");
    fails(ModelFiles::open_folder(&dir), &["config.json", "git lfs pull"]);
    fs::write(&settings, json).expect("writes");
    fs::remove_file(&weights).expect("removes");
    for (name, said) in [
        ("model.fp16.safetensors", "rename it"),
        ("consolidated.00.pth", "rename it"),
        ("model-00001-of-00002.safetensors", "index"),
        ("tf_model.h5", "rename it"),
        ("m.gguf", "by its name"),
    ] {
        fs::write(dir.join(name), &whole).expect("writes");
        fails(ModelFiles::open_folder(&dir), &[name, said]);
        fs::remove_file(dir.join(name)).expect("removes");
    }
    fs::write(dir.join("pytorch_model.bin"), POINTER).expect("writes");
    fails(ModelFiles::open_folder(&dir), &["pytorch_model.bin", "git lfs pull"]);
    // The first bytes of a page can be a valid header length.
    fs::remove_file(dir.join("pytorch_model.bin")).expect("removes");
    let length = u64::from_le_bytes(whole[..8].try_into().expect("eight bytes")) as usize;
    let padded = length + (256 + usize::from(b'<') - length % 256) % 256;
    let header = [&whole[8..8 + length], &vec![b' '; padded - length]].concat();
    fs::write(&weights, [&(padded as u64).to_le_bytes()[..], &header, &whole[8 + length..]].concat()).expect("writes");
    ModelFiles::open_folder(&dir).expect("opens");
}

#[test]
fn an_unsupported_tokenizer_class_is_named() {
    let root = tempfile::tempdir().expect("temp");
    let dir = root.path().join("m");
    let mut value = qwen3_json();
    value["vocab_size"] = json!(400);
    save(&dir, &config(&value), &SaveOptions::default());
    fs::copy("fixtures/text/tokenizer.json", dir.join("tokenizer.json")).expect("copies");
    let notes = |class: &str| {
        fs::write(dir.join("tokenizer_config.json"), json!({ "tokenizer_class": class }).to_string()).expect("writes");
        let opened = ModelFiles::open_folder(&dir).expect("opens");
        opened.text_side().expect("reads").expect("has one").notes.join("\n")
    };
    assert_names(&notes("CohereTokenizerFast"), &["tokenizer_config.json", "CohereTokenizerFast", "unchanged"]);
    assert_eq!(notes("PreTrainedTokenizerFast"), "");
    // In quotes a flag is not false.
    let quoted = json!({ "split_special_tokens": "true" }).to_string();
    fs::write(dir.join("tokenizer_config.json"), quoted).expect("writes");
    let side = ModelFiles::open_folder(&dir).expect("opens").text_side();
    fails(side.map(drop), &["tokenizer_config.json: `split_special_tokens` must be true or false"]);
    let quoted = json!({ "added_tokens_decoder": { "350": { "content": "<a>", "special": "true" } } }).to_string();
    fs::write(dir.join("tokenizer_config.json"), quoted).expect("writes");
    let side = ModelFiles::open_folder(&dir).expect("opens").text_side();
    fails(side.map(drop), &["tokenizer_config.json: \"<a>\": `special` must be true or false"]);
    for (key, wrong) in [
        ("tokenizer_class", json!(5)),
        ("additional_special_tokens", json!("<a>")),
        ("extra_special_tokens", json!([{ "content": "<a>", "lstrip": "yes" }])),
    ] {
        fs::write(dir.join("tokenizer_config.json"), json!({ key: wrong }).to_string()).expect("writes");
        let side = ModelFiles::open_folder(&dir).expect("opens").text_side();
        fails(side.map(drop), &["tokenizer_config.json: ", key, &wrong.to_string()]);
    }
}

/// A warning if transformers 5 reads a tokenizer.json differently; random merges (dropout) are not applied.
#[test]
fn tokenizer_differences_to_transformers_are_named() {
    let root = tempfile::tempdir().expect("temp");
    let mut value = qwen3_json();
    value["vocab_size"] = json!(400);
    save(root.path(), &config(&value), &SaveOptions::default());
    let text = fs::read_to_string("fixtures/text/tokenizer.json").expect("reads");
    let mut file: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let read = |file: &serde_json::Value, class: &str| {
        fs::write(root.path().join("tokenizer.json"), file.to_string()).expect("writes");
        let config = json!({ "tokenizer_class": class }).to_string();
        fs::write(root.path().join("tokenizer_config.json"), config).expect("writes");
        let side = ModelFiles::open_folder(root.path()).expect("opens").text_side().expect("reads").expect("has one");
        let said = side.tokenizer.encode("the train has 12345 seats", false).expect("encodes");
        (said.get_ids().to_vec(), side.notes.join("\n"))
    };
    let (plain, _) = read(&file, "PreTrainedTokenizerFast");
    file["model"]["dropout"] = json!(0.9);
    for _ in 0..8 {
        let (cut, notes) = read(&file, "PreTrainedTokenizerFast");
        assert_eq!(cut, plain);
        assert_names(&notes, &["tokenizer.json", "`model.dropout` is 0.9", "not applied"]);
    }
    file["model"] = json!({ "type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["t", -1.0], ["he", -2.0]] });
    file["added_tokens"] = json!([]);
    (file["pre_tokenizer"], file["decoder"]) = (json!(null), json!(null));
    for (class, said) in [("LlamaTokenizer", true), ("Qwen2Tokenizer", true), ("PreTrainedTokenizerFast", false)] {
        let (_, notes) = read(&file, class);
        let wanted = format!("its Unigram vocabulary splits the text here. For `tokenizer_class` {class:?}");
        assert_eq!(notes.contains(&wanted), said, "{notes}");
    }
}

/// A safetensors file with this header and this many bytes of data.
fn with_header(header: &str, data: usize) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; data]].concat()
}

#[test]
fn overlapping_shifted_or_duplicate_entries_are_errors() {
    let root = tempfile::tempdir().expect("temp");
    let path = root.path().join("a.safetensors");
    let entry = |name: &str, from: usize, to: usize| {
        format!(r#""{name}":{{"dtype":"F32","shape":[2],"data_offsets":[{from},{to}]}}"#)
    };
    let open = |entries: &[String], data: usize| {
        fs::write(&path, with_header(&format!("{{{}}}", entries.join(",")), data)).expect("writes");
        SafetensorsFile::open(&path).map(drop)
    };
    open(&[entry("b", 8, 16), entry("a", 0, 8)], 16).expect("the order of names is free");
    for (entries, data, words) in [
        (vec![entry("a", 0, 8), entry("b", 0, 8)], 8, "tensor `b`"),
        (vec![entry("a", 0, 8), entry("b", 4, 12)], 12, "tensor `b`"),
        (vec![entry("a", 4, 12)], 12, "tensor `a`"),
        (vec![entry("a", 0, 8), entry("b", 12, 20)], 20, "tensor `b`"),
        (vec![entry("a", 0, 8), entry("a", 8, 16)], 16, "tensor `a` is listed twice"),
        (vec![entry("a", 0, 8), entry("a", 0, 8)], 8, "tensor `a` is listed twice"),
        (vec![entry("a", 0, 8)], 12, "its data end at byte"),
        (vec![entry("a", 0, 8), entry("b", 8, 12)], 12, "does not fill"),
        (vec![entry("a", 0, 8), entry("b", 16, 8)], 16, "does not fill"),
        (
            vec![r#""a":{"dtype":"F32","dtype":"F16","shape":[2],"data_offsets":[0,8]}"#.to_owned()],
            8,
            "duplicate field",
        ),
    ] {
        fails(open(&entries, data), &["a.safetensors", words]);
    }
}

#[test]
fn a_failed_save_leaves_no_file_and_never_overwrites() {
    let config = config(&qwen3_json());
    let root = tempfile::tempdir().expect("temp");
    let dir = root.path().join("model");
    let mut short = tensors(&config);
    short.pop();
    fails(save_hf_folder(&dir, &config, short, &SaveOptions::default()), &["model.norm.weight", "not given"]);
    let mut wrong = tensors(&config);
    wrong[0] = HostTensor::new(vec![1], vec![0.0]).map(|t| ("model.embed_tokens.weight".to_string(), t));
    fails(save_hf_folder(&dir, &config, wrong, &SaveOptions::default()), &["embed_tokens", "[40, 32]", "[1]"]);
    assert_eq!(fs::read_dir(root.path()).expect("lists").count(), 0);

    save(&dir, &config, &SaveOptions::default());
    fails(save_hf_folder(&dir, &config, tensors(&config), &SaveOptions::default()), &["already exists"]);
    save(&dir, &config, &SaveOptions { overwrite: true, dtype: Dtype::BF16, ..Default::default() });
    assert_eq!(fs::read_dir(root.path()).expect("lists").count(), 1);
    assert!(ModelFiles::open_folder(&dir).is_ok());
}

/// As in transformers' `generate`: from generation_config.json, else from config.json.
#[test]
fn generation_stops_at_the_generation_configs_tokens() {
    let root = tempfile::tempdir().expect("temp");
    let mut value = llama_json();
    value["eos_token_id"] = json!(5);
    save(root.path(), &config(&value), &SaveOptions::default());
    let stop = |generation: serde_json::Value| {
        fs::write(root.path().join("generation_config.json"), generation.to_string()).expect("written");
        Checkpoint::open(&root.path().display().to_string(), None, Apply::Merged).expect("opens").stop
    };
    assert_eq!(stop(json!({ "eos_token_id": [7, 6] })), [7, 6]);
    assert_eq!(stop(json!({ "eos_token_id": 7 })), [7]);
    assert_eq!(stop(json!({ "eos_token_id": null, "repetition_penalty": 1.5 })), [5]);
    for wrong in [json!("7"), json!([7, "6"]), json!(7.5)] {
        let generation = json!({ "eos_token_id": wrong }).to_string();
        fs::write(root.path().join("generation_config.json"), generation).expect("written");
        let found = ModelFiles::open_folder(root.path()).expect("opens").stop_ids();
        fails(found, &["generation_config.json: `eos_token_id` must be a token id"]);
    }
}

#[test]
fn an_unsupported_tokenizer_form_is_named() {
    let root = tempfile::tempdir().expect("temp");
    save(root.path(), &config(&llama_json()), &SaveOptions::default());
    let open = || Checkpoint::open(&root.path().display().to_string(), None, Apply::Merged).expect("opens");
    fails(open().text().map(drop), &["has no tokenizer"]);
    for name in ["any.tiktoken", "tekken.json"] {
        fs::write(root.path().join(name), "{}").expect("written");
        fails(open().text().map(drop), &[name, "save its tokenizer.json"]);
    }
}

#[test]
fn parts_of_a_deepspeed_run_are_named() {
    let root = tempfile::tempdir().expect("temp");
    save(root.path(), &config(&llama_json()), &SaveOptions::default());
    fs::remove_file(root.path().join("model.safetensors")).expect("removed");
    fs::create_dir(root.path().join("global_step100")).expect("made");
    fs::write(root.path().join("zero_to_fp32.py"), "").expect("written");
    fails(ModelFiles::open_folder(root.path()), &["DeepSpeed", "zero_to_fp32.py . pytorch_model.bin"]);
}

/// As in transformers: every tensor of a shard is loaded, even if the index omits it or names another shard.
#[test]
fn a_wrong_index_hides_no_tensor() {
    let root = tempfile::tempdir().expect("temp");
    let config = config(&llama_json());
    save(root.path(), &config, &SaveOptions { shard_bytes: 20_000, ..SaveOptions::default() });
    let index = root.path().join("model.safetensors.index.json");
    let whole: serde_json::Value = serde_json::from_slice(&fs::read(&index).expect("read")).expect("JSON");
    let shards: std::collections::BTreeSet<&str> =
        whole["weight_map"].as_object().expect("a map").values().filter_map(|shard| shard.as_str()).collect();
    assert!(shards.len() > 1);
    let read = |map: &serde_json::Value| {
        fs::write(&index, map.to_string()).expect("written");
        ModelFiles::open_folder(root.path()).map(|files| files.tensor(Q).expect("reads").data)
    };
    let right = read(&whole).expect("opens");
    let mut other = whole.clone();
    other["weight_map"].as_object_mut().expect("a map").remove(Q);
    assert_eq!(read(&other).expect("opens"), right, "forgotten");
    let elsewhere = shards.iter().find(|shard| whole["weight_map"][Q] != **shard).expect("another shard");
    other["weight_map"][Q] = json!(elsewhere);
    assert_eq!(read(&other).expect("opens"), right, "sent elsewhere");
    other["weight_map"]["model.layers.9.nowhere"] = json!(elsewhere);
    fails(read(&other), &["model.layers.9.nowhere", "is missing", elsewhere]);
}

/// Shards of two downloads in one folder: the intended value is ambiguous.
#[test]
fn a_tensor_of_two_values_in_two_shards_is_refused() {
    let root = tempfile::tempdir().expect("temp");
    save(root.path(), &config(&llama_json()), &SaveOptions { shard_bytes: 20_000, ..SaveOptions::default() });
    let index = fs::read(root.path().join("model.safetensors.index.json")).expect("read");
    let whole: serde_json::Value = serde_json::from_slice(&index).expect("JSON");
    let home = whole["weight_map"][Q].as_str().expect("a shard");
    let mut shards = whole["weight_map"].as_object().expect("a map").values().filter_map(|shard| shard.as_str());
    let other = root.path().join(shards.find(|shard| *shard != home).expect("another shard"));
    let again = |change: f32| {
        let file = SafetensorsFile::open(&other).expect("opens");
        let mut all: Vec<(String, HostTensor)> =
            file.names().map(|name| (name.to_owned(), file.tensor(name).expect("reads"))).collect();
        all.retain(|(name, _)| name != Q);
        let mut doubled = SafetensorsFile::open(&root.path().join(home)).expect("opens").tensor(Q).expect("reads");
        doubled.data[0] += change;
        all.push((Q.to_owned(), doubled));
        drop(file);
        save_tensors(&other, all.iter().map(|(name, t)| (name.clone(), t)));
        ModelFiles::open_folder(root.path())
    };
    again(0.0).expect("the same values");
    fails(again(1.0), &[Q, "has other values than in", home, other.to_str().expect("a name")]);
}
