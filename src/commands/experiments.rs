//! `probe [RUN|MODEL]...`: runs the experiments on what is known of checkpoints, one file of rows each.

use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::{Error, Result, bail, ensure};
use clap::Args;
use serde_json::{Value, json};

use super::chosen::Chosen;
use super::decodes;
use super::device::MachineArgs;
use super::places::{Place, prepare};
use super::print;
use super::results::setup;
use super::table::{WIDTH, fitted};
use super::targets::Targets;
use crate::experiments::{Run, Settings};
use crate::machine::Machine;
use crate::progress::{Progress, say, stop_flag};
use crate::schema::{GRPO_START, described};
use crate::stats::probe::TooFew;
use crate::store::{Entry, IDENTITY, Manifest, RowWriter, command};
use crate::study::{DoesNotApply, Study};

/// Run the paper's observational experiments on checkpoints.
#[derive(Args, Clone, Debug)]
pub struct Experiments {
    #[command(flatten)]
    targets: Targets,
    #[command(flatten)]
    chosen: Chosen,
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
    /// Whether the user named the experiment: then it is an error where the checkpoint has nothing of what it asks about.
    named: bool,
    setup: Value,
    work: Work<'a>,
}

impl Experiments {
    /// # Errors
    /// An unknown experiment or a target that cannot be opened, before any work. An experiment that cannot be run on
    /// this data is reported when the others are done.
    pub fn run(&self) -> Result<()> {
        if self.chosen.list {
            return print(&Chosen::listed());
        }
        self.machine.compute(|machine| self.run_on(machine))
    }

    fn run_on(&self, machine: &Machine) -> Result<()> {
        self.chosen.experiments("probe")?;
        let settings = self.chosen.settings()?;
        let shards = &self.chosen.shards;
        let shard = shards.shard()?;
        let mut studies = vec![];
        for study in self.targets.open(machine)? {
            let origin = study.subject.origin()?;
            studies.push(shards.with_responses(study.sharded(shard)?, &origin)?);
        }
        if shard.is_some() {
            decodes::run(&studies, &self.chosen.experiments("probe")?, &self.chosen, &settings)?;
            return studies.first().map_or(Ok(()), |study| print(&self.chosen.next(study)));
        }
        let all = self.chosen.is_open() && self.targets.phase.is_empty();
        let less = settings.of_grpo_start();
        let jobs = jobs(&studies, &self.chosen, (&settings, all.then_some(&less)))?;
        let place = |job: &Job| {
            let (folder, name, setup) = (self.chosen.folder(job.study), job.name.clone(), job.setup.clone());
            Place { folder, name, setup }
        };
        prepare(&jobs.iter().map(place).collect::<Vec<_>>(), &self.chosen)?;
        let (mut failed, mut made, mut left) = (vec![], vec![], 0);
        let mut progress = Progress::new("probe", jobs.len(), 0);
        for (i, job) in jobs.iter().enumerate() {
            if stop_flag().load(Ordering::Relaxed) {
                bail!("stopped; the same command with --resume goes on");
            }
            progress.update(i, &job.name);
            match self.make(job)? {
                Ok(()) => made.push(&job.name),
                Err(error) if does_not_apply(&error) && !job.named => {
                    left += 1;
                    say(&format!("{}: left out: {error:#}", job.name));
                }
                Err(error) => {
                    say(&format!("{}: not run: {error:#}", job.name));
                    failed.push(format!("{} ({error:#})", job.name));
                }
            }
        }
        progress.update(jobs.len(), "");
        progress.finish();
        ensure!(failed.is_empty(), "{} of the experiments could not be run: {}", failed.len(), failed.join("; "));
        ensure!(!made.is_empty(), "none of the {left} experiments applies to this model and data (reasons above)");
        studies.first().map_or(Ok(()), |study| print(&self.chosen.next(study)))
    }

    /// Runs one job into its files. The outer error is the disk's or the terminal's, the inner the experiment's.
    fn make(&self, job: &Job) -> Result<Result<()>> {
        let out = self.chosen.folder(job.study);
        let mut manifest = Manifest::open(&out)?;
        let parquet = out.join(format!("{}.parquet", job.name));
        if self.chosen.resume && parquet.is_file() && manifest.has(&job.name, &job.setup)? {
            print(&format!("{}: done before ({})\n", job.name, parquet.display()))?;
            return Ok(Ok(()));
        }
        let started = Instant::now();
        let mut rows = RowWriter::create(&out, &job.name)?.requiring(&IDENTITY);
        let done = (job.work)(&mut rows).and_then(|summary| {
            ensure!(!rows.rows().is_empty(), DoesNotApply::because("too few problems for a single row"));
            Ok(summary)
        });
        match done {
            Ok(summary) => {
                let experiment = job.name.split('-').next().unwrap_or_default();
                let columns = described(experiment, rows.rows().iter().flat_map(|row| row.keys()));
                let files = rows.finish_describing(&columns)?;
                let seconds = started.elapsed().as_secs_f64();
                let (setup, command, threads) = (job.setup.clone(), command("probe"), job.study.threads);
                manifest.add(&job.name, Entry { setup, columns, command: &command, threads, seconds })?;
                let summary = fitted(&summary, WIDTH);
                print(&format!("\n## {} ({seconds:.1} s)\n\n{summary}\n{}\n", job.name, files.parquet.display()))?;
                Ok(Ok(()))
            }
            Err(error) => {
                rows.discard()?;
                Ok(Err(error))
            }
        }
    }
}

/// Whether an error says that there is nothing to ask of this checkpoint and data: no fault of either.
pub(super) fn does_not_apply(error: &Error) -> bool {
    error.is::<DoesNotApply>() || error.is::<TooFew>()
}

/// Every experiment on every checkpoint, then what compares two phases of one run. `less`: settings for the checkpoint that
/// GRPO started from, of which only part is measured then.
fn jobs<'a>(
    studies: &'a [Study],
    chosen: &Chosen,
    (all, less): (&'a Settings, Option<&'a Settings>),
) -> Result<Vec<Job<'a>>> {
    let experiments = chosen.experiments("probe")?;
    let origins: Vec<_> = studies.iter().map(|study| study.subject.origin()).collect::<Result<_>>()?;
    let mut jobs = vec![];
    for (study, origin) in studies.iter().zip(&origins) {
        for &experiment in &experiments {
            let Run::One(run) = experiment.run else { continue };
            let less = less.filter(|_| study.subject.short_name() == GRPO_START);
            if less.is_some() && !experiment.is_of_grpo_start() {
                continue;
            }
            let settings = less.unwrap_or(all);
            jobs.push(Job {
                name: format!("{}-{}", experiment.name, study.subject.short_name()),
                study,
                named: chosen.names(experiment),
                setup: setup(study, origin, experiment.settings(settings)),
                work: Box::new(move |rows| run(study, settings, rows)),
            });
        }
    }
    for (i, pair) in studies.windows(2).enumerate() {
        let [first, second] = pair else { continue };
        let one_run = first.subject.run.is_some() && first.subject.run == second.subject.run;
        // GRPO's start lies inside phase 2: it comes after nothing that it could be compared with.
        if !one_run || second.subject.short_name() == GRPO_START {
            continue;
        }
        for &experiment in &experiments {
            let Run::Pair(run) = experiment.run else { continue };
            let against = json!({ "against": setup(first, &origins[i], experiment.settings(all)) });
            jobs.push(Job {
                name: format!("{}-{}-{}", experiment.name, first.subject.short_name(), second.subject.short_name()),
                study: second,
                named: chosen.names(experiment),
                setup: setup(second, &origins[i + 1], against),
                work: Box::new(move |rows| run(first, second, all, rows)),
            });
        }
    }
    let names: Vec<&str> = experiments.iter().map(|e| e.name).collect();
    ensure!(!jobs.is_empty(), "{} needs two phases of one run: name them with --phase", names.join(", "));
    Ok(jobs)
}
