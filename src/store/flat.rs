//! Flattens nested records and restores them. Knows JSON values; nothing of files.
//!
//! A nested struct becomes columns joined by dots (`accuracy.value`, `accuracy.low`, …), a list becomes JSON text in a column whose name
//! ends in `[]`. [`nest`] inverts [`flatten`], except that a struct with only null members becomes null.

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value};

/// One row: column name to value.
pub type FlatRow = Map<String, Value>;

/// Flattens a serialised row.
pub fn flatten(value: Value) -> Result<FlatRow> {
    let Value::Object(fields) = value else { bail!("a row must be a struct or a map, got {value}") };
    let mut flat = FlatRow::new();
    add("", fields, &mut flat)?;
    ensure!(!flat.is_empty(), "a row has no fields");
    Ok(flat)
}

fn add(prefix: &str, fields: FlatRow, flat: &mut FlatRow) -> Result<()> {
    for (key, value) in fields {
        ensure!(!key.contains('.') && !key.ends_with("[]"), "field name '{key}' must not contain '.' or end in '[]'");
        let name = format!("{prefix}{key}");
        match value {
            Value::Object(inner) => add(&format!("{name}."), inner, flat)?,
            Value::Array(_) => {
                flat.insert(format!("{name}[]"), Value::String(value.to_string()));
            }
            scalar => {
                flat.insert(name, scalar);
            }
        }
    }
    Ok(())
}

pub(crate) fn nest(flat: &FlatRow) -> Result<Value> {
    let mut root = FlatRow::new();
    for (name, value) in flat {
        let (name, value) = match (name.strip_suffix("[]"), value) {
            (Some(name), Value::String(text)) => (
                name,
                serde_json::from_str(text)
                    .with_context(|| format!("column '{name}[]' has '{text}', which is not JSON"))?,
            ),
            (Some(name), other) => (name, other.clone()),
            (None, other) => (name.as_str(), other.clone()),
        };
        let mut place = &mut root;
        let (path, last) = name.rsplit_once('.').map_or((None, name), |(path, last)| (Some(path), last));
        for step in path.into_iter().flat_map(|p| p.split('.')) {
            let next = place.entry(step).or_insert_with(|| Value::Object(FlatRow::new()));
            if next.is_null() {
                *next = Value::Object(FlatRow::new());
            }
            place = next
                .as_object_mut()
                .with_context(|| format!("column '{step}' is both a value and a struct (in '{name}')"))?;
        }
        // A null next to `x.y` columns is the absent struct `x`, which those columns imply already.
        if !(value.is_null() && place.contains_key(last)) {
            place.insert(last.to_string(), value);
        }
    }
    Ok(collapse(Value::Object(root), true))
}

/// Turns structs with only nulls into null, except the record itself.
fn collapse(value: Value, top: bool) -> Value {
    let Value::Object(fields) = value else {
        return value;
    };
    let fields: FlatRow = fields.into_iter().map(|(k, v)| (k, collapse(v, false))).collect();
    if !top && fields.values().all(Value::is_null) { Value::Null } else { Value::Object(fields) }
}
