//! Writes a `Vocabulary` as the files that `transformers`' AutoTokenizer reads.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use serde_json::{Map, Value, json};
use tokenizers::AddedToken;

use super::Vocabulary;
use crate::guard::{MOST_TEXT, read_bytes};
use crate::store::{subfolder, write_atomic};
use crate::tokenizer::{KEPT, Templates};

impl Vocabulary {
    /// Names and contents of the files: tokenizer, chat templates, and files of the source that are still valid.
    pub fn files(&self) -> Result<Vec<(String, Vec<u8>)>> {
        let tokenizer = self
            .tokenizer
            .to_string(true)
            .map_err(|error| anyhow!("{}: cannot write as JSON: {error}", self.source().display()))?;
        let config = serde_json::to_vec_pretty(&self.full_config())?;
        let mut files =
            vec![("tokenizer.json".into(), tokenizer.into_bytes()), ("tokenizer_config.json".into(), config)];
        if let Some(templates) = &self.templates
            && Templates::from_object(&self.config, &templates.origin)?.as_ref() != Some(templates)
        {
            files.extend(templates.files());
        }
        let folder = self.source().parent().unwrap_or(Path::new("."));
        // The folder of a GGUF may have files of another model; a tokenizer in memory has no folder.
        let is_gguf = self.source().extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"));
        let alone = !self.source().is_file() || is_gguf;
        for name in KEPT.iter().filter(|_| !alone) {
            let path = folder.join(name);
            if path.is_file() {
                let bytes = read_bytes(&path, MOST_TEXT).with_context(|| format!("{}: cannot read", path.display()))?;
                files.push(((*name).to_owned(), bytes));
            }
        }
        Ok(files)
    }

    /// Writes the files into a folder, each atomically.
    pub fn save(&self, folder: impl AsRef<Path>) -> Result<()> {
        let folder = folder.as_ref();
        std::fs::create_dir_all(folder).with_context(|| format!("{}: cannot create", folder.display()))?;
        for (name, bytes) in self.files()? {
            if let Some((below, _)) = name.rsplit_once('/') {
                subfolder(folder, below)?;
            }
            write_atomic(&folder.join(name), &bytes)?;
        }
        Ok(())
    }

    /// The source's configuration, completed with a class that reads any tokenizer.json if none is named, and with every added token, because
    /// `transformers` uses this list in addition to that of `tokenizer.json`.
    fn full_config(&self) -> Map<String, Value> {
        let mut config = self.config.clone();
        config.entry("tokenizer_class").or_insert_with(|| json!("PreTrainedTokenizerFast"));
        config.entry("clean_up_tokenization_spaces").or_insert_with(|| json!(false));
        // `transformers` reads them only from this file if it lists added tokens, which it now does.
        config.extend(self.roles.clone());
        let name = |id: Option<u32>| id.and_then(|id| self.token(id));
        for (key, id) in [("bos_token", self.bos()), ("eos_token", self.eos()), ("pad_token", self.pad())] {
            if let Some(token) = name(id) {
                config.entry(key).or_insert_with(|| json!(token));
            }
        }
        let mut added: Vec<(u32, AddedToken)> = self.tokenizer.get_added_tokens_decoder().into_iter().collect();
        added.sort_by_key(|(id, _)| *id);
        let described = added.into_iter().map(|(id, token)| {
            let AddedToken { content, lstrip, normalized, rstrip, single_word, special, .. } = token;
            let value = json!({ "content": content, "lstrip": lstrip, "normalized": normalized,
                "rstrip": rstrip, "single_word": single_word, "special": special });
            (id.to_string(), value)
        });
        config.insert("added_tokens_decoder".into(), Value::Object(described.collect()));
        config
    }
}
