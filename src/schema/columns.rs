//! Structs of rows that declare the unit and the meaning of each column.
//!
//! Columns `x.value`, `x.low`, `x.high`, `x.n` are one estimate: value, 95 % interval, number of independent units after it; they are
//! described once, as `x`.

use serde_json::{Map, Value, json};

/// Declares a struct of rows. The type of a column is followed by its unit and meaning, `=> "nats": "of the next-token distribution"`, or
/// by the struct of `schema` that declares the same column, `=> EntropyRow`. A column without either is such a struct itself, flattened
/// into the row; `where n => "count": "pairs of the row"` redefines one of its columns.
macro_rules! rows {
    ($(#[$meta:meta])* pub struct $row:ident {
        $($(#[$doc:meta])* pub $column:ident: $type:ty
            $(where $inner:ident => $inner_unit:literal: $inner_about:literal)?
            $(=> $($unit:literal: $about:literal)? $($home:ident)?)?),* $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        pub struct $row {
            $($($(#[doc = $about] #[doc = ""])?)? $(#[$doc])* pub $column: $type,)*
        }

        impl $crate::schema::Columns for $row {
            const COLUMNS: &'static [$crate::schema::Column] = &[$(
                $($crate::schema::Column::Own(stringify!($inner), $inner_unit, $inner_about),)?
                rows! { @column $column, $type $(, $($unit, $about)? $($home)?)? },
            )*];
        }
    };
    (@column $column:ident, $type:ty) => {
        $crate::schema::Column::All(<$type as $crate::schema::Columns>::COLUMNS)
    };
    (@column $column:ident, $type:ty, $unit:literal, $about:literal) => {
        $crate::schema::Column::Own(stringify!($column), $unit, $about)
    };
    (@column $column:ident, $type:ty, $home:ident) => {
        $crate::schema::Column::As(stringify!($column), <$crate::schema::$home as $crate::schema::Columns>::COLUMNS)
    };
}

/// Rows whose columns have units and meanings.
pub trait Columns {
    /// In the order of the struct.
    const COLUMNS: &'static [Column];
}

/// Declaration of a field in a struct of rows.
pub enum Column {
    /// Name, unit, meaning.
    Own(&'static str, &'static str, &'static str),
    /// Name, and the columns of the struct that declares its unit and meaning.
    As(&'static str, &'static [Column]),
    /// The columns of a flattened struct.
    All(&'static [Column]),
}

/// Unit and meaning of a column; `None` if no field declares it.
fn find(columns: &[Column], name: &str) -> Option<(&'static str, &'static str)> {
    columns.iter().find_map(|column| match *column {
        Column::Own(own, unit, about) => (own == name).then_some((unit, about)),
        Column::As(own, columns) => (own == name).then(|| find(columns, name))?,
        Column::All(columns) => find(columns, name),
    })
}

/// Name, unit and meaning of every column, in the order of the struct.
pub fn list(columns: &[Column]) -> Vec<[&'static str; 3]> {
    let mut all: Vec<[&'static str; 3]> = vec![];
    for column in columns {
        let more = match *column {
            Column::Own(name, unit, about) => vec![[name, unit, about]],
            Column::As(name, home) => find(home, name).map(|(unit, about)| [name, unit, about]).into_iter().collect(),
            Column::All(columns) => list(columns),
        };
        let new = |[name, ..]: &[&str; 3]| all.iter().all(|[have, ..]| have != name);
        let more: Vec<_> = more.into_iter().filter(new).collect();
        all.extend(more);
    }
    all
}

/// Unit and meaning of these columns of a file, for its manifest.
pub fn described<'a>(columns: &[Column], names: impl Iterator<Item = &'a String>) -> Value {
    let mut out = Map::new();
    for column in names {
        let plain = column.trim_end_matches("[]");
        let parts = [".value", ".low", ".high", ".n"];
        let name = parts.iter().find_map(|part| plain.strip_suffix(part)).unwrap_or(plain);
        if let Some((unit, about)) = find(columns, name) {
            // A list stays one column, whose name ends in `[]`.
            let name = if plain == column { name } else { column };
            out.insert(name.to_owned(), json!({ "unit": unit, "about": about }));
        }
    }
    Value::Object(out)
}
