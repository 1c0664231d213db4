//! `probe calibrate`: measures how often the workbench's verdicts are correct on models with known mechanisms.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Args;
use serde_json::{Value, json};

use super::device::MachineArgs;
use super::{is_dry, print};
use switchyard::calibration::{Settings, list};
use switchyard::machine::{self, Machine};
use switchyard::progress::Progress;
use switchyard::schema::{CalibrationDrawRow, CalibrationRow, Column, Columns, RowFile, calibrated, described};
use switchyard::store::{Entry, IDENTITY, Manifest, RowWriter, command, read};

/// Measure the workbench: run the experiments on hand-built models with random parameters and compare verdicts with the truth.
///
/// Writes one row per question and, for each test, accuracy, power and false alarms by n. `report` shows them, also next to claims whose
/// test was calibrated.
#[derive(Args, Debug)]
pub struct Calibrate {
    /// Models of each kind of truth, at each n
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    draws: u32,
    #[arg(long, default_value_t = 0, value_parser = super::seed)]
    seed: u64,
    /// These experiments, or kinds of truth, only (`--list` names them)
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    only: Vec<String>,
    /// Only these n: problems, or pairs of them (`--list` shows them)
    #[arg(long, value_delimiter = ',', value_name = "N")]
    n: Vec<usize>,
    /// Folder for rows and manifest
    #[arg(long, value_name = "DIR", default_value = "runs/reports/calibration")]
    out: PathBuf,
    /// Keep the results in --out of other tests, kinds of truth and n; their seed must be the same
    #[arg(long)]
    add: bool,
    /// List the kinds of truth and the experiments
    #[arg(long)]
    list: bool,
    #[command(flatten)]
    machine: MachineArgs,
}

/// Number of models per progress line.
const AT_ONCE: usize = 8;

impl Calibrate {
    pub fn run(&self) -> Result<()> {
        if self.list {
            return print(&list());
        }
        self.machine.compute(|machine| self.run_on(machine))
    }

    fn run_on(&self, machine: &Machine) -> Result<()> {
        let (only, n) = (self.only.clone(), self.n.clone());
        let settings = Settings { draws: self.draws as usize, seed: self.seed, only, n };
        let (jobs, started) = (settings.jobs()?, Instant::now());
        if is_dry() {
            return print(&format!("dry run: {} models could be measured; nothing was run\n", jobs.len()));
        }
        let (kept, sources) = if self.add { self.read_kept()? } else { (vec![], vec![]) };
        let create = |rows| Ok::<_, anyhow::Error>(RowWriter::create(&self.out, &name(rows))?.requiring(&IDENTITY));
        let mut writer = create(CalibrationDrawRow::NAME)?;
        let (mut progress, mut draws) = (Progress::new("calibrate", jobs.len(), 0), vec![]);
        let each = AT_ONCE * machine.threads;
        for (i, some) in jobs.chunks(each).enumerate() {
            progress.update(i * each, &some[0].label());
            draws.extend(settings.run(some, &machine.device, machine.threads)?);
        }
        progress.update(jobs.len(), "");
        progress.finish();
        let draws = beside(kept, draws);
        draws.iter().try_for_each(|row| writer.push(row))?;
        let rows = calibrated(&draws)?;
        let mut summary = create(CalibrationRow::NAME)?;
        rows.iter().try_for_each(|row| summary.push(row))?;
        let described = |columns: &[Column], written: &RowWriter| {
            described(columns, written.rows().iter().flat_map(|row| row.keys()))
        };
        let columns = [
            (CalibrationDrawRow::NAME, described(CalibrationDrawRow::COLUMNS, &writer)),
            (CalibrationRow::NAME, described(CalibrationRow::COLUMNS, &summary)),
        ];
        writer.finish()?;
        let file = summary.finish()?;
        let mut manifest = Manifest::open(&self.out)?;
        let setup = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "draws": self.draws,
            "seed": self.seed,
            "only": self.only,
            "n": self.n,
            "kept": sources,
            "device": machine::described(&machine.device),
        });
        let seconds = started.elapsed().as_secs_f64();
        let (command, threads) = (command("probe"), machine.threads);
        for (rows, columns) in columns {
            manifest.add(&name(rows), Entry { setup: setup.clone(), columns, command: &command, threads, seconds })?;
        }
        print(&format!("{}\n{} ({seconds:.1} s)\n", table(&rows), file.parquet.display()))
    }

    /// The rows in --out, and the commands that made them.
    fn read_kept(&self) -> Result<(Vec<CalibrationDrawRow>, Vec<Value>)> {
        let name = name(CalibrationDrawRow::NAME);
        let file = self.out.join(format!("{name}.parquet"));
        ensure!(file.is_file(), "--add: {} does not exist; omit --add to create it", file.display());
        let rows: Vec<CalibrationDrawRow> = read(&file)?;
        if let Some(other) = rows.iter().map(|row| row.identity.seed).find(|&seed| seed != self.seed) {
            anyhow::bail!("--add: {} has rows of seed {other}, not {}; give --seed {other}", file.display(), self.seed);
        }
        let manifest = Manifest::open(&self.out)?;
        let entry = manifest.entries().find(|(held, _)| ***held == *name).map(|(_, entry)| entry);
        let mut sources: Vec<Value> = entry.and_then(|e| e["setup"]["kept"].as_array()).cloned().unwrap_or_default();
        sources
            .extend(entry.map(|e| json!({ "command": e["command"], "commit": e["commit"], "seconds": e["seconds"] })));
        Ok((rows, sources))
    }
}

/// A file's name, without its ending.
fn name(rows: &str) -> String {
    format!("{rows}-{}", CalibrationRow::CHECKPOINT)
}

/// The stored rows whose test, kind and n are not repeated, then the new ones.
fn beside(mut kept: Vec<CalibrationDrawRow>, draws: Vec<CalibrationDrawRow>) -> Vec<CalibrationDrawRow> {
    let key = |row: &CalibrationDrawRow| (row.kind.clone(), row.test.clone(), row.identity.n);
    let asked: BTreeSet<_> = draws.iter().map(key).collect();
    kept.retain(|row| !asked.contains(&key(row)));
    kept.extend(draws);
    kept
}

/// Markdown: every test at its default n, else at the largest requested one, over all kinds of truth.
fn table(rows: &[CalibrationRow]) -> String {
    let mut out = String::from(
        "| test | n | right [95 %] | power | false alarms | n for 80 % | |\n| --- | --- | --- | --- | --- | --- | --- |\n",
    );
    let share = |e: Option<switchyard::stats::Estimate>| e.map_or_else(|| "—".to_owned(), |e| e.to_string());
    let of_all = || rows.iter().filter(|r| r.kind == CalibrationRow::ALL);
    let shown =
        |r: &&CalibrationRow| of_all().filter(|other| other.test == r.test).all(|other| other.problems <= r.problems);
    for r in of_all().filter(shown) {
        let enough = r.n_for_80.map_or_else(|| "—".to_owned(), |n| n.to_string());
        let (power, alarms) = (share(r.power), share(r.false_alarms));
        let verdict = if r.holds() { "" } else { "**misses 95 % / 5 %**" };
        out += &format!(
            "| {} | {} | {} | {power} | {alarms} | {enough} | {verdict} {} |\n",
            r.test, r.problems, r.right, r.blind
        );
    }
    out
}
