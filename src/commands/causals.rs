//! Causal experiments on checkpoints: what cannot be run or written is refused first, then each makes its files of rows. Shared by
//! `intervene` and `intervene pairs`.

use std::time::Instant;

use anyhow::{Result, bail, ensure};
use serde_json::Value;

use super::chosen::Chosen;
use super::experiments::does_not_apply;
use super::places::{Place, prepare};
use super::print;
use super::results::setup;
use super::table::{WIDTH, fitted};
use super::targets::Targets;
use crate::experiments::{Experiment, Files, Fit, Run, Settings};
use crate::machine::Machine;
use crate::progress::{Stopped, say};
use crate::schema::{BlockOrigin, GRPO_START};
use crate::store::command;
use crate::study::Causal;
use crate::study::sweep::Sweep;

/// What is run on what.
pub(super) struct Causals<'a> {
    pub targets: &'a Targets,
    pub chosen: &'a Chosen,
    pub settings: &'a Settings,
    pub blocks: BlockOrigin,
    /// Whether the checkpoint that GRPO started from gets only the experiments about RL.
    pub less: bool,
}

/// What became of an experiment on a checkpoint.
enum Made {
    Rows,
    /// It does not apply.
    Nothing,
    /// It failed.
    Refused(String),
}

impl Causals<'_> {
    /// # Errors
    /// As [`super::intervene::Intervene::run`].
    pub fn run(&self, machine: &Machine) -> Result<()> {
        let chosen = self.chosen.experiments("intervene")?;
        let shards = &self.chosen.shards;
        if shards.is_shard() {
            let not = chosen.iter().find(|e| !e.is_sharded());
            ensure!(
                not.is_none(),
                "--shard: {} cannot be shared: one process runs it, without --shard",
                not.map_or("", |e| e.name)
            );
        }
        let shard = shards.shard()?;
        let mut studies = vec![];
        for study in self.targets.open(machine)? {
            let origin = study.subject.origin()?;
            studies.push(shards.with_normal_run(study.sharded(shard)?, &origin)?);
        }
        let (mut failed, mut places, mut made) = (vec![], vec![], 0);
        let origins: Vec<_> = studies.iter().map(|study| study.subject.origin()).collect::<Result<_>>()?;
        // What cannot be run on one checkpoint, or not written, is refused before work on another.
        for dry in [true, false] {
            for (study, origin) in studies.iter().zip(&origins) {
                let settings = self.settings.named(study);
                let say = |what: &str| say(&format!("intervene: {}: {what}", study.subject.name));
                let decoding = Sweep::settings(study);
                let causal = Causal::new(study, &decoding, self.blocks, &say);
                let less = self.less && study.subject.short_name() == GRPO_START;
                for &experiment in chosen.iter().filter(|e| !less || e.is_of_grpo_start()) {
                    let Run::Causal { fits, run } = experiment.run else { continue };
                    let mut setup = setup(study, origin, experiment.settings(&settings));
                    if let (BlockOrigin::Forced, Value::Object(setup)) = (self.blocks, &mut setup) {
                        setup.insert("blocks".into(), "forced".into());
                    }
                    match fits(&causal, &settings)? {
                        Fit::No(why) if self.chosen.names(experiment) => bail!("{why}"),
                        Fit::No(why) if !dry => causal.say(&format!("no {}: {why}", experiment.name)),
                        Fit::Yes if dry => {
                            let (folder, rows) = (self.chosen.folder(study), experiment.rows(&settings));
                            places.push(Place {
                                folder,
                                name: format!("{rows}-{}", study.subject.short_name()),
                                setup,
                            });
                        }
                        Fit::Yes => match self.make(experiment, run, &causal, &settings, setup)? {
                            Made::Rows => made += 1,
                            Made::Nothing => {}
                            Made::Refused(why) => failed.push(why),
                        },
                        Fit::No(_) => {}
                    }
                }
            }
            if dry {
                prepare(&places, self.chosen)?;
            }
        }
        ensure!(failed.is_empty(), "{}", failed.join("; "));
        ensure!(made > 0, "none of the experiments applies to this model and data (reasons above)");
        studies.first().map_or(Ok(()), |study| print(&self.chosen.next(study)))
    }

    /// Runs one experiment on one checkpoint. The error is a stop, the disk's or the terminal's.
    fn make(
        &self,
        experiment: &Experiment,
        run: fn(&Causal, &Settings, &Files) -> Result<String>,
        causal: &Causal,
        settings: &Settings,
        setup: Value,
    ) -> Result<Made> {
        let study = causal.study;
        let checkpoint = study.subject.short_name().to_owned();
        let (started, folder) = (Instant::now(), self.chosen.folder(study));
        let command = command("intervene");
        let files = Files {
            folder,
            checkpoint,
            setup,
            command,
            threads: study.threads,
            resume: self.chosen.resume,
            shard: study.shard,
            started,
        };
        match run(causal, settings, &files) {
            Ok(summary) => {
                let (name, seconds) = (experiment.name, started.elapsed().as_secs_f64());
                let (checkpoint, out) = (&files.checkpoint, files.folder.display());
                let summary = fitted(&summary, WIDTH);
                print(&format!("\n## {name}-{checkpoint} ({seconds:.1} s)\n\n{summary}\n{out}\n"))?;
                Ok(Made::Rows)
            }
            Err(error) if error.is::<Stopped>() => Err(error.context("the same command with --resume goes on")),
            Err(error) if does_not_apply(&error) && !self.chosen.names(experiment) => {
                say(&format!("{}-{}: left out: {error:#}", experiment.name, files.checkpoint));
                Ok(Made::Nothing)
            }
            Err(error) => {
                say(&format!("{}-{}: not run: {error:#}", experiment.name, files.checkpoint));
                Ok(Made::Refused(format!("{}-{}: {error:#}", experiment.name, files.checkpoint)))
            }
        }
    }
}
