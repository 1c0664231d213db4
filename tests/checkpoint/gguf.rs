use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use proptest::prelude::*;
use sha2::{Digest, Sha256};
use switchyard::model::checkpoint::{Dtype, GgufFile, ModelFiles};
use switchyard::model::config::{ModelConfig, RopeScaling};
use switchyard::ops::stored::Format;

use super::gguf_writer::*;
use super::support::*;
use crate::common::real_data;

#[test]
fn every_family_reads_back_exactly() {
    let root = tempfile::tempdir().expect("temp");
    let path = root.path().join("m.gguf");
    for value in [qwen3_json(), qwen2_json(), llama_json(), olmo2_json()] {
        let mut wanted = config(&value);
        wanted.pad_token_id = None;
        wanted.rope_scaling = None;
        wanted.bos_token_id = Some(1);
        wanted.eos_token_ids = vec![2];
        model(&wanted, false).save(&path);
        let read = ModelFiles::open_gguf(&path).expect("opens");
        assert_eq!(read.config, wanted);
        for item in tensors(&wanted) {
            let (name, t) = item.expect("made");
            assert_eq!(read.tensor(&name).expect("reads"), t, "{name}");
        }
        assert!(read.tokenizer().expect("a missing tokenizer is not an error").is_none());
    }
}

#[test]
fn quantised_rows_are_unpermuted_too() {
    let root = tempfile::tempdir().expect("temp");
    let path = root.path().join("m.gguf");
    let mut config = config(&llama_json());
    config.rope_scaling = None;
    model(&config, true).save(&path);
    let read = ModelFiles::open_gguf(&path).expect("opens");
    for item in tensors(&config) {
        let (name, t) = item.expect("made");
        let found = read.tensor(&name).expect("reads");
        let worst = found.data.iter().zip(&t.data).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
        assert!(worst <= 0.3, "{name}: off by {worst}");
    }
}

#[test]
fn llama3_divisors_become_settings_again() {
    let root = tempfile::tempdir().expect("temp");
    let path = root.path().join("m.gguf");
    let mut wanted = config(&llama_json());
    if let Some(RopeScaling::Llama3(s)) = &mut wanted.rope_scaling {
        s.original_max_position_embeddings = 8192;
    }
    let plain = ModelConfig { rope_scaling: None, ..wanted.clone() };
    let divisors: Vec<f32> = plain.inv_freqs().iter().zip(wanted.inv_freqs()).map(|(p, s)| (p / s) as f32).collect();
    let mut w = model(&wanted, false);
    w.tensors.push(("rope_freqs.weight".into(), vec![divisors.len()], 0, Dtype::F32.encode(&divisors)));
    w.save(&path);
    assert_eq!(GgufFile::open(&path).expect("opens").config().rope_scaling, wanted.rope_scaling);
    if let Some(last) = w.tensors.last_mut() {
        last.3 = Dtype::F32.encode(&[1.0, 3.0, 2.0, 1.0]);
    }
    w.save(&path);
    fails(GgufFile::open(&path), &["m.gguf", "rope_freqs.weight", "not llama3"]);
}

/// Rotary scaling from llama.cpp's metadata equals that of a folder with the same settings.
#[test]
fn rotary_scaling_is_read_from_the_metadata() {
    let root = tempfile::tempdir().expect("temp");
    let path = root.path().join("m.gguf");
    let read = |change: &dyn Fn(&mut Writer)| {
        let mut w = model(&config(&qwen3_json()), false);
        change(&mut w);
        w.save(&path);
        GgufFile::open(&path).expect("opens").config().clone()
    };
    let factor = |w: &mut Writer, name: &str, by: f32| {
        w.key(&format!("qwen3.{name}"), 6, &by.to_le_bytes());
    };
    let folder = |scaling: serde_json::Value| {
        let mut value = qwen3_json();
        value["rope_scaling"] = scaling;
        config(&value)
    };
    let linear = folder(serde_json::json!({ "rope_type": "linear", "factor": 3.0 }));
    let found = read(&|w| {
        w.text("qwen3.rope.scaling.type", "linear");
        factor(w, "rope.scaling.factor", 3.0);
    });
    assert_eq!((found.rope_scaling, found.inv_freqs()), (linear.rope_scaling, linear.inv_freqs()));
    assert_eq!(read(&|w| factor(w, "rope.scale_linear", 3.0)).rope_scaling, linear.rope_scaling, "of old files");
    let yarn = folder(
        serde_json::json!({ "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 16.0 }),
    );
    let found = read(&|w| {
        w.text("qwen3.rope.scaling.type", "yarn").u32("qwen3.rope.scaling.original_context_length", 64);
        factor(w, "rope.scaling.factor", 4.0);
        factor(w, "rope.scaling.yarn_beta_fast", 16.0);
    });
    assert_eq!(found.rope_scaling, yarn.rope_scaling);
}

#[test]
fn unsupported_types_and_settings_are_named() {
    let root = tempfile::tempdir().expect("temp");
    let path = root.path().join("m.gguf");
    let config = config(&qwen3_json());
    let refused = |w: &Writer, parts: &[&str]| {
        w.save(&path);
        fails(ModelFiles::open_gguf(&path), parts);
    };
    let with = || model(&config, false);
    refused(with().u32("qwen3.expert_count", 8), &["qwen3.expert_count", "8"]);
    refused(with().key("qwen3.attention.causal", 7, &[0]), &["qwen3.attention.causal", "0"]);
    let factor = "qwen3.rope.scaling.attn_factor";
    refused(with().key(factor, 6, &1.5f32.to_le_bytes()), &[factor, "1.5"]);
    refused(with().text("qwen3.rope.scaling.type", "longrope"), &["qwen3.rope.scaling.type", "longrope"]);
    refused(with().u32("general.architecture", 1), &["general.architecture", "twice"]);
    refused(Writer::new().text("general.architecture", "mistral"), &["general.architecture", "mistral", "llama"]);
    let all = ["general.architecture", "gemma3", "qwen3", "qwen2", "llama"];
    refused(Writer::new().text("general.architecture", "gemma3"), &all);
    fs::write(&path, b"GGML....").expect("writes");
    fails(ModelFiles::open_gguf(&path), &["m.gguf", "not a GGUF file"]);
    let check = |change: fn(&mut Writer), parts: &[&str]| {
        let mut w = with();
        change(&mut w);
        refused(&w, parts);
    };
    check(|w| w.tensors[3].2 = 10, &["m.gguf", "blk.0.attn_k.weight", "Q2_K", "Q6_K"]);
    check(|w| w.tensors[3].2 = 77, &["blk.0.attn_k.weight", "unknown", "77"]);
    check(|w| drop(w.tensors.remove(3)), &["m.gguf", "self_attn.k_proj.weight", "missing"]);
    check(|w| w.tensors[3].0 = "blk.0.attn_k.bias".into(), &["unexpected tensor `blk.0.attn_k.bias`"]);
    check(|w| w.tensors[3].0 = "blk.00.attn_k.weight".into(), &["unexpected tensor `blk.00.attn_k.weight`"]);
    check(|w| w.tensors[3].1 = vec![8, 128], &["k_proj", "[32, 32]", "[8, 128]"]);
}

/// Experts are one tensor `[E, out, in]`; its declared shape is checked before it is split.
#[test]
fn stacked_experts_are_checked() {
    let root = tempfile::tempdir().expect("temp");
    let (path, whole) = (root.path().join("m.gguf"), crate::parity::reference::fixture("gguf/qwen3_moe.gguf"));
    let read = ModelFiles::open_gguf(&whole).expect("opens");
    let sparse = read.config.extras.experts.as_ref().expect("experts");
    assert_eq!((sparse.count, sparse.per_token, sparse.width), (5, 2, 12));
    assert_eq!(sparse.layers, [true, false, true]);
    let bytes = fs::read(&whole).expect("reads");
    let check = |key: &str, value: u32, parts: &[&str]| {
        let mut changed = bytes.clone();
        let at = changed.windows(key.len()).position(|text| text == key.as_bytes()).expect("the key") + key.len() + 4;
        changed[at..at + 4].copy_from_slice(&value.to_le_bytes());
        fs::write(&path, changed).expect("writes");
        fails(ModelFiles::open_gguf(&path), parts);
    };
    check("qwen3moe.expert_count", 6, &["m.gguf", "ffn_down_exps", "must have 6 experts, found 5"]);
    check("qwen3moe.expert_used_count", 9, &["m.gguf", "num_experts_per_tok", "5 experts, found 9"]);
    check("qwen3moe.expert_feed_forward_length", 13, &["experts.0.gate_proj.weight", "[13, 24]", "[12, 24]"]);
    check("qwen3moe.block_count", u32::MAX, &["m.gguf", "num_hidden_layers", "4294967295"]);
}

/// Blocks of 256 in rows of another length, and in a truncated file.
#[test]
fn damaged_blocks_are_named() {
    let root = tempfile::tempdir().expect("temp");
    let path = root.path().join("m.gguf");
    let config = config(&qwen3_json());
    for (kind, name) in [(12, "Q4_K"), (13, "Q5_K"), (14, "Q6_K")] {
        let mut w = model(&config, false);
        w.tensors[3].2 = kind;
        w.save(&path);
        fails(ModelFiles::open_gguf(&path), &["m.gguf", "blk.0.attn_k.weight", name, "256"]);
    }
    let root = Path::new("fixtures/gguf");
    for name in ["tiny-q4_k_m.gguf", "tiny-q5_k_m.gguf"] {
        let bytes = fs::read(root.join(name)).expect("reads");
        for cut in [1, 40, 10_000] {
            fs::write(&path, &bytes[..bytes.len() - cut]).expect("writes");
            fails(ModelFiles::open_gguf(&path), &["m.gguf", "tensor `", "truncated"]);
        }
    }
}

/// Every tensor of every file equals gguf-py's, bit for bit.
#[test]
fn every_tensor_is_dequantised_as_by_the_reference() {
    let root = Path::new("fixtures/gguf");
    let wanted = fs::read(root.join("tensors.json")).expect("reads");
    let wanted: BTreeMap<String, BTreeMap<String, String>> = serde_json::from_slice(&wanted).expect("parses");
    assert_eq!(wanted.len(), 11);
    for (file, tensors) in wanted {
        let read = ModelFiles::open_gguf(root.join(&file)).expect("opens");
        assert_eq!(read.names(), tensors.keys().cloned().collect::<Vec<_>>(), "{file}");
        for (name, hash) in tensors {
            let found = Dtype::F32.encode(&read.tensor(&name).expect("reads").data);
            assert_eq!(format!("{:x}", Sha256::digest(found)), hash, "{file}: {name}");
        }
    }
}

/// Any bytes: quants, scales of quants, negative and subnormal 16-bit scales.
#[test]
fn random_blocks_are_dequantised_as_by_the_reference() {
    use Format::*;
    let file = fs::read("fixtures/gguf/blocks.safetensors").expect("reads");
    let blocks = safetensors::SafeTensors::deserialize(&file).expect("parses");
    let formats = [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K];
    assert_eq!(blocks.len(), 2 * formats.len());
    for format in formats {
        let of = |part: &str| {
            let name = format!("{}.{part}", format!("{format:?}").to_lowercase());
            blocks.tensor(&name).expect("is there")
        };
        let (bytes, wanted) = (of("bytes"), of("values"));
        assert_eq!(bytes.shape()[1..], [format.block_bytes()], "{format:?}");
        let mut found = vec![0.0; bytes.shape()[0] * format.block_len()];
        format.widen(bytes.data(), &mut found);
        assert!(Dtype::F32.encode(&found) == wanted.data(), "{format:?}");
    }
}

#[test]
fn the_tokenizer_splits_as_its_name_says() {
    let root = tempfile::tempdir().expect("temp");
    let path = root.path().join("m.gguf");
    let mut value = qwen3_json();
    value["vocab_size"] = 263.into();
    for (pre, pieces) in [
        ("qwen2", vec!["<|im_start|>", "the", "Ġthe", "1", "2", "<think>", "Ċ"]),
        ("smollm", vec!["<|im_start|>", "the", "Ġthe", "1", "2", "<think>", "Ċ"]),
        ("llama-bpe", vec!["<|im_start|>", "the", "Ġthe", "12", "<think>", "Ċ"]),
        ("gpt-2", vec!["<|im_start|>", "the", "Ġthe", "12", "<think>", "Ċ"]),
        ("smaug-bpe", vec!["<|im_start|>", "the", "Ġthe", "12", "<think>", "Ċ"]),
        // Without a rule, a Qwen3 model splits text as Qwen does.
        ("default", vec!["<|im_start|>", "the", "Ġthe", "1", "2", "<think>", "Ċ"]),
    ] {
        let mut w = model(&config(&value), false);
        with_tokenizer(&mut w, pre);
        w.key("tokenizer.ggml.add_bos_token", 7, &[0]).save(&path);
        let read = ModelFiles::open_gguf(&path).expect("opens");
        let tokenizer = read.tokenizer().expect("builds").expect("is there");
        let encoded = tokenizer.encode("<|im_start|>the the12<think>\n", true).expect("encodes");
        assert_eq!(encoded.get_tokens(), pieces, "{pre}");
        assert_eq!(tokenizer.decode(encoded.get_ids(), false).expect("decodes"), "<|im_start|>the the12<think>\n");
        assert_eq!(tokenizer.decode(encoded.get_ids(), true).expect("decodes"), "the the12<think>\n");
        let templates = read.templates().expect("reads").expect("some");
        assert_eq!(templates.choose(None).expect("a default"), "{{ messages }}");
        let names: Vec<String> = read.text_files(None).expect("writes").into_iter().map(|(n, _)| n).collect();
        assert_eq!(names, ["tokenizer.json", "tokenizer_config.json"]);
    }
    let mut w = model(&config(&value), false);
    with_tokenizer(&mut w, "kimi-k2");
    w.save(&path);
    fails(ModelFiles::open_gguf(&path).expect("opens").tokenizer(), &["tokenizer.ggml.pre", "kimi-k2"]);
    let mut small = model(&config(&qwen3_json()), false);
    with_tokenizer(&mut small, "qwen2");
    small.save(&path);
    fails(ModelFiles::open_gguf(&path).expect("opens").tokenizer(), &["does not fit", "`vocab_size` is 40"]);
}

#[test]
fn a_merge_that_makes_no_token_is_an_error_not_a_panic() {
    let root = tempfile::tempdir().expect("temp");
    let path = root.path().join("m.gguf");
    let mut w = model(&config(&qwen3_json()), false);
    w.text("tokenizer.ggml.model", "gpt2")
        .texts("tokenizer.ggml.tokens", &["a", "b"])
        .texts("tokenizer.ggml.merges", &["a b"]);
    w.save(&path);
    fails(ModelFiles::open_gguf(&path).expect("opens").tokenizer(), &["merges[0]", "a b"]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..Default::default() })]

    /// Opening and reading a file never panics, whatever it contains.
    #[test]
    fn damaged_files_never_panic(keep in 0.0..1.0f64, hits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4)) {
        let mut w = model(&config(&llama_json()), true);
        with_tokenizer(&mut w, "smollm");
        let whole = w.bytes();
        let data: usize = w.tensors.iter().map(|t| t.3.len()).sum();
        let head = whole.len() - data;
        let mut bytes = whole;
        for (at, value) in hits {
            let i = at.index(head);
            bytes[i] = value;
        }
        if keep < 0.5 {
            bytes.truncate((bytes.len() as f64 * keep * 2.0) as usize);
        }
        let file = tempfile::NamedTempFile::new().expect("temp");
        fs::write(file.path(), &bytes).expect("writes");
        if let Ok(read) = ModelFiles::open_gguf(file.path()) {
            for name in read.names() {
                read.tensor(&name).ok();
            }
            read.tokenizer().ok();
            read.text_files(None).ok();
        }
    }
}

/// Qwen3's tokenizer, converted to GGUF metadata as in llama.cpp, encodes like its `tokenizer.json`.
#[test]
fn qwen3_tokenizer_survives_gguf() {
    let Some(data) = real_data("Qwen3's tokenizer") else { return };
    let path = data.join("qwen3_tokenizer/tokenizer.json");
    let json: serde_json::Value = serde_json::from_slice(&fs::read(&path).expect("reads")).expect("parses");
    let mut tokens: Vec<(u64, String, i32)> = vec![];
    for (token, id) in json["model"]["vocab"].as_object().expect("is a map") {
        tokens.push((id.as_u64().expect("is an id"), token.clone(), 1));
    }
    for added in json["added_tokens"].as_array().expect("is a list") {
        let kind = if added["special"] == true { 3 } else { 4 };
        tokens.push((
            added["id"].as_u64().expect("is an id"),
            added["content"].as_str().expect("is text").to_string(),
            kind,
        ));
    }
    tokens.sort();
    (tokens.len()..151936).for_each(|id| tokens.push((id as u64, format!("[PAD{id}]"), 5)));
    let merges: Vec<String> = json["model"]["merges"]
        .as_array()
        .expect("is a list")
        .iter()
        .map(|m| match m.as_array() {
            Some(pair) => pair.iter().filter_map(|v| v.as_str()).collect::<Vec<_>>().join(" "),
            None => m.as_str().expect("is text").to_string(),
        })
        .collect();
    let mut value = qwen3_json();
    value["vocab_size"] = 151936.into();
    let mut w = model(&config(&value), true);
    w.text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", "qwen2")
        .texts("tokenizer.ggml.tokens", &tokens.iter().map(|t| &t.1).collect::<Vec<_>>())
        .kinds("tokenizer.ggml.token_type", &tokens.iter().map(|t| t.2).collect::<Vec<_>>())
        .texts("tokenizer.ggml.merges", &merges);
    let file = tempfile::NamedTempFile::new().expect("temp");
    w.save(file.path());
    let ours = GgufFile::open(file.path()).expect("opens").text_side().expect("builds").expect("is there").tokenizer;
    let theirs = tokenizers::Tokenizer::from_file(&path).expect("loads");
    assert_eq!(ours.get_vocab_size(true), theirs.get_vocab_size(true));
    for text in [
        "<|im_start|>user\nWhat is 12*34?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        "There are 1270 apples;  don't you  think?\n\n  indented\tTabs   ",
        "na\u{ef}ve cafe\u{301} \u{212b} \u{65e5}\u{672c}\u{8a9e} \u{1f600} \\boxed{\\frac{1}{2}} I'LL we'Ve\r\n\r\n x\u{a0}y",
    ] {
        let (a, b) = (ours.encode(text, true).expect("encodes"), theirs.encode(text, true).expect("encodes"));
        assert_eq!(a.get_ids(), b.get_ids(), "{text}");
        assert_eq!(
            ours.decode(a.get_ids(), true).expect("decodes"),
            theirs.decode(b.get_ids(), true).expect("decodes")
        );
    }
}
