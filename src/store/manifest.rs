//! What results were made from and with: the manifest of a folder of rows, and what every manifest says.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};

use super::origin::{checkpoint, difference, left_out};
use super::{Lock, json, write_atomic};

/// `manifest.json` of a results folder: for each file of rows, what it was made from and with.
pub(crate) struct Manifest {
    path: PathBuf,
    entries: Map<String, Value>,
}

/// What a manifest says of one file of rows.
pub(crate) struct Entry<'a> {
    pub setup: Value,
    /// Unit and description of each column.
    pub columns: Value,
    /// As typed.
    pub command: &'a str,
    pub threads: usize,
    pub seconds: f64,
}

impl Manifest {
    /// Reads the folder's manifest, if it has one.
    ///
    /// # Errors
    /// A file that is not a manifest.
    pub fn open(folder: &Path) -> Result<Self> {
        let path = folder.join("manifest.json");
        let entries = match std::fs::read_to_string(&path) {
            Ok(text) => json::from_str(&text)
                .with_context(|| format!("{}: not a manifest; move it away to go on", path.display()))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Map::new(),
            Err(error) => return Err(error).with_context(|| format!("{}: cannot read", path.display())),
        };
        Ok(Self { path, entries })
    }

    /// What each file of rows was made from and with, by its name.
    pub fn entries(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.entries.iter()
    }

    /// What a file of rows was made with.
    pub fn setup(&self, name: &str) -> Option<&Value> {
        Some(&self.entries.get(name)?["setup"])
    }

    /// Whether `name` was made with exactly this setup.
    pub fn has(&self, name: &str, setup: &Value) -> bool {
        self.entries.get(name).is_some_and(|entry| entry["setup"] == *setup)
    }

    /// Whether rows of this name and setup may be written here. `replace`: the user said that what is here may go.
    ///
    /// # Errors
    /// Rows of the same checkpoint and another origin; rows of the same name that were made with more.
    pub fn admits(&self, name: &str, setup: &Value, replace: bool) -> Result<()> {
        if replace {
            return Ok(());
        }
        let folder = self.path.parent().unwrap_or(Path::new(".")).display();
        let advice = "--out names another folder, --replace writes over them";
        if let Some((other, difference)) = self.strangers(setup).next() {
            bail!("{folder}: {other} here is of another origin than {name} would be ({difference}); {advice}");
        }
        if let Some(less) = self.entries.get(name).and_then(|held| left_out(&held["setup"], setup)) {
            bail!("{folder}: {name} here was made with more than this run would make it ({less}); {advice}");
        }
        Ok(())
    }

    /// Entries of the same checkpoint that are of another origin, with the difference.
    fn strangers(&self, setup: &Value) -> impl Iterator<Item = (&String, String)> {
        let same = |held: &Value| checkpoint(held).is_some() && checkpoint(held) == checkpoint(setup);
        let entries = self.entries.iter().map(|(name, entry)| (name, &entry["setup"]));
        entries.filter(move |(_, held)| same(held)).filter_map(|(name, held)| Some((name, difference(held, setup)?)))
    }

    /// Removes the rows of the same checkpoint that are of another origin, so that none stand beside the new ones.
    ///
    /// # Errors
    /// A disk that cannot be written.
    pub fn remove_strangers(&mut self, setup: &Value) -> Result<()> {
        let folder = self.path.parent().unwrap_or(Path::new(".")).to_path_buf();
        let _lock = Lock::wait(&folder)?;
        self.entries = Self::open(&folder)?.entries;
        let strangers: Vec<String> = self.strangers(setup).map(|(name, _)| name.clone()).collect();
        for name in &strangers {
            for ending in ["parquet", "csv"] {
                let file = folder.join(format!("{name}.{ending}"));
                if file.exists() {
                    std::fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
                }
            }
            self.entries.shift_remove(name);
        }
        if strangers.is_empty() { Ok(()) } else { self.write() }
    }

    /// Records a finished experiment, on disk when this returns. Worker threads are not part of the setup: rows that were
    /// made with another number of them are not made again.
    ///
    /// # Errors
    /// A disk that cannot be written.
    pub fn add(&mut self, name: &str, entry: Entry) -> Result<()> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        // What other processes have added since this one read it stays.
        let _lock = Lock::wait(folder)?;
        self.entries = Self::open(folder)?.entries;
        let Entry { setup, columns, command, threads, seconds } = entry;
        let seconds = (seconds * 10.0).round() / 10.0;
        let entry = serde_json::json!({
            "command": command,
            "commit": commit(),
            "setup": setup,
            "threads": threads,
            "seconds": seconds,
            "columns": columns,
        });
        self.entries.insert(name.to_owned(), entry);
        self.write()
    }

    fn write(&self) -> Result<()> {
        write_atomic(&self.path, &serde_json::to_vec_pretty(&self.entries)?)
    }
}

/// Whether files can be written in a folder, which is made if it is not there.
///
/// # Errors
/// A folder that cannot be made or written, by name.
pub(crate) fn writable(folder: &Path) -> Result<()> {
    let probe = folder.join("writable.tmp");
    write_atomic(&probe, b"").with_context(|| format!("{}: results cannot be written here", folder.display()))?;
    std::fs::remove_file(&probe).with_context(|| format!("cannot remove {}", probe.display()))
}

/// The command as typed.
pub fn command(binary: &str) -> String {
    std::iter::once(binary.to_owned()).chain(std::env::args().skip(1)).collect::<Vec<_>>().join(" ")
}

/// The commit of the source tree that this binary was built in, where git knows it.
pub fn commit() -> String {
    let out = std::process::Command::new("git").args(["-C", env!("CARGO_MANIFEST_DIR"), "rev-parse", "HEAD"]).output();
    match out {
        Ok(out) if out.status.success() => String::from_utf8_lossy(&out.stdout).trim().to_owned(),
        _ => "unknown".into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn entries_of_two_processes_are_both_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut one, mut other) =
            (Manifest::open(folder.path()).expect("none yet"), Manifest::open(folder.path()).expect("none yet"));
        let entry = |setup| Entry { setup, columns: json!({}), command: "probe", threads: 2, seconds: 0.1 };
        one.add("a", entry(json!(1))).expect("written");
        other.add("b", entry(json!(2))).expect("written");
        let both = Manifest::open(folder.path()).expect("a manifest");
        assert!(both.has("a", &json!(1)) && both.has("b", &json!(2)));
    }
}
