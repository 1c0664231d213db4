//! Files with other weight names or layouts: base classes, GPT-2, tied heads.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use switchyard::model::checkpoint::{
    EMBED, HEAD, HostTensor, ModelFiles, SafetensorsFile, SaveOptions, expected_parameters,
};

use super::support::*;
use crate::common::save_tensors;

/// A folder with these settings and tensors.
fn written<'t>(dir: &Path, value: &Value, tensors: impl IntoIterator<Item = (String, &'t HostTensor)>) {
    fs::create_dir_all(dir).expect("creates");
    fs::write(dir.join("config.json"), value.to_string()).expect("writes");
    save_tensors(&dir.join("model.safetensors"), tensors);
}

fn counted(value: &Value) -> BTreeMap<String, HostTensor> {
    tensors(&config(value)).into_iter().map(|read| read.expect("fits")).collect()
}

#[test]
fn a_base_class_omits_the_prefix() {
    let root = tempfile::tempdir().expect("temp");
    for (name, value) in [("tied", qwen3_json()), ("untied", llama_json())] {
        let (dir, all) = (root.path().join(name), counted(&value));
        written(&dir, &value, all.iter().map(|(name, t)| (name.trim_start_matches("model.").to_owned(), t)));
        let opened = ModelFiles::open_folder(&dir).expect("opens");
        for (name, wanted) in &all {
            assert_eq!(&opened.tensor(name).expect("reads"), wanted, "{name}");
        }
        // Without a head there are no logits: the error says how to tie it.
        if !opened.config.tie_word_embeddings {
            let headless = all.iter().filter(|(name, _)| *name != HEAD);
            written(&dir, &value, headless.map(|(name, t)| (name.trim_start_matches("model.").to_owned(), t)));
            fails(ModelFiles::open_folder(&dir), &[HEAD, "missing", "tie_word_embeddings"]);
        }
        let twice =
            all.iter().map(|(name, t)| (name.clone(), t)).chain([("norm.weight".into(), &all["model.norm.weight"])]);
        written(&dir, &value, twice);
        fails(ModelFiles::open_folder(&dir), &["model.norm.weight", "norm.weight", "twice"]);
    }
}

/// Prefixes of parallel, sharded, compiled and checkpointed modules in a state dict, and of a trainer's wrapper.
#[test]
fn prefixes_from_training_are_removed() {
    let root = tempfile::tempdir().expect("temp");
    let (dir, all) = (root.path().join("m"), counted(&llama_json()));
    let inside = |name: &str| name.replace("layers.0.", "layers.0._checkpoint_wrapped_module.");
    let forms: [&dyn Fn(&str) -> String; 5] = [
        &|name| format!("module.{name}"),
        &|name| format!("_orig_mod.module.{name}"),
        &|name| format!("_fsdp_wrapped_module.{}", inside(name)),
        &|name| name.replace("layers.1.", "layers.1._orig_mod."),
        &|name| format!("model.{name}"),
    ];
    for form in forms {
        written(&dir, &llama_json(), all.iter().map(|(name, t)| (form(name), t)));
        let opened = ModelFiles::open_folder(&dir).expect("opens");
        for (name, wanted) in &all {
            assert_eq!(&opened.tensor(name).expect("reads"), wanted, "{}", form(name));
        }
    }
    // For other prefixes the error shows one name; unmerged LoRA factors are named as such.
    written(&dir, &llama_json(), all.iter().map(|(name, t)| (format!("language_model.{name}"), t)));
    fails(ModelFiles::open_folder(&dir), &["missing", "among them `language_model.lm_head.weight`"]);
    let q = "model.layers.0.self_attn.q_proj";
    let unmerged = all.iter().map(|(name, t)| (name.replace("q_proj.weight", "q_proj.base_layer.weight"), t));
    let factor = HostTensor::new(vec![2, 2], vec![1.0; 4]).expect("fits");
    written(&dir, &llama_json(), unmerged.chain([(format!("{q}.lora_A.default.weight"), &factor)]));
    fails(ModelFiles::open_folder(&dir), &[q, "missing", "not merged", "merge_and_unload"]);
    // No Llama has one matrix for queries, keys and values: their order is unknown.
    let fused = HostTensor::new(vec![96, 32], vec![0.5; 96 * 32]).expect("fits");
    let others = all.iter().filter(|(name, _)| !["q_proj", "k_proj", "v_proj"].iter().any(|part| name.contains(part)));
    let others = others.map(|(name, t)| (name.clone(), t));
    let fused = others.chain((0..2).map(|n| (format!("model.layers.{n}.self_attn.qkv_proj.weight"), &fused)));
    written(&dir, &llama_json(), fused);
    fails(ModelFiles::open_folder(&dir), &["q_proj", "missing", "qkv_proj"]);
}

/// GPT-2's names with and without `transformer.`, and the masks of old files.
#[test]
fn gpt2_is_read_and_written_in_its_layout() {
    let root = tempfile::tempdir().expect("temp");
    let (ours, all) = (root.path().join("ours"), counted(&gpt2_json()));
    save(&ours, &config(&gpt2_json()), &SaveOptions::default());
    let file = SafetensorsFile::open(&ours.join("model.safetensors")).expect("opens");
    let fused = file.tensor("transformer.h.1.attn.c_attn.weight").expect("reads");
    assert_eq!(fused.shape, [32, 96]);
    for (nth, part) in ["q_proj", "k_proj", "v_proj"].into_iter().enumerate() {
        let own = &all[&format!("model.layers.1.self_attn.{part}.weight")];
        for (out, input) in [(0, 0), (5, 31), (31, 7)] {
            assert_eq!(fused.data[input * 96 + nth * 32 + out], own.data[out * 32 + input], "{part}");
        }
    }
    assert_eq!(file.shape("transformer.h.0.mlp.c_fc.weight"), Some(&[32, 128][..]));
    let theirs: BTreeMap<String, HostTensor> =
        file.names().map(|name| (name.to_owned(), file.tensor(name).expect("reads"))).collect();
    let mask = HostTensor::new(vec![1, 1, 4, 4], vec![1.0; 16]).expect("fits");
    for prefix in ["transformer.", ""] {
        let dir = root.path().join(format!("theirs-{prefix}"));
        let named = theirs.iter().map(|(name, t)| (name.replace("transformer.", prefix), t));
        written(&dir, &gpt2_json(), named.chain([(format!("{prefix}h.0.attn.bias"), &mask)]));
        let opened = ModelFiles::open_folder(&dir).expect("opens");
        for (name, shape) in expected_parameters(&opened.config) {
            assert_eq!(opened.shape(&name), Some(shape.as_slice()));
            assert_eq!(opened.tensor(&name).expect("reads"), all[&name], "{name}");
            if let Some(stored) = opened.stored(&name, true).expect("reads") {
                assert_eq!([stored.rows(), stored.width()], shape[..], "{name}");
                let rows: Vec<usize> = (0..shape[0]).collect();
                assert_eq!(stored.widened(&rows).expect("rows"), all[&name].data, "{name}");
            }
        }
    }
    let mut short = theirs.clone();
    short.remove("transformer.wpe.weight");
    written(&ours, &gpt2_json(), short.iter().map(|(name, t)| (name.clone(), t)));
    fails(ModelFiles::open_folder(&ours), &["embed_positions", "missing"]);
}

/// As in transformers 5: one table if both are equal or one is missing, two if they differ.
#[test]
fn a_head_is_tied_if_the_file_has_one_table() {
    let root = tempfile::tempdir().expect("temp");
    let all = counted(&qwen3_json());
    let table = &all[EMBED];
    let mut other = table.clone();
    other.data[40] += 1.0;
    let open = |name: &str, embed: Option<&HostTensor>, head: Option<&HostTensor>| {
        let dir = root.path().join(name);
        let rest = all.iter().filter(|(name, _)| *name != EMBED).map(|(name, t)| (name.clone(), t));
        let tables = [(EMBED, embed), (HEAD, head)].into_iter().filter_map(|(name, t)| Some((name.to_owned(), t?)));
        written(&dir, &qwen3_json(), rest.chain(tables));
        ModelFiles::open_folder(&dir)
    };
    for (name, embed, head) in
        [("one", Some(table), None), ("both", Some(table), Some(table)), ("head", None, Some(table))]
    {
        let tied = open(name, embed, head).expect("opens");
        assert!(tied.config.tie_word_embeddings && tied.notes.is_empty(), "{name}");
        assert_eq!(&tied.tensor(EMBED).expect("reads"), table, "{name}");
    }
    let parted = open("parted", Some(table), Some(&other)).expect("opens");
    assert!(!parted.config.tie_word_embeddings);
    assert_eq!((&parted.tensor(EMBED).expect("reads"), &parted.tensor(HEAD).expect("reads")), (table, &other));
    assert_names(&parted.notes[0], &["parted/model.safetensors", HEAD, "tie_word_embeddings", "not tied"]);
    assert!(open("none", None, None).is_err());
    let untied = json!(false);
    let mut value = qwen3_json();
    value["tie_word_embeddings"] = untied;
    assert!(!config(&value).tie_word_embeddings);
}
