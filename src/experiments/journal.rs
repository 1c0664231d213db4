//! The output of an experiment on one checkpoint: records that arrive in any order and can be resumed, tables computed from them, and an
//! entry in the manifest. Knows folders and names, not experiments.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, ensure};
use serde::Serialize;
use serde_json::Value;

use crate::schema::{Columns, Measurement, RowFile, complete, described};
use crate::store::{Entry, FlatRow, IDENTITY, Manifest, Measurements, RowWriter, flatten, typed};
use crate::study::{DoesNotApply, Shard};

/// Output files of one experiment on one checkpoint, and its entry in the manifest.
pub struct Journal {
    pub folder: PathBuf,
    /// The part of the files' names after the experiment's.
    pub checkpoint: String,
    /// The file of measurements, if the experiment has one, and the main table, which marks completion.
    pub files: (Option<&'static str>, &'static str),
    /// The inputs of the records; the manifest's `setup`.
    pub setup: Value,
    /// The command as typed.
    pub command: String,
    /// Worker threads, for the manifest.
    pub threads: usize,
    /// Resume unfinished records; skip finished ones with the same setup.
    pub resume: bool,
    /// This process's share, if there are several; the tables are made once all are done.
    pub shard: Option<Shard>,
    started: Instant,
    /// The table's file, opened early so that other processes do not write it.
    begun: Option<RowWriter>,
}

impl Journal {
    /// Starts over, in a single process.
    pub fn new(folder: PathBuf, checkpoint: String, files: (Option<&'static str>, &'static str), setup: Value) -> Self {
        let (command, started) = (String::new(), Instant::now());
        Self { folder, checkpoint, files, setup, command, threads: 1, resume: false, shard: None, started, begun: None }
    }

    /// Seconds since the start.
    pub fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// A file's name, without its ending.
    pub fn name(&self, rows: &str) -> String {
        format!("{rows}-{}", self.checkpoint)
    }

    /// The file with which this process is done: a shard with its measurements.
    pub fn last(&self) -> &'static str {
        let (measured, table) = self.files;
        measured.filter(|_| self.shard.is_some()).unwrap_or(table)
    }

    /// Whether it was finished before, with the same setup.
    pub fn done(&self) -> Result<bool> {
        let name = self.name(self.last());
        let there = self.folder.join(format!("{name}.parquet")).is_file();
        Ok(self.resume && there && Manifest::open(&self.folder)?.has(&name, &self.setup)?)
    }

    /// Runs `tables`, which computes and writes all records at once.
    pub(crate) fn observed(&mut self, tables: impl FnOnce(&mut Self) -> Result<String>) -> Result<String> {
        self.begun = Some(RowWriter::create(&self.folder, &self.name(self.files.1))?);
        let done = tables(self);
        self.begun.take().map_or(Ok(()), RowWriter::discard)?;
        done
    }

    /// Measures missing units, then makes their tables; with several processes, the tables are made later by another program.
    pub(crate) fn measured<R: Measurement>(
        &mut self,
        measure: impl FnOnce(&mut Measurements<R>) -> Result<()>,
        conclude: impl FnOnce(Measurements<R>, &mut Self) -> Result<String>,
    ) -> Result<String> {
        let name = self.name(self.files.0.unwrap_or(R::NAME));
        let mut rows = Measurements::open(&self.folder, &name, self.resume, &self.setup)?;
        measure(&mut rows)?;
        match self.shard {
            None => conclude(rows, self),
            Some(shard) => self.finish_shard(shard, rows),
        }
    }

    fn finish_shard<R: Measurement>(&mut self, shard: Shard, rows: Measurements<R>) -> Result<String> {
        let n = rows.rows().len();
        if n == 0 {
            // With fewer pairs than shards, a manifest entry distinguishes an empty shard from a missing one.
            rows.discard()?;
            self.note(self.last(), Value::Null)?;
        } else {
            self.finish(rows, false)?;
        }
        Ok(format!("shard {shard}: {n} rows; `report merge` makes the tables when all shards are done\n"))
    }

    /// Joins the measurements of shards, and makes the tables of all.
    pub(crate) fn merged<R: Measurement>(
        &mut self,
        of: &[FlatRow],
        conclude: impl FnOnce(Measurements<R>, &mut Self) -> Result<String>,
    ) -> Result<String> {
        let name = self.name(self.files.0.unwrap_or(R::NAME));
        let mut rows = Measurements::open(&self.folder, &name, false, &self.setup)?;
        rows.push(typed(of)?)?;
        complete::<R>(rows.rows())?;
        conclude(rows, self)
    }

    /// Finishes measurements: rows in the order of their keys, as Parquet and, if they are few, as CSV.
    pub fn finish<R: Measurement>(&mut self, rows: Measurements<R>, csv: bool) -> Result<Vec<R>> {
        // Not the first row's: rows of the normal run may lack columns, and which row comes first is chance.
        let mut widest = FlatRow::default();
        for row in rows.rows() {
            let flat = flatten(serde_json::to_value(row)?)?;
            if flat.len() > widest.len() {
                widest = flat;
            }
        }
        let name = self.files.0.unwrap_or(R::NAME);
        let columns = described(R::COLUMNS, widest.keys());
        let done = rows.finish(R::key, csv, &columns)?;
        self.note(name, columns)?;
        Ok(done)
    }

    /// Writes a table of rows.
    pub fn save<R: Columns + Serialize>(&mut self, name: &str, rows: &[R]) -> Result<()> {
        self.write(name, rows, true)
    }

    /// Writes a table of rows; returns `table`'s Markdown of them.
    pub(crate) fn tell<R: RowFile + Serialize>(&mut self, rows: &[R], table: fn(&[R]) -> String) -> Result<String> {
        self.save(R::NAME, rows)?;
        Ok(table(rows))
    }

    /// Writes rows; without a CSV if columns are lists, which spreadsheets do not show.
    pub(crate) fn write<R: Columns + Serialize>(&mut self, name: &str, rows: &[R], csv: bool) -> Result<()> {
        ensure!(!rows.is_empty(), DoesNotApply::because("too few problems for a single row"));
        let begun = if name == self.files.1 { self.begun.take() } else { None };
        let writer = begun.map_or_else(|| RowWriter::create(&self.folder, &self.name(name)), Ok)?;
        let mut writer = writer.requiring(&IDENTITY);
        if !csv {
            writer.leave_out_csv();
        }
        rows.iter().try_for_each(|row| writer.push(row))?;
        let columns = described(R::COLUMNS, writer.rows().iter().flat_map(|row| row.keys()));
        writer.finish_describing(&columns)?;
        self.note(name, columns)
    }

    fn note(&self, rows: &str, columns: Value) -> Result<()> {
        let Self { setup, command, threads, .. } = self;
        let entry = Entry { setup: setup.clone(), columns, command, threads: *threads, seconds: self.seconds() };
        Manifest::open(&self.folder)?.add(&self.name(rows), entry)
    }
}
