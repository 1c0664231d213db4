//! Parquet of other programs as records. Knows tables and JSON values, not the meaning of columns.

use anyhow::{Context, Result, ensure};
use polars::prelude::{AnyValue, ArrowDataType, DataFrame, SerReader};
use serde_json::{Map, Value};

use crate::store::digits;
use crate::store::parquet::decode_with;

/// Parts of the names of plain types that polars cannot read in this build.
const UNREAD: &str =
    "Map Int128 Float16 Date Time Duration Interval Binary Dictionary Decimal FixedSize Union Extension";

/// The records of a Parquet file. Columns of unsupported types (dates, pictures) are skipped and added to `left_out`.
pub(super) fn parquet(mut bytes: Vec<u8>, left_out: &mut Vec<String>) -> Result<Vec<Map<String, Value>>> {
    let is_category = |kind: &str| kind.contains("Dictionary");
    let categories = decode_with(&bytes, |mut reader| {
        Ok(reader.schema()?.iter_values().any(|field| plain_type(&field.dtype, is_category).is_some()))
    });
    if categories.unwrap_or(false) {
        forget_categories(&mut bytes);
    }
    let read = decode_with(&bytes, |mut reader| {
        let schema = reader.schema()?;
        let mut columns = vec![];
        for (name, field) in schema.iter() {
            let is_unread = |kind: &str| UNREAD.split(' ').any(|unread| kind.contains(unread));
            match plain_type(&field.dtype, is_unread) {
                Some(kind) => left_out.push(format!("{name} ({kind})")),
                None => columns.push(name.to_string()),
            }
        }
        ensure!(!columns.is_empty(), "no column of text or numbers; it has {}", left_out.join(", "));
        records(&reader.with_columns(Some(columns)).finish()?)
    });
    read.context("not a Parquet file that can be read")
}

/// The first plain type within a type, without names of fields, that `matches`.
fn plain_type(dtype: &ArrowDataType, matches: impl Fn(&str) -> bool + Copy) -> Option<String> {
    match dtype {
        ArrowDataType::List(field) | ArrowDataType::LargeList(field) => plain_type(&field.dtype, matches),
        ArrowDataType::Struct(fields) => fields.iter().find_map(|field| plain_type(&field.dtype, matches)),
        plain => {
            let kind = format!("{plain:?}");
            matches(&kind).then(|| kind.split(['(', ' ', '{']).next().unwrap_or_default().to_owned())
        }
    }
}

/// Renames the footer's key for columns that were categories in the writer's memory. Without it they are read as the stored texts and
/// numbers.
fn forget_categories(bytes: &mut [u8]) {
    const KEY: &[u8] = b"ARROW:schema";
    if let Some(at) = bytes.windows(KEY.len()).rposition(|part| part == KEY) {
        bytes[at..at + 5].copy_from_slice(b"arrow");
    }
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

/// A cell as JSON, with numbers as [`digits::read`] returns them. NaN is a missing value.
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
        // Polars returns this for a table of one row.
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
    fn a_struct_is_an_object_whatever_its_names() {
        for rows in [1, 2] {
            let columns = vec![Series::new("Time".into(), vec![1i64; rows]).into_column()];
            let inner = DataFrame::new(rows, columns).expect("a frame").into_struct("Dictionary".into());
            let mut frame = DataFrame::new(rows, vec![inner.into_column()]).expect("a frame");
            let mut bytes = vec![];
            ParquetWriter::new(&mut bytes).finish(&mut frame).expect("encodes");
            let read = parquet(bytes, &mut vec![]).expect("reads");
            assert_eq!(digits::write(&Value::Object(read[0].clone())), r#"{"Dictionary":{"Time":1}}"#, "{rows} rows");
        }
    }
}
