//! `intervene [RUN|MODEL]...`: the causal experiments, each with its file of rows.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::{Parser, ValueEnum};
use serde::Serialize;
use serde_json::{Value, json};

use super::device::MachineArgs;
use super::print;
use super::results::{Manifest, command, folder, setup};
use super::targets::Targets;
use crate::experiments::latent_intervention::{self, Config};
use crate::experiments::{activation_patching, switch_benefit};
use crate::interventions::{Later, Steps};
use crate::latent::Channel;
use crate::machine::Machine;
use crate::store::{IDENTITY, RowWriter};
use crate::study::Study;
use crate::study::modes::{all_modes, default_modes};
use crate::study::sweep::{BlockOrigin, Sweep};

/// Replace what enters the latent positions of a checkpoint and compare with normal decoding.
#[derive(Parser)]
#[command(
    name = "intervene",
    version,
    after_help = "Examples:\n  intervene                                   the default modes on fixtures/micro\n  \
                  intervene runs/micro --modes zero,resample --steps all,0,1,2.. --problems 200\n  \
                  intervene --modes zero,scale,rotate:10 --at both,kv,embedding --later recompute,frozen\n  \
                  intervene --phase sft --modes known_value,empty_block,force_switch"
)]
pub struct Intervene {
    #[command(flatten)]
    targets: Targets,
    /// normal, zero, random_norm, skip, self_patch, mean, resample, gaussian, sibling, embedding, embedding_argmax,
    /// scale[:α], rotate[:degrees], known_value, empty_block, force_switch, suppress_switch, null_batch, null_seed; or
    /// `all`. By default the first seven, the nulls and, on a generated task, known_value
    #[arg(long, value_delimiter = ',')]
    modes: Vec<String>,
    /// Latent steps to act on, one row each: `all`, a step from 0, or `2..`. Without `all` the rows go to files of their
    /// own (latent_intervention_steps, known_value_steps), so that they do not replace the main tables
    #[arg(long, value_delimiter = ',', default_value = "all")]
    steps: Vec<Steps>,
    /// What happens to later latents of the block
    #[arg(long, value_enum, value_delimiter = ',', default_value = "recompute")]
    later: Vec<LaterArg>,
    /// Whether the replaced input reaches the next latent, the cache, or both
    #[arg(long, value_enum, value_delimiter = ',', default_value = "both")]
    at: Vec<AtArg>,
    /// Open a block where the model came closest to it in the problems that open none, in the normal run too
    #[arg(long)]
    force: bool,
    /// Draws of the random modes
    #[arg(long, default_value_t = 5)]
    draws: usize,
    /// Pairs of problems for activation patching
    #[arg(long, default_value_t = 48)]
    pairs: usize,
    /// Which experiments; all where none is named
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Only>,
    /// Where rows and manifest go; by default reports/<recipe>
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    machine: MachineArgs,
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

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Only {
    /// What the modes do to answers
    LatentIntervention,
    /// Every problem with a block and without
    SwitchBenefit,
    /// Layer × latent step, layer × position (generated tasks)
    ActivationPatching,
}

impl Intervene {
    /// # Errors
    /// An unknown mode or step and a target that cannot be opened, before any work; a mode that never fired or changed
    /// nothing where it should.
    pub fn run(&self) -> Result<()> {
        self.machine.compute(|machine| go(self, machine))
    }

    fn config(&self, study: &Study) -> Config {
        let generated = study.subject.recipe.task.is_some();
        let modes = match self.modes.as_slice() {
            [] => default_modes(generated),
            [all] if all == "all" => all_modes(generated),
            named => named.to_vec(),
        };
        let later = self.later.iter().map(|later| match later {
            LaterArg::Recompute => Later::Recompute,
            LaterArg::Frozen => Later::Frozen,
        });
        let at = self.at.iter().map(|at| match at {
            AtArg::Embedding => Channel::Embedding,
            AtArg::Kv => Channel::Kv,
            AtArg::Both => Channel::Both,
        });
        Config { modes, steps: self.steps.clone(), later: later.collect(), at: at.collect(), draws: self.draws }
    }
}

fn go(args: &Intervene, machine: &Machine) -> Result<()> {
    let studies = args.targets.open(machine)?;
    let configs: Vec<Config> = studies.iter().map(|study| args.config(study)).collect();
    let blocks = if args.force { BlockOrigin::Forced } else { BlockOrigin::Own };
    let asked = args.only.contains(&Only::SwitchBenefit);
    ensure!(!(args.force && asked), "switch_benefit compares what the model chose; run it without --force");
    let wants = |only: Only| args.only.is_empty() || args.only.contains(&only);
    if wants(Only::LatentIntervention) {
        studies.iter().zip(&configs).try_for_each(|(study, config)| latent_intervention::check_modes(study, config))?;
    }
    for (study, config) in studies.iter().zip(&configs) {
        let say = |what: &str| eprintln!("intervene: {}: {what}", study.subject.name);
        let settings = Sweep::settings(study);
        let decode = wants(Only::LatentIntervention) || wants(Only::SwitchBenefit);
        let sweep = decode.then(|| Sweep::with(study, &settings, blocks)).transpose()?;
        if let (Some(sweep), true) = (&sweep, wants(Only::LatentIntervention)) {
            let started = Instant::now();
            let rows = latent_intervention::run_on(sweep, study, config, None, say)?;
            let beside = if config.steps.contains(&Steps::All) { "" } else { "_steps" };
            let known = latent_intervention::known_rows(&rows);
            if !known.is_empty() {
                save(args, study, &format!("known_value{beside}"), &known, json!(config), started, String::new())?;
            }
            let name = &format!("latent_intervention{beside}");
            save(args, study, name, &rows, json!(config), started, latent_intervention::table(&rows))?;
        }
        // With --force nothing is left of what the model chose.
        if let (Some(sweep), true) = (&sweep, wants(Only::SwitchBenefit) && !args.force) {
            let started = Instant::now();
            say("every problem with a block and without");
            let (rows, problems) = switch_benefit::run(study, sweep)?;
            save(args, study, "switch_problems", &problems, json!({}), started, String::new())?;
            save(args, study, "switch_benefit", &rows, json!({}), started, switch_benefit::table(&rows))?;
        }
        if wants(Only::ActivationPatching) {
            if study.subject.recipe.task.is_none() && args.only.is_empty() {
                say("no activation patching: it makes its pairs of problems from a generated task");
                continue;
            }
            let (started, config) =
                (Instant::now(), activation_patching::Config { pairs: args.pairs, ..Default::default() });
            say("activation patching");
            let rows = activation_patching::run(study, &config)?;
            save(args, study, "activation_patching", &rows, json!(config), started, activation_patching::table(&rows))?;
        }
    }
    if let Some(study) = studies.first() {
        let out = folder(args.out.as_deref(), study);
        print(&format!(
            "\nTables, figures and a page beside the paper's:  cargo run --bin report -- {}\n",
            out.display()
        ))?;
    }
    Ok(())
}

/// Rows, their line in the manifest, and what they say.
fn save(
    args: &Intervene,
    study: &Study,
    name: &str,
    rows: &[impl Serialize],
    settings: Value,
    started: Instant,
    table: String,
) -> Result<()> {
    let out = folder(args.out.as_deref(), study);
    let name = format!("{name}-{}", study.subject.short_name());
    let mut writer = RowWriter::create(&out, &name)?.requiring(&IDENTITY);
    rows.iter().try_for_each(|row| writer.push(row))?;
    let files = writer.finish()?;
    let setup = setup(study, &study.subject.fingerprint()?, settings);
    let seconds = started.elapsed().as_secs_f64();
    Manifest::open(&out)?.add(&name, setup, &command("intervene"), study.threads, seconds)?;
    print(&format!("\n## {name}\n\n{table}\n{}\n", files.parquet.display()))
}
