//! Where an experiment's rows go and what the manifest beside them says. Shared by `probe` and `intervene`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use crate::machine::{self, Compute};
use crate::store::write_atomic;
use crate::study::Study;

/// `reports/<recipe>` unless the user names a folder.
pub fn folder(out: Option<&Path>, study: &Study) -> PathBuf {
    out.map_or_else(|| Path::new("reports").join(&study.subject.recipe.name), Path::to_path_buf)
}

/// `manifest.json` of a results folder: for each file of rows, what it was made from and with.
pub struct Manifest {
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
        let seconds = (seconds * 10.0).round() / 10.0;
        let entry = json!({ "command": command, "setup": setup, "threads": threads, "seconds": seconds });
        self.entries.insert(name.to_owned(), entry);
        write_atomic(&self.path, &serde_json::to_vec_pretty(&self.entries)?)
    }
}

/// What the rows of an experiment depend on.
pub fn setup(study: &Study, weights: &str, settings: Value) -> Value {
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "checkpoint": study.subject.name,
        "weights": weights,
        "dataset": study.subject.dataset(),
        "problems": study.subject.corpus.test.len(),
        "seed": study.seed,
        "device": machine::name(&study.device),
        "dtype": Compute::of(&study.subject.model).name(),
        "settings": settings,
    })
}

/// The command as typed.
pub fn command(binary: &str) -> String {
    std::iter::once(binary.to_owned()).chain(std::env::args().skip(1)).collect::<Vec<_>>().join(" ")
}
