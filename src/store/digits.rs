//! JSON whose numbers preserve all digits, also those that do not fit a 64-bit integer or float.
//!
//! A number becomes a string that begins with [`MARK`], so that other code still handles JSON.

use anyhow::Result;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// First character of a string that represents a number: a code point that is not a character.
const MARK: char = '\u{fdd0}';

/// Reads JSON; numbers become strings that [`digits`] recognises.
///
/// # Errors
/// serde_json's error for the original text.
pub(crate) fn read<T: DeserializeOwned>(text: &str) -> Result<T> {
    match serde_json::from_str(&marked(text)) {
        Ok(value) => Ok(value),
        // Line and column of the message refer to the original text.
        Err(error) => Err(serde_json::from_str::<T>(text).err().unwrap_or(error).into()),
    }
}

/// The digits of a value that was a number.
pub fn digits(value: &Value) -> Option<&str> {
    value.as_str()?.strip_prefix(MARK)
}

/// A number from its digits, in the form of [`read`].
pub(crate) fn number(digits: impl std::fmt::Display) -> Value {
    Value::String(format!("{MARK}{digits}"))
}

/// JSON text of a value from [`read`], with the original digits.
pub fn write(value: &Value) -> String {
    let text = value.to_string();
    let open = format!("\"{MARK}");
    let mut parts = text.split(open.as_str());
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once('"') {
            Some((digits, rest)) if is_number(digits) => out.extend([digits, rest]),
            _ => out.extend(["\"", &MARK.to_string(), part]),
        }
    }
    out
}

/// The text with its numbers, outside strings, in quotes and marked.
fn marked(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    let (mut quoted, mut rest) = (false, text);
    while let Some(at) =
        rest.find(|c: char| c == '"' || if quoted { c == '\\' } else { c == '-' || c.is_ascii_digit() })
    {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let taken = match rest.as_bytes()[0] {
            b'"' => {
                quoted = !quoted;
                1
            }
            b'\\' => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
            _ => rest.find(|c: char| !(c.is_ascii_alphanumeric() || "+-.".contains(c))).unwrap_or(rest.len()),
        };
        let (token, tail) = rest.split_at(taken);
        if !quoted && is_number(token) {
            out.push_str(&format!("\"{MARK}{token}\""))
        } else {
            out.push_str(token)
        }
        rest = tail;
    }
    out + rest
}

/// Whether a text is a number in JSON syntax.
fn is_number(text: &str) -> bool {
    let body = text.strip_prefix('-').unwrap_or(text);
    let (mantissa, exponent) = body.split_once(['e', 'E']).map_or((body, None), |(m, e)| (m, Some(e)));
    let (int, fraction) = mantissa.split_once('.').map_or((mantissa, None), |(i, f)| (i, Some(f)));
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    digits(int)
        && (int == "0" || !int.starts_with('0'))
        && fraction.is_none_or(digits)
        && exponent.is_none_or(|e| digits(e.strip_prefix(['+', '-']).unwrap_or(e)))
}

/// The digits of a number without an exponent: `1e-06` is `0.000001`. Unchanged if that would need more than 400 digits.
pub fn plain(number: &str) -> String {
    const MOST: i64 = 400;
    let (sign, body) = number.strip_prefix('-').map_or(("", number), |body| ("-", body));
    let Some((mantissa, exponent)) = body.split_once(['e', 'E']) else { return number.to_owned() };
    let (int, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{int}{fraction}");
    // Position of the point among the digits.
    let Some(point) = exponent.parse::<i64>().ok().map(|e| e.saturating_add(int.len() as i64)) else {
        return number.to_owned();
    };
    if point.abs() > MOST || digits.len() as i64 > MOST {
        return number.to_owned();
    }
    let zeros = |n: i64| "0".repeat(n.max(0) as usize);
    let digits = format!("{}{digits}{}", zeros(1 - point), zeros(point - digits.len() as i64));
    let (int, fraction) = digits.split_at(point.max(1) as usize);
    let int = int.trim_start_matches('0');
    let (int, fraction) = (if int.is_empty() { "0" } else { int }, fraction.trim_end_matches('0'));
    if fraction.is_empty() { format!("{sign}{int}") } else { format!("{sign}{int}.{fraction}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_out_as_they_went_in() {
        let text = r#"{"a":12345678901234567890123,"b":[1e-06,-0,2.50],"c":"1e5 \"7\" \\","d":{"e":-1.5E+300,"f":null},"5":true}"#;
        let value: Value = read(text).expect("JSON");
        assert_eq!(write(&value), text);
        assert_eq!(digits(&value["a"]), Some("12345678901234567890123"));
        assert_eq!((digits(&value["c"]), value["c"].as_str()), (None, Some("1e5 \"7\" \\")));
    }

    #[test]
    fn what_is_no_json_is_refused_where_it_stands() {
        for bad in ["{\"a\":01}", "{\"a\":1.}", "{\"a\":NaN}", "{\"a\":1e}", "[1,2", "{\"a\":--1}", "1 2", "{\"a\":.5}"]
        {
            let error = read::<Value>(bad).expect_err(bad).to_string();
            let plainly = serde_json::from_str::<Value>(bad).expect_err(bad).to_string();
            assert_eq!(error, plainly);
        }
    }

    #[test]
    fn exponents_are_written_out() {
        for (number, expected) in [
            ("1e-06", "0.000001"),
            ("2.5e-7", "0.00000025"),
            ("1e16", "10000000000000000"),
            ("6.02e23", "602000000000000000000000"),
            ("-1.50E+1", "-15"),
            ("12.5e0", "12.5"),
            ("125e-2", "1.25"),
            ("0e9", "0"),
            ("-0", "-0"),
            ("1.50", "1.50"),
            ("1e9999", "1e9999"),
            ("12345678901234567890123", "12345678901234567890123"),
        ] {
            assert_eq!(plain(number), expected, "{number}");
        }
    }
}
