//! Parquet and CSV of other programs as records. Knows tables and JSON values, not what their columns mean.

use std::collections::HashSet;
use std::io::Cursor;

use anyhow::{Context, Result, anyhow, bail, ensure};
use polars::prelude::{AnyValue, CsvReadOptions, DataFrame, SerReader};
use serde_json::{Map, Value};

use crate::guard::guarded;
use crate::store::digits;
use crate::store::parquet::decode_with;

/// Parts of the names of types that this build cannot read.
const UNREAD: [&str; 13] = [
    "Map",
    "Int128",
    "Float16",
    "Date",
    "Time",
    "Duration",
    "Interval",
    "Binary",
    "Dictionary",
    "Decimal",
    "FixedSize",
    "Union",
    "Extension",
];

/// The records of a Parquet file. Columns of types that are not read (dates, categories, pictures) are left out, and named in `left_out`.
pub(super) fn parquet(bytes: Vec<u8>, left_out: &mut Vec<String>) -> Result<Vec<Map<String, Value>>> {
    let read = decode_with(&bytes, |mut reader| {
        let schema = reader.schema()?;
        let mut columns = vec![];
        for (name, field) in schema.iter() {
            let kind = format!("{:?}", field.dtype);
            if UNREAD.iter().any(|unread| kind.contains(unread)) {
                let kind = kind.split(['(', ' ', '{']).next().unwrap_or_default().to_owned();
                left_out.push(format!("{name} ({kind})"));
            } else {
                columns.push(name.to_string());
            }
        }
        ensure!(!columns.is_empty(), "no column of text or numbers; it has {}", left_out.join(", "));
        records(&reader.with_columns(Some(columns)).finish()?)
    });
    read.context("not a Parquet file that can be read")
}

/// The records of a CSV file; every cell is a text, an empty one is missing. Columns are apart by a comma, a tab or a semicolon,
/// whichever the first line has most of.
///
/// # Errors
/// Rows of other lengths than the first; a column's name that stands twice.
pub(super) fn csv(text: &str) -> Result<Vec<Map<String, Value>>> {
    // Lines may end as they did on the first Macs.
    let old = (!text.contains('\n')).then(|| text.replace('\r', "\n"));
    let text = old.as_deref().unwrap_or(text);
    let first = text.lines().next().unwrap_or_default();
    let separator = [b',', b'\t', b';'].into_iter().rev().max_by_key(|s| first.bytes().filter(|b| b == s).count());
    let table = |text: &str, has_header: bool| {
        let options = CsvReadOptions::default()
            .with_infer_schema_length(Some(0))
            .with_has_header(has_header)
            .map_parse_options(|parse| parse.with_separator(separator.unwrap_or(b',')));
        let read = || options.into_reader_with_file_handle(Cursor::new(text.as_bytes().to_vec())).finish();
        let frame = guarded(read).and_then(|frame| Ok(frame?)).map_err(clearer);
        frame.context("not a table of comma-separated values that can be read")
    };
    let frame = table(text, true)?;
    // Polars gives the second column of a name another one.
    if frame.columns().iter().any(|column| column.name().contains("_duplicated_")) {
        let names = records(&table(first, false)?)?.into_iter().flatten().filter(|(_, name)| name.is_string());
        let mut seen = HashSet::new();
        if let Some(name) = names.map(|(_, name)| name.to_string()).find(|name| !seen.insert(name.clone())) {
            bail!("column {name} is twice in the first line: rename one of them");
        }
    }
    records(&frame)
}

/// Polars' error, rephrased where it names its own settings.
fn clearer(error: anyhow::Error) -> anyhow::Error {
    let said = format!("{error:#}");
    if said.contains("more fields than defined") {
        return anyhow!("a row has more cells than the first line: quote cells that contain the separator");
    }
    if said.contains("not properly escaped") {
        return anyhow!("a quote is not closed, or is inside a cell without being doubled");
    }
    error
}

fn records(frame: &DataFrame) -> Result<Vec<Map<String, Value>>> {
    let mut rows = vec![Map::new(); frame.height()];
    for column in frame.columns() {
        for (number, row) in rows.iter_mut().enumerate() {
            let cell = column.get(number).with_context(|| format!("column {}, row {}", column.name(), number + 1))?;
            row.insert(column.name().to_string(), value(&cell));
        }
    }
    Ok(rows)
}

/// A cell as JSON; numbers as [`digits::read`] has them. A number that is none (NaN) is missing.
fn value(cell: &AnyValue) -> Value {
    match cell {
        AnyValue::Boolean(is) => Value::Bool(*is),
        AnyValue::String(text) => Value::String((*text).to_owned()),
        AnyValue::StringOwned(text) => Value::String(text.to_string()),
        AnyValue::Int8(x) => digits::number(x),
        AnyValue::Int16(x) => digits::number(x),
        AnyValue::UInt8(x) => digits::number(x),
        AnyValue::UInt16(x) => digits::number(x),
        AnyValue::Int32(x) => digits::number(x),
        AnyValue::Int64(x) => digits::number(x),
        AnyValue::UInt32(x) => digits::number(x),
        AnyValue::UInt64(x) => digits::number(x),
        AnyValue::Float32(x) if x.is_finite() => digits::number(x),
        AnyValue::Float64(x) if x.is_finite() => digits::number(x),
        AnyValue::Struct(_, _, fields) => {
            let names = fields.iter().map(|field| field.name().to_string());
            Value::Object(names.zip(cell._iter_struct_av().map(|cell| value(&cell))).collect())
        }
        // So polars has the cell of a table of one row.
        AnyValue::StructOwned(owned) => {
            let (cells, fields) = owned.as_ref();
            Value::Object(fields.iter().map(|field| field.name().to_string()).zip(cells.iter().map(value)).collect())
        }
        AnyValue::List(series) => Value::Array(series.iter().map(|cell| value(&cell)).collect()),
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use polars::prelude::{IntoColumn, NamedFrom, ParquetWriter, Series};

    use super::*;

    #[test]
    fn a_struct_is_an_object_in_a_table_of_one_row_too() {
        for rows in [1, 2] {
            let columns = vec![Series::new("a".into(), vec![1i64; rows]).into_column()];
            let inner = DataFrame::new(rows, columns).expect("a frame").into_struct("meta".into());
            let mut frame = DataFrame::new(rows, vec![inner.into_column()]).expect("a frame");
            let mut bytes = vec![];
            ParquetWriter::new(&mut bytes).finish(&mut frame).expect("encodes");
            let read = parquet(bytes, &mut vec![]).expect("reads");
            assert_eq!(digits::write(&Value::Object(read[0].clone())), r#"{"meta":{"a":1}}"#, "{rows} rows");
        }
    }
}
