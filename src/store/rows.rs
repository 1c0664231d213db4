//! The typed records of an experiment on disk: one Parquet and one CSV file each. Knows serde values and paths, not the meaning of
//! records; rendering is separate and needs no model.
//!
//! 1. Append records to `<name>.rows.tmp` (one JSON object per line) as they arrive, so that a killed run loses none.
//! 2. [`RowWriter::finish`] writes `<name>.parquet` and `<name>.csv` atomically and removes it. A Parquet file therefore means a finished
//!    experiment.
//!
//! JSON has no NaN, which becomes null: give a column that may be undefined the type `Option<f64>`.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use polars::prelude::{ChunkApply, CsvWriter, DataFrame, DataType, IntoColumn, SerWriter};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::flat::{FlatRow, flatten, nest};
use super::frame::{from_frame, to_frame};
use super::parquet;
use super::partial::Partial;
use super::write_atomic;
use crate::guard::guarded;

/// Columns of every record, so that it can be read without its folder.
pub const IDENTITY: [&str; 4] = ["checkpoint", "dataset", "n", "seed"];

/// Collects the records of one experiment.
pub struct RowWriter {
    folder: PathBuf,
    name: String,
    rows: Vec<FlatRow>,
    partial: Partial,
    required: Vec<String>,
    csv: bool,
}

/// The files of a finished experiment; the CSV may have been omitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowFiles {
    pub parquet: PathBuf,
    pub csv: PathBuf,
    pub rows: usize,
}

impl RowWriter {
    /// Starts `<folder>/<name>`, discarding an unfinished run. Finished files stay until [`Self::finish`].
    pub fn create(folder: &Path, name: &str) -> Result<Self> {
        Self::open(folder, name, false)
    }

    /// Continues an unfinished run; [`Self::rows`] has its records. Without such a run, the same as `create`.
    pub fn resume(folder: &Path, name: &str) -> Result<Self> {
        Self::open(folder, name, true)
    }

    /// Continues after exactly these records. The file of an unfinished run stays until they are on disk.
    pub(crate) fn replacing(folder: &Path, name: &str, rows: Vec<FlatRow>) -> Result<Self> {
        let partial = Partial::replacing(folder, name, &rows)?;
        Ok(Self { folder: folder.to_path_buf(), name: name.to_string(), rows, partial, required: vec![], csv: true })
    }

    fn open(folder: &Path, name: &str, keep: bool) -> Result<Self> {
        let (partial, rows) = Partial::open(folder, name, keep)?;
        Ok(Self { folder: folder.to_path_buf(), name: name.to_string(), rows, partial, required: vec![], csv: true })
    }

    /// Makes a row without these fields an error. A field inside a struct counts (`accuracy.n` is an `n`).
    pub fn requiring(mut self, fields: &[&str]) -> Self {
        self.required = fields.iter().map(|f| f.to_string()).collect();
        self
    }

    /// Appends one record, on disk on return.
    pub fn push(&mut self, row: &impl Serialize) -> Result<()> {
        let number = self.rows.len();
        let what = || format!("row {number} of '{}'", self.name);
        let row = flatten(serde_json::to_value(row).with_context(what)?).with_context(what)?;
        for field in &self.required {
            let carries = |name: &String| name == field || name.rsplit('.').next() == Some(field);
            ensure!(row.keys().any(carries), "{} lacks '{field}'", what());
        }
        self.partial.append(std::slice::from_ref(&row))?;
        self.rows.push(row);
        Ok(())
    }

    /// Omits the CSV: for records with list columns, which spreadsheets do not show.
    pub fn leave_out_csv(&mut self) {
        self.csv = false;
    }

    /// The records so far, flat.
    pub fn rows(&self) -> &[FlatRow] {
        &self.rows
    }

    /// Deletes the unfinished records of an experiment that could not run. Finished files of an earlier run stay.
    pub(crate) fn discard(self) -> Result<()> {
        self.partial.remove()
    }

    /// Writes both files. No records is an error: an experiment that measured nothing has failed.
    pub fn finish(self) -> Result<RowFiles> {
        self.finish_describing(&Value::Null)
    }

    /// Writes both files; the Parquet file has unit and description of each column.
    pub(crate) fn finish_describing(self, columns: &Value) -> Result<RowFiles> {
        ensure!(!self.rows.is_empty(), "experiment '{}' produced no rows", self.name);
        let path = |ending: &str| self.folder.join(format!("{}.{ending}", self.name));
        let files = RowFiles { parquet: path("parquet"), csv: path("csv"), rows: self.rows.len() };
        let mut frame = to_frame(&self.rows).with_context(|| format!("rows of '{}'", self.name))?;
        if self.csv {
            encode_csv(&mut frame, &files.csv)?;
        }
        parquet::write(&files.parquet, &mut frame, columns)?; // last: its presence marks the experiment as finished
        self.partial.remove()?;
        Ok(files)
    }
}

/// Writes a frame as CSV, atomically. Texts pass through [`no_formula`]; the Parquet file has them unchanged.
pub(super) fn encode_csv(frame: &mut DataFrame, path: &Path) -> Result<()> {
    let what = || format!("cannot encode {}", path.display());
    let mut frame = frame.clone();
    let texts: Vec<String> =
        frame.columns().iter().filter(|c| *c.dtype() == DataType::String).map(|c| c.name().to_string()).collect();
    for name in texts {
        let plain =
            frame.column(&name).and_then(|c| c.str()).with_context(what)?.apply_values(no_formula).into_column();
        frame.with_column(plain).with_context(what)?;
    }
    let mut bytes = Vec::new();
    guarded(|| CsvWriter::new(&mut bytes).finish(&mut frame)).with_context(what)?.with_context(what)?;
    write_atomic(path, &bytes)
}

/// A spreadsheet executes a cell that begins like a formula. Such a text gets a leading apostrophe, which marks it as text; a number is
/// unchanged.
pub fn no_formula(text: &str) -> Cow<'_, str> {
    let formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']) && text.parse::<f64>().is_err();
    if formula { format!("'{text}").into() } else { text.into() }
}

/// Flat rows of a Parquet file: column name to value, in the file's column order.
pub fn read_flat(path: &Path) -> Result<Vec<FlatRow>> {
    from_frame(&parquet::read(path)?).with_context(|| format!("in {}", path.display()))
}

/// Flat rows as the structs that they were written from.
pub fn typed<R: DeserializeOwned>(rows: &[FlatRow]) -> Result<Vec<R>> {
    typed_of(rows, "")
}

/// Typed rows of a Parquet file written by [`RowWriter`].
pub fn read<R: DeserializeOwned>(path: &Path) -> Result<Vec<R>> {
    typed_of(&read_flat(path)?, &format!(" of {}", path.display()))
}

/// Typed records from a file embedded in the program.
pub fn read_carried<R: DeserializeOwned>(bytes: &[u8]) -> Result<Vec<R>> {
    typed_of(&from_frame(&parquet::read_checked(bytes)?)?, " that the program carries")
}

/// `place` is in messages after the row's number.
fn typed_of<R: DeserializeOwned>(rows: &[FlatRow], place: &str) -> Result<Vec<R>> {
    let row = |(number, row): (usize, &FlatRow)| {
        let what = || format!("row {number}{place}");
        serde_json::from_value(nest(row).with_context(what)?).with_context(what)
    };
    rows.iter().enumerate().map(row).collect()
}
