//! Mutations that pass a reader's first checks: JSON stays valid, a safetensors header matches its length, Parquet has the right
//! checksum. The content is hostile: overlapping or duplicate entries, paths that lead elsewhere, absurd numbers.

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

/// The mutated seed, if its format is supported here.
pub fn changed(seed: &[u8], file: &str, rng: &mut ChaCha8Rng) -> Option<Vec<u8>> {
    match file.rsplit('.').next()? {
        "json" | "jsonl" => Some(text(serde_json::from_slice(seed).ok()?, rng).into_bytes()),
        "safetensors" => {
            let length = usize::try_from(u64::from_le_bytes(seed.get(..8)?.try_into().ok()?)).ok()?;
            let (header, data) = seed.get(8..)?.split_at_checked(length)?;
            let header = entries(serde_json::from_slice(header).ok()?, rng);
            Some([&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat())
        }
        "parquet" => sealed(seed, rng),
        _ => None,
    }
}

/// A hostile value.
fn odd(rng: &mut ChaCha8Rng) -> Value {
    match rng.random_range(0..16) {
        0 => json!(-1),
        1 => json!(u64::MAX),
        2 => json!(1_u64 << 53),
        3 => json!(50_000_000),
        4 => json!(1e308),
        5 => json!(-0.0),
        6 => json!("../../../../evil"),
        7 => json!("\u{202e}\u{0}evil"),
        8 => json!("a".repeat(100_000)),
        9 => json!([]),
        10 => json!({}),
        11 => Value::Null,
        12 => json!(true),
        13 => (0..100).fold(json!(0), |inner, _| json!([inner])),
        14 => json!(vec![0; 10_000]),
        _ => json!(0),
    }
}

/// Path of every node.
fn ways(value: &Value, way: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    found.push(way.clone());
    let inner: Vec<(String, &Value)> = match value {
        Value::Object(map) => map.iter().map(|(key, value)| (key.clone(), value)).collect(),
        // Only the first items of a long list.
        Value::Array(list) => list.iter().take(20).enumerate().map(|(i, value)| (i.to_string(), value)).collect(),
        _ => vec![],
    };
    for (key, value) in inner {
        way.push(key);
        ways(value, way, found);
        way.pop();
    }
}

fn node<'a>(root: &'a mut Value, way: &[String]) -> Option<&'a mut Value> {
    way.iter().try_fold(root, |value, key| match value {
        Value::Array(list) => list.get_mut(key.parse::<usize>().ok()?),
        other => other.get_mut(key),
    })
}

/// A tree with one to three nodes changed.
fn tree(root: &mut Value, rng: &mut ChaCha8Rng) {
    for _ in 0..rng.random_range(1..=3) {
        let mut found = vec![];
        ways(root, &mut vec![], &mut found);
        let way = found[rng.random_range(0..found.len())].clone();
        let other = found[rng.random_range(0..found.len())].clone();
        let other = node(root, &other).cloned().unwrap_or_default();
        let Some(here) = node(root, &way) else { continue };
        match (rng.random_range(0..5), &mut *here) {
            (0, Value::Object(map)) => {
                let key = map.keys().nth(rng.random_range(0..map.len().max(1))).cloned();
                key.map(|key| map.shift_remove(&key));
            }
            (0, Value::Array(list)) => list.truncate(list.len() / 2),
            (1, Value::Object(map)) => {
                let names = ["../../../../evil", "", "__metadata__", "\u{202e}"];
                map.insert(names[rng.random_range(0..names.len())].to_owned(), other);
            }
            (1, Value::Array(list)) => list.extend(vec![other; 3]),
            (2, _) => *here = other,
            _ => *here = odd(rng),
        }
    }
}

/// Sometimes duplicates its first key.
fn text(mut root: Value, rng: &mut ChaCha8Rng) -> String {
    tree(&mut root, rng);
    let twice = root.as_object().and_then(|map| map.iter().next()).map(|(key, _)| json!({ key: odd(rng) }).to_string());
    match (twice, root.to_string()) {
        (Some(twice), whole) if rng.random_bool(0.2) => format!("{},{}", &twice[..twice.len() - 1], &whole[1..]),
        (_, whole) => whole,
    }
}

/// A header whose entries share, shift, swap or repeat their offsets.
fn entries(header: Map<String, Value>, rng: &mut ChaCha8Rng) -> String {
    let mut entries: Vec<(String, Value)> = header.into_iter().collect();
    for _ in 0..rng.random_range(1..=3) {
        let [one, other] = [0, 1].map(|_| rng.random_range(0..entries.len()));
        let place = entries[other].1.get("data_offsets").cloned();
        let shape = entries[other].1.get("shape").cloned();
        match (rng.random_range(0..6), entries[one].1.as_object_mut()) {
            (0, Some(entry)) => drop(place.map(|place| entry.insert("data_offsets".to_owned(), place))),
            (1, Some(entry)) => {
                let by = [4, -4, 1, 1 << 40][rng.random_range(0..4)];
                let ends = entry.get("data_offsets").and_then(Value::as_array);
                let moved: Vec<i64> =
                    ends.into_iter().flatten().filter_map(|end| Some(end.as_i64()?.saturating_add(by))).collect();
                entry.insert("data_offsets".to_owned(), json!(moved));
            }
            (2, Some(entry)) => drop(shape.map(|shape| entry.insert("shape".to_owned(), shape))),
            (3, _) => entries.push(entries[one].clone()),
            (4, _) => entries.push((entries[one].0.clone(), entries[other].1.clone())),
            _ => tree(&mut entries[one].1, rng),
        }
    }
    let one = |(name, entry): &(String, Value)| format!("{}:{entry}", json!(name));
    format!("{{{}}}", entries.iter().map(one).collect::<Vec<_>>().join(","))
}

/// Bytes changed before the checksum is computed.
fn sealed(seed: &[u8], rng: &mut ChaCha8Rng) -> Option<Vec<u8>> {
    const SEAL: usize = 8 + 32;
    let tail = seed.len().checked_sub(8)?;
    let length = u32::from_le_bytes(seed.get(tail..tail + 4)?.try_into().ok()?) as usize;
    let footer = tail.checked_sub(length)?;
    let mut pages = seed.get(..footer.checked_sub(SEAL)?)?.to_vec();
    let mark = &seed[pages.len()..pages.len() + 8];
    let mut rest = seed[footer..].to_vec();
    for _ in 0..rng.random_range(1..=4) {
        // The footer's length and the magic after it do not change.
        let part = if rng.random_bool(0.5) { &mut pages[4..] } else { &mut rest[..length] };
        let at = rng.random_range(0..part.len());
        match rng.random_range(0..3) {
            0 => part[at] ^= 1 << rng.random_range(0..8),
            1 => part[at] = [0, 0x7F, 0x80, 0xFF][rng.random_range(0..4)],
            // A large varint (seven bits per byte).
            _ => {
                let to = (at + 5).min(part.len());
                part[at..to].fill(0xFF);
            }
        }
    }
    let sum = Sha256::new().chain_update(&pages).chain_update(&rest).finalize();
    Some([&pages[..], mark, &sum, &rest].concat())
}
