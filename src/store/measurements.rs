//! Many typed records that arrive in any order: on disk in order of arrival, sorted by key when finished. For data that are too large for
//! a CSV, or for one map of values per record.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::flat::flatten;
use super::frame::Columns;
use super::parquet;
use super::partial::Partial;
use super::rows::{encode_csv, typed};

/// Collects the records of one file. Equal records give equal bytes, for any order of arrival and any number of stops.
pub struct Measurements<R> {
    file: Option<(PathBuf, Partial)>,
    rows: Vec<R>,
    /// Inputs and settings of the records.
    setup: Value,
}

impl<R: Serialize + DeserializeOwned> Measurements<R> {
    /// Starts `<folder>/<name>`, discarding an unfinished run, or continues it. `setup`: inputs and settings of the records.
    ///
    /// # Errors
    /// A file that cannot be written; unfinished records of another type or setup.
    pub fn open(folder: &Path, name: &str, resume: bool, setup: &Value) -> Result<Self> {
        let (partial, rows) = Partial::open_made_with(folder, name, resume, setup)?;
        let rows = typed(&rows).with_context(|| format!("the unfinished rows of '{name}' in {}", folder.display()))?;
        Ok(Self { file: Some((folder.join(format!("{name}.parquet")), partial)), rows, setup: setup.clone() })
    }

    /// Stores its records in memory only.
    pub fn in_memory() -> Self {
        Self { file: None, rows: vec![], setup: Value::Null }
    }

    /// Appends rows, on disk when this returns.
    pub fn push(&mut self, rows: Vec<R>) -> Result<()> {
        if let Some((path, partial)) = &mut self.file {
            let flat: Result<Vec<_>> = rows.iter().map(|row| flatten(serde_json::to_value(row)?)).collect();
            partial.append(&flat.with_context(|| format!("a row of {}", path.display()))?)?;
        }
        self.rows.extend(rows);
        Ok(())
    }

    /// The hash of the weights; empty if nothing is written.
    pub(crate) fn weights(&self) -> &str {
        self.setup["weights"].as_str().unwrap_or_default()
    }

    /// The records so far, in order of arrival.
    pub fn rows(&self) -> &[R] {
        &self.rows
    }

    /// Deletes what was written.
    pub(crate) fn discard(self) -> Result<()> {
        self.file.map_or(Ok(()), |(_, partial)| partial.remove())
    }

    /// The records sorted by key; nothing is written.
    ///
    /// # Errors
    /// No records, or two with one key.
    pub fn sorted<K: Ord>(self, key: impl Fn(&R) -> K) -> Result<Vec<R>> {
        let Self { file, mut rows, .. } = self;
        let what = || file.as_ref().map_or_else(String::new, |(path, _)| format!("{}: ", path.display()));
        ensure!(!rows.is_empty(), "{}the experiment produced no rows", what());
        rows.sort_by_key(&key);
        let twice = rows.windows(2).position(|pair| key(&pair[0]) == key(&pair[1]));
        ensure!(twice.is_none(), "{}record {} occurs twice", what(), twice.unwrap_or_default());
        Ok(rows)
    }

    /// Writes the sorted records as Parquet, and as CSV if wanted; returns them. `columns` describes them.
    ///
    /// # Errors
    /// As [`Self::sorted`]; a disk that cannot be written.
    pub fn finish<K: Ord>(mut self, key: impl Fn(&R) -> K, csv: bool, columns: &Value) -> Result<Vec<R>> {
        let file = self.file.take();
        let rows = self.sorted(key)?;
        let Some((path, partial)) = file else { return Ok(rows) };
        let mut table = Columns::default();
        for row in &rows {
            table.push(flatten(serde_json::to_value(row)?)?).with_context(|| format!("in {}", path.display()))?;
        }
        let mut frame = table.frame()?;
        if csv {
            encode_csv(&mut frame, &path.with_extension("csv"))?;
        }
        parquet::write(&path, &mut frame, columns)?;
        partial.remove()?;
        Ok(rows)
    }
}
