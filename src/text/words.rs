//! A word-level tokenizer for the generated tasks, as an ordinary `tokenizer.json`.
//!
//! One id per whitespace-separated word: `<pad>` 0, `<bos>` 1, `<eos>` 2, `<unk>` 3, then the words in order. Text is not normalised and
//! nothing is added around it; templates write `<bos>` and `<eos>` themselves.

use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::{Map, Value, json};

use super::Vocabulary;
use crate::tokenizer::parse;

pub const PAD: &str = "<pad>";
pub const BOS: &str = "<bos>";
pub(crate) const EOS: &str = "<eos>";
pub(crate) const UNK: &str = "<unk>";

impl Vocabulary {
    /// The vocabulary of these words; duplicates count once, so that task families can be joined.
    pub fn from_words<S: AsRef<str>>(words: impl IntoIterator<Item = S>) -> Result<Self> {
        let special = [PAD, BOS, EOS, UNK];
        let mut ids: Map<String, Value> = Map::new();
        for (id, token) in special.iter().enumerate() {
            ids.insert(token.to_string(), json!(id));
        }
        for word in words {
            let word = word.as_ref();
            ensure!(
                !word.is_empty() && !word.contains(char::is_whitespace),
                "word-level tokenizer: {word:?} is not one word"
            );
            let next = ids.len();
            ids.entry(word).or_insert(json!(next));
        }
        let added: Vec<Value> = special
            .iter()
            .enumerate()
            .map(|(id, token)| {
                json!({ "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": true })
            })
            .collect();
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
            "pre_tokenizer": { "type": "WhitespaceSplit" }, "post_processor": null, "decoder": null,
            "model": { "type": "WordLevel", "vocab": ids, "unk_token": UNK },
        });
        let config = json!({
            "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": false,
            "bos_token": BOS, "eos_token": EOS, "pad_token": PAD, "unk_token": UNK,
        });
        let config = config.as_object().cloned().unwrap_or_default();
        let source = Path::new("word-level tokenizer");
        let tokenizer = parse(tokenizer.to_string().as_bytes(), source)?;
        Vocabulary::from_tokenizer(tokenizer, config, source)
    }
}
