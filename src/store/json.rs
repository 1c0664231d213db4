//! JSON with exact floats. serde_json reads some floats one unit in the last place off (unless its feature `float_roundtrip` is on), but a
//! resumed run must end with the same bytes. serde_json finds each number, and the standard library, which rounds correctly, reads it.

use std::collections::HashSet;
use std::fmt;
use std::path::Path;

use anyhow::{Context, Result};
use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};

use crate::guard::read_text;

/// A value from its JSON text.
pub(crate) fn from_str<T: DeserializeOwned>(text: &str) -> Result<T> {
    // Parse the whole text first: this bounds its nesting depth, and so the recursion when its parts are read.
    let whole: Value = serde_json::from_str(text)?;
    let value = if has_float(&whole) { exact(serde_json::from_str(text)?)? } else { whole };
    Ok(serde_json::from_value(value)?)
}

/// The value in a file; `what` it should be is part of the error.
pub(crate) fn read<T: DeserializeOwned>(path: &Path, what: &str) -> Result<T> {
    let text = read_text(path).with_context(|| format!("{}: cannot read", path.display()))?;
    from_str(&text).with_context(|| format!("{}: not {what}", path.display()))
}

fn has_float(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.is_f64(),
        Value::Array(all) => all.iter().any(has_float),
        Value::Object(all) => all.values().any(has_float),
        _ => false,
    }
}

/// The value of a part of a text that is known to be JSON.
fn exact(part: &RawValue) -> serde_json::Result<Value> {
    let text = part.get();
    Ok(match text.as_bytes().first() {
        Some(b'{') => {
            let JsonFields(fields) = serde_json::from_str(text)?;
            let fields = fields.into_iter().map(|(key, value)| Ok((key, exact(value)?)));
            Value::Object(fields.collect::<serde_json::Result<Map<String, Value>>>()?)
        }
        Some(b'[') => {
            let all: Vec<&RawValue> = serde_json::from_str(text)?;
            Value::Array(all.into_iter().map(exact).collect::<serde_json::Result<_>>()?)
        }
        Some(b'-' | b'0'..=b'9') => {
            let number: Number = serde_json::from_str(text)?;
            let rounded = number.is_f64().then(|| text.parse().ok().and_then(Number::from_f64)).flatten();
            Value::Number(rounded.unwrap_or(number))
        }
        _ => serde_json::from_str(text)?,
    })
}

/// A key that occurs twice in one object of a JSON text.
pub(crate) fn twice(text: &str) -> Option<String> {
    match text.trim_start().as_bytes().first() {
        Some(b'{') => {
            let JsonFields(fields) = serde_json::from_str(text).ok()?;
            let mut seen = HashSet::new();
            let found = |(key, value): &(String, &RawValue)| {
                if seen.insert(key.clone()) { twice(value.get()) } else { Some(key.clone()) }
            };
            fields.iter().find_map(found)
        }
        Some(b'[') => {
            let all: Vec<&RawValue> = serde_json::from_str(text).ok()?;
            all.into_iter().find_map(|part| twice(part.get()))
        }
        _ => None,
    }
}

/// The fields of an object in order. A duplicate key appears twice, and its last value counts, as usual.
struct JsonFields<'t>(Vec<(String, &'t RawValue)>);

impl<'de> Deserialize<'de> for JsonFields<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        struct ExactReader;
        impl<'de> Visitor<'de> for ExactReader {
            type Value = JsonFields<'de>;

            fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
                out.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Self::Value, A::Error> {
                let mut fields = vec![];
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(JsonFields(fields))
            }
        }
        from.deserialize_map(ExactReader)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Texts before a float do not change how it is read: signed zeros, duplicate keys, integers beyond 64 bits, strings that look like
    /// numbers.
    #[test]
    fn every_float_is_the_one_that_stands_there() {
        let awkward = 0.000_012_345_678_901_234_567_f64;
        let text = r#"{"a": -0, "b": {"x": 1.5, "x": 2.5}, "c": 18446744073709551616, "d": "1e5, -0.25", "e": [1, -0.0, 1e-7, "\"2.5"],
            "b": 3.25, "f": 0.000012345678901234567, "g": -9223372036854775809}"#;
        let read: Value = from_str(text).expect("JSON");
        assert_eq!(read["b"], json!(3.25));
        assert_eq!(read["f"].as_f64().map(f64::to_bits), Some(awkward.to_bits()));
        assert_eq!(read["c"].as_f64(), Some(18_446_744_073_709_551_616.0));
        assert_eq!((read["e"][1].as_f64(), read["e"][2].as_f64()), (Some(-0.0), Some(1e-7)));
        assert_eq!(read["a"].as_f64().map(f64::is_sign_negative), Some(true));
        let same: Value = serde_json::from_str(text).expect("JSON");
        assert_eq!(read.as_object().map(Map::len), same.as_object().map(Map::len));
        assert!(from_str::<Value>("{\"a\": 1.5").is_err() && from_str::<Value>("[1e999]").is_err());
        assert!(from_str::<Value>(&"[".repeat(100_000)).is_err(), "no stack is deep enough");
    }

    /// Rust writes the shortest digits that round-trip; serde_json alone would misread some of them.
    #[test]
    fn a_hundred_thousand_floats_come_back_as_they_were() {
        let mut bits = 0x9E37_79B9_7F4A_7C15_u64;
        for _ in 0..2_000 {
            let mut all = vec![];
            while all.len() < 50 {
                bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                all.extend(Some(f64::from_bits(bits)).filter(|x| x.is_finite()));
            }
            let text = serde_json::to_string(&all).expect("text");
            let bits_of = |all: &[f64]| all.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits_of(&from_str::<Vec<f64>>(&text).expect("floats")), bits_of(&all));
        }
    }
}
