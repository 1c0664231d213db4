//! JSON whose floats are read as they were written. serde_json reads some of them one unit in the last place off (unless its
//! feature `float_roundtrip` is on), and a resumed run must end with the same bytes.

use anyhow::Result;
use serde::de::DeserializeOwned;
use serde_json::{Number, Value};

/// A value from its JSON text.
///
/// # Errors
/// Text that is not JSON, or not of this type.
pub(crate) fn from_str<T: DeserializeOwned>(text: &str) -> Result<T> {
    let mut value: Value = serde_json::from_str(text)?;
    put(&mut value, &mut floats(text).into_iter());
    Ok(serde_json::from_value(value)?)
}

/// Replaces the floats of a value, in the order of its text (objects keep that order).
fn put(value: &mut Value, floats: &mut impl Iterator<Item = f64>) {
    match value {
        Value::Number(number) if number.is_f64() => {
            if let Some(exact) = floats.next().and_then(Number::from_f64) {
                *number = exact;
            }
        }
        Value::Array(all) => all.iter_mut().for_each(|value| put(value, floats)),
        Value::Object(all) => all.values_mut().for_each(|value| put(value, floats)),
        _ => {}
    }
}

/// The numbers with a point or an exponent in a line of JSON, outside strings, in order.
fn floats(line: &str) -> Vec<f64> {
    let (mut found, mut number, mut quoted, mut escaped) = (vec![], String::new(), false, false);
    for c in line.chars() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            '0'..='9' | '+' | '-' | '.' | 'e' | 'E' if !quoted => {
                number.push(c);
                continue;
            }
            _ => {}
        }
        if number.contains(['.', 'e', 'E']) {
            found.extend(number.parse::<f64>());
        }
        number.clear();
    }
    found
}
