//! SentencePiece vocabularies as a tokenizer of the `tokenizers` crate: pieces with scores, from a GGUF or a `tokenizer.model`. Merges
//! are ranked by the score of their result.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Result, bail};
use base64::prelude::{BASE64_STANDARD as STANDARD, Engine};
use serde_json::{Map, Value, json};
use tokenizers::Tokenizer;

use super::classes::TokenizerClass;
use super::parse;
use super::sentencepiece::SentencePieceModel;

/// Types of a piece, the same in SentencePiece and GGUF. SentencePiece merges only into normal pieces, llama.cpp also into user-defined
/// ones: runs of spaces in Gemma's.
const NORMAL: u64 = 1;
pub const UNKNOWN: u64 = 2;
const CONTROL: u64 = 3;
pub const USER_DEFINED: u64 = 4;

#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    pub token: String,
    pub score: f64,
    pub kind: u64,
}

/// Maximum characters of a piece. SentencePiece makes at most 16 by default; the time to compute the merges of a piece grows with the
/// square of its length.
const MOST_LETTERS: usize = 1024;

/// Refuses a piece that is too long.
pub(crate) fn check(pieces: &[Piece], origin: &str) -> Result<()> {
    let too_long = |(id, piece): (usize, &Piece)| {
        let letters = piece.token.chars().count();
        (letters > MOST_LETTERS).then(|| (id, letters, piece.token.chars().take(20).collect::<String>()))
    };
    match pieces.iter().enumerate().find_map(too_long) {
        Some((id, letters, start)) => {
            bail!("{origin}: piece {id} (`{start}…`) has {letters} letters, and a piece has at most {MOST_LETTERS}")
        }
        None => Ok(()),
    }
}

/// Every pair of used pieces that forms a used piece, with the id of that piece.
fn pairs(pieces: &[Piece], is_used: impl Fn(&Piece) -> bool) -> Vec<(usize, [&str; 2])> {
    let used = pieces.iter().enumerate().filter(|(_, piece)| is_used(piece));
    let ids: HashMap<&str, usize> = used.map(|(id, piece)| (piece.token.as_str(), id)).collect();
    let mut found = vec![];
    for (token, id) in &ids {
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if ids.contains_key(left) && ids.contains_key(right) {
                found.push((*id, [left, right]));
            }
        }
    }
    found
}

/// The merges of pieces of these kinds, best score first.
fn merges<'p>(pieces: &'p [Piece], kinds: &[u64]) -> Vec<[&'p str; 2]> {
    let mut ranked = pairs(pieces, |piece| kinds.contains(&piece.kind));
    let score = |id: usize| pieces[id].score;
    ranked.sort_by(|a, b| score(b.0).total_cmp(&score(a.0)).then(a.cmp(b)));
    ranked.into_iter().map(|(_, pair)| pair).collect()
}

/// The merges that `transformers` computes for Llama's class: earlier pieces first, whatever their scores.
fn merges_by_id(pieces: &[Piece]) -> Vec<[&str; 2]> {
    let mut ranked = pairs(pieces, |_| true);
    ranked.sort_by_key(|(id, [left, _])| (*id, left.len()));
    ranked.into_iter().map(|(_, pair)| pair).collect()
}

fn bpe(pieces: &[Piece], merges: &[[&str; 2]], unk: Option<&str>, byte_fallback: bool) -> Value {
    let vocab: Map<String, Value> =
        pieces.iter().enumerate().map(|(id, piece)| (piece.token.clone(), json!(id))).collect();
    bpe_model(json!(vocab), json!(merges), unk, [true, byte_fallback])
}

/// The `model` of a tokenizer.json.
pub(super) fn bpe_model(vocab: Value, merges: Value, unk: Option<&str>, [fuse, bytes]: [bool; 2]) -> Value {
    json!({ "type": "BPE", "dropout": null, "unk_token": unk, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": fuse, "byte_fallback": bytes, "ignore_merges": false,
        "vocab": vocab, "merges": merges })
}

fn assemble(model: Value, normalizers: Vec<Value>, pre_tokenizer: Value, decoders: Vec<Value>) -> Value {
    json!({ "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": { "type": "Sequence", "normalizers": normalizers }, "pre_tokenizer": pre_tokenizer,
        "post_processor": null, "decoder": { "type": "Sequence", "decoders": decoders }, "model": model })
}

pub(super) fn replace(pattern: &Value, to: &str) -> Value {
    json!({ "type": "Replace", "pattern": pattern, "content": to })
}

pub(super) fn decoders(byte_fallback: bool, prefix: bool) -> Vec<Value> {
    let mut steps = vec![replace(&json!({ "String": "▁" }), " ")];
    steps.extend(byte_fallback.then(|| json!({ "type": "ByteFallback" })));
    steps.push(json!({ "type": "Fuse" }));
    steps.extend(prefix.then(|| json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 })));
    steps
}

/// The tokenizer of a GGUF, which splits like llama.cpp: `prefix` adds a space before every text, and after each token that is matched
/// whole.
pub fn from_gguf(pieces: &[Piece], unk: Option<&str>, prefix: bool, source: &Path) -> Result<Tokenizer> {
    let mut normalizers = vec![];
    normalizers.extend(prefix.then(|| json!({ "type": "Prepend", "prepend": "▁" })));
    normalizers.push(replace(&json!({ "String": " " }), "▁"));
    let file = assemble(
        bpe(pieces, &merges(pieces, &[NORMAL, USER_DEFINED]), unk, true),
        normalizers,
        Value::Null,
        decoders(true, prefix),
    );
    parse(file.to_string().as_bytes(), source)
}

/// The tokenizer.json of a `tokenizer.model`. Its added tokens are the pieces that are matched whole.
pub(super) fn from_model(model: &SentencePieceModel, class: TokenizerClass, config: &Map<String, Value>) -> Value {
    let pieces = &model.pieces;
    let unk = model.unk.and_then(|id| pieces.get(id as usize)).map(|piece| piece.token.as_str());
    let by_class = class.is_sentencepiece() && !model.unigram;
    let mut made = if by_class {
        let bare = assemble(bpe(pieces, &merges_by_id(pieces), None, true), vec![], Value::Null, vec![]);
        class.remade(bare, config)
    } else {
        let inner = if model.unigram {
            let scored: Vec<Value> = pieces.iter().map(|piece| json!([piece.token, piece.score])).collect();
            json!({ "type": "Unigram", "unk_id": model.unk, "vocab": scored, "byte_fallback": model.byte_fallback })
        } else {
            bpe(pieces, &merges(pieces, &[NORMAL]), unk, model.byte_fallback)
        };
        generic(model, inner, config)
    };
    // The class treats user-defined pieces as added tokens; the model's own settings split them off the text.
    let added = |kind: u64| kind == CONTROL || (kind == USER_DEFINED && by_class);
    let added = pieces.iter().enumerate().filter(|(_, piece)| added(piece.kind));
    let added = added.map(|(id, piece)| {
        json!({ "id": id, "content": piece.token, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": piece.kind == CONTROL })
    });
    made["added_tokens"] = added.collect();
    made
}

/// By the model's own settings, for a class without its own rules.
fn generic(model: &SentencePieceModel, mut inner: Value, config: &Map<String, Value>) -> Value {
    let legacy = config.get("legacy").and_then(Value::as_bool).unwrap_or(true);
    let mut normalizers = vec![];
    if !model.charsmap.is_empty() {
        normalizers.push(json!({ "type": "Precompiled", "precompiled_charsmap": STANDARD.encode(&model.charsmap) }));
    }
    if model.fewer_spaces {
        normalizers.push(replace(&json!({ "Regex": r"\A +| +\z" }), ""));
        normalizers.push(replace(&json!({ "Regex": " {2,}" }), " "));
    }
    if model.escapes {
        normalizers.push(replace(&json!({ "String": " " }), "▁"));
    }
    if model.dummy_prefix && legacy {
        // A text that begins with a space gets the prefix too.
        normalizers.push(replace(&json!({ "Regex": r"\A▁" }), "▁▁"));
    }
    let scheme = if legacy { "always" } else { "first" };
    let spaces = json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": false });
    let mut steps: Vec<Value> = model.dummy_prefix.then_some(spaces).into_iter().collect();
    // User-defined pieces are never merged.
    let mut defined: Vec<&str> =
        model.pieces.iter().filter(|piece| piece.kind == USER_DEFINED).map(|piece| piece.token.as_str()).collect();
    if !defined.is_empty() {
        defined.sort_by_key(|token| std::cmp::Reverse(token.chars().count()));
        let any = defined.into_iter().map(escaped).collect::<Vec<_>>().join("|");
        steps.push(json!({ "type": "Split", "pattern": { "Regex": any }, "behavior": "Isolated", "invert": false }));
        if !model.unigram {
            inner["ignore_merges"] = json!(true);
        }
    }
    let pre_tokenizer = match steps.is_empty() {
        true => Value::Null,
        false => json!({ "type": "Sequence", "pretokenizers": steps }),
    };
    assemble(inner, normalizers, pre_tokenizer, decoders(model.byte_fallback, model.dummy_prefix))
}

/// A text as an expression that matches it alone. `\<` would be the beginning of a word.
fn escaped(text: &str) -> String {
    let sign = |c: char| if r"\.+*?()|[]{}^$".contains(c) { format!("\\{c}") } else { c.to_string() };
    text.chars().map(sign).collect()
}
