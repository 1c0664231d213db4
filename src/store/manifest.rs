//! The manifest of a results folder: inputs and settings of each file of records.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};

use super::head::commit;
use super::origin::{checkpoint, difference, find_smaller};
use super::{Inside, Lock, json, scratch_prefix, sha256, write_atomic};
use crate::guard::read_text;

/// `manifest.json` of a results folder: inputs and settings of each file of records.
pub struct Manifest {
    path: PathBuf,
    entries: Vec<(Inside, Value)>,
}

/// Manifest entry of one file of records.
pub struct Entry<'a> {
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
        let failed = || format!("{}: not a manifest; move it away to continue", path.display());
        let held: Map<String, Value> = match read_text(&path) {
            Ok(text) => json::from_str(&text).with_context(failed)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Map::new(),
            Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {
                bail!("{}: a file; records are written into a folder: name one with --out", folder.display())
            }
            Err(error) => return Err(error).with_context(|| format!("{}: cannot read", path.display())),
        };
        let entries = held.into_iter().map(|(name, entry)| Ok((Inside::parse(&name)?, entry)));
        let entries = entries.collect::<Result<_>>().with_context(failed)?;
        Ok(Self { path, entries })
    }

    /// Inputs and settings of each file of records, by name.
    pub fn entries(&self) -> impl Iterator<Item = (&Inside, &Value)> {
        self.entries.iter().map(|(name, entry)| (name, entry))
    }

    fn entry(&self, name: &str) -> Option<&Value> {
        self.entries.iter().find(|(held, _)| **held == *name).map(|(_, entry)| entry)
    }

    /// Settings of a file of records.
    pub fn setup(&self, name: &str) -> Option<&Value> {
        Some(&self.entry(name)?["setup"])
    }

    /// Whether `name` was made with exactly this setup, and its records match the manifest entry.
    pub fn has(&self, name: &str, setup: &Value) -> Result<bool> {
        Ok(self.entry(name).is_some_and(|entry| entry["setup"] == *setup) && self.is_of_its_rows(name)?)
    }

    /// Whether the records of this name match the manifest entry: a process killed between writing the two leaves new records with an old
    /// entry. Entries of older versions have no hash and are trusted.
    pub fn is_of_its_rows(&self, name: &str) -> Result<bool> {
        let said = self.entry(name).and_then(|entry| entry.get("sha256"));
        Ok(match said {
            Some(said) => *said == rows_hash(self.folder(), &Inside::parse(name)?)?,
            None => true,
        })
    }

    fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("."))
    }

    /// Why records of this name and setup must not be written: the folder has records of the same checkpoint and another origin, or records of
    /// the same name with larger settings.
    pub fn conflict(&self, name: &str, setup: &Value) -> Option<String> {
        let folder = self.folder().display();
        if let Some((other, difference)) = self.strangers(setup).next() {
            return Some(format!("{folder} has {other} of another origin ({difference})"));
        }
        let less = self.entry(name).and_then(|held| find_smaller(&held["setup"], setup))?;
        Some(format!("{folder} has {name} made with other or larger settings ({less})"))
    }

    /// # Errors
    /// A [conflict](Self::conflict).
    pub fn admits(&self, name: &str, setup: &Value) -> Result<()> {
        self.conflict(name, setup).map_or(Ok(()), |conflict| {
            bail!("{conflict}; --out names another folder, --replace overwrites these records")
        })
    }

    /// Entries of the same checkpoint with another origin, with the difference.
    fn strangers(&self, setup: &Value) -> impl Iterator<Item = (&Inside, String)> {
        let same = |held: &Value| checkpoint(held).is_some() && checkpoint(held) == checkpoint(setup);
        let entries = self.entries.iter().map(|(name, entry)| (name, &entry["setup"]));
        entries.filter(move |(_, held)| same(held)).filter_map(|(name, held)| Some((name, difference(held, setup)?)))
    }

    /// Removes records of the same checkpoint with another origin.
    pub fn remove_strangers(&mut self, setup: &Value) -> Result<()> {
        let folder = self.folder().to_path_buf();
        let _lock = Lock::wait(&folder)?;
        self.entries = Self::open(&folder)?.entries;
        let strangers: Vec<Inside> = self.strangers(setup).map(|(name, _)| name.clone()).collect();
        for name in &strangers {
            for ending in ["parquet", "csv"] {
                let file = name.file(&folder, ending);
                if file.exists() {
                    std::fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
                }
            }
        }
        self.entries.retain(|(name, _)| !strangers.contains(name));
        if strangers.is_empty() { Ok(()) } else { self.write() }
    }

    /// Records a finished experiment, on disk on return. The number of worker threads is not part of the setup: it does not invalidate
    /// records.
    pub fn add(&mut self, name: &str, entry: Entry) -> Result<()> {
        let (folder, name) = (self.folder().to_path_buf(), Inside::parse(name)?);
        // Preserves entries that other processes added since this one read the file.
        let _lock = Lock::wait(&folder)?;
        self.entries = Self::open(&folder)?.entries;
        let Entry { setup, columns, command, threads, seconds } = entry;
        let seconds = (seconds * 10.0).round() / 10.0;
        let entry = json!({
            "command": command,
            "commit": commit(),
            "setup": setup,
            "threads": threads,
            "seconds": seconds,
            "sha256": rows_hash(&folder, &name)?,
            "columns": columns,
        });
        match self.entries.iter_mut().find(|(held, _)| *held == name) {
            Some((_, held)) => *held = entry,
            None => self.entries.push((name, entry)),
        }
        self.write()
    }

    fn write(&self) -> Result<()> {
        let entries: Map<String, Value> =
            self.entries.iter().map(|(name, entry)| (name.to_string(), entry.clone())).collect();
        write_atomic(&self.path, &serde_json::to_vec_pretty(&entries)?)
    }
}

/// Hash of the file of records; null without one.
fn rows_hash(folder: &Path, name: &Inside) -> Result<Value> {
    let file = name.file(folder, "parquet");
    Ok(if file.is_file() { sha256(&[file])?.into() } else { Value::Null })
}

/// Checks that files can be written in a folder, which is created if necessary. The test file's name has the process id, because programs
/// may start together.
pub fn writable(folder: &Path) -> Result<()> {
    let failed = || format!("{}: results cannot be written here", folder.display());
    std::fs::create_dir_all(folder).with_context(failed)?;
    let probe = tempfile::Builder::new().prefix(&scratch_prefix("writable")).tempfile_in(folder);
    probe.and_then(tempfile::NamedTempFile::close).with_context(failed)
}

/// A word quoted for a shell if necessary.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "_-./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// The command as it can be typed again; arguments that are not UTF-8 are shown lossily.
pub fn command(binary: &str) -> String {
    let mut typed = std::env::args_os().map(|argument| argument.to_string_lossy().into_owned());
    let called = typed.next().unwrap_or_default();
    as_typed(binary, Path::new(&called), typed)
}

/// Drops the program's name if it is the first argument: `switchyard probe …`, under any file name.
fn as_typed(binary: &str, called: &Path, typed: impl Iterator<Item = String>) -> String {
    let mut typed = typed.peekable();
    if called.file_stem().is_none_or(|stem| stem != binary) {
        typed.next_if(|first| first == binary);
    }
    std::iter::once(binary.to_owned()).chain(typed.map(|word| quoted(&word))).collect::<Vec<_>>().join(" ")
}

/// The command that calls another of the four programs in the same way as this one: `switchyard report`, `cargo run --bin report --`, or
/// its path next to this one.
pub fn program(name: &str) -> String {
    let called = std::env::args_os().next().unwrap_or_default();
    called_as(Path::new(&called), std::env::var_os("CARGO_MANIFEST_DIR").is_some(), name)
}

fn called_as(called: &Path, by_cargo: bool, name: &str) -> String {
    if by_cargo {
        return format!("cargo run --bin {name} --");
    }
    let one_of_four = ["train", "probe", "intervene", "report"].map(OsStr::new);
    match called.file_stem() {
        Some(stem) if !one_of_four.contains(&stem) => format!("{} {name}", quoted(&called.display().to_string())),
        _ => quoted(&called.with_file_name(name).display().to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn hints_name_programs_as_they_were_typed() {
        let of = |called: &str, by_cargo| called_as(Path::new(called), by_cargo, "report");
        assert_eq!(of("target/debug/probe", true), "cargo run --bin report --");
        assert_eq!(of("probe", false), "report");
        assert_eq!(of("./target/debug/probe", false), "./target/debug/report");
        assert_eq!(of("switchyard", false), "switchyard report");
        assert_eq!(of("bin/sy-0.2", false), "bin/sy-0.2 report");
        let of = |called: &str, typed: &[&str]| {
            as_typed("train", Path::new(called), typed.iter().map(|word| (*word).to_owned()))
        };
        assert_eq!(of("bin/train", &["--resume"]), "train --resume");
        assert_eq!(
            of("train", &["--out", "my runs/it's", "--set", "a=[1]", ""]),
            "train --out 'my runs/it'\\''s' --set 'a=[1]' ''"
        );
        assert_eq!(of("switchyard", &["train", "--resume"]), "train --resume");
        assert_eq!(of("bin/sy-0.2", &["train", "--resume"]), "train --resume");
    }

    #[test]
    fn entries_of_two_processes_are_both_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut one, mut other) =
            (Manifest::open(folder.path()).expect("none yet"), Manifest::open(folder.path()).expect("none yet"));
        let entry = |setup| Entry { setup, columns: json!({}), command: "probe", threads: 2, seconds: 0.1 };
        one.add("a", entry(json!(1))).expect("written");
        other.add("b", entry(json!(2))).expect("written");
        let both = Manifest::open(folder.path()).expect("a manifest");
        assert!(both.has("a", &json!(1)).expect("read") && both.has("b", &json!(2)).expect("read"));
    }

    /// A kill between writing records and manifest leaves records with an entry of another setup.
    #[test]
    fn an_entry_does_not_speak_for_other_rows() {
        let folder = tempfile::tempdir().expect("a folder");
        let rows = folder.path().join("a.parquet");
        std::fs::write(&rows, "of the first set-up").expect("written");
        let entry = Entry { setup: json!(1), columns: json!({}), command: "probe", threads: 2, seconds: 0.1 };
        let mut manifest = Manifest::open(folder.path()).expect("none yet");
        manifest.add("a", entry).expect("written");
        assert!(manifest.has("a", &json!(1)).expect("read") && !manifest.has("a", &json!(2)).expect("read"));
        std::fs::write(&rows, "of the second").expect("written");
        assert!(!manifest.has("a", &json!(1)).expect("read") && !manifest.is_of_its_rows("a").expect("read"));
        std::fs::remove_file(&rows).expect("removed");
        assert!(!manifest.has("a", &json!(1)).expect("read"));
    }

    #[test]
    fn a_manifest_cannot_name_files_elsewhere() {
        let home = tempfile::tempdir().expect("a folder");
        let folder = home.path().join("rows");
        std::fs::create_dir(&folder).expect("made");
        let outside = home.path().join("kept.parquet");
        for name in ["../kept", &home.path().join("kept").display().to_string(), "a/../../kept"] {
            std::fs::write(&outside, "kept").expect("written");
            let held = json!({ name: { "setup": { "checkpoint": "micro/sft", "weights": "a" } } });
            std::fs::write(folder.join("manifest.json"), held.to_string()).expect("written");
            let said = format!("{:#}", Manifest::open(&folder).err().expect("refused"));
            assert!(said.contains("manifest.json") && said.contains("inside a folder"), "{said}");
            assert!(outside.is_file());
        }
    }
}
