//! `intervene [RUN|MODEL]...`: the causal experiments, each with its file of rows.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::{Parser, ValueEnum};
use serde::Serialize;
use serde_json::{Value, json};

use super::print;
use super::results::{Manifest, command, folder, setup};
use super::targets::Targets;
use crate::experiments::lab::Lab;
use crate::experiments::latent_intervention::{self, Config};
use crate::experiments::modes::{all_modes, default_modes};
use crate::experiments::sweep::{Blocks, Sweep};
use crate::experiments::{activation_patching, switch_benefit};
use crate::interventions::{Later, Steps};
use crate::latent::Channel;
use crate::report::rows::{IDENTITY, RowWriter};

/// Replace what enters the latent positions of a checkpoint and compare with normal decoding.
#[derive(Parser)]
#[command(
    name = "intervene",
    version,
    after_help = "Examples:\n  intervene                                   the default modes on fixtures/micro\n  \
                  intervene runs/micro --modes zero,resample --steps all,0,1,2.. --problems 200\n  \
                  intervene --modes zero,scale,rotate:10 --at both,kv,embedding --later recompute,frozen\n  \
                  intervene --phase latent --modes known_value,empty_block,force_switch"
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
        go(self)
    }

    fn config(&self, lab: &Lab) -> Config {
        let generated = lab.subject.recipe.task.is_some();
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

fn go(args: &Intervene) -> Result<()> {
    let labs = args.targets.open()?;
    let configs: Vec<Config> = labs.iter().map(|lab| args.config(lab)).collect();
    let blocks = if args.force { Blocks::Forced } else { Blocks::Own };
    let asked = args.only.contains(&Only::SwitchBenefit);
    ensure!(!(args.force && asked), "switch_benefit compares what the model chose; run it without --force");
    let wants = |only: Only| args.only.is_empty() || args.only.contains(&only);
    if wants(Only::LatentIntervention) {
        labs.iter().zip(&configs).try_for_each(|(lab, config)| latent_intervention::check_modes(lab, config))?;
    }
    for (lab, config) in labs.iter().zip(&configs) {
        let say = |what: &str| eprintln!("intervene: {}: {what}", lab.subject.name);
        let settings = Sweep::settings(lab);
        let decode = wants(Only::LatentIntervention) || wants(Only::SwitchBenefit);
        let sweep = decode.then(|| Sweep::with(lab, &settings, blocks)).transpose()?;
        if let (Some(sweep), true) = (&sweep, wants(Only::LatentIntervention)) {
            let started = Instant::now();
            let rows = latent_intervention::run_on(sweep, lab, config, None, say)?;
            let beside = if config.steps.contains(&Steps::All) { "" } else { "_steps" };
            let known = latent_intervention::known_rows(&rows);
            if !known.is_empty() {
                save(args, lab, &format!("known_value{beside}"), &known, json!(config), started, String::new())?;
            }
            let name = &format!("latent_intervention{beside}");
            save(args, lab, name, &rows, json!(config), started, latent_intervention::table(&rows))?;
        }
        // With --force nothing is left of what the model chose.
        if let (Some(sweep), true) = (&sweep, wants(Only::SwitchBenefit) && !args.force) {
            let started = Instant::now();
            say("every problem with a block and without");
            let (rows, problems) = switch_benefit::run(lab, sweep)?;
            save(args, lab, "switch_problems", &problems, json!({}), started, String::new())?;
            save(args, lab, "switch_benefit", &rows, json!({}), started, switch_benefit::table(&rows))?;
        }
        if wants(Only::ActivationPatching) {
            if lab.subject.recipe.task.is_none() && args.only.is_empty() {
                say("no activation patching: it makes its pairs of problems from a generated task");
                continue;
            }
            let (started, config) =
                (Instant::now(), activation_patching::Config { pairs: args.pairs, ..Default::default() });
            say("activation patching");
            let rows = activation_patching::run(lab, &config)?;
            save(args, lab, "activation_patching", &rows, json!(config), started, activation_patching::table(&rows))?;
        }
    }
    if let Some(lab) = labs.first() {
        let out = folder(args.out.as_deref(), lab);
        print(&format!(
            "\nTables, figures and a page beside the paper's:  cargo run --release --bin report -- {}\n",
            out.display()
        ))?;
    }
    Ok(())
}

/// Rows, their line in the manifest, and what they say.
fn save(
    args: &Intervene,
    lab: &Lab,
    name: &str,
    rows: &[impl Serialize],
    settings: Value,
    started: Instant,
    table: String,
) -> Result<()> {
    let out = folder(args.out.as_deref(), lab);
    let name = format!("{name}-{}", lab.subject.short_name());
    let mut writer = RowWriter::create(&out, &name)?.requiring(&IDENTITY);
    rows.iter().try_for_each(|row| writer.push(row))?;
    let files = writer.finish()?;
    let setup = setup(lab, &lab.subject.fingerprint()?, settings);
    Manifest::open(&out)?.add(&name, setup, &command("intervene"), started.elapsed().as_secs_f64())?;
    print(&format!("\n## {name}\n\n{table}\n{}\n", files.parquet.display()))
}
