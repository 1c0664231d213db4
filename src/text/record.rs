//! One record of a problem file: typed access to its keys, with errors that name file, record and key.
//! What the keys mean is in `formats`.

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Map, Value};

use super::sources::{Source, cut};
use super::special;
use crate::store::digits;

/// One record with its context for error messages.
pub(crate) struct Record<'a> {
    pub object: &'a Map<String, Value>,
    /// `file:line`, or the record's number in a list.
    pub place: &'a str,
    /// The id of a record without one.
    pub fallback_id: String,
    pub source: &'a Source,
}

impl Record<'_> {
    /// A required text. Numbers and booleans count as text, because files store golds as either.
    pub fn text(&self, key: &str) -> Result<String> {
        self.optional(key)?.ok_or_else(|| {
            let keys: Vec<&String> = self.object.keys().collect();
            anyhow!("{}: key \"{key}\" is missing; found {keys:?}", self.place)
        })
    }

    pub(crate) fn optional(&self, key: &str) -> Result<Option<String>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        match (value, digits::digits(value)) {
            (Value::Null, _) => Ok(None),
            (_, Some(number)) => Ok(Some(digits::plain(number))),
            (Value::String(text), _) => Ok(Some(text.clone())),
            (Value::Bool(is), _) => Ok(Some(is.to_string())),
            (Value::Object(inner), _) => {
                let inner: Vec<String> = inner.keys().map(|name| format!("{key}.{name}")).collect();
                bail!(
                    "{}: key \"{key}\": expected a text, found an object; name a key inside it with --field ({})",
                    self.place,
                    inner.join(", ")
                )
            }
            (Value::Array(items), _) => {
                let inner = items.first().and_then(Value::as_object).and_then(|item| {
                    let text = item.iter().rev().find(|(_, value)| value.is_string());
                    Some(format!("{key}.0.{}", text?.0))
                });
                bail!(
                    "{}: key \"{key}\": expected a text, found a list of {} items; name one of them with --field ({}; -1 is the last)",
                    self.place,
                    items.len(),
                    inner.unwrap_or_else(|| format!("{key}.0"))
                )
            }
            (other, _) => bail!("{}: key \"{key}\": expected a text, found {}", self.place, kind(other)),
        }
    }

    /// The value of a key, or of one inside another: `reward.answer`, `prompt.0.content`, `prompt.-1.content`.
    pub(super) fn value(&self, key: &str) -> Option<&Value> {
        value(self.object, key)
    }

    pub fn texts(&self, key: &str) -> Result<Vec<String>> {
        self.typed(key, "a list of texts")
    }

    pub fn typed<T: serde::de::DeserializeOwned>(&self, key: &str, expected: &str) -> Result<T> {
        let value = self.object.get(key).with_context(|| format!("{}: key \"{key}\" is missing", self.place))?;
        serde_json::from_str(&digits::write(value))
            .with_context(|| format!("{}: key \"{key}\": expected {expected}, found {}", self.place, kind(value)))
    }

    /// A level, as a number or `Level 3`.
    pub fn level(&self, key: &str) -> Result<Option<u8>> {
        let Some(text) = self.optional(key)? else {
            return Ok(None);
        };
        let number = text.strip_prefix("Level ").unwrap_or(&text).trim();
        // MATH has a few problems of `Level ?`.
        if number == "?" {
            return Ok(None);
        }
        let level = number.parse().with_context(|| {
            format!(
                "{}: key \"{key}\": expected a level such as 3, found {:?}; --field level=none reads the problems without their \
                 levels",
                self.place,
                cut(&text)
            )
        })?;
        Ok(Some(level))
    }
}

fn value<'a>(object: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    let inside = || {
        let mut parts = key.split('.');
        let first = object.get(parts.next()?)?;
        parts.try_fold(first, |value, part| match value {
            Value::Array(items) => item(items, part),
            _ => value.get(part),
        })
    };
    // An empty name matches nothing, not even a column without a name: the index that pandas writes.
    if key.is_empty() { None } else { object.get(key).or_else(inside) }
}

/// Whether an object has this key, or one inside another.
pub(super) fn has(object: &Map<String, Value>, key: &str) -> bool {
    value(object, key).is_some()
}

/// An item of a list by its number; negative numbers count from the end.
fn item<'a>(items: &'a [Value], number: &str) -> Option<&'a Value> {
    let at: isize = number.parse().ok()?;
    items.get(usize::try_from(if at < 0 { at + items.len() as isize } else { at }).ok()?)
}

/// The JSON type of a value, for messages.
pub(super) fn kind(value: &Value) -> &'static str {
    if digits::digits(value).is_some() { "a number" } else { special::kind(value) }
}
