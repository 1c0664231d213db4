//! Which ids mean beginning, end and padding, as the files of a Hugging Face folder say it.
//!
//! Order of belief: `tokenizer_config.json`, `special_tokens_map.json`, `generation_config.json`, `config.json`. The first
//! file that names a token wins; end-of-text ids are collected from all of them, the first stays first. Instruction
//! models name their turn's end in one file and the text's end in another, and generation must stop at both.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Map, Value};
use tokenizers::Tokenizer;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpecialIds {
    pub bos: Option<u32>,
    pub eos: Vec<u32>,
    pub pad: Option<u32>,
    pub unk: Option<u32>,
}

/// Reads a JSON object. None where there is no such file.
pub(crate) fn read_object(file: &Path) -> Result<Option<Map<String, Value>>> {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Err(error).with_context(|| format!("{}: cannot read", file.display()));
        }
    };
    let value = serde_json::from_str(&text).with_context(|| format!("{}: not valid JSON", file.display()))?;
    match value {
        Value::Object(object) => Ok(Some(object)),
        other => bail!("{}: expected a JSON object, found {}", file.display(), kind(&other)),
    }
}

impl SpecialIds {
    /// From a folder. `config` is its `tokenizer_config.json`, already read.
    pub fn read(tokenizer: &Tokenizer, config: &Map<String, Value>, folder: &Path) -> Result<Self> {
        let mut files = vec![(folder.join("tokenizer_config.json"), config.clone())];
        for name in ["special_tokens_map.json", "generation_config.json", "config.json"] {
            let file = folder.join(name);
            if let Some(object) = read_object(&file)? {
                files.push((file, object));
            }
        }
        let files: Vec<(&PathBuf, &Map<String, Value>)> = files.iter().map(|(file, object)| (file, object)).collect();
        Self::of(tokenizer, &files)
    }

    /// From objects in order of belief, each with the file it is named by in errors.
    pub fn of(tokenizer: &Tokenizer, files: &[(&PathBuf, &Map<String, Value>)]) -> Result<Self> {
        let mut ids = SpecialIds::default();
        for (file, object) in files {
            let named = |name: &str| named_ids(tokenizer, file, object, name);
            ids.bos = ids.bos.or(named("bos")?.first().copied());
            ids.pad = ids.pad.or(named("pad")?.first().copied());
            ids.unk = ids.unk.or(named("unk")?.first().copied());
            for id in named("eos")? {
                if !ids.eos.contains(&id) {
                    ids.eos.push(id);
                }
            }
        }
        Ok(ids)
    }
}

/// The ids that one file gives a role, as `eos_token` (a token, or an object with its content) or `eos_token_id` (an id
/// or a list of ids).
fn named_ids(tokenizer: &Tokenizer, file: &Path, object: &Map<String, Value>, role: &str) -> Result<Vec<u32>> {
    let key = format!("{role}_token");
    let token = match object.get(&key) {
        None | Some(Value::Null) => None,
        Some(Value::String(token)) => Some(token.as_str()),
        Some(Value::Object(token)) => match token.get("content") {
            Some(Value::String(content)) => Some(content.as_str()),
            _ => bail!("{}: {key}: expected a string under \"content\"", file.display()),
        },
        Some(other) => bail!("{}: {key}: expected a token, found {}", file.display(), kind(other)),
    };
    if let Some(token) = token {
        let id = tokenizer
            .token_to_id(token)
            .ok_or_else(|| anyhow!("{}: {key}: {token:?} is not in the tokenizer", file.display()))?;
        return Ok(vec![id]);
    }
    let key = format!("{role}_token_id");
    let listed = match object.get(&key) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(list)) => list.clone(),
        Some(single) => vec![single.clone()],
    };
    let read = |value: &Value| match value.as_i64() {
        // Some files write -1 for "none".
        Some(id) if id < 0 => Ok(None),
        Some(id) if tokenizer.id_to_token(id as u32).is_some() => Ok(Some(id as u32)),
        Some(id) => Err(anyhow!("{}: {key}: id {id} is not in the tokenizer", file.display())),
        None => Err(anyhow!("{}: {key}: expected an id, found {}", file.display(), kind(value))),
    };
    listed.iter().filter_map(|value| read(value).transpose()).collect()
}

/// The JSON type of a value, for messages.
pub fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
