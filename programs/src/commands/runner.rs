//! Runs experiments on checkpoints, for `probe` and `intervene`: first refuses what cannot run or be written, then makes the files of records.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Error, Result, bail, ensure};
use serde_json::{Map, Value, json};

use super::selection::Selection;
use super::table::{WIDTH, fitted, shortened};
use super::targets::Targets;
use super::{is_dry, print};
use crate::report::findings::describe;
use crate::report::folder::Folder;
use switchyard::experiments::decodes::{DECODES, ways};
use switchyard::experiments::{Experiment, Journal, Run, Settings};
use switchyard::machine::{self, Compute, Machine};
use switchyard::progress::{Interruption, Progress, go_on, say};
use switchyard::schema::{BlockOrigin, GRPO_START};
use switchyard::stats::probe::TooFew;
use switchyard::store::{Manifest, command, writable};
use switchyard::study::{DoesNotApply, Study};

pub(super) struct Runner<'a> {
    /// `probe` or `intervene`.
    pub program: &'static str,
    pub targets: &'a Targets,
    pub chosen: &'a Selection,
    pub settings: &'a Settings,
    pub blocks: BlockOrigin,
    /// Whether the checkpoint that GRPO started from gets only the experiments about RL.
    pub less: bool,
}

/// One experiment on one checkpoint.
struct ExperimentJob<'a> {
    experiment: &'static Experiment,
    study: &'a Study,
    /// The earlier phase, for an experiment that compares two.
    before: Option<&'a Study>,
    settings: Settings,
    journal: Journal,
}

/// Printed above numbers of tokens that were added on opening.
const UNTRAINED: &str = "**Untrained token.** This model never learnt <swi>: the numbers are those of a row that was added when it was \
                         opened.\n\n";

/// Inputs and settings of records; the manifest's `setup`. `origin` is [`Study::origin`].
pub(super) fn setup(study: &Study, origin: &Map<String, Value>, settings: Value) -> Value {
    let parts = [
        ("version", Some(json!(env!("CARGO_PKG_VERSION")))),
        ("checkpoint", Some(json!(study.name))),
        ("dataset", Some(json!(study.recipe.dataset()))),
        ("problems", Some(json!(study.corpus.test.len()))),
        ("seed", Some(json!(study.seed))),
        ("device", Some(json!(machine::described(&study.device)))),
        ("batch", study.batch.map(|batch| json!(batch))),
        ("shard", study.shard.map(|shard| json!(shard.to_string()))),
        ("annotator", study.annotator_name().map(|name| json!(name))),
        ("untrained", study.untrained.then(|| json!("switch tokens"))),
        ("blocks", (study.blocks == BlockOrigin::Forced).then(|| json!("forced"))),
    ];
    let parts = parts.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
    let settings = [("settings".to_owned(), settings)];
    Value::Object(parts.chain(origin.clone()).chain(settings).collect())
}

impl Runner<'_> {
    /// Returns the folders with rows. Refuses names that do not exist and files that must not be written before any work; an experiment that
    /// fails is reported when the others are done.
    pub fn run(&self, machine: &Machine) -> Result<BTreeSet<PathBuf>> {
        self.settings.check()?;
        let experiments = self.chosen.experiments(self.program)?;
        if machine.dtype == Compute::StoredQ8 {
            let reads_states = experiments.iter().find(|experiment| !experiment.about.only_decodes);
            ensure!(
                reads_states.is_none(),
                "--dtype stored-q8 rounds inputs to 8 bits, and `{}` reads more than decoded text: name others with --only, or use stored",
                reads_states.map_or("", |experiment| experiment.name)
            );
        }
        let shards = &self.chosen.shards;
        let (shard, probes) = (shards.shard()?, self.program == "probe");
        for experiment in experiments.iter().filter(|e| probes && shard.is_some() && self.chosen.names(e)) {
            ensure!(
                experiment.about.reads_responses,
                "--shard: `{}` decodes nothing that shards could share; one process runs it, without --shard",
                experiment.name
            );
        }
        let mut studies = vec![];
        for mut study in self.targets.open(machine)? {
            study.talks = !probes;
            let mut study = study.with_blocks(self.blocks);
            // A user's pairs are dealt one by one, whatever the decode batch size.
            if self.targets.raw {
                study.shard = shard;
            } else {
                study = study.sharded(shard)?;
            }
            let mut origin = study.origin()?;
            if self.targets.raw {
                // Nothing is decoded or graded, and no problems are read: records of the same weights may be in the same folder.
                let pairs = origin.remove("data").unwrap_or_default();
                origin.retain(|part, _| !["decode", "grader"].contains(&part.as_str()));
                origin.insert("pairs".into(), pairs);
            }
            let study =
                if probes { shards.with_responses(study, &origin)? } else { shards.with_normal_run(study, &origin)? };
            self.chosen.ensure_one_division(&study)?;
            studies.push((study, origin));
        }
        let mut jobs = if probes && shard.is_some() {
            let of_study = studies.iter().map(|(study, origin)| {
                let setup = setup(study, origin, ways(study, &experiments, self.settings));
                self.job(&DECODES, (None, study), self.settings.clone(), setup)
            });
            of_study.collect()
        } else {
            self.jobs(&experiments, &studies)?
        };
        if is_dry() {
            print(&format!("dry run: {} experiments could begin; nothing was run\n", jobs.len()))?;
            return Ok(BTreeSet::new());
        }
        self.choose_folders(&mut jobs)?;
        self.prepare(&jobs)?;
        self.work(&mut jobs)?;
        jobs.first().map_or(Ok(()), |job| print(&self.chosen.next(self.program, &job.journal)))?;
        Ok(jobs.into_iter().map(|job| job.journal.folder).collect())
    }

    /// If no folder is named, records go to the first of NAME, NAME.2, NAME.3 … without a conflict. Shards, which must agree on one folder, are
    /// refused instead.
    fn choose_folders(&self, jobs: &mut [ExperimentJob]) -> Result<()> {
        if self.chosen.rows.out.is_some()
            || self.chosen.rows.replace
            || jobs.iter().any(|job| job.study.shard.is_some())
        {
            return Ok(());
        }
        let defaults: BTreeSet<PathBuf> = jobs.iter().map(|job| job.journal.folder.clone()).collect();
        for whole in defaults {
            let (mut folder, mut reason, mut number) = (whole.clone(), None, 1);
            while let Some(conflict) = conflict(&folder, jobs.iter().filter(|job| job.journal.folder == whole))? {
                reason.get_or_insert(conflict);
                number += 1;
                folder = PathBuf::from(format!("{}.{number}", whole.display()));
            }
            if let Some(reason) = reason {
                say(&format!("{}: {reason}; new rows go to {}", self.program, folder.display()));
                let here = jobs.iter_mut().filter(|job| job.journal.folder == whole);
                here.for_each(|job| job.journal.folder.clone_from(&folder));
            }
        }
        Ok(())
    }

    /// Every experiment on every checkpoint, then the comparisons of two phases of one run.
    fn jobs<'a>(
        &self,
        experiments: &[&'static Experiment],
        studies: &'a [(Study, Map<String, Value>)],
    ) -> Result<Vec<ExperimentJob<'a>>> {
        let mut jobs = vec![];
        for (study, origin) in studies {
            let less = self.less && study.short_name() == GRPO_START;
            let settings = self.settings.named(study);
            let settings = if less { settings.of_grpo_start() } else { settings };
            let of_one = experiments.iter().filter(|e| matches!(e.run, Run::One(_)));
            for &experiment in of_one.filter(|e| !less || e.about.of_grpo_start) {
                if study.untrained && experiment.about.of_switching && !self.chosen.names(experiment) {
                    say(&format!(
                        "{}: {}: no {}: the model never learnt to switch, <swi> would be an untrained token (--only {} measures it \
                        anyway)",
                        self.program, study.name, experiment.name, experiment.name
                    ));
                    continue;
                }
                match (experiment.unfit)(study, &settings)? {
                    None => {
                        let setup = setup(study, origin, (experiment.settings)(&settings));
                        jobs.push(self.job(experiment, (None, study), settings.clone(), setup));
                    }
                    Some(why) if self.chosen.names(experiment) => bail!("{why}"),
                    Some(why) => say(&format!("{}: {}: no {}: {why}", self.program, study.name, experiment.name)),
                }
            }
        }
        for pair in studies.windows(2) {
            let [(first, before), (second, origin)] = pair else { continue };
            // GRPO's start is an intermediate state of phase 2: there is no earlier phase to compare it with.
            if first.run.is_none() || first.run != second.run || second.short_name() == GRPO_START {
                continue;
            }
            for &experiment in experiments.iter().filter(|e| matches!(e.run, Run::Pair(_))) {
                let against = json!({ "against": setup(first, before, (experiment.settings)(self.settings)) });
                let setup = setup(second, origin, against);
                jobs.push(self.job(experiment, (Some(first), second), self.settings.clone(), setup));
            }
        }
        let pairs = experiments.iter().all(|e| matches!(e.run, Run::Pair(_)));
        let names: Vec<&str> = experiments.iter().map(|e| e.name).collect();
        ensure!(!jobs.is_empty() || !pairs, "{} needs two phases of one run: name them with --phase", names.join(", "));
        Ok(jobs)
    }

    fn job<'a>(
        &self,
        experiment: &'static Experiment,
        (before, study): (Option<&'a Study>, &'a Study),
        settings: Settings,
        setup: Value,
    ) -> ExperimentJob<'a> {
        let earlier = before.map_or_else(String::new, |before| format!("{}-", before.short_name()));
        let checkpoint = earlier + study.short_name();
        let mut journal = Journal::new(self.chosen.folder(study), checkpoint, experiment.files(&settings), setup);
        (journal.resume, journal.shard) = (self.chosen.rows.resume, study.shard);
        (journal.threads, journal.command) = (study.threads, command(self.program));
        ExperimentJob { experiment, study, before, settings, journal }
    }

    /// Refuses files that must not be written; creates the folders.
    fn prepare(&self, jobs: &[ExperimentJob]) -> Result<()> {
        let mut seen = BTreeSet::new();
        for ExperimentJob { journal, .. } in jobs {
            let (folder, name) = (&journal.folder, journal.name(journal.last()));
            ensure!(
                seen.insert((folder, name.clone())),
                "{}: {name} would be written twice, also for {}: omit --out, or run one at a time",
                folder.display(),
                journal.setup["checkpoint"]
            );
        }
        let folders: BTreeSet<&PathBuf> = jobs.iter().map(|job| &job.journal.folder).collect();
        let begun = folders.is_empty() || folders.iter().any(|folder| folder.is_dir());
        ensure!(
            !self.chosen.rows.resume || begun,
            "--resume: there is no folder {}: nothing was begun there; start without --resume",
            folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(", ")
        );
        for ExperimentJob { journal, .. } in jobs {
            if !self.chosen.rows.replace {
                Manifest::open(&journal.folder)?.admits(&journal.name(journal.last()), &journal.setup)?;
            }
        }
        folders.iter().try_for_each(|folder| writable(folder))?;
        for ExperimentJob { journal, .. } in jobs.iter().filter(|_| self.chosen.rows.replace) {
            Manifest::open(&journal.folder)?.remove_strangers(&journal.setup)?;
        }
        Ok(())
    }

    /// Runs the jobs in turn, then prints their tables, and last the findings; failures are an error when all are done.
    fn work(&self, jobs: &mut [ExperimentJob]) -> Result<()> {
        let (mut failed, mut made, mut tables) = (vec![], vec![], String::new());
        let mut progress = Progress::new(self.program, jobs.len(), 0);
        let all = jobs.len();
        // A shard's records are a part: findings are of the merged ones.
        let whole = jobs.iter().all(|job| job.study.shard.is_none());
        for (i, job) in jobs.iter_mut().enumerate() {
            let name = job.journal.name(job.experiment.files(&job.settings).1);
            progress.update(i, &name);
            let done = go_on().map_err(Error::from).and_then(|()| job.run());
            match done {
                Ok(summary) => {
                    let untrained = job.study.untrained && job.experiment.about.of_switching;
                    let mark = if untrained { UNTRAINED } else { "" };
                    let seconds = job.journal.seconds();
                    let file = job.journal.folder.join(job.journal.name(job.journal.last()) + ".parquet");
                    let file = file.display().to_string();
                    let summary = mark.to_owned() + &fitted(&shortened(&summary, &file), WIDTH);
                    tables += &format!("\n## {name} ({seconds:.1} s)\n\n{summary}\n{file}\n");
                    made.push(&job.journal);
                }
                Err(error) if error.is::<Interruption>() => {
                    print(&(tables + &list_findings(&made)))?;
                    return Err(error.context("the same command with --resume continues"));
                }
                // The experiment does not apply to this checkpoint and data: no fault of either.
                Err(error)
                    if (error.is::<DoesNotApply>() || error.is::<TooFew>()) && !self.chosen.names(job.experiment) =>
                {
                    say(&format!("{name}: left out: {error:#}"));
                }
                Err(error) => {
                    say(&format!("{name}: not run: {error:#}"));
                    failed.push(format!("{name}: {error:#}"));
                }
            }
        }
        progress.update(all, "");
        progress.finish();
        let findings = if whole { list_findings(&made) } else { String::new() };
        print(&(tables + &findings))?;
        ensure!(failed.is_empty(), "{} of {all} experiments could not be run: {}", failed.len(), failed.join("; "));
        ensure!(!made.is_empty(), "none of the experiments applies to this model and data (reasons above)");
        Ok(())
    }
}

/// The first conflict of these jobs' records with those of a folder.
fn conflict<'a>(folder: &Path, jobs: impl Iterator<Item = &'a ExperimentJob<'a>>) -> Result<Option<String>> {
    let manifest = Manifest::open(folder)?;
    let mut journals = jobs.map(|job| &job.journal);
    Ok(journals.find_map(|journal| manifest.conflict(&journal.name(journal.last()), &journal.setup)))
}

impl ExperimentJob<'_> {
    fn run(&mut self) -> Result<String> {
        if self.journal.done()? {
            return Ok("done before\n".into());
        }
        match (self.experiment.run, self.before) {
            (Run::One(run), _) => run(self.study, &self.settings, &mut self.journal),
            (Run::Pair(run), Some(before)) => run(before, self.study, &self.settings, &mut self.journal),
            (Run::Pair(_), None) => bail!("{} compares two phases", self.experiment.name),
        }
    }
}

/// Findings of the new records, one sentence with its number per line, checkpoint by checkpoint in the order of the runs.
fn list_findings(made: &[&Journal]) -> String {
    let mut checkpoints: Vec<(&PathBuf, &str)> = vec![];
    for journal in made {
        let of = (&journal.folder, journal.checkpoint.as_str());
        if !checkpoints.contains(&of) {
            checkpoints.push(of);
        }
    }
    let mut out = "\n## Findings\n\n".to_owned();
    let empty = out.len();
    // A folder has the records of all its checkpoints: it is read once for them.
    for of_folder in checkpoints.chunk_by(|a, b| a.0 == b.0) {
        let path = of_folder[0].0;
        let folder = match Folder::open(path) {
            Ok(folder) => folder,
            Err(error) => {
                say(&format!("{}: no finding is shown: {error:#}", path.display()));
                continue;
            }
        };
        for (_, checkpoint) in of_folder {
            let here = |journal: &&&Journal| &journal.folder == path && journal.checkpoint == *checkpoint;
            let files: Vec<&str> = made.iter().filter(here).map(|journal| journal.last()).collect();
            describe(&folder, checkpoint, &files).iter().for_each(|line| out += &format!("{line}\n"));
        }
    }
    if out.len() > empty { out } else { String::new() }
}
