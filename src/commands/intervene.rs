//! `intervene [RUN|MODEL]...`: the causal experiments, each with its files of rows.

use anyhow::{Result, ensure};
use clap::{Parser, Subcommand, ValueEnum};

use super::causals::Causals;
use super::chosen::Chosen;
use super::device::MachineArgs;
use super::pairs::Pairs;
use super::print;
use super::targets::Targets;
use crate::experiments::Settings;
use crate::experiments::hook_intervention::{Heads, Positions};
use crate::interventions::{Later, Steps};
use crate::latent::Channel;
use crate::machine::Machine;
use crate::schema::{BlockOrigin, InterventionRow};

/// Replace what enters the latent positions of a checkpoint and compare with normal decoding.
#[derive(Parser)]
#[command(
    name = "intervene",
    version,
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  intervene                                   the default modes on fixtures/micro\n  \
                  intervene runs/micro --modes zero,resample --steps all,1,2,3.. --problems 200\n  \
                  intervene --modes zero,scale,rotate:10 --at both,kv,embedding --later recompute,frozen\n  \
                  intervene --phase sft --modes known_value,empty_block,force_switch\n  \
                  intervene --hook blocks.2.attn.hook_z --heads 0,3 --steps 1,2 --modes zero,mean,resample\n  \
                  intervene --modes all --resume              go on with a run that was stopped\n  \
                  intervene pairs pairs.jsonl SmolLM2.gguf    activation patching between prompts of your own"
)]
pub struct Intervene {
    #[command(flatten)]
    targets: Targets,
    #[command(flatten)]
    chosen: Chosen,
    /// normal, zero, random_norm, skip, self_patch, mean, resample, gaussian, sibling, embedding, embedding_argmax,
    /// scale[:α], rotate[:degrees], known_value, empty_block, force_switch, suppress_switch, null_batch, null_seed; or
    /// `all`. By default the first seven, the nulls and, on a generated task whose steps hold numbers, known_value
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
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Subcommand)]
enum What {
    Pairs(Pairs),
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
        if let Some(What::Pairs(pairs)) = &self.what {
            return pairs.run();
        }
        self.only_hooks()?;
        if self.chosen.list {
            return print(&Chosen::listed());
        }
        self.machine.compute(|machine| self.run_on(machine))
    }

    fn run_on(&self, machine: &Machine) -> Result<()> {
        let blocks = if self.force { BlockOrigin::Forced } else { BlockOrigin::Own };
        let settings = self.settings()?;
        let less = self.chosen.is_open() && self.targets.phase.is_empty() && self.modes.is_empty();
        Causals { targets: &self.targets, chosen: &self.chosen, settings: &settings, blocks, less }.run(machine)
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
