//! Compares folders of records that the same commands wrote on two devices. Knows records, not their meaning.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use switchyard::parity::ParityComparison;
use switchyard::parity::reference::Deviation;
use switchyard::store::{FlatRow, read_flat};

/// Columns that a clock makes.
const CLOCKS: [&str; 2] = ["seconds", "tokens_per_s"];

/// The column of gradient norms, compared separately: rounding shows there first.
const GRADIENTS: &str = "grad_norm";

/// One comparison per file of records in two folders and their subfolders; two if it has gradients.
pub(super) fn compare(ours: &Path, theirs: &Path, bound: f64) -> Result<Vec<ParityComparison>> {
    let (found, expected) = (files(ours)?, files(theirs)?);
    ensure!(found == expected, "files of rows on the device: {found:?}, on the CPU: {expected:?}");
    ensure!(!found.is_empty(), "no rows were written");
    let mut out = vec![];
    for name in &found {
        let [ours, theirs] = [ours, theirs].map(|folder| read_flat(&folder.join(name)));
        let (ours, theirs) = (ours?, theirs?);
        out.push(compare_rows(name, &ours, &theirs, bound, |column| column != GRADIENTS)?);
        let gradients =
            compare_rows(&format!("{name}: {GRADIENTS}"), &ours, &theirs, bound, |column| column == GRADIENTS)?;
        out.extend(Some(gradients).filter(|gradients| gradients.found.values > 0));
    }
    Ok(out)
}

/// The columns that are `wanted`.
fn compare_rows(
    name: &str,
    ours: &[FlatRow],
    theirs: &[FlatRow],
    bound: f64,
    wanted: impl Fn(&str) -> bool,
) -> Result<ParityComparison> {
    ensure!(ours.len() == theirs.len(), "{name}: {} rows on the device, {} on the CPU", ours.len(), theirs.len());
    let columns: BTreeSet<&String> = ours.iter().chain(theirs).flat_map(|row| row.keys()).collect();
    let mut worst = Deviation::default();
    for column in columns.into_iter().filter(|column| !CLOCKS.contains(&column.as_str()) && wanted(column)) {
        let of = |row: &FlatRow| json(row.get(column).unwrap_or(&Value::Null));
        let scale = theirs.iter().map(|row| largest(&of(row))).fold(1.0, f64::max);
        for (row, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
            let off = distance(&of(ours), &of(theirs)) / scale;
            worst.values += 1;
            if off > worst.off {
                worst = Deviation { off, at: format!("`{column}` of row {row}"), ..worst };
            }
        }
    }
    Ok(ParityComparison::new(name, bound, [worst]))
}

fn files(folder: &Path) -> Result<BTreeSet<String>> {
    let (mut out, mut left) = (BTreeSet::new(), vec![PathBuf::new()]);
    while let Some(inner) = left.pop() {
        let here = folder.join(&inner);
        for entry in std::fs::read_dir(&here).with_context(|| format!("{}: cannot list", here.display()))? {
            let entry = entry.with_context(|| format!("{}: cannot list", here.display()))?;
            let path = inner.join(entry.file_name());
            if entry.path().is_dir() {
                left.push(path);
            } else if path.extension().is_some_and(|ending| ending == "parquet") {
                out.insert(path.display().to_string());
            }
        }
    }
    Ok(out)
}

/// Lists are stored as text.
fn json(value: &Value) -> Value {
    let list = value.as_str().filter(|text| text.starts_with('['));
    list.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_else(|| value.clone())
}

/// The largest magnitude of the floats.
fn largest(value: &Value) -> f64 {
    match value {
        Value::Number(number) if number.is_f64() => number.as_f64().map_or(0.0, f64::abs),
        Value::Array(all) => all.iter().map(largest).fold(0.0, f64::max),
        Value::Object(all) => all.values().map(largest).fold(0.0, f64::max),
        _ => 0.0,
    }
}

/// The largest difference of floats; infinite if anything else differs.
fn distance(ours: &Value, theirs: &Value) -> f64 {
    match (ours, theirs) {
        (Value::Number(a), Value::Number(b)) if a.is_f64() && b.is_f64() => {
            a.as_f64().zip(b.as_f64()).map_or(f64::INFINITY, |(a, b)| (a - b).abs())
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            a.iter().zip(b).map(|(a, b)| distance(a, b)).fold(0.0, f64::max)
        }
        (Value::Object(a), Value::Object(b)) if a.keys().eq(b.keys()) => {
            a.values().zip(b.values()).map(|(a, b)| distance(a, b)).fold(0.0, f64::max)
        }
        _ if ours == theirs => 0.0,
        _ => f64::INFINITY,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rows(all: &[Value]) -> Vec<FlatRow> {
        all.iter().map(|row| row.as_object().expect("a struct").clone()).collect()
    }

    fn off(ours: Value, theirs: Value) -> f64 {
        compare_rows("x", &rows(&[ours]), &rows(&[theirs]), 1e-5, |_| true).expect("as many rows").found.off
    }

    #[test]
    fn numbers_differ_by_how_much_and_everything_else_by_infinitely_much() {
        assert!((off(json!({"a": 0.5, "n": 3}), json!({"a": 0.75, "n": 3})) - 0.25).abs() < 1e-12);
        assert!((off(json!({"a": 90.0}), json!({"a": 100.0})) - 0.1).abs() < 1e-12, "relative to what is above 1");
        assert!((off(json!({"a[]": "[0.5,1.0]"}), json!({"a[]": "[0.5,0.5]"})) - 0.5).abs() < 1e-12, "inside lists");
        for (ours, theirs) in [
            (json!({"n": 3}), json!({"n": 4})),
            (json!({"a": "yes"}), json!({"a": "no"})),
            (json!({"a": null}), json!({"a": 0.0})),
            (json!({"a": 1.0}), json!({"b": 1.0})),
            (json!({"a[]": "[1.5]"}), json!({"a[]": "[1.5,1.5]"})),
        ] {
            assert_eq!(off(ours.clone(), theirs.clone()), f64::INFINITY, "{ours} {theirs}");
        }
        assert_eq!(
            off(json!({"seconds": 1.0, "a": 2.0}), json!({"seconds": 9.0, "a": 2.0})),
            0.0,
            "a clock is no result"
        );
    }

    #[test]
    fn a_difference_beyond_the_bound_names_its_place_and_rows_that_are_missing_are_an_error() {
        let [ours, theirs] = [0.1, 0.2].map(|x| rows(&[json!({"a": 1.0, "b": 1.0}), json!({"a": 1.0, "b": x})]));
        assert!(
            compare_rows("x", &ours, &theirs, 1e-5, |_| true).expect("as many rows").found.at.contains("`b` of row 1")
        );
        assert!(compare_rows("x", &ours, &theirs[..1], 1e-5, |_| true).is_err());
        let empty = tempfile::tempdir().expect("a folder");
        assert!(compare(empty.path(), empty.path(), 1e-5).is_err(), "nothing compared is no pass");
    }
}
