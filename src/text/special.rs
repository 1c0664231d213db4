//! Ids of beginning, end and padding from a model's files.
//!
//! Precedence: tokens that the tokenizer's files name, then ids of `generation_config.json`, then of `config.json`. End-of-text ids are
//! collected from all of them in this order: instruction models name the end of a turn in one file and the end of text in another, and
//! generation must stop at both.

use std::path::Path;

use anyhow::{Result, bail};
use serde_json::{Map, Value};
use tokenizers::Tokenizer;

pub(crate) use crate::tokenizer::{kind, read_object};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpecialIds {
    pub bos: Option<u32>,
    pub eos: Vec<u32>,
    pub pad: Option<u32>,
    pub unk: Option<u32>,
}

impl SpecialIds {
    /// Ids of the tokens with a role (`roles`) and of the JSON files of a folder, if there is one.
    pub fn new(tokenizer: &Tokenizer, roles: &Map<String, Value>, folder: Option<&Path>) -> Result<Self> {
        let named = |role: &str| roles.get(role).and_then(Value::as_str).and_then(|token| tokenizer.token_to_id(token));
        let mut ids = SpecialIds {
            bos: named("bos_token"),
            eos: named("eos_token").into_iter().collect(),
            pad: named("pad_token"),
            unk: named("unk_token"),
        };
        for file in ["generation_config.json", "config.json"] {
            let Some(file) = folder.map(|folder| folder.join(file)) else { continue };
            let object = read_object(&file)?.unwrap_or_default();
            let known = |id: &u32| tokenizer.id_to_token(*id).is_some();
            let one = |role: &str| Ok::<_, anyhow::Error>(numbers(&file, &object, role)?.into_iter().find(known));
            ids.bos = ids.bos.or(one("bos")?);
            ids.pad = ids.pad.or(one("pad")?);
            ids.unk = ids.unk.or(one("unk")?);
            // Ends a generation, though no text contains it.
            for id in numbers(&file, &object, "eos")? {
                if !ids.eos.contains(&id) {
                    ids.eos.push(id);
                }
            }
        }
        Ok(ids)
    }
}

/// The ids of a role in a file, such as `eos_token_id`: an id or a list of ids. Some files write -1 for "none".
fn numbers(file: &Path, object: &Map<String, Value>, role: &str) -> Result<Vec<u32>> {
    let key = format!("{role}_token_id");
    let listed = match object.get(&key) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(list)) => list.as_slice(),
        Some(single) => std::slice::from_ref(single),
    };
    let mut ids = vec![];
    for value in listed {
        match value.as_i64().map(u32::try_from) {
            Some(id) => ids.extend(id.ok()),
            None => bail!("{}: {key}: expected an id, found {}", file.display(), kind(value)),
        }
    }
    Ok(ids)
}
