//! Flat rows to a polars frame and back. Knows the four scalar types of our rows: integer, float, boolean, text; each may be null.

use std::collections::HashMap;

use anyhow::{Context, Result, bail, ensure};
use polars::prelude::{AnyValue, Column, DataFrame, NamedFrom, Series};
use serde_json::{Number, Value};

use super::flat::FlatRow;

/// The cells of a column so far.
#[derive(Debug)]
enum ColumnCells {
    /// Number of nulls, without other values.
    Null(usize),
    Bool(Vec<Option<bool>>),
    Int(Vec<Option<i64>>),
    Float(Vec<Option<f64>>),
    Text(Vec<Option<String>>),
}

impl ColumnCells {
    fn kind(&self) -> &'static str {
        match self {
            ColumnCells::Null(_) => "Null",
            ColumnCells::Bool(_) => "Bool",
            ColumnCells::Int(_) => "Int",
            ColumnCells::Float(_) => "Float",
            ColumnCells::Text(_) => "Text",
        }
    }

    fn null(&mut self) {
        match self {
            ColumnCells::Null(n) => *n += 1,
            ColumnCells::Bool(cells) => cells.push(None),
            ColumnCells::Int(cells) => cells.push(None),
            ColumnCells::Float(cells) => cells.push(None),
            ColumnCells::Text(cells) => cells.push(None),
        }
    }

    /// Adds a value; the column's type becomes the most general one: null fits any type, integers fit floats.
    fn push(&mut self, value: Value) -> Result<()> {
        if value.is_null() {
            self.null();
            return Ok(());
        }
        if let ColumnCells::Null(n) = *self {
            *self = match &value {
                Value::Bool(_) => ColumnCells::Bool(vec![None; n]),
                Value::Number(x) if x.is_i64() => ColumnCells::Int(vec![None; n]),
                Value::Number(x) if x.is_f64() => ColumnCells::Float(vec![None; n]),
                Value::Number(x) => bail!("integer {x} does not fit 64 bits with sign"),
                Value::String(_) => ColumnCells::Text(vec![None; n]),
                other => bail!("value {other} is not a scalar"),
            };
        }
        match (&mut *self, value) {
            (ColumnCells::Bool(cells), Value::Bool(x)) => cells.push(Some(x)),
            (ColumnCells::Text(cells), Value::String(x)) => cells.push(Some(x)),
            (ColumnCells::Int(cells), Value::Number(x)) if x.is_i64() => cells.push(x.as_i64()),
            (ColumnCells::Float(cells), Value::Number(x)) if x.is_i64() || x.is_f64() => cells.push(x.as_f64()),
            (ColumnCells::Int(cells), Value::Number(x)) if x.is_f64() => {
                let floats = cells.iter().map(|c| c.map(|c| c as f64)).chain([x.as_f64()]).collect();
                *self = ColumnCells::Float(floats);
            }
            (_, Value::Number(x)) if x.is_u64() && !x.is_i64() => bail!("integer {x} does not fit 64 bits with sign"),
            (cells, value) => bail!("has both {} and {}", cells.kind(), kind_of(&value)),
        }
        Ok(())
    }

    fn column(self, name: String) -> Column {
        let name = name.into();
        match self {
            ColumnCells::Null(n) => Series::new(name, vec![None::<f64>; n]),
            ColumnCells::Bool(cells) => Series::new(name, cells),
            ColumnCells::Int(cells) => Series::new(name, cells),
            ColumnCells::Float(cells) => Series::new(name, cells),
            ColumnCells::Text(cells) => Series::new(name, cells),
        }
        .into()
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Bool(_) => "Bool",
        Value::Number(x) if x.is_f64() => "Float",
        Value::Number(_) => "Int",
        Value::String(_) => "Text",
        _ => "a value that is not a scalar",
    }
}

/// Builds a frame row by row. Its columns are the union of the rows' keys in order of first appearance; a missing key is null.
#[derive(Debug, Default)]
pub(crate) struct Columns {
    columns: Vec<(String, ColumnCells)>,
    at: HashMap<String, usize>,
    rows: usize,
}

impl Columns {
    /// Adds a record.
    ///
    /// # Errors
    /// A value that is not a scalar or does not fit its column, by column and row.
    pub fn push(&mut self, row: FlatRow) -> Result<()> {
        let mut filled = vec![false; self.columns.len()];
        for (name, value) in row {
            let index = match self.at.get(&name) {
                Some(&index) => index,
                None => {
                    self.at.insert(name.clone(), self.columns.len());
                    self.columns.push((name, ColumnCells::Null(self.rows)));
                    filled.push(false);
                    self.columns.len() - 1
                }
            };
            filled[index] = true;
            let (name, cells) = &mut self.columns[index];
            cells.push(value).with_context(|| format!("column '{name}', row {}", self.rows))?;
        }
        let missing = self.columns.iter_mut().zip(filled).filter(|(_, filled)| !filled);
        missing.for_each(|((_, cells), _)| cells.null());
        self.rows += 1;
        Ok(())
    }

    pub(crate) fn frame(self) -> Result<DataFrame> {
        let names: Vec<String> = self.columns.iter().map(|(name, _)| name.clone()).collect();
        // An all-null `x` next to `x.y` is an absent struct, which the other columns imply.
        let is_struct =
            |name: &str| names.iter().any(|other| other.strip_prefix(name).is_some_and(|r| r.starts_with('.')));
        let columns = self
            .columns
            .into_iter()
            .filter(|(name, cells)| !(matches!(cells, ColumnCells::Null(_)) && is_struct(name)));
        let columns = columns.map(|(name, cells)| cells.column(name)).collect();
        DataFrame::new(self.rows, columns).context("cannot build the table of rows")
    }
}

pub(crate) fn to_frame(rows: &[FlatRow]) -> Result<DataFrame> {
    let mut columns = Columns::default();
    rows.iter().try_for_each(|row| columns.push(row.clone()))?;
    columns.frame()
}

/// Maximum bytes of text in one frame: a dictionary of a few bytes can refer to a long text a million times.
const MOST_TEXT: usize = 1 << 30;

/// The records of a frame; each has every column, null if empty.
pub(crate) fn from_frame(frame: &DataFrame) -> Result<Vec<FlatRow>> {
    let mut rows = vec![FlatRow::new(); frame.height()];
    let mut text = 0_usize;
    for column in frame.columns() {
        for (number, row) in rows.iter_mut().enumerate() {
            let cell = column.get(number).with_context(|| format!("column '{}', row {number}", column.name()))?;
            let value = match cell {
                AnyValue::Null => Value::Null,
                AnyValue::Boolean(b) => Value::Bool(b),
                AnyValue::Int64(i) => i.into(),
                // In files that are written as frames, not as rows: the entropies of an annotation.
                AnyValue::UInt32(i) => i.into(),
                AnyValue::Float32(x) => Number::from_f64(x.into()).map_or(Value::Null, Value::Number),
                AnyValue::Float64(x) => Number::from_f64(x).map_or(Value::Null, Value::Number),
                AnyValue::String(s) => s.into(),
                AnyValue::StringOwned(s) => s.as_str().into(),
                other => bail!("column '{}' has the unsupported type {}", column.name(), other.dtype()),
            };
            text = text.saturating_add(column.name().len() + value.as_str().map_or(0, str::len));
            ensure!(
                text <= MOST_TEXT,
                "column '{}', row {number}: texts of more than {MOST_TEXT} bytes",
                column.name()
            );
            row.insert(column.name().to_string(), value);
        }
    }
    Ok(rows)
}
