//! Origin of records: records under one name must share it. Compares the `setup` of manifests, without knowing its meaning.

use serde_json::Value;

/// The parts of a setup that records of one name must share: hash of the weights, hash of the adapter, float type, decoding settings, hash
/// of the data, grader.
pub const ORIGIN: [&str; 6] = ["weights", "adapter", "dtype", "decode", "data", "grader"];

/// The checkpoint of a setup in the form of file names: `sft` for `micro/sft`.
pub fn checkpoint(setup: &Value) -> Option<&str> {
    setup["checkpoint"].as_str().map(|name| name.rsplit('/').next().unwrap_or(name))
}

/// The first part of the origin in which two setups differ, with both values. A part that is missing in one of them (records of an older
/// version) is not compared.
pub fn difference(held: &Value, new: &Value) -> Option<String> {
    ORIGIN.iter().find_map(|part| match (held.get(part), new.get(part)) {
        (Some(held), Some(new)) => differs(part, held, new),
        _ => None,
    })
}

/// The difference of two values under one key, by the innermost key: `dtype f32 there, bf16 here`.
pub fn differs(key: &str, held: &Value, new: &Value) -> Option<String> {
    if let (Value::Object(held), Value::Object(new)) = (held, new) {
        let keys = held.keys().chain(new.keys().filter(|key| !held.contains_key(*key)));
        let null = Value::Null;
        let of = |all: &serde_json::Map<String, Value>, key: &str| all.get(key).unwrap_or(&null).clone();
        return keys
            .into_iter()
            .find_map(|inner| differs(&format!("{key}.{inner}"), &of(held, inner), &of(new, inner)));
    }
    (held != new).then(|| format!("{key} {} there, {} here", short(held), short(new)))
}

/// Describes how a new setup is smaller than that of the existing file, so that its records must not replace it: fewer problems, draws or
/// modes, or another choice. An empty list means all.
pub(crate) fn find_smaller(held: &Value, new: &Value) -> Option<String> {
    let blocks = |setup: &Value| setup["blocks"].as_str().unwrap_or("own").to_owned();
    if blocks(held) != blocks(new) {
        return Some(format!("blocks {} there, {} here", blocks(held), blocks(new)));
    }
    if let (Some(held), Some(new)) = (held.get("pairs"), new.get("pairs")) {
        let other = differs("pairs", held, new);
        if other.is_some() {
            return other;
        }
    }
    fewer("problems", &held["problems"], &new["problems"]).or_else(|| fewer("", &held["settings"], &new["settings"]))
}

fn fewer(key: &str, held: &Value, new: &Value) -> Option<String> {
    match (held, new) {
        (Value::Object(held), Value::Object(new)) => {
            held.iter().find_map(|(name, value)| new.get(name).and_then(|new| fewer(name, value, new)))
        }
        (Value::Array(held), Value::Array(new)) if !new.is_empty() => {
            let missing: Vec<String> = held.iter().filter(|one| !new.contains(one)).map(short).collect();
            if held.is_empty() {
                return Some(format!("{key}: only {}", new.iter().map(short).collect::<Vec<_>>().join(", ")));
            }
            (!missing.is_empty()).then(|| format!("{key}: without {}", missing.join(", ")))
        }
        (Value::Number(old), Value::Number(number)) if SIZES.contains(&key) => {
            (number.as_u64() < old.as_u64()).then(|| format!("{key} {old} there, {number} here"))
        }
        (Value::Bool(true), Value::Bool(false)) => Some(format!("without {key}")),
        (Value::String(_), Value::String(_)) if !DESCRIPTIONS.contains(&key) => differs(key, held, new),
        _ => None,
    }
}

/// Settings that are amounts; other numbers are not ordered.
const SIZES: [&str; 5] = ["problems", "draws", "pairs", "radius", "top"];

/// Texts that do not choose what is measured: paths (the content has a hash of its own), and where it ran.
const DESCRIPTIONS: [&str; 4] = ["file", "pairs_file", "version", "device"];

fn short(value: &Value) -> String {
    match value {
        Value::String(text) if text.len() == 64 => text[..8].to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn origins_differ_by_their_innermost_key_and_only_in_what_both_say() {
        let held = json!({"weights": "a", "dtype": "f32", "decode": {"k_min": 4, "k_cap": 5}});
        assert_eq!(difference(&held, &held), None);
        assert_eq!(difference(&held, &json!({"weights": "a", "data": "x", "adapter": null})), None);
        let other = json!({"weights": "a", "dtype": "f32", "decode": {"k_min": 2, "k_cap": 5}});
        assert_eq!(difference(&held, &other).as_deref(), Some("decode.k_min 4 there, 2 here"));
        let long = "0123456789abcdef".repeat(4);
        let said = difference(&held, &json!({ "weights": long }));
        assert_eq!(said.as_deref(), Some("weights a there, 01234567 here"));
    }

    #[test]
    fn a_smaller_run_says_what_it_leaves_out() {
        let of = |problems: usize, modes: &[&str], draws: usize, rate: f64| json!({"problems": problems, "settings": {"modes": modes, "draws": draws, "learning_rate": rate, "values": true}});
        let held = of(500, &["normal", "zero"], 5, 0.002);
        assert_eq!(find_smaller(&held, &of(500, &["zero", "normal", "skip"], 6, 0.001)), None);
        assert_eq!(find_smaller(&held, &of(40, &[], 5, 0.002)).as_deref(), Some("problems 500 there, 40 here"));
        assert_eq!(find_smaller(&held, &of(500, &["normal"], 5, 0.002)).as_deref(), Some("modes: without zero"));
        assert_eq!(find_smaller(&held, &of(500, &[], 1, 0.002)).as_deref(), Some("draws 5 there, 1 here"));
        assert_eq!(find_smaller(&of(500, &[], 5, 0.0), &held).as_deref(), Some("modes: only normal, zero"));
        let named = |places: &str, file: &str| json!({"problems": 2, "settings": {"places": places, "file": file}});
        assert_eq!(find_smaller(&named("number", "a"), &named("number", "b")), None);
        let said = find_smaller(&named("number", "a"), &named("name", "a"));
        assert_eq!(said.as_deref(), Some("places number there, name here"));
        let forced = json!({"problems": 500, "blocks": "forced"});
        assert_eq!(find_smaller(&held, &forced).as_deref(), Some("blocks own there, forced here"));
    }
}
