//! `probe [RUN|MODEL]...`: runs the experiments, one file of rows each.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::{Value, json};

use super::device::MachineArgs;
use super::print;
use super::results::{Manifest, command, folder, setup};
use super::targets::Targets;
use crate::experiments::{ALL, Settings, phases};
use crate::machine::Machine;
use crate::progress::{Progress, stop_flag};
use crate::store::RowWriter;
use crate::study::Study;

/// Run the paper's observational experiments on checkpoints.
#[derive(Args, Clone, Debug)]
pub struct Experiments {
    #[command(flatten)]
    targets: Targets,
    /// Run these only (`--list` names them)
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    only: Vec<String>,
    /// A recipe of experiments/: its [settings] are used
    #[arg(long, value_name = "FILE")]
    recipe: Option<PathBuf>,
    /// Where rows and manifest go; by default reports/<recipe>
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Skip what the manifest says was already made with the same weights, problems, settings and seed
    #[arg(long)]
    resume: bool,
    /// List the experiments and what each asks
    #[arg(long)]
    list: bool,
    #[command(flatten)]
    machine: MachineArgs,
}

/// Writes the rows and returns a summary.
type Work<'a> = Box<dyn Fn(&mut RowWriter) -> Result<String> + 'a>;

/// One file of rows to be made.
struct Job<'a> {
    name: String,
    /// Whose folder and manifest it goes to.
    study: &'a Study,
    setup: Value,
    work: Work<'a>,
}

impl Experiments {
    /// # Errors
    /// An unknown experiment or a target that cannot be opened, before any work. An experiment that cannot be run on
    /// this data is reported when the others are done.
    pub fn run(&self) -> Result<()> {
        if self.list {
            let all = ALL.iter().map(|e| (e.name, e.about)).chain([(phases::NAME, phases::ABOUT)]);
            return print(&all.map(|(name, about)| format!("{name:<18} {about}\n")).collect::<String>());
        }
        self.machine.compute(|machine| self.run_on(machine))
    }

    fn run_on(&self, machine: &Machine) -> Result<()> {
        let chosen = self.chosen()?;
        let settings = self.settings()?;
        let studies = self.targets.open(machine)?;
        let jobs = self.jobs(&studies, &chosen, &settings)?;
        let (mut failed, mut made) = (vec![], vec![]);
        let mut progress = Progress::new("probe", jobs.len(), 0);
        for (i, job) in jobs.iter().enumerate() {
            if stop_flag().load(Ordering::Relaxed) {
                bail!("stopped; the same command with --resume goes on");
            }
            progress.update(i, &job.name);
            match self.make(job)? {
                Ok(()) => made.push(&job.name),
                Err(error) => {
                    eprintln!("{}: not run: {error:#}", job.name);
                    failed.push(format!("{} ({error:#})", job.name));
                }
            }
        }
        progress.update(jobs.len(), "");
        progress.finish();
        ensure!(failed.is_empty(), "{} of the experiments could not be run: {}", failed.len(), failed.join("; "));
        if let (false, Some(study)) = (made.is_empty(), studies.first()) {
            let out = folder(self.out.as_deref(), study);
            print(&format!(
                "\nTables, figures and a page beside the paper's:  cargo run --bin report -- {}\n",
                out.display()
            ))?;
        }
        Ok(())
    }

    /// Every experiment on every checkpoint, then what compares two phases of one run.
    fn jobs<'a>(&self, studies: &'a [Study], chosen: &[&'static str], settings: &'a Settings) -> Result<Vec<Job<'a>>> {
        let is_chosen = |name: &str| chosen.contains(&name);
        let weights: Vec<String> = studies.iter().map(|study| study.subject.fingerprint()).collect::<Result<_>>()?;
        let mut jobs = vec![];
        for (study, weights) in studies.iter().zip(&weights) {
            for experiment in ALL.iter().filter(|e| is_chosen(e.name)) {
                jobs.push(Job {
                    name: format!("{}-{}", experiment.name, study.subject.short_name()),
                    study,
                    setup: setup(study, weights, experiment.settings(settings)),
                    work: Box::new(|rows| experiment.run(study, settings, rows)),
                });
            }
        }
        for (i, pair) in studies.windows(2).enumerate() {
            let [first, second] = pair else { continue };
            if !is_chosen(phases::NAME) || first.subject.run.is_none() || first.subject.run != second.subject.run {
                continue;
            }
            let against = json!({ "against": setup(first, &weights[i], json!({})) });
            jobs.push(Job {
                name: format!("{}-{}-{}", phases::NAME, first.subject.short_name(), second.subject.short_name()),
                study: second,
                setup: setup(second, &weights[i + 1], against),
                work: Box::new(|rows| phases::run_pair(first, second, rows)),
            });
        }
        ensure!(!jobs.is_empty(), "{} needs two phases of one run: name them with --phase", phases::NAME);
        Ok(jobs)
    }

    /// Runs one job into its files. The outer error is the disk's or the terminal's, the inner the experiment's.
    fn make(&self, job: &Job) -> Result<Result<()>> {
        let out = folder(self.out.as_deref(), job.study);
        let mut manifest = Manifest::open(&out)?;
        let parquet = out.join(format!("{}.parquet", job.name));
        if self.resume && manifest.has(&job.name, &job.setup) && parquet.is_file() {
            print(&format!("{}: done before ({})\n", job.name, parquet.display()))?;
            return Ok(Ok(()));
        }
        let started = Instant::now();
        let mut rows = RowWriter::create(&out, &job.name)?.requiring(&crate::store::IDENTITY);
        match (job.work)(&mut rows) {
            Ok(summary) => {
                let files = rows.finish()?;
                let seconds = started.elapsed().as_secs_f64();
                manifest.add(&job.name, job.setup.clone(), &command("probe"), job.study.threads, seconds)?;
                print(&format!("\n## {} ({seconds:.1} s)\n\n{summary}\n{}\n", job.name, files.parquet.display()))?;
                Ok(Ok(()))
            }
            Err(error) => {
                rows.discard()?;
                Ok(Err(error))
            }
        }
    }

    fn chosen(&self) -> Result<Vec<&'static str>> {
        let known = || ALL.iter().map(|e| e.name).chain([phases::NAME]);
        if let Some(name) = self.only.iter().find(|name| !known().any(|k| k == name.as_str())) {
            let known: Vec<_> = known().collect();
            bail!("--only: no experiment `{name}`; there are {}", known.join(", "));
        }
        Ok(known().filter(|k| self.only.is_empty() || self.only.iter().any(|n| n == k)).collect())
    }

    fn settings(&self) -> Result<Settings> {
        let Some(file) = &self.recipe else { return Ok(Settings::default()) };
        let text = std::fs::read_to_string(file).with_context(|| format!("{}: cannot read", file.display()))?;
        let mut table: toml::Table = text.parse().with_context(|| format!("{}: not TOML", file.display()))?;
        let Some(settings) = table.remove("settings") else { return Ok(Settings::default()) };
        settings.try_into().with_context(|| format!("{}: [settings]", file.display()))
    }
}
