//! The typed rows of an experiment on disk: one Parquet and one CSV per experiment. Knows serde values and paths, not what
//! the rows mean; rendering them is another matter and needs no model.
//!
//! Rows are appended to `<name>.rows.tmp` (one JSON object a line) as they come, so that a killed run keeps them;
//! [`RowWriter::finish`] writes `<name>.parquet` and `<name>.csv` whole and removes it. A Parquet file therefore means a
//! finished experiment.
//!
//! NaN has no JSON and is written as null: give a column that may be undefined the type `Option<f64>`.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use polars::prelude::{CsvWriter, ParquetReader, ParquetWriter, SerReader, SerWriter};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::atomic::write_atomic;
pub use super::flat::Row;
use super::flat::{flatten, nest};
use super::frame::{from_frame, to_frame};

/// What every row of an experiment carries, so that it can be read without its folder.
pub const IDENTITY: [&str; 4] = ["checkpoint", "dataset", "n", "seed"];

/// Collects the rows of one experiment.
pub struct RowWriter {
    folder: PathBuf,
    name: String,
    rows: Vec<Row>,
    partial: File,
    required: Vec<String>,
}

/// The two files of a finished experiment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowFiles {
    pub parquet: PathBuf,
    pub csv: PathBuf,
    pub rows: usize,
}

impl RowWriter {
    /// Starts `<folder>/<name>`, discarding what an unfinished run left. Finished files stay until [`Self::finish`].
    pub fn create(folder: &Path, name: &str) -> Result<Self> {
        Self::open(folder, name, false)
    }

    /// Goes on where an unfinished run stopped; [`Self::rows`] tells what it had. Without such a run, the same as `create`.
    pub fn resume(folder: &Path, name: &str) -> Result<Self> {
        Self::open(folder, name, true)
    }

    fn open(folder: &Path, name: &str, keep: bool) -> Result<Self> {
        ensure!(
            !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c)),
            "rows need a file name of letters, digits, '-' and '_', got '{name}'"
        );
        fs::create_dir_all(folder).with_context(|| format!("cannot make folder {}", folder.display()))?;
        let path = partial_path(folder, name);
        let rows = if keep && path.exists() { read_partial(&path)? } else { Vec::new() };
        // Rewritten rather than appended to: the last line of a killed run may be cut short.
        let mut partial = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(true)
            .open(&path)
            .with_context(|| format!("cannot write {}", path.display()))?;
        for row in &rows {
            append(&mut partial, row, &path)?;
        }
        Ok(Self { folder: folder.to_path_buf(), name: name.to_string(), rows, partial, required: Vec::new() })
    }

    /// From now on a row without these fields is an error. A field inside a struct counts (`accuracy.n` is an `n`).
    pub fn requiring(mut self, fields: &[&str]) -> Self {
        self.required = fields.iter().map(|f| f.to_string()).collect();
        self
    }

    /// Appends one row, on disk when this returns.
    pub fn push(&mut self, row: &impl Serialize) -> Result<()> {
        let number = self.rows.len();
        let what = || format!("row {number} of '{}'", self.name);
        let row = flatten(serde_json::to_value(row).with_context(what)?).with_context(what)?;
        for field in &self.required {
            let carries = |name: &String| name == field || name.rsplit('.').next() == Some(field);
            ensure!(row.keys().any(carries), "{} lacks '{field}'", what());
        }
        append(&mut self.partial, &row, &partial_path(&self.folder, &self.name))?;
        self.rows.push(row);
        Ok(())
    }

    /// The rows so far, flat.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Drops what was written: the experiment could not be run. Finished files of an earlier run stay.
    pub fn discard(self) -> Result<()> {
        let partial = partial_path(&self.folder, &self.name);
        fs::remove_file(&partial).with_context(|| format!("cannot remove {}", partial.display()))
    }

    /// Writes both files. No rows is an error: an experiment that measured nothing has failed.
    pub fn finish(self) -> Result<RowFiles> {
        ensure!(!self.rows.is_empty(), "experiment '{}' produced no rows", self.name);
        let path = |ending: &str| self.folder.join(format!("{}.{ending}", self.name));
        let files = RowFiles { parquet: path("parquet"), csv: path("csv"), rows: self.rows.len() };
        let mut frame = to_frame(&self.rows).with_context(|| format!("rows of '{}'", self.name))?;
        let (mut csv, mut parquet) = (Vec::new(), Vec::new());
        CsvWriter::new(&mut csv)
            .finish(&mut frame)
            .with_context(|| format!("cannot encode {}", files.csv.display()))?;
        ParquetWriter::new(&mut parquet)
            .finish(&mut frame)
            .with_context(|| format!("cannot encode {}", files.parquet.display()))?;
        write_atomic(&files.csv, &csv)?;
        write_atomic(&files.parquet, &parquet)?; // last: its presence says that the experiment is done
        let partial = partial_path(&self.folder, &self.name);
        fs::remove_file(&partial).with_context(|| format!("cannot remove {}", partial.display()))?;
        Ok(files)
    }
}

/// Flat rows of a Parquet file: column name to value, in the file's column order.
pub fn read_flat(parquet: &Path) -> Result<Vec<Row>> {
    let file = File::open(parquet).with_context(|| format!("cannot read {}", parquet.display()))?;
    let frame = ParquetReader::new(file).finish().with_context(|| format!("{} is not Parquet", parquet.display()))?;
    from_frame(&frame).with_context(|| format!("in {}", parquet.display()))
}

/// Typed rows of a Parquet file written by [`RowWriter`].
pub fn read<R: DeserializeOwned>(parquet: &Path) -> Result<Vec<R>> {
    let rows = read_flat(parquet)?;
    rows.iter()
        .enumerate()
        .map(|(number, row)| {
            let what = || format!("row {number} of {}", parquet.display());
            serde_json::from_value(nest(row).with_context(what)?).with_context(what)
        })
        .collect()
}

fn partial_path(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.rows.tmp"))
}

fn append(file: &mut File, row: &Row, path: &Path) -> Result<()> {
    let mut line = serde_json::to_vec(row).context("cannot encode a row")?;
    line.push(b'\n');
    file.write_all(&line).with_context(|| format!("cannot write {}", path.display()))
}

/// Whole lines of an unfinished run; a last line without its newline was being written when the run died.
fn read_partial(path: &Path) -> Result<Vec<Row>> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole
        .lines()
        .enumerate()
        .map(|(i, line)| {
            serde_json::from_str(line).with_context(|| format!("{}, line {}: not a row", path.display(), i + 1))
        })
        .collect()
}
