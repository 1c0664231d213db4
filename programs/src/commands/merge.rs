//! `report merge FOLDER...`: joins shards of `probe` or `intervene` into the files of a single process. Knows manifests and records; no model.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::Value;

use super::print;
use super::table::{WIDTH, fitted};
use switchyard::experiments::{Experiment, Journal};
use switchyard::progress::say;
use switchyard::store::{FlatRow, Inside, Manifest, command, differs, read_flat, writable};
use switchyard::study::Shard;

/// Merge shards: the rows and tables are those of one process, byte for byte.
///
/// Refuses shards that are missing, duplicate or unfinished, and shards with different weights, adapter, float type, decoding, data or
/// settings, by name.
#[derive(Args, Clone, Debug)]
pub struct Merge {
    /// The shards' folders
    #[arg(required = true, value_name = "FOLDER")]
    folders: Vec<PathBuf>,
    /// Folder for rows, tables and manifest
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Overwrite rows that were made with larger settings, and remove those of another origin under the same name
    #[arg(long)]
    replace: bool,
}

/// One folder's part of a file.
struct ShardFile {
    folder: PathBuf,
    shard: Shard,
    /// Of the manifest, without the shard.
    setup: Value,
    entry: Value,
}

impl Merge {
    pub fn run(&self) -> Result<()> {
        let mut files: BTreeMap<Inside, Vec<ShardFile>> = BTreeMap::new();
        let out = self.out.canonicalize().ok();
        for folder in &self.folders {
            ensure!(
                out.is_none() || folder.canonicalize().ok() != out,
                "--out {}: is one of the shards, whose records would be lost: name another folder",
                self.out.display()
            );
            for (name, part) in parts(folder)? {
                files.entry(name).or_default().push(part);
            }
        }
        for (name, parts) in &mut files {
            parts.sort_by_key(|part| part.shard);
            complete(name, parts)?;
            if !self.replace {
                Manifest::open(&self.out)?.admits(name, &parts[0].setup)?;
            }
        }
        writable(&self.out)?;
        for (name, parts) in &files {
            if self.replace {
                Manifest::open(&self.out)?.remove_strangers(&parts[0].setup)?;
            }
            self.merge(name, parts)?;
        }
        Ok(())
    }

    fn merge(&self, name: &Inside, parts: &[ShardFile]) -> Result<()> {
        let (rows_name, checkpoint) = name.split_once('-').with_context(|| format!("{name}: names no checkpoint"))?;
        let mut rows: Vec<FlatRow> = vec![];
        for ShardFile { folder, entry, .. } in parts {
            let file = name.file(folder, "parquet");
            // A shard without pairs is recorded as such in its manifest.
            if !entry["columns"].is_null() || file.is_file() {
                rows.extend(read_flat(&file)?);
            }
        }
        let Some((experiment, (measured, table))) = Experiment::measuring(rows_name) else {
            bail!("{name}: rows that no experiment shares")
        };
        let (files, setup) = ((Some(measured), table), parts[0].setup.clone());
        let mut journal = Journal::new(self.out.clone(), checkpoint.to_owned(), files, setup);
        journal.command = command("report");
        journal.threads = parts[0].entry["threads"].as_u64().unwrap_or(1) as usize;
        let merged = (experiment.merge)(&mut journal, &rows);
        let summary = merged.with_context(|| format!("{name} of {} shards", parts.len()))?;
        print(&format!("\n## {name}, {} shards\n\n{}\n{}\n", parts.len(), fitted(&summary, WIDTH), self.out.display()))
    }
}

/// The shards in a folder, by file.
fn parts(folder: &Path) -> Result<Vec<(Inside, ShardFile)>> {
    ensure!(folder.is_dir(), "{}: not a folder; name one that a shard wrote", folder.display());
    for entry in std::fs::read_dir(folder).with_context(|| format!("{}: cannot read", folder.display()))?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        ensure!(
            !name.ends_with(".rows.tmp"),
            "{}: {name} is not finished: run this shard again with --resume",
            folder.display()
        );
    }
    let mut parts = vec![];
    let manifest = Manifest::open(folder)?;
    for (name, entry) in manifest.entries() {
        ensure!(
            manifest.is_of_its_rows(name)?,
            "{}: {name}.parquet does not match manifest.json (a run was stopped between writing the two): run this shard again \
            with --resume",
            folder.display()
        );
        let mut setup = entry["setup"].clone();
        let shard = setup.as_object_mut().and_then(|parts| parts.remove("shard"));
        let Some(Value::String(shard)) = shard else {
            bail!("{}: {name} has the records of a single process, not of a shard", folder.display());
        };
        let shard = shard.parse().with_context(|| format!("{}: {name}", folder.display()))?;
        parts.push((name.clone(), ShardFile { folder: folder.to_path_buf(), shard, setup, entry: entry.clone() }));
    }
    ensure!(!parts.is_empty(), "{}: no shard has finished here (no manifest.json with rows)", folder.display());
    Ok(parts)
}

/// Checks that the parts are all shards of one run, each once. They are sorted.
fn complete(name: &str, parts: &[ShardFile]) -> Result<()> {
    let (first, at) = (&parts[0], |part: &ShardFile| part.folder.display().to_string());
    for part in parts {
        ensure!(
            part.shard.of == first.shard.of,
            "{name}: shard {} in {} and shard {} in {} are not from one run",
            first.shard,
            at(first),
            part.shard,
            at(part)
        );
        if let Some(difference) = differs("setup", &first.setup, &part.setup) {
            bail!("{name}: {} and {} are not from one run: {difference}", at(first), at(part));
        }
    }
    for pair in parts.windows(2) {
        let (a, b) = (&pair[0], &pair[1]);
        ensure!(a.shard != b.shard, "{name}: shard {} occurs twice: in {} and in {}", a.shard, at(a), at(b));
    }
    let missing: Vec<String> = (1..=first.shard.of)
        .filter(|number| !parts.iter().any(|part| part.shard.number == *number))
        .map(|number| format!("{number}/{}", first.shard.of))
        .collect();
    ensure!(
        missing.is_empty(),
        "{name}: shard {} is missing; shard {} was made by: {}",
        missing.join(", "),
        first.shard,
        first.entry["command"].as_str().unwrap_or("unknown")
    );
    let other = parts.iter().find(|part| part.entry["commit"] != first.entry["commit"]);
    if let Some(other) = other {
        say(&format!(
            "warning: {name}: {} was made at commit {}, {} at {}: the same program made both only if nothing changed between them",
            at(first),
            first.entry["commit"],
            at(other),
            other.entry["commit"]
        ));
    }
    Ok(())
}
