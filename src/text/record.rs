//! One record of a problem file: typed access to its keys, with errors that name file, record and key.
//! What the keys mean is in `formats`.

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Map, Value};

use super::sources::Source;
use super::special::kind;

/// One record and what messages about it need.
pub(crate) struct Record<'a> {
    pub object: &'a Map<String, Value>,
    /// `file:line`, or the record's number in a list.
    pub place: &'a str,
    /// The id of a record that has none.
    pub fallback_id: String,
    pub source: &'a Source,
}

impl Record<'_> {
    /// A text that must be there. Numbers count as text: files write golds both ways.
    pub fn text(&self, key: &str) -> Result<String> {
        self.optional(key)?.ok_or_else(|| {
            let keys: Vec<&String> = self.object.keys().collect();
            anyhow!("{}: key \"{key}\" is missing; found {keys:?}", self.place)
        })
    }

    pub(crate) fn optional(&self, key: &str) -> Result<Option<String>> {
        match self.object.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(Value::Number(number)) => Ok(Some(number.to_string())),
            Some(other) => bail!("{}: key \"{key}\": expected a text, found {}", self.place, kind(other)),
        }
    }

    pub fn texts(&self, key: &str) -> Result<Vec<String>> {
        self.typed(key, "a list of texts")
    }

    pub fn typed<T: serde::de::DeserializeOwned>(&self, key: &str, expected: &str) -> Result<T> {
        let value = self.object.get(key).with_context(|| format!("{}: key \"{key}\" is missing", self.place))?;
        serde_json::from_value(value.clone())
            .with_context(|| format!("{}: key \"{key}\": expected {expected}, found {}", self.place, kind(value)))
    }

    /// A level as a number, or as `Level 3`.
    pub fn level(&self, key: &str) -> Result<Option<u8>> {
        let Some(text) = self.optional(key)? else {
            return Ok(None);
        };
        let number = text.strip_prefix("Level ").unwrap_or(&text).trim();
        // MATH has a few problems of `Level ?`.
        if number == "?" {
            return Ok(None);
        }
        let level = number
            .parse()
            .with_context(|| format!("{}: key \"{key}\": expected a level such as 3, found {text:?}", self.place))?;
        Ok(Some(level))
    }
}
