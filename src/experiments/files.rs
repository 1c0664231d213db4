//! The files that a causal experiment writes for one checkpoint: rows that come in any order and are resumed, tables that
//! are computed from them, and a line in the manifest for each. Knows folders and names, not experiments.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::schema::described;
use crate::store::{Entry, FlatRow, IDENTITY, Journal, Manifest, RowWriter, flatten, typed};
use crate::study::Shard;

/// Where the rows of one experiment on one checkpoint go, and what the manifest says of them.
pub struct Files {
    pub folder: PathBuf,
    /// The part of the files' names behind the experiment's.
    pub checkpoint: String,
    /// What the rows depend on; the manifest's `setup`.
    pub setup: Value,
    /// The command as typed.
    pub command: String,
    /// Worker threads, for the manifest.
    pub threads: usize,
    /// Go on with unfinished rows, leave finished ones that were made with the same setup.
    pub resume: bool,
    /// Of several processes the one that writes here; its tables are made when all are done.
    pub shard: Option<Shard>,
    pub started: Instant,
}

impl Files {
    fn name(&self, rows: &str) -> String {
        format!("{rows}-{}", self.checkpoint)
    }

    /// The hash of the checkpoint's weights.
    pub fn weights(&self) -> &str {
        self.setup["weights"].as_str().unwrap_or_default()
    }

    /// Whether these rows are to be left: made before, with the same setup.
    ///
    /// # Errors
    /// A manifest that cannot be read.
    pub fn done(&self, rows: &str) -> Result<bool> {
        let name = self.name(rows);
        let there = self.folder.join(format!("{name}.parquet")).is_file();
        Ok(self.resume && there && Manifest::open(&self.folder)?.has(&name, &self.setup)?)
    }

    /// The same of an experiment whose tables are made of observations: a shard is done with these.
    ///
    /// # Errors
    /// As [`Self::done`].
    pub(crate) fn done_from(&self, observations: &str, tables: &str) -> Result<bool> {
        self.done(if self.shard.is_some() { observations } else { tables })
    }

    /// Rows that are on disk as they come.
    ///
    /// # Errors
    /// A folder that cannot be written; unfinished rows that are not of this type, or made with another setup.
    pub fn journal<R: Serialize + DeserializeOwned>(&self, rows: &str) -> Result<Journal<R>> {
        Journal::open(&self.folder, &self.name(rows), self.resume, &self.setup)
    }

    /// The same, started over.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub(crate) fn anew<R: Serialize + DeserializeOwned>(&self, rows: &str) -> Result<Journal<R>> {
        Journal::open(&self.folder, &self.name(rows), false, &self.setup)
    }

    /// The same, with rows that shards wrote.
    ///
    /// # Errors
    /// Rows that are not of this type; a folder that cannot be written.
    pub(crate) fn gathered<R: Serialize + DeserializeOwned>(&self, rows: &str, of: &[FlatRow]) -> Result<Journal<R>> {
        let mut journal = self.anew(rows)?;
        journal.push(typed(of)?)?;
        Ok(journal)
    }

    /// Whether every problem of the run is among these.
    ///
    /// # Errors
    /// The first that is not.
    pub(crate) fn all_problems(&self, problems: impl Iterator<Item = usize>) -> Result<()> {
        let there: BTreeSet<usize> = problems.collect();
        let asked = self.setup["problems"].as_u64().unwrap_or(0) as usize;
        let missing = (0..asked).find(|problem| !there.contains(problem));
        ensure!(missing.is_none(), "no shard has measured problem {}", missing.unwrap_or_default());
        Ok(())
    }

    /// Finishes what a shard has measured; `what` names it in the plural.
    ///
    /// # Errors
    /// As [`Journal::finish`].
    pub(crate) fn finish_shard<R, K>(
        &self,
        shard: Shard,
        (rows, what): (&str, &str),
        journal: Journal<R>,
        key: impl Fn(&R) -> K,
    ) -> Result<String>
    where
        R: Serialize + DeserializeOwned,
        K: Ord,
    {
        let n = journal.rows().len();
        if n == 0 {
            // Fewer pairs than shards: a manifest that says so tells this shard from one that is missing.
            journal.discard()?;
            self.note(rows, Value::Null)?;
        } else {
            self.finish(rows, journal, key, false)?;
        }
        Ok(format!("shard {shard}: {n} {what}; `report merge` makes the tables when all shards are done\n"))
    }

    /// Finishes a journal: its rows in the order of their keys, as Parquet and, if they are few, as CSV.
    ///
    /// # Errors
    /// As [`Journal::finish`].
    pub fn finish<R, K>(&self, rows: &str, journal: Journal<R>, key: impl Fn(&R) -> K, csv: bool) -> Result<Vec<R>>
    where
        R: Serialize + DeserializeOwned,
        K: Ord,
    {
        // Not the first row's: rows of the normal run may lack columns, and which row comes first is chance.
        let mut widest = FlatRow::default();
        for row in journal.rows() {
            let flat = flatten(serde_json::to_value(row)?)?;
            if flat.len() > widest.len() {
                widest = flat;
            }
        }
        let columns = described(rows, widest.keys());
        let done = journal.finish(key, csv, &columns)?;
        self.note(rows, columns)?;
        Ok(done)
    }

    /// Writes a table of rows.
    ///
    /// # Errors
    /// No rows, a disk that cannot be written.
    pub fn save(&self, rows: &str, all: &[impl Serialize]) -> Result<()> {
        let mut writer = RowWriter::create(&self.folder, &self.name(rows))?.requiring(&IDENTITY);
        all.iter().try_for_each(|row| writer.push(row))?;
        let columns = described(rows, writer.rows().iter().flat_map(|row| row.keys()));
        writer.finish_describing(&columns)?;
        self.note(rows, columns)
    }

    fn note(&self, rows: &str, columns: Value) -> Result<()> {
        let seconds = self.started.elapsed().as_secs_f64();
        let Self { setup, command, threads, .. } = self;
        let entry = Entry { setup: setup.clone(), columns, command, threads: *threads, seconds };
        Manifest::open(&self.folder)?.add(&self.name(rows), entry)
    }
}
