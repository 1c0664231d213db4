//! Rows of an experiment read back unchanged and typed, even if the run was killed.

use std::path::Path;

use crate::common::says;
use serde::{Deserialize, Serialize};
use switchyard::stats::{Estimate, wilson};
use switchyard::store::{IDENTITY, RowWriter, read, read_flat};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct ToyRow {
    checkpoint: String,
    dataset: String,
    seed: u64,
    layer: Option<i64>,
    accuracy: Estimate,
    control: Option<Estimate>,
    margin: f64,
    right: bool,
    note: Option<String>,
    c: Vec<f64>,
}

fn row(i: u64) -> ToyRow {
    ToyRow {
        checkpoint: "micro, \"sft\"\nstep 8".into(), // needs quoting in CSV
        dataset: "chains".into(),
        seed: i,
        layer: i.is_multiple_of(2).then_some(i as i64),
        accuracy: wilson(3 + i as usize, 40, 0.95).unwrap(),
        control: (i == 2).then(|| wilson(1, 2, 0.95).unwrap()),
        margin: [0.1, -2.0, 1e-12, 3.0][i as usize % 4], // -2.0 and 3.0 must stay floats
        right: i == 1,
        note: None,
        c: vec![0.001; i as usize],
    }
}

fn write(folder: &Path, rows: impl Iterator<Item = ToyRow>) -> std::path::PathBuf {
    let mut writer = RowWriter::create(folder, "exp").unwrap().requiring(&IDENTITY);
    rows.for_each(|r| writer.push(&r).unwrap());
    writer.finish().unwrap().parquet
}

#[test]
fn rows_read_back_typed() {
    let folder = tempfile::tempdir().unwrap();
    let rows: Vec<ToyRow> = (0..4).map(row).collect();
    let path = write(folder.path(), rows.iter().cloned());
    assert_eq!(read::<ToyRow>(&path).unwrap(), rows);
    let flat = read_flat(&path).unwrap();
    let names: Vec<&str> = flat[0].keys().map(String::as_str).collect();
    assert_eq!(names[..4], ["checkpoint", "dataset", "seed", "layer"]);
    assert!(names.contains(&"accuracy.low") && names.contains(&"control.value") && !names.contains(&"control"));
    assert!(
        flat[1]["layer"].is_null() && flat[1]["margin"].as_f64() == Some(-2.0) && flat[3]["seed"].as_i64() == Some(3)
    );
    // Only the two files remain, and the CSV has a header and a line per row (one field contains a line break).
    let mut left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|f| f.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["exp.csv", "exp.parquet"]);
    let csv = std::fs::read_to_string(folder.path().join("exp.csv")).unwrap();
    assert!(csv.starts_with("checkpoint,dataset,seed,layer,accuracy.value,accuracy.low,"), "{csv}");
    assert_eq!(csv.lines().count(), 1 + 2 * 4);
}

#[test]
fn the_same_rows_give_the_same_bytes() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let bytes = folders.each_ref().map(|f| std::fs::read(write(f.path(), (0..4).map(row))).unwrap());
    assert_eq!(bytes[0], bytes[1]);
}

#[test]
fn a_killed_run_keeps_its_rows_and_no_finished_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = RowWriter::create(folder.path(), "exp").unwrap();
    writer.push(&row(0)).unwrap();
    writer.push(&row(1)).unwrap();
    drop(writer);
    assert!(!folder.path().join("exp.parquet").exists());
    // The kill came in the middle of a line.
    let partial = folder.path().join("exp.rows.tmp");
    let mut text = std::fs::read_to_string(&partial).unwrap();
    text.push_str("{\"checkpoint\":\"mi");
    std::fs::write(&partial, text).unwrap();
    let mut writer = RowWriter::resume(folder.path(), "exp").unwrap();
    assert_eq!(writer.rows().len(), 2);
    writer.push(&row(2)).unwrap();
    let files = writer.finish().unwrap();
    assert_eq!(read::<ToyRow>(&files.parquet).unwrap(), [row(0), row(1), row(2)]);
    // A fresh start discards the rows; the finished file survives until the next one.
    let writer = RowWriter::create(folder.path(), "exp").unwrap();
    assert!(writer.rows().is_empty() && files.parquet.exists());
}

#[test]
fn errors_name_file_column_and_row() {
    let folder = tempfile::tempdir().unwrap();
    let new = |name: &str| RowWriter::create(folder.path(), name);
    says(new("a/b"), "found 'a/b'");
    says(new("empty").unwrap().finish(), "'empty' produced no rows");
    says(new("x").unwrap().push(&3), "row 0 of 'x': a row must be a struct or a map, got 3");
    says(new("x").unwrap().requiring(&IDENTITY).push(&serde_json::json!({"checkpoint": "a"})), "lacks 'dataset'");
    let mut mixed = new("mixed").unwrap();
    mixed.push(&serde_json::json!({"a": 1})).unwrap();
    mixed.push(&serde_json::json!({"a": "one"})).unwrap();
    says(mixed.finish(), "column 'a', row 1: has both Int and Text");
    let mut big = new("big").unwrap();
    big.push(&serde_json::json!({"a": u64::MAX})).unwrap();
    says(big.finish(), "does not fit 64 bits");
    let missing = folder.path().join("none.parquet");
    says(read_flat(&missing), "none.parquet");
    std::fs::write(&missing, "no").unwrap();
    says(read_flat(&missing), "not a whole Parquet file");
    let mut other = new("other").unwrap();
    other.push(&serde_json::json!({"a": 1})).unwrap();
    says(read::<ToyRow>(&other.finish().unwrap().parquet), "row 0 of");
}
