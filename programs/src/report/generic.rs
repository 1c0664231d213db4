//! A table directly from records: one line per record, estimates with interval and n, constants in the note. Knows column types, not
//! experiments, so that a new experiment has a table without code here.

use std::collections::BTreeSet;

use anyhow::Result;
use serde_json::Value;

use super::folder::{cell_text, estimate};
use super::tables::{Cell, ColumnKind, Heading, Table};
use switchyard::schema::{FILES, list, stream_name};
use switchyard::stats::unsigned_zero;
use switchyard::store::{FlatRow, IDENTITY};

/// The column of layers, numbered like hooks.
const LAYER: &str = "layer";

/// Rows of one checkpoint.
pub type Of<'a> = (String, Vec<&'a FlatRow>);

/// A column of records before its type is known.
struct RawColumn {
    key: String,
    kind: ColumnKind,
}

/// A table of all records of an experiment with the named columns (empty: all); `None` without content.
pub fn table(label: &str, title: &str, experiment: &str, of: &[Of<'_>], columns: &[&str]) -> Result<Option<Table>> {
    let rows: Vec<(&str, &FlatRow)> =
        of.iter().flat_map(|(c, rows)| rows.iter().map(move |r| (c.as_str(), *r))).collect();
    let flat: Vec<&FlatRow> = rows.iter().map(|(_, r)| *r).collect();
    let mut found = list_columns(&flat, columns);
    let constant =
        |f: &RawColumn| flat.len() > 2 && flat.windows(2).all(|w| cell_words(w[0], &f.key) == cell_words(w[1], &f.key));
    let constants: Vec<String> = found
        .iter()
        .filter(|f| !matches!(f.kind, ColumnKind::Measured(_)) && constant(f))
        .map(|f| format!("{} {}", named(&f.key), constant_words(flat[0], &f.key)))
        .collect();
    found.retain(|f| matches!(f.kind, ColumnKind::Measured(_)) || !constant(f));
    if flat.is_empty() || !found.iter().any(|f| matches!(f.kind, ColumnKind::Measured(_))) {
        return Ok(None);
    }
    let several = of.len() > 1;
    let mut headings = if several { vec![Heading::new("checkpoint", ColumnKind::Text)] } else { vec![] };
    headings.extend(found.iter().map(|f| Heading::new(&named(&f.key), f.kind)));
    let mut table = Table::new(label, title, headings);
    for (checkpoint, row) in rows {
        let mut cells = if several { vec![Cell::Text(checkpoint.to_owned())] } else { vec![] };
        cells.extend(found.iter().map(|f| cell(row, f)));
        table.push(cells)?;
    }
    table.note = note(experiment, of, &flat, &constants);
    Ok(Some(table))
}

/// What the n of an experiment's records counts: pairs or tests if the column's meaning begins with that word, else problems.
fn counted(experiment: &str) -> &'static str {
    let mut columns =
        FILES.iter().filter(|(names, _)| names.contains(&experiment)).flat_map(|(_, columns)| list(columns));
    let about = columns.find(|[name, ..]| *name == "n").map_or("", |[.., about]| about);
    ["pairs", "tests"].into_iter().find(|unit| about.starts_with(unit)).unwrap_or("problems")
}

fn note(experiment: &str, of: &[Of<'_>], rows: &[&FlatRow], constants: &[String]) -> String {
    let mut parts = vec![];
    let mut of_what: Vec<String> = rows.iter().map(|r| cell_text(r, "checkpoint")).filter(|c| !c.is_empty()).collect();
    of_what.dedup();
    if of_what.is_empty() {
        of_what = of.iter().map(|(c, _)| c.clone()).collect();
    }
    parts.push(of_what.join(", "));
    for key in ["dataset", "n", "seed"] {
        let values: BTreeSet<String> = rows.iter().map(|r| cell_text(r, key)).filter(|v| !v.is_empty()).collect();
        if let (Some(one), 1) = (values.first(), values.len()) {
            parts.push(if key == "n" { format!("{one} {}", counted(experiment)) } else { format!("{key} {one}") });
        }
    }
    parts.extend(constants.iter().cloned());
    format!("{}; 95 % intervals.", parts.join("; "))
}

fn list_columns(rows: &[&FlatRow], columns: &[&str]) -> Vec<RawColumn> {
    let mut keys: Vec<String> = vec![];
    for key in rows.iter().flat_map(|r| r.keys()) {
        let base = ["value", "low", "high", "n"].iter().find_map(|part| key.strip_suffix(&format!(".{part}")));
        let key = base.unwrap_or(key).to_owned();
        if !keys.contains(&key) && !IDENTITY.contains(&key.as_str()) {
            keys.push(key);
        }
    }
    if !columns.is_empty() {
        let order = |key: &String| columns.iter().position(|c| c == key);
        keys.retain(|key| order(key).is_some());
        keys.sort_by_key(order);
    }
    keys.into_iter().filter_map(|key| kind(rows, &key).map(|kind| RawColumn { key, kind })).collect()
}

/// Type of a column; `None` if it is empty in every record.
fn kind(rows: &[&FlatRow], key: &str) -> Option<ColumnKind> {
    if rows.iter().any(|r| estimate(r, key).is_some()) {
        return Some(ColumnKind::Measured(digits(rows, key)));
    }
    let values: Vec<&Value> = rows.iter().filter_map(|r| r.get(key)).filter(|v| !v.is_null()).collect();
    let whole = !values.is_empty() && key != LAYER && values.iter().all(|v| v.is_i64());
    if whole { Some(ColumnKind::Count) } else { (!values.is_empty()).then_some(ColumnKind::Text) }
}

/// Three decimals; fewer for a column of large numbers.
fn digits(rows: &[&FlatRow], key: &str) -> usize {
    let largest = rows.iter().filter_map(|r| estimate(r, key)).map(|e| e.value.abs()).fold(0.0, f64::max);
    match largest {
        100.0.. => 1,
        10.0.. => 2,
        _ => 3,
    }
}

fn cell(row: &FlatRow, found: &RawColumn) -> Cell {
    match found.kind {
        ColumnKind::Measured(_) => Cell::measured(estimate(row, &found.key)),
        ColumnKind::Count => row.get(&found.key).and_then(Value::as_i64).map_or_else(Cell::nothing, Cell::Count),
        _ => match row.get(&found.key) {
            None | Some(Value::Null) => Cell::nothing(),
            Some(Value::Number(x)) if x.is_f64() => Cell::Text(small(x.as_f64().unwrap_or(f64::NAN))),
            Some(_) => Cell::Text(cell_words(row, &found.key)),
        },
    }
}

/// A cell's text. A layer has the name of its hook: `blocks.1`; the stream before the first layer is `embedding`.
fn cell_words(row: &FlatRow, key: &str) -> String {
    let layer = row.get(key).and_then(Value::as_u64).filter(|_| key == LAYER).and_then(|n| usize::try_from(n).ok());
    let component = row.get("component").and_then(Value::as_str);
    let in_layer = matches!(component, Some("head" | "mlp")) || row.get("head").is_some_and(|head| !head.is_null());
    match layer {
        Some(layer) if in_layer => format!("blocks.{layer}"),
        Some(passed) => stream_name(passed),
        None => cell_text(row, key),
    }
}

/// A constant's text; a long fraction (`0.30000000000000004`) is rounded.
fn constant_words(row: &FlatRow, key: &str) -> String {
    let words = cell_words(row, key);
    let fraction = row.get(key).filter(|value| value.is_f64() && words.len() > 6).and_then(Value::as_f64);
    fraction.map_or(words, small)
}

fn small(x: f64) -> String {
    if x != 0.0 && x.abs() < 1e-3 { format!("{x:.1e}") } else { unsigned_zero(format!("{x:.3}")) }
}

/// `p_holm` → `p (Holm)`; other keys as words.
fn named(key: &str) -> String {
    match key {
        "p_holm" => "p (Holm)".into(),
        "p_value" => "p (McNemar)".into(),
        "p_swi" => "p(<swi>)".into(),
        "p_exit" => "p(</swi>)".into(),
        "n_for_80" => "n for 80 %".into(),
        "blind" => "what it cannot see".into(),
        "mean_change" => "mean change in norm".into(),
        other => other.trim_end_matches("[]").replace('_', " "),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_constant_in_the_note_is_rounded_as_a_cell() {
        let row = |acc: f64| {
            let row = json!({"checkpoint": "x/sft", "dataset": "d", "n": 9, "seed": 0, "chance": 0.1 + 0.2, "dose": 0.5,
                "acc.value": acc, "acc.low": 0.0, "acc.high": 1.0, "acc.n": 9});
            row.as_object().expect("an object").clone()
        };
        let rows = [0.1, 0.2, 0.3].map(row);
        let of: [Of<'_>; 1] = [("sft".to_owned(), rows.iter().collect())];
        let table = table("tab:x", "x", "x", &of, &[]).expect("a table").expect("rows");
        assert!(table.note.contains("chance 0.300; ") && table.note.contains("dose 0.5; "), "{}", table.note);
    }
}
