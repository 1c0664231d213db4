//! What results were made from and with: the manifest of a folder of rows, and what every manifest says.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use super::{Lock, write_atomic};

/// `manifest.json` of a results folder: for each file of rows, what it was made from and with.
pub(crate) struct Manifest {
    path: PathBuf,
    entries: Map<String, Value>,
}

impl Manifest {
    /// Reads the folder's manifest, if it has one.
    ///
    /// # Errors
    /// A file that is not a manifest.
    pub fn open(folder: &Path) -> Result<Self> {
        let path = folder.join("manifest.json");
        let entries = match std::fs::read_to_string(&path) {
            Ok(text) => serde_json::from_str(&text)
                .with_context(|| format!("{}: not a manifest; move it away to go on", path.display()))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Map::new(),
            Err(error) => return Err(error).with_context(|| format!("{}: cannot read", path.display())),
        };
        Ok(Self { path, entries })
    }

    /// Whether `name` was made with exactly this setup.
    pub fn has(&self, name: &str, setup: &Value) -> bool {
        self.entries.get(name).is_some_and(|entry| entry["setup"] == *setup)
    }

    /// Records a finished experiment, on disk when this returns. Worker threads are not part of the setup: rows that were
    /// made with another number of them are not made again.
    ///
    /// # Errors
    /// A disk that cannot be written.
    pub fn add(&mut self, name: &str, setup: Value, command: &str, threads: usize, seconds: f64) -> Result<()> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        // What other processes have added since this one read it stays.
        let _lock = Lock::wait(folder)?;
        self.entries = Self::open(folder)?.entries;
        let seconds = (seconds * 10.0).round() / 10.0;
        let entry = json!({ "command": command, "setup": setup, "threads": threads, "seconds": seconds });
        self.entries.insert(name.to_owned(), entry);
        write_atomic(&self.path, &serde_json::to_vec_pretty(&self.entries)?)
    }
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
    use super::*;

    #[test]
    fn entries_of_two_processes_are_both_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut one, mut other) =
            (Manifest::open(folder.path()).expect("none yet"), Manifest::open(folder.path()).expect("none yet"));
        one.add("a", json!(1), "probe a", 2, 0.1).expect("written");
        other.add("b", json!(2), "probe b", 2, 0.1).expect("written");
        let both = Manifest::open(folder.path()).expect("a manifest");
        assert!(both.has("a", &json!(1)) && both.has("b", &json!(2)));
    }
}
