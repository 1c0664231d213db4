//! `intervene [RUN|MODEL]...`: the causal experiments, each with its files of rows.

use std::time::Instant;

use anyhow::{Result, bail, ensure};
use clap::{Parser, ValueEnum};
use serde_json::Value;

use super::chosen::Chosen;
use super::device::MachineArgs;
use super::experiments::does_not_apply;
use super::places::{Place, prepare};
use super::print;
use super::results::setup;
use super::table::{WIDTH, fitted};
use super::targets::Targets;
use crate::experiments::hook_intervention::{Heads, Positions};
use crate::experiments::{Experiment, Files, Fit, Run, Settings};
use crate::interventions::{Later, Steps};
use crate::latent::Channel;
use crate::machine::Machine;
use crate::progress::{Stopped, say};
use crate::schema::{BlockOrigin, GRPO_START, InterventionRow};
use crate::store::command;
use crate::study::Causal;
use crate::study::sweep::Sweep;

/// Replace what enters the latent positions of a checkpoint and compare with normal decoding.
#[derive(Parser)]
#[command(
    name = "intervene",
    version,
    after_help = "Examples:\n  intervene                                   the default modes on fixtures/micro\n  \
                  intervene runs/micro --modes zero,resample --steps all,1,2,3.. --problems 200\n  \
                  intervene --modes zero,scale,rotate:10 --at both,kv,embedding --later recompute,frozen\n  \
                  intervene --phase sft --modes known_value,empty_block,force_switch\n  \
                  intervene --hook blocks.2.attn.hook_z --heads 0,3 --steps 1,2 --modes zero,mean,resample\n  \
                  intervene --modes all --resume              go on with a run that was stopped"
)]
pub struct Intervene {
    #[command(flatten)]
    targets: Targets,
    #[command(flatten)]
    chosen: Chosen,
    /// normal, zero, random_norm, skip, self_patch, mean, resample, gaussian, sibling, embedding, embedding_argmax,
    /// scale[:α], rotate[:degrees], known_value, empty_block, force_switch, suppress_switch, null_batch, null_seed; or
    /// `all`. By default the first seven, the nulls and, on a generated task, known_value
    #[arg(long, value_delimiter = ',')]
    modes: Vec<String>,
    /// A hook point to act on instead of the latent input, or a pattern of them: blocks.2.attn.hook_z, blocks.*.hook_mlp_out
    /// (TransformerLens' names). Runs hook_intervention alone: zero, mean, mean_global, resample, random_norm, gaussian, scale[:α],
    /// rotate[:degrees], self_patch
    #[arg(long, value_delimiter = ',', value_name = "POINTS")]
    hook: Vec<String>,
    /// With --hook: heads, one row each: `all` (the default), a head, or `0+3` for two at once; they count from 0
    #[arg(long, value_delimiter = ',')]
    heads: Vec<Heads>,
    /// With --hook: positions outside latents, one row each: prompt, text, text[t] (t-th token of the response), pos[p] or p (position
    /// of the row); t and p count from 0
    #[arg(long, value_delimiter = ',')]
    positions: Vec<Positions>,
    /// Latent steps to act on, one row each: `all` (the default), a step, or `2..`; they count from 1, as in the paper. Without
    /// `all` the rows go to files of their own (latent_intervention_steps, known_value_steps), so that they do not replace the main tables
    #[arg(long, value_delimiter = ',')]
    steps: Vec<Steps>,
    /// What happens to later latents of the block; by default they are recomputed
    #[arg(long, value_enum, value_delimiter = ',')]
    later: Vec<LaterArg>,
    /// Whether the replaced input reaches the next latent, the cache, or (the default) both
    #[arg(long, value_enum, value_delimiter = ',')]
    at: Vec<AtArg>,
    /// Open a block where the model came closest to it in the problems that open none, in the normal run too
    #[arg(long)]
    force: bool,
    /// Draws of the random modes; by default 5
    #[arg(long)]
    draws: Option<usize>,
    /// Pairs of problems for activation patching; by default 48
    #[arg(long)]
    pairs: Option<usize>,
    #[command(flatten)]
    machine: MachineArgs,
}

/// What became of an experiment on a checkpoint.
enum Made {
    Rows,
    /// It does not apply.
    Nothing,
    /// It failed.
    Refused(String),
}

#[derive(Clone, Copy, ValueEnum)]
enum LaterArg {
    Recompute,
    Frozen,
}

#[derive(Clone, Copy, ValueEnum)]
enum AtArg {
    Embedding,
    Kv,
    Both,
}

impl Intervene {
    /// # Errors
    /// An unknown mode or step and a target that cannot be opened, before any work. An experiment that fails (a mode that never
    /// fired, or changed nothing where it should) is reported when the others are done.
    pub fn run(mut self) -> Result<()> {
        self.only_hooks()?;
        if self.chosen.list {
            return print(&Chosen::listed());
        }
        self.machine.compute(|machine| self.run_on(machine))
    }

    fn run_on(&self, machine: &Machine) -> Result<()> {
        let chosen = self.chosen.experiments("intervene")?;
        let settings = self.settings()?;
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
        let blocks = if self.force { BlockOrigin::Forced } else { BlockOrigin::Own };
        let all = self.chosen.is_open() && self.targets.phase.is_empty() && self.modes.is_empty();
        let (mut failed, mut places, mut made) = (vec![], vec![], 0);
        let origins: Vec<_> = studies.iter().map(|study| study.subject.origin()).collect::<Result<_>>()?;
        // What cannot be run on one checkpoint, or not written, is refused before work on another.
        for dry in [true, false] {
            for (study, origin) in studies.iter().zip(&origins) {
                let settings = settings.named(study);
                let say = |what: &str| say(&format!("intervene: {}: {what}", study.subject.name));
                let decoding = Sweep::settings(study);
                let causal = Causal::new(study, &decoding, blocks, &say);
                let less = all && study.subject.short_name() == GRPO_START;
                for &experiment in chosen.iter().filter(|e| !less || e.is_of_grpo_start()) {
                    let Run::Causal { fits, run } = experiment.run else { continue };
                    let mut setup = setup(study, origin, experiment.settings(&settings));
                    if let (BlockOrigin::Forced, Value::Object(setup)) = (blocks, &mut setup) {
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
                prepare(&places, &self.chosen)?;
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

    /// `--hook` runs the one experiment that has hooks.
    fn only_hooks(&mut self) -> Result<()> {
        let none = self.hook.is_empty();
        ensure!(!none || self.heads.is_empty() && self.positions.is_empty(), "--heads and --positions need --hook");
        if none {
            return Ok(());
        }
        let latents = !self.later.is_empty() || !self.at.is_empty();
        ensure!(!latents, "--later and --at speak of latent inputs; at a --hook what follows is always recomputed");
        let other = self.chosen.only.iter().find(|name| *name != InterventionRow::HOOKS);
        ensure!(other.is_none(), "--hook runs {} alone, --only names others", InterventionRow::HOOKS);
        self.chosen.only = vec![InterventionRow::HOOKS.into()];
        Ok(())
    }

    /// The recipe's settings, with what the command line says in their place.
    fn settings(&self) -> Result<Settings> {
        let mut settings = self.chosen.settings()?;
        let config = &mut settings.latent_intervention;
        let later = |later: &LaterArg| match later {
            LaterArg::Recompute => Later::Recompute,
            LaterArg::Frozen => Later::Frozen,
        };
        let at = |at: &AtArg| match at {
            AtArg::Embedding => Channel::Embedding,
            AtArg::Kv => Channel::Kv,
            AtArg::Both => Channel::Both,
        };
        put(&mut config.modes, self.modes.clone());
        put(&mut config.steps, self.steps.clone());
        put(&mut config.later, self.later.iter().map(later).collect());
        put(&mut config.at, self.at.iter().map(at).collect());
        config.draws = self.draws.unwrap_or(config.draws);
        let hooks = &mut settings.hook_intervention;
        put(&mut hooks.hooks, self.hook.clone());
        put(&mut hooks.heads, self.heads.clone());
        put(&mut hooks.positions, self.positions.clone());
        put(&mut hooks.steps, self.steps.clone());
        put(&mut hooks.modes, self.modes.clone());
        hooks.draws = self.draws.unwrap_or(hooks.draws);
        let patching = &mut settings.activation_patching;
        patching.pairs = self.pairs.unwrap_or(patching.pairs);
        Ok(settings)
    }
}

/// Puts what was named in the place of what was set.
fn put<T>(set: &mut Vec<T>, named: Vec<T>) {
    if !named.is_empty() {
        *set = named;
    }
}
