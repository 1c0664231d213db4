//! Writes a `Vocabulary` as the files that `transformers`' AutoTokenizer reads.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use serde_json::{Map, Value, json};
use tokenizers::AddedToken;

use super::{Vocabulary, write_atomic};

impl Vocabulary {
    /// Writes `tokenizer.json` and `tokenizer_config.json`, so that `transformers`' AutoTokenizer reads the folder.
    pub fn save(&self, folder: impl AsRef<Path>) -> Result<()> {
        let folder = folder.as_ref();
        std::fs::create_dir_all(folder)
            .with_context(|| format!("{}: cannot create", folder.display()))?;
        let tokenizer = self.tokenizer.to_string(true).map_err(|error| {
            anyhow!("{}: cannot write as JSON: {error}", self.source().display())
        })?;
        write_atomic(&folder.join("tokenizer.json"), tokenizer.as_bytes())?;
        let config = serde_json::to_string_pretty(&self.full_config())?;
        write_atomic(&folder.join("tokenizer_config.json"), config.as_bytes())
    }

    /// The source's configuration, completed: a class that reads any tokenizer.json where none is named, and every
    /// added token, because `transformers` believes this list and not only the one in `tokenizer.json`.
    fn full_config(&self) -> Map<String, Value> {
        let mut config = self.config.clone();
        config
            .entry("tokenizer_class")
            .or_insert_with(|| json!("PreTrainedTokenizerFast"));
        config
            .entry("clean_up_tokenization_spaces")
            .or_insert_with(|| json!(false));
        let name = |id: Option<u32>| id.and_then(|id| self.token(id));
        for (key, id) in [
            ("bos_token", self.bos()),
            ("eos_token", self.eos()),
            ("pad_token", self.pad()),
        ] {
            if let Some(token) = name(id) {
                config.entry(key).or_insert_with(|| json!(token));
            }
        }
        let mut added: Vec<(u32, AddedToken)> = self
            .tokenizer
            .get_added_tokens_decoder()
            .into_iter()
            .collect();
        added.sort_by_key(|(id, _)| *id);
        let described = added.into_iter().map(|(id, token)| {
            let AddedToken {
                content,
                lstrip,
                normalized,
                rstrip,
                single_word,
                special,
                ..
            } = token;
            let value = json!({ "content": content, "lstrip": lstrip, "normalized": normalized,
                "rstrip": rstrip, "single_word": single_word, "special": special });
            (id.to_string(), value)
        });
        config.insert(
            "added_tokens_decoder".into(),
            Value::Object(described.collect()),
        );
        config
    }
}
