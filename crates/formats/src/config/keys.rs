//! Typed look-ups in `config.json`, with errors that name the file, the key, and the expected and found values.

use anyhow::{Result, anyhow, bail};
use serde_json::{Map, Value};

/// Typed look-ups in one JSON object. Errors name the file and the full key. A null counts as absent.
pub struct Keys<'a> {
    pub origin: &'a str,
    pub path: &'a str,
    pub map: &'a Map<String, Value>,
}

impl<'a> Keys<'a> {
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|v| !v.is_null())
    }

    fn typed<T>(&self, key: &str, expected: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        self.get(key).map(|v| read(v).ok_or_else(|| self.refuse(key, expected, v))).transpose()
    }

    pub fn usize(&self, key: &str) -> Result<Option<usize>> {
        // 8192.0 is a whole number too: some writers print floats everywhere.
        let whole = |v: &Value| {
            v.as_u64().or_else(|| v.as_f64().filter(|f| f.fract() == 0.0 && (0.0..1e15).contains(f)).map(|f| f as u64))
        };
        self.typed(key, "a whole number", |v| whole(v).and_then(|n| usize::try_from(n).ok()))
    }

    /// A whole number under either of two names.
    pub fn either(&self, key: &str, other: &str) -> Result<Option<usize>> {
        match (self.usize(key)?, self.usize(other)?) {
            (Some(own), Some(found)) if own != found => {
                Err(self.refuse(other, &format!("{own}, as `{key}` says"), &Value::from(found)))
            }
            (own, found) => Ok(own.or(found)),
        }
    }

    pub fn f64(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a number", Value::as_f64)
    }

    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "true or false", Value::as_bool)
    }

    pub fn string(&self, key: &str) -> Result<Option<&'a str>> {
        self.typed(key, "a string", Value::as_str)
    }

    pub fn object(&self, key: &'a str) -> Result<Option<Keys<'a>>> {
        let map = self.typed(key, "an object", Value::as_object)?;
        Ok(map.map(|map| Keys { origin: self.origin, path: key, map }))
    }

    pub fn need_usize(&self, key: &str) -> Result<usize> {
        self.usize(key)?.ok_or_else(|| self.missing(key))
    }

    pub fn need_f64(&self, key: &str) -> Result<f64> {
        self.f64(key)?.ok_or_else(|| self.missing(key))
    }

    /// One id or a list; negative ids mean "none" (old Llama configs write -1).
    pub fn token_ids(&self, key: &str) -> Result<Vec<u32>> {
        let Some(found) = self.get(key) else {
            return Ok(vec![]);
        };
        let one = std::slice::from_ref(found);
        let list = found.as_array().map_or(one, Vec::as_slice);
        let mut ids = Vec::with_capacity(list.len());
        for value in list {
            match value.as_i64() {
                Some(n) if n < 0 => {}
                Some(n) if u32::try_from(n).is_ok() => ids.push(n as u32),
                _ => bail!(
                    "{}: `{}` must be a token id or a list of them, found {}",
                    self.origin,
                    self.full(key),
                    brief(found)
                ),
            }
        }
        Ok(ids)
    }

    fn full(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_string() } else { format!("{}.{key}", self.path) }
    }

    pub fn missing(&self, key: &str) -> anyhow::Error {
        anyhow!("{}: `{}` is missing", self.origin, self.full(key))
    }

    pub fn refuse(&self, key: &str, expected: &str, found: &Value) -> anyhow::Error {
        anyhow!("{}: `{}` is not supported: expected {expected}, found {}", self.origin, self.full(key), brief(found))
    }
}

/// JSON on one line, shortened if long.
pub fn brief(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
