//! Flat rows to a polars frame and back. Knows the four scalar types of our rows: integer, float, boolean, text; each may be null.

use anyhow::{Context, Result, bail};
use polars::prelude::{AnyValue, Column, DataFrame, NamedFrom, Series};
use serde_json::{Number, Value};

use super::flat::Row;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    Null,
    Bool,
    Int,
    Float,
    Text,
}

fn kind(value: &Value) -> Result<Kind> {
    Ok(match value {
        Value::Null => Kind::Null,
        Value::Bool(_) => Kind::Bool,
        Value::Number(n) if n.is_i64() => Kind::Int,
        Value::Number(n) if n.is_f64() => Kind::Float,
        Value::Number(n) => bail!("integer {n} does not fit 64 bits with sign"),
        Value::String(_) => Kind::Text,
        other => bail!("value {other} is not a scalar"),
    })
}

/// The one type both fit: null fits any, integers fit floats.
fn join(a: Kind, b: Kind) -> Result<Kind> {
    Ok(match (a, b) {
        (a, b) if a == b => a,
        (Kind::Null, other) | (other, Kind::Null) => other,
        (Kind::Int, Kind::Float) | (Kind::Float, Kind::Int) => Kind::Float,
        (a, b) => bail!("holds both {a:?} and {b:?}"),
    })
}

/// A frame whose columns are the union of the rows' keys in order of first appearance; a missing key is null.
pub fn to_frame(rows: &[Row]) -> Result<DataFrame> {
    let mut columns: Vec<(&str, Kind)> = Vec::new();
    let mut at = std::collections::HashMap::new();
    for (number, row) in rows.iter().enumerate() {
        for (name, value) in row {
            let place = *at.entry(name.as_str()).or_insert_with(|| {
                columns.push((name, Kind::Null));
                columns.len() - 1
            });
            columns[place].1 = kind(value)
                .and_then(|kind| join(columns[place].1, kind))
                .with_context(|| format!("column '{name}', row {number}"))?;
        }
    }
    // An all-null `x` beside `x.y` is an absent struct; the other columns say so.
    let is_struct =
        |name: &str| columns.iter().any(|(other, _)| other.strip_prefix(name).is_some_and(|r| r.starts_with('.')));
    let kept = columns.iter().filter(|(name, kind)| !(*kind == Kind::Null && is_struct(name)));
    let columns = kept.map(|&(name, kind)| column(rows, name, kind)).collect();
    DataFrame::new(rows.len(), columns).context("cannot build the table of rows")
}

fn column(rows: &[Row], name: &str, kind: Kind) -> Column {
    let cells = || rows.iter().map(|row| row.get(name));
    let label = name.into();
    match kind {
        Kind::Bool => Series::new(label, cells().map(|v| v?.as_bool()).collect::<Vec<_>>()),
        Kind::Int => Series::new(label, cells().map(|v| v?.as_i64()).collect::<Vec<_>>()),
        Kind::Float | Kind::Null => Series::new(label, cells().map(|v| v?.as_f64()).collect::<Vec<_>>()),
        Kind::Text => Series::new(label, cells().map(|v| v?.as_str()).collect::<Vec<_>>()),
    }
    .into()
}

/// The rows of a frame; every row carries every column, null where empty.
pub fn from_frame(frame: &DataFrame) -> Result<Vec<Row>> {
    let mut rows = vec![Row::new(); frame.height()];
    for column in frame.columns() {
        for (number, row) in rows.iter_mut().enumerate() {
            let cell = column.get(number).with_context(|| format!("column '{}', row {number}", column.name()))?;
            let value = match cell {
                AnyValue::Null => Value::Null,
                AnyValue::Boolean(b) => Value::Bool(b),
                AnyValue::Int64(i) => i.into(),
                AnyValue::Float64(x) => Number::from_f64(x).map_or(Value::Null, Value::Number),
                AnyValue::String(s) => s.into(),
                AnyValue::StringOwned(s) => s.as_str().into(),
                other => bail!("column '{}' has type {}, not one of ours", column.name(), other.dtype()),
            };
            row.insert(column.name().to_string(), value);
        }
    }
    Ok(rows)
}
