//! Records of an unfinished experiment: `<name>.rows.tmp`, one JSON object per line, flushed as it arrives.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::flat::FlatRow;
use super::{json, open_to_append, try_hold, write_atomic};

/// The file of records so far.
pub(crate) struct Partial {
    path: PathBuf,
    file: File,
}

impl Partial {
    /// Starts `<folder>/<name>.rows.tmp`; with `keep`, continues after the complete lines of an unfinished run and returns them.
    pub fn open(folder: &Path, name: &str, keep: bool) -> Result<(Self, Vec<FlatRow>)> {
        let path = path(folder, name)?;
        let file = claim(&path)?;
        let (rows, whole) = if keep { read(&path)? } else { (vec![], 0) };
        // Complete lines stay in place: only the line that a kill truncated is removed.
        file.set_len(whole).with_context(|| format!("cannot write {}", path.display()))?;
        Ok((Self { path, file }, rows))
    }

    /// Opens the file of records for `setup`, which is the file's first line.
    ///
    /// # Errors
    /// Unfinished records with another setup, by the key that differs.
    pub fn open_made_with(folder: &Path, name: &str, keep: bool, setup: &Value) -> Result<(Self, Vec<FlatRow>)> {
        let (mut partial, mut rows) = Self::open(folder, name, keep)?;
        if rows.is_empty() {
            partial.append(&[FlatRow::from_iter([(SETUP.to_owned(), setup.clone())])])?;
            return Ok((partial, rows));
        }
        let found = rows.remove(0).remove(SETUP).unwrap_or_default();
        let Some(key) = difference(&found, setup) else { return Ok((partial, rows)) };
        bail!(
            "{}: its unfinished records were made with another {key} ({}; now {}): start over without --resume, or name \
            another folder",
            partial.path.display(),
            found[&key],
            setup[&key]
        )
    }

    /// Begins the file with exactly these records. An old file stays until the new one is complete, so that a kill in between loses nothing.
    pub fn replacing(folder: &Path, name: &str, rows: &[FlatRow]) -> Result<Self> {
        let path = path(folder, name)?;
        let _old = claim(&path)?;
        write_atomic(&path, &lines(rows)?)?;
        Ok(Self { file: claim(&path)?, path })
    }

    /// Appends rows; they are on disk when this returns.
    pub fn append(&mut self, rows: &[FlatRow]) -> Result<()> {
        self.file.write_all(&lines(rows)?).with_context(|| format!("cannot write {}", self.path.display()))
    }

    /// Removes the file: its records are in a finished one, or not wanted.
    pub fn remove(self) -> Result<()> {
        fs::remove_file(&self.path).with_context(|| format!("cannot remove {}", self.path.display()))
    }
}

/// Key of the first line, which has the setup.
const SETUP: &str = "made with";

/// The first key whose values differ.
fn difference(a: &Value, b: &Value) -> Option<String> {
    let keys = |of: &Value| of.as_object().map(|map| map.keys().cloned().collect::<Vec<_>>()).unwrap_or_default();
    keys(b).into_iter().chain(keys(a)).find(|key| a.get(key) != b.get(key))
}

fn path(folder: &Path, name: &str) -> Result<PathBuf> {
    ensure!(
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c)),
        "a file name of records must be letters, digits, '-' and '_', found '{name}'"
    );
    fs::create_dir_all(folder).with_context(|| format!("cannot make folder {}", folder.display()))?;
    Ok(folder.join(format!("{name}.rows.tmp")))
}

/// Opens or creates the file for appending, for this process alone.
fn claim(path: &Path) -> Result<File> {
    let file = open_to_append(path)?;
    if !try_hold(&file).with_context(|| format!("cannot lock {}", path.display()))? {
        bail!(
            "{}: another process writes these records: wait for it to finish, or name another folder",
            path.display()
        );
    }
    Ok(file)
}

fn lines(rows: &[FlatRow]) -> Result<Vec<u8>> {
    let mut lines = vec![];
    for row in rows {
        serde_json::to_writer(&mut lines, row).context("cannot encode a row")?;
        lines.push(b'\n');
    }
    Ok(lines)
}

/// Complete lines of an unfinished run, and their number of bytes; a last line without its newline was being written when the run died.
fn read(path: &Path) -> Result<(Vec<FlatRow>, u64)> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let whole = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |end| end + 1);
    let text = std::str::from_utf8(&bytes[..whole]).with_context(|| format!("{}: not text", path.display()))?;
    let row = |(i, line): (usize, &str)| {
        json::from_str(line).with_context(|| format!("{}, line {}: not a row", path.display(), i + 1))
    };
    Ok((text.lines().enumerate().map(row).collect::<Result<_>>()?, whole as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaced_rows_are_whole_or_the_old_ones() {
        let folder = tempfile::tempdir().expect("a folder");
        // A float with all its digits.
        let row = |i: usize| serde_json::json!({ "step": i, "loss": 0.000_012_345_678_901_234_567_f64, "none": null });
        let rows: Vec<FlatRow> = (0..5).map(|i| row(i).as_object().cloned().expect("an object")).collect();
        let (mut partial, _) = Partial::open(folder.path(), "x", false).expect("a file");
        partial.append(&rows).expect("writes");
        let taken = Partial::open(folder.path(), "x", true).err().expect("locked").to_string();
        assert!(taken.contains("another process writes these records"), "{taken}");
        drop(partial);
        let held = || Partial::open(folder.path(), "x", true).expect("a file").1;
        // A folder in the place of the new file: it cannot be written, and the old rows stay.
        let blocked = folder.path().join(".x.rows.tmp.switchyard.tmp");
        fs::create_dir(&blocked).expect("a folder");
        assert!(Partial::replacing(folder.path(), "x", &rows[..3]).is_err());
        assert_eq!(held(), rows);
        fs::remove_dir(&blocked).expect("removed");
        Partial::replacing(folder.path(), "x", &rows[..3]).expect("writes").append(&rows[4..]).expect("writes");
        assert_eq!(held(), [&rows[..3], &rows[4..]].concat());
    }
}
