//! Tokenizers of GGUF files, split models, and GGUF files that are not models.

use std::fs;
use std::path::Path;

use switchyard::model::checkpoint::{GgufFile, ModelFiles, SaveOptions};
use switchyard::text::Vocabulary;
use switchyard::tokenizer::TextSide;

use super::gguf_writer::*;
use super::support::*;

fn side(path: &Path) -> TextSide {
    ModelFiles::open_gguf(path).expect("opens").text_side().expect("reads").expect("is there")
}

fn tokens(side: &TextSide, text: &str) -> Vec<String> {
    side.tokenizer.encode(text, true).expect("encodes").get_tokens().to_vec()
}

/// A model with enough embedding rows for the tests' tokens.
fn roomy(arch: serde_json::Value) -> Writer {
    let mut value = arch;
    value["vocab_size"] = 300.into();
    let mut config = config(&value);
    config.rope_scaling = None;
    model(&config, false)
}

/// The alphabet and these special tokens (control, or a filler according to its name).
fn byte_level(w: &mut Writer, special: &[&str]) {
    byte_level_as(w, special, 3);
}

fn byte_level_as<'t>(w: &mut Writer, special: &[&'t str], kind: i32) {
    let typed = |token: &&'t str| (*token, if token.starts_with("[PAD") { 5 } else { kind });
    alphabet(w, &special.iter().map(typed).collect::<Vec<_>>());
}

#[test]
fn a_missing_splitting_rule_is_guessed_with_a_warning() {
    let root = tempfile::tempdir().expect("temp");
    let path = root.path().join("m.gguf");
    let llama3 = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"];
    for (arch, special, pre, wanted) in [
        // Llama 3's rule. BOS is id 1 in these files, which is a byte token here.
        (llama_json(), &llama3[..], None, "llama-bpe"),
        (llama_json(), &llama3[..], Some("default"), "llama-bpe"),
        (qwen3_json(), &["<|im_end|>"][..], None, "qwen2"),
        (llama_json(), &["</s>"][..], Some("default"), "llama.cpp's default"),
    ] {
        let mut w = roomy(arch);
        byte_level(&mut w, special);
        if let Some(pre) = pre {
            w.text("tokenizer.ggml.pre", pre);
        }
        w.save(&path);
        let side = side(&path);
        let note = side.notes.join(" ");
        assert_names(&note, &["warning", "tokenizer.ggml.pre", wanted]);
        assert!(tokens(&side, "the the").iter().any(|token| token == "Ġthe"), "{wanted}");
    }
    // A named rule gives no warning.
    let mut w = roomy(llama_json());
    byte_level(&mut w, &llama3);
    w.text("tokenizer.ggml.pre", "smaug-bpe").save(&path);
    assert_eq!(side(&path).notes, [""; 0]);
}

/// llama.cpp's default rule, unlike any model's, splits marks from words and digits into threes.
#[test]
fn the_default_rule_is_llama_cpps() {
    let root = tempfile::tempdir().expect("temp");
    let path = root.path().join("m.gguf");
    let mut w = roomy(llama_json());
    byte_level(&mut w, &["</s>"]);
    w.save(&path);
    let cut = |text: &str| {
        let side = side(&path);
        let pre = side.tokenizer.get_pre_tokenizer().expect("cuts").clone();
        let mut pieces = tokenizers::PreTokenizedString::from(text);
        tokenizers::PreTokenizer::pre_tokenize(&pre, &mut pieces).expect("cuts");
        let kind = (tokenizers::OffsetReferential::Original, tokenizers::OffsetType::Byte);
        pieces.get_splits(kind.0, kind.1).into_iter().map(|(piece, ..)| piece.to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(cut("they're (12345)"), ["they", "'", "re", "Ġ", "(", "123", "45", ")"]);
}

#[test]
fn tokens_after_fillers_keep_their_ids() {
    let root = tempfile::tempdir().expect("temp");
    let path = root.path().join("m.gguf");
    let mut w = roomy(qwen3_json());
    byte_level(&mut w, &["<|im_end|>", "[PAD261]", "[PAD262]", "<think>", "[PAD264]"]);
    w.text("tokenizer.ggml.pre", "qwen2").save(&path);
    let side = side(&path);
    let ids = side.tokenizer.encode("the<think><|im_end|>", false).expect("encodes").get_ids().to_vec();
    assert_eq!(ids, [258, 263, 260]);
}

#[test]
fn every_id_that_ends_a_generation_is_found() {
    let root = tempfile::tempdir().expect("temp");
    let path = root.path().join("m.gguf");
    let mut w = roomy(llama_json());
    byte_level(&mut w, &["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>"]);
    w.text("tokenizer.ggml.pre", "llama-bpe").u32("tokenizer.ggml.eot_token_id", 262).save(&path);
    // The file's EOS (2), the named end of turn, and the tokens that llama.cpp recognises by their text.
    assert_eq!(ModelFiles::open_gguf(&path).expect("opens").config.eos_token_ids, [2, 262, 261, 263]);
    // The files next to a GGUF are another model's.
    fs::write(root.path().join("generation_config.json"), "{\"eos_token_id\": 7}").expect("written");
    let upper = root.path().join("m.GGUF");
    fs::copy(&path, &upper).expect("copied");
    let stops = |path: &Path| Vocabulary::new(side(path)).expect("reads").stops().to_vec();
    assert_eq!(stops(&upper), stops(&path));
}

/// llama.cpp recognises these tokens by their text, whatever their type in the file.
#[test]
fn tokens_that_end_a_generation_are_control_tokens_of_any_type() {
    let root = tempfile::tempdir().expect("temp");
    let path = root.path().join("m.gguf");
    for (kind, whole) in [(1, false), (3, true), (4, true), (5, false)] {
        let mut w = roomy(llama_json());
        byte_level_as(&mut w, &["<|im_start|>", "<|im_end|>", "<|fim_pad|>", "<|return|>"], kind);
        w.text("tokenizer.ggml.pre", "llama-bpe").save(&path);
        assert_eq!(ModelFiles::open_gguf(&path).expect("opens").config.eos_token_ids, [2, 261, 262, 263], "{kind}");
        let side = side(&path);
        assert_eq!(side.tokenizer.encode("the<|im_end|>", false).expect("encodes").get_ids(), [258, 261], "{kind}");
        let other = side.tokenizer.encode("<|im_start|>", false).expect("encodes").get_ids().to_vec();
        assert_eq!(other == [260], whole, "{kind}: only those tokens have another type");
    }
}

#[test]
fn a_named_token_outside_the_vocabulary_is_ignored() {
    let root = tempfile::tempdir().expect("temp");
    let path = root.path().join("m.gguf");
    let mut w = roomy(qwen3_json());
    byte_level(&mut w, &["<|im_end|>"]);
    w.text("tokenizer.ggml.pre", "qwen2").u32("tokenizer.ggml.padding_token_id", 4000).save(&path);
    assert_names(&side(&path).notes.join(" "), &["padding_token_id", "4000", "left out"]);
}

/// Tokens that the metadata only names are added if the embedding has a row for them.
#[test]
fn named_tokens_without_embedding_rows_are_ignored() {
    let root = tempfile::tempdir().expect("temp");
    let written = |rows: usize| {
        let mut value = qwen3_json();
        value["vocab_size"] = rows.into();
        let options = SaveOptions { overwrite: true, ..SaveOptions::default() };
        save(root.path(), &config(&value), &options);
        fs::copy("fixtures/text/tokenizer.json", root.path().join("tokenizer.json")).expect("copied");
        fs::write(root.path().join("tokenizer_config.json"), r#"{"pad_token": "<|PAD_TOKEN|>"}"#).expect("written");
        ModelFiles::open_folder(root.path()).expect("opens").text_side().expect("reads").expect("is there")
    };
    let (with, without) = (written(355), written(354));
    assert_eq!((with.tokenizer.get_vocab_size(true), with.notes.len()), (355, 0));
    assert_eq!(without.tokenizer.get_vocab_size(true), 354);
    assert_names(&without.notes.join(" "), &["<|PAD_TOKEN|>", "left out"]);
    // The file's own added tokens without an embedding row give a warning; other words without a row belong to another model.
    assert_names(&written(340).notes.join(" "), &["no row in the embedding of 340"]);
    let mut value = qwen3_json();
    value["vocab_size"] = 300.into();
    save(root.path(), &config(&value), &SaveOptions { overwrite: true, ..SaveOptions::default() });
    fs::copy("fixtures/text/tokenizer.json", root.path().join("tokenizer.json")).expect("copied");
    let refused = message(ModelFiles::open_folder(root.path()).expect("opens").text_side());
    assert_names(&refused, &["does not fit the embedding", "300"]);
}

/// SentencePiece: a space before every text, best score first, byte fallback.
#[test]
fn pieces_with_scores_are_read() {
    let root = tempfile::tempdir().expect("temp");
    let path = root.path().join("m.gguf");
    let mut words = ["<unk>", "<s>", "</s>"].map(String::from).to_vec();
    words.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    let pieces = ["▁", "t", "h", "e", "▁t", "he", "▁the", "th"];
    words.extend(pieces.map(String::from));
    // A user-defined run of spaces, as in Gemma's vocabularies: merges also produce it.
    words.push("▁▁".to_owned());
    let kind = |id: usize| match id {
        0 => 2,
        1 | 2 => 3,
        3..259 => 6,
        267 => 4,
        _ => 1,
    };
    let kinds: Vec<i32> = (0..words.len()).map(kind).collect();
    // "th" has the worst score of all merged pieces.
    let scores: Vec<f32> = (0..words.len()).map(|id| if id < 259 { 0.0 } else { 259.0 - id as f32 }).collect();
    let write = |flags: &[(&str, u8)]| {
        let mut w = roomy(llama_json());
        w.text("tokenizer.ggml.model", "llama")
            .texts("tokenizer.ggml.tokens", &words)
            .kinds("tokenizer.ggml.token_type", &kinds)
            .floats("tokenizer.ggml.scores", &scores);
        for (key, value) in flags {
            w.key(key, 7, &[*value]);
        }
        w.save(&path);
    };
    write(&[]);
    let found = side(&path);
    assert_eq!(tokens(&found, "the the"), ["<s>", "▁the", "▁the"]);
    assert_eq!(tokens(&found, "xthe"), ["<s>", "▁", "<0x78>", "t", "he"]);
    assert_eq!(tokens(&found, "the  the"), ["<s>", "▁the", "▁", "▁the"]);
    assert_eq!(tokens(&found, "x   x"), ["<s>", "▁", "<0x78>", "▁▁", "▁", "<0x78>"]);
    assert_eq!(tokens(&found, "</s>the"), ["<s>", "</s>", "▁the"]);
    let ids = found.tokenizer.encode("the the", false).expect("encodes").get_ids().to_vec();
    assert_eq!(found.tokenizer.decode(&ids, true).expect("decodes"), "the the");
    write(&[("tokenizer.ggml.add_space_prefix", 0), ("tokenizer.ggml.add_bos_token", 0)]);
    assert_eq!(tokens(&side(&path), "the the"), ["t", "he", "▁the"]);
    // A tokenizer.json next to the file takes precedence, unless its ids have no embedding rows.
    fs::copy("fixtures/text/tokenizer.json", root.path().join("tokenizer.json")).expect("copied");
    let error = side(&path);
    assert_eq!(tokens(&error, "the the")[0], "t", "its ids have no rows: it is another model's");
}

#[test]
fn an_unreadable_tokenizer_falls_back_to_tokenizer_json() {
    let root = tempfile::tempdir().expect("temp");
    let path = root.path().join("m.gguf");
    let mut value = qwen3_json();
    value["vocab_size"] = 400.into();
    let mut w = model(&config(&value), false);
    byte_level(&mut w, &["<|im_end|>"]);
    w.text("tokenizer.ggml.pre", "kimi-k2").save(&path);
    let refused = message(ModelFiles::open_gguf(&path).expect("opens").text_side());
    assert_names(&refused, &["tokenizer.ggml.pre", "kimi-k2", "tokenizer.json"]);
    fs::copy("fixtures/text/tokenizer.json", root.path().join("tokenizer.json")).expect("copied");
    assert_names(&side(&path).notes.join(" "), &["tokenizer.json", "next to"]);
}

#[test]
fn a_model_in_parts_is_one_model() {
    let root = tempfile::tempdir().expect("temp");
    let whole = root.path().join("whole.gguf");
    let config = config(&qwen3_json());
    model(&config, false).save(&whole);
    let part = |n: usize, of: usize| root.path().join(format!("m-{:05}-of-{of:05}.gguf", n + 1));
    let all = model(&config, false).tensors;
    for n in 0..3 {
        let mut w = if n == 0 { model(&config, false) } else { Writer::new() };
        w.tensors = all.iter().skip(n * 9).take(if n == 2 { all.len() } else { 9 }).cloned().collect();
        w.key("split.no", 2, &(n as u16).to_le_bytes())
            .key("split.count", 2, &3u16.to_le_bytes())
            .u32("split.tensors.count", all.len() as u32);
        w.save(&part(n, 3));
    }
    let (one, three) = (GgufFile::open(&whole).expect("opens"), ModelFiles::open_gguf(part(0, 3)).expect("opens"));
    assert_eq!(*one.config(), three.config);
    let one = ModelFiles::open_gguf(&whole).expect("opens");
    for name in one.names() {
        assert_eq!(one.tensor(&name).expect("reads"), three.tensor(&name).expect("reads"), "{name}");
    }
    let second = part(1, 3).display().to_string();
    let refused = message(ModelFiles::open_gguf(&second));
    assert_names(&refused, &["part 2 of a model in 3 parts", "m-00001-of-00003.gguf"]);
    fs::remove_file(part(2, 3)).expect("removed");
    fails(ModelFiles::open_gguf(part(0, 3)), &["m-00003-of-00003.gguf", "part 3 of 3 is missing"]);
    fs::copy(part(1, 3), part(2, 3)).expect("copied");
    fails(ModelFiles::open_gguf(part(0, 3)), &["m-00003-of-00003.gguf", "expected part 3 of 3"]);
}

#[test]
fn gguf_files_without_a_model_are_named() {
    let root = tempfile::tempdir().expect("temp");
    let path = root.path().join("m.gguf");
    for (keys, said) in [
        (&[("general.architecture", "llama"), ("general.type", "adapter")][..], "a LoRA adapter in GGUF"),
        (&[("general.architecture", "llama"), ("adapter.type", "lora")], "a LoRA adapter in GGUF"),
        (&[("general.architecture", "clip")], "mmproj"),
        (&[("general.architecture", "controlvector")], "control vectors"),
        (&[("general.type", "imatrix")], "importance matrix"),
        (&[("general.architecture", "llama")], "a vocabulary without weights"),
    ] {
        let mut w = Writer::new();
        for (key, value) in keys {
            w.text(key, value);
        }
        w.save(&path);
        fails(ModelFiles::open_gguf(&path), &["m.gguf", said]);
    }
    let mut turned = model(&config(&qwen3_json()), false).bytes();
    turned[4..8].reverse();
    for (bytes, said) in [
        (&turned[..], "big-endian"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (b"ggjt\x03\0\0\0", "before GGUF"),
        (b"<!DOCTYPE html>", "a page"),
        (b"", "empty"),
    ] {
        fs::write(&path, bytes).expect("written");
        fails(ModelFiles::open_gguf(&path), &["m.gguf", said]);
    }
}
