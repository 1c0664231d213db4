//! The text side of a checkpoint: tokenizer, chat templates, ids that end a text. Reads and copies them; `crate::text` interprets them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::{Value, json};
use tokenizers::Tokenizer;

use super::{GgufFile, ModelFiles};
use crate::config::keys::Keys;
use crate::guard::{MOST_TEXT, read_bytes};
use crate::tokenizer::{KEPT, Templates, TextSide, has_tokenizer, read, read_object, templates_in};

#[derive(Clone)]
pub(super) enum Source {
    Folder(PathBuf),
    Gguf(Arc<GgufFile>),
}

/// Files of a folder that describe its text side, in the order they are copied, next to [`KEPT`].
const FILES: [&str; 6] =
    ["tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "added_tokens.json", "chat_template.jinja"];

/// Keys of `generation_config.json` that change the chosen tokens even without sampling.
const CHANGES: [&str; 14] = [
    "repetition_penalty",
    "encoder_repetition_penalty",
    "no_repeat_ngram_size",
    "bad_words_ids",
    "suppress_tokens",
    "begin_suppress_tokens",
    "sequence_bias",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "exponential_decay_length_penalty",
    "min_new_tokens",
    "min_length",
    "num_beams",
    "penalty_alpha",
];

impl Source {
    fn text_side(&self, rows: usize) -> Result<Option<TextSide>> {
        match self {
            Source::Folder(dir) => read(dir, Some(rows)),
            Source::Gguf(file) => gguf_side(file, rows),
        }
    }

    fn templates(&self) -> Result<Option<Templates>> {
        match self {
            Source::Gguf(file) => file.templates(),
            Source::Folder(dir) => templates_in(dir),
        }
    }

    fn generation_config(&self) -> Result<Option<Value>> {
        match self {
            Source::Gguf(_) => Ok(None),
            Source::Folder(dir) => Ok(read_object(&dir.join("generation_config.json"))?.map(Value::Object)),
        }
    }

    fn files(&self) -> Result<Vec<(String, Vec<u8>)>> {
        let file = match self {
            Source::Gguf(file) => file,
            Source::Folder(dir) => return copy_files(dir),
        };
        let Some(own) = file.text_side()? else {
            return Ok(vec![]);
        };
        let config = format!("{:#}\n", file.tokenizer_config()?).into_bytes();
        Ok(vec![
            ("tokenizer.json".to_string(), to_json(&own.tokenizer)?),
            ("tokenizer_config.json".to_string(), config),
        ])
    }
}

/// A GGUF's own tokenizer if it is complete. Else that of the file's folder, if its ids fit the model's rows: the file's was probably
/// converted from it.
fn gguf_side(file: &GgufFile, rows: usize) -> Result<Option<TextSide>> {
    let own = file.text_side();
    if file.has_exact_tokenizer() && own.is_ok() {
        return own;
    }
    // The parent of a bare file name is empty.
    let Some(beside) = file.path().parent().map(|folder| Path::new(".").join(folder)).filter(|dir| has_tokenizer(dir))
    else {
        return own;
    };
    let Ok(Some(mut side)) = read(&beside, Some(rows)) else { return own };
    if check_fits(&side.tokenizer, rows, "").is_err() {
        return own;
    }
    side.notes.push(format!("text is read with {}, next to the file", side.source.display()));
    Ok(Some(side))
}

impl ModelFiles {
    /// Tokenizer and its settings; `None` if the checkpoint has none. Fails if its ids do not fit the embedding.
    pub fn text_side(&self) -> Result<Option<TextSide>> {
        let rows = self.config.vocab_size;
        let mut side = self.first(|source| source.text_side(rows))?;
        if let Some(side) = &mut side {
            check_fits(&side.tokenizer, rows, &self.path.display().to_string())?;
            let added = side.tokenizer.get_added_tokens_decoder().into_iter();
            let mut beyond: Vec<_> = added.filter(|(id, _)| *id as usize >= rows).collect();
            beyond.sort_by_key(|(id, _)| *id);
            if let [(id, token), ..] = &beyond[..] {
                let (n, token) = (beyond.len(), &token.content);
                side.notes.push(format!(
                    "{n} added tokens from {token:?} (id {id}) on have no row in the embedding of {rows}: a prompt with one of them is refused"
                ));
            }
        }
        Ok(side)
    }

    /// The tokenizer of [`Self::text_side`].
    pub fn tokenizer(&self) -> Result<Option<Tokenizer>> {
        Ok(self.text_side()?.map(|side| side.tokenizer))
    }

    /// The chat templates; an adapter's folder has precedence over its base.
    pub fn templates(&self) -> Result<Option<Templates>> {
        self.first(Source::templates)
    }

    /// `generation_config.json` of a folder, unchanged.
    pub fn generation_config(&self) -> Result<Option<Value>> {
        self.first(Source::generation_config)
    }

    /// Ids that end a generation: those of `generation_config.json`, as in `transformers`, else those of `config.json`.
    pub fn stop_ids(&self) -> Result<Vec<u32>> {
        let generation = self.generation_config()?.unwrap_or_default();
        let origin = format!("{}: generation_config.json", self.path.display());
        let keys = generation.as_object().map(|map| Keys { origin: &origin, path: "", map });
        let mut ids: Vec<u32> = vec![];
        for id in keys.map(|keys| keys.token_ids("eos_token_id")).transpose()?.unwrap_or_default() {
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        Ok(if ids.is_empty() { self.config.eos_token_ids.clone() } else { ids })
    }

    /// Settings of `generation_config.json` that `transformers`' `generate` applies and our decoding does not.
    pub fn not_applied(&self) -> Result<Option<String>> {
        let Some(generation) = self.generation_config()? else { return Ok(None) };
        let neutral = |key: &str, value: &Value| match key {
            "repetition_penalty" | "num_beams" | "encoder_repetition_penalty" => value.as_f64() == Some(1.0),
            "min_new_tokens" | "min_length" | "no_repeat_ngram_size" => value.as_f64() == Some(0.0),
            _ => value.as_array().is_some_and(Vec::is_empty),
        };
        let asked = CHANGES.into_iter().filter(|key| !generation[*key].is_null() && !neutral(key, &generation[*key]));
        let asked: Vec<String> = asked.map(|key| format!("`{key}` = {}", generation[key])).collect();
        Ok((!asked.is_empty()).then(|| {
            format!(
                "warning: generation_config.json: not applied: {}; decoding uses the logits unchanged",
                asked.join(", ")
            )
        }))
    }

    /// The files to write next to this model's weights, as (name, contents) for [`super::SaveOptions::files`]. A `tokenizer` (for example
    /// one with added tokens) replaces the checkpoint's `tokenizer.json`.
    pub fn text_files(&self, tokenizer: Option<&Tokenizer>) -> Result<Vec<(String, Vec<u8>)>> {
        let mut files: Vec<(String, Vec<u8>)> = vec![];
        for source in &self.text {
            for (name, bytes) in source.files()? {
                if !files.iter().any(|(n, _)| *n == name) {
                    files.push((name, bytes));
                }
            }
        }
        if let Some(tokenizer) = tokenizer {
            files.retain(|(name, _)| name != "tokenizer.json");
            files.insert(0, ("tokenizer.json".to_string(), to_json(tokenizer)?));
            for (_, bytes) in files.iter_mut().filter(|(name, _)| name == "tokenizer_config.json") {
                *bytes = with_added_tokens(bytes, tokenizer)?;
            }
        }
        Ok(files)
    }

    /// The first result, from an adapter's folder before its base.
    pub(super) fn first<T>(&self, ask: impl Fn(&Source) -> Result<Option<T>>) -> Result<Option<T>> {
        for source in &self.text {
            if let Some(found) = ask(source)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

/// Checks that every id of the tokenizer has a row in the embedding. Added tokens may lack one: they occur only in texts that contain
/// them.
pub fn check_fits(tokenizer: &Tokenizer, vocab_size: usize, origin: &str) -> Result<()> {
    let top = tokenizer.get_vocab(false).into_iter().map(|(token, id)| (id, token)).max();
    if let Some((id, token)) = top {
        ensure!(
            (id as usize) < vocab_size,
            "{origin}: the tokenizer does not fit the embedding: token {token:?} has id {id}, `vocab_size` is {vocab_size}"
        );
    }
    Ok(())
}

fn copy_files(dir: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let there = FILES.iter().chain(&KEPT).filter(|name| dir.join(name).is_file());
    there
        .map(|name| {
            let path = dir.join(name);
            read_bytes(&path, MOST_TEXT)
                .map(|bytes| (name.to_string(), bytes))
                .with_context(|| format!("{}: cannot read", path.display()))
        })
        .collect()
}

fn to_json(tokenizer: &Tokenizer) -> Result<Vec<u8>> {
    tokenizer.to_string(true).map(String::into_bytes).map_err(|e| anyhow!("cannot write the tokenizer: {e}"))
}

/// Adds tokens to the list in `tokenizer_config.json`, if it has one: transformers also reads them from there.
fn with_added_tokens(bytes: &[u8], tokenizer: &Tokenizer) -> Result<Vec<u8>> {
    let mut config: Value =
        serde_json::from_slice(bytes).map_err(|e| anyhow!("tokenizer_config.json: not valid JSON: {e}"))?;
    if let Some(list) = config.get_mut("added_tokens_decoder").and_then(Value::as_object_mut) {
        let mut added: Vec<_> = tokenizer.get_added_tokens_decoder().into_iter().collect();
        added.sort_by_key(|(id, _)| *id);
        for (id, token) in added {
            list.entry(id.to_string()).or_insert_with(|| json!(token));
        }
    }
    Ok(format!("{config:#}\n").into_bytes())
}
