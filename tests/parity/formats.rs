//! GGUF files and PEFT adapters of reference implementations: logits and token ids agree.

use burn::tensor::Device;
use serde::Deserialize;
use switchyard::loading::Checkpoint;
use switchyard::model::Hooks;
use switchyard::model::checkpoint::peft::Apply;
use switchyard::text::Vocabulary;

use super::reference::{fixture, read, relative, values};

/// A text and its ids by the reference tokenizer.
#[derive(Deserialize)]
pub struct Case {
    pub text: String,
    pub ids: Vec<u32>,
}

pub fn check_tokenizer(vocabulary: &Vocabulary, cases: &str) {
    let cases = std::fs::read_to_string(fixture(cases)).expect("the fixture");
    let cases: Vec<Case> = serde_json::from_str(&cases).expect("cases");
    assert!(!cases.is_empty());
    for case in &cases {
        assert_eq!(vocabulary.encode(&case.text).expect("ids"), case.ids, "{:?}", case.text);
    }
}

#[test]
fn every_gguf_type_has_the_logits_of_its_dequantised_weights() {
    let reference = read("gguf/reference.safetensors");
    let ids: Vec<u32> = reference["ids"].data.iter().map(|&id| id as u32).collect();
    for kind in ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k_m", "q5_k_m", "qwen2"] {
        let path = fixture(&format!("gguf/tiny-{kind}.gguf")).display().to_string();
        let opened = Checkpoint::open(&path, None, Apply::Merged).expect("opens");
        // The qwen2 file splits text as Qwen does.
        if kind != "qwen2" {
            check_tokenizer(opened.text().expect("a tokenizer"), "gguf/tokenizer_cases.json");
        }
        let model = opened.load(&Device::flex()).expect("loads").model;
        let logits = model.logits(std::slice::from_ref(&ids), &mut Hooks::none()).expect("a forward");
        let off = relative(&values(&logits), &reference[&format!("{kind}.logits")].data, kind);
        println!("{kind}: logits {off:.1e}");
        assert!(off <= 1e-5, "{kind}: logits off by {off:e}");
    }
}

/// Names, norms, caps and windows of each family as in llama.cpp's converter, also in the stored format.
#[test]
fn every_family_in_gguf_has_the_logits_of_transformers() {
    let reference = read("gguf/families.safetensors");
    let ids: Vec<u32> = reference["ids"].data.iter().map(|&id| id as u32).collect();
    let names = reference.keys().filter_map(|key| key.strip_suffix(".logits"));
    let device = Device::flex();
    for name in names {
        let path = fixture(&format!("gguf/{name}.gguf")).display().to_string();
        let opened = Checkpoint::open(&path, None, Apply::Merged).expect("opens");
        assert_eq!(opened.config().family.name(), name);
        let kept = switchyard::model::Decoder::load_kept_to_train(&opened.files, &device).expect("loads");
        for model in [opened.load(&device).expect("loads").model, kept] {
            let logits = model.logits(std::slice::from_ref(&ids), &mut Hooks::none()).expect("a forward");
            let off = relative(&values(&logits), &reference[&format!("{name}.logits")].data, name);
            println!("{name}: logits {off:.1e}");
            assert!(off <= 1e-5, "{name}: logits off by {off:e}");
        }
    }
}

#[test]
fn a_peft_adapter_merged_and_attached_has_the_logits_of_peft() {
    for (name, vocab) in [("qwen3_tied", 96), ("qwen2_tied", 64)] {
        let reference = read(&format!("tiny/{name}_peft/reference.safetensors"));
        let base = fixture(&format!("tiny/{name}")).display().to_string();
        let adapter = fixture(&format!("tiny/{name}_peft"));
        for (how, apply) in [("merged", Apply::Merged), ("attached", Apply::ReplacedOnly)] {
            let opened = Checkpoint::open(&base, Some(&adapter), apply).expect("opens");
            let model = opened.load(&Device::flex()).expect("loads").model;
            assert_eq!(model.config().vocab_size, vocab + 3, "the adapter brings three tokens");
            for row in 0..2 {
                let ids = reference[&format!("row{row}.ids")].data.iter().map(|&id| id as u32).collect();
                let logits = values(&model.logits(&[ids], &mut Hooks::none()).expect("a forward"));
                for theirs in ["logits", "merged.logits"] {
                    let off = relative(&logits, &reference[&format!("row{row}.{theirs}")].data, theirs);
                    println!("{name}, {how} against PEFT's {theirs}, row {row}: {off:.1e}");
                    assert!(off <= 1e-5, "{name}, {how}, row {row}: {theirs} off by {off:e}");
                }
            }
        }
    }
}
