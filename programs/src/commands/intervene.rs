//! `intervene [RUN|MODEL]...`: the causal experiments, each with its files of rows.

use anyhow::{Result, bail, ensure};
use clap::{Parser, Subcommand};

use super::device::MachineArgs;
use super::pairs::Pairs;
use super::runner::Runner;
use super::selection::Selection;
use super::targets::Targets;
use super::{print, put, setting};
use switchyard::experiments::Settings;
use switchyard::interventions::{At, Change, Heads, InterventionAbout, InterventionSpec, Later, Steps, all};
use switchyard::model::Select;
use switchyard::schema::{BlockOrigin, InterventionRow, PatchRow, RowFile, SteeringRow};
use switchyard::study::modes::{MODES, names};

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
                  intervene --hook 'blocks.2.attn.hook_z[head=0,3]@latent[*,2]=resample'\n  \
                  intervene --modes all --resume              continue a run that was stopped\n  \
                  intervene pairs pairs.jsonl SmolLM2.gguf    activation patching between your own prompts"
)]
pub struct Intervene {
    #[command(flatten)]
    targets: Targets,
    #[command(flatten)]
    chosen: Selection,
    #[arg(long, value_delimiter = ',', help = modes_help())]
    modes: Vec<String>,
    /// A change at a hook point instead of the latent input: 'blocks.2.attn.hook_z[head=0,3]@latent[*,2]=resample', with `@prompt`, `@text[t]`,
    /// `@pos[-1]` (the prompt's last) or nothing (every position) instead of the latent steps, and add:FILE or swap:FILE among the changes. Or
    /// a point or pattern alone, completed by --modes, --heads, --steps and --positions. Runs only hook_intervention
    #[arg(long, value_name = "HOOK[=CHANGE]")]
    hook: Vec<Change>,
    /// With a --hook without heads, one row each: `all` (the default), `each` (every head by itself: with 'blocks.*.attn.hook_z' a ranking of
    /// all heads), a head, or `0+3` for two at once; they count from 0
    #[arg(long, value_delimiter = ',')]
    heads: Vec<Heads>,
    /// With a --hook without positions: positions outside latents, one row each: prompt, text, text[t] (t-th token of the response), pos[p]
    /// or p (position of the sequence); t and p count from 0, a negative p from the prompt's end
    #[arg(long, value_delimiter = ',', allow_hyphen_values = true)]
    positions: Vec<Select>,
    /// Latent steps to act on, one row each: `all` (the default), a step, `2..` or `2..4`; they count from 1, as in the paper, in
    /// every block. Without `all` the rows go to separate files (latent_intervention_steps, known_value_steps), so that they do not replace the main tables
    #[arg(long, value_delimiter = ',')]
    steps: Vec<Steps>,
    /// Treatment of later latents of the block; by default they are recomputed
    #[arg(long, value_delimiter = ',', value_name = "recompute|frozen", value_parser = setting::<Later>)]
    later: Vec<Later>,
    /// Whether the replaced input affects the next latent, the cache, or (the default) both
    #[arg(long, value_delimiter = ',', value_name = "embedding|kv|both", value_parser = setting::<At>)]
    at: Vec<At>,
    /// In problems without a block, open one where p(<swi>) is highest, also in the normal run
    #[arg(long)]
    force: bool,
    /// Draws of the random modes; by default 5
    #[arg(long)]
    draws: Option<usize>,
    /// Pairs of problems for activation patching; by default 48
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pairs: Option<u32>,
    #[command(flatten)]
    machine: MachineArgs,
    #[command(subcommand)]
    what: Option<InterveneCommand>,
}

#[derive(Subcommand)]
enum InterveneCommand {
    Pairs(Pairs),
}

/// Every mode by its name, from the lists that define them.
fn modes_help() -> String {
    let doses = |name: &str| all().find(|about| about.name == name).is_some_and(|about| !about.doses.is_empty());
    let names = names().into_iter().map(|name| if doses(name) { format!("{name}[:DOSE]") } else { name.to_owned() });
    format!(
        "{}; or `all`. By default {}, the nulls and, if the steps of the problems have known numbers, known_value",
        names.collect::<Vec<_>>().join(", "),
        MODES.join(", ")
    )
}

impl Intervene {
    /// An experiment that fails (a mode that never fired, or changed nothing although it should) is reported when the others are done.
    pub fn run(mut self) -> Result<()> {
        if let Some(InterveneCommand::Pairs(pairs)) = &self.what {
            return pairs.run();
        }
        self.only_hooks()?;
        self.all_are_read()?;
        if self.chosen.list {
            return print(&Selection::listed());
        }
        let Self { targets, chosen, .. } = &self;
        let blocks = if self.force { BlockOrigin::Forced } else { BlockOrigin::Own };
        let less = chosen.is_open() && targets.phase.is_empty() && self.modes.is_empty();
        let settings = &self.settings()?;
        let runner = Runner { program: "intervene", targets, chosen, settings, blocks, less };
        self.machine.compute(|machine| runner.run(machine).map(drop))
    }

    /// `--hook` runs only the experiment with hooks.
    fn only_hooks(&mut self) -> Result<()> {
        let none = self.hook.is_empty();
        ensure!(!none || self.heads.is_empty() && self.positions.is_empty(), "--heads and --positions need --hook");
        if none {
            return Ok(());
        }
        let latents = !self.later.is_empty() || !self.at.is_empty();
        ensure!(!latents, "--later and --at apply to latent inputs; at a --hook later positions are always recomputed");
        let other = self.chosen.only.iter().find(|name| *name != InterventionRow::HOOKS);
        ensure!(other.is_none(), "--hook runs {} alone, --only names others", InterventionRow::HOOKS);
        ensure!(!self.chosen.all, "--hook runs {} alone, --all runs every experiment", InterventionRow::HOOKS);
        self.chosen.only = vec![InterventionRow::HOOKS.into()];
        Ok(())
    }

    /// Refuses a flag that no experiment of `--only` reads.
    fn all_are_read(&self) -> Result<()> {
        const LATENTS: &str = InterventionRow::NAME;
        let flags: [(&str, bool, &[&str]); 7] = [
            ("--modes", !self.modes.is_empty(), &[LATENTS, InterventionRow::HOOKS]),
            ("--steps", !self.steps.is_empty(), &[LATENTS, InterventionRow::HOOKS]),
            ("--draws", self.draws.is_some(), &[LATENTS, InterventionRow::HOOKS]),
            ("--later", !self.later.is_empty(), &[LATENTS]),
            ("--at", !self.at.is_empty(), &[LATENTS]),
            ("--force", self.force, &[LATENTS, InterventionRow::HOOKS, SteeringRow::NAME]),
            ("--pairs", self.pairs.is_some(), &[PatchRow::NAME]),
        ];
        let only = &self.chosen.only;
        // The normal run is made before the others, by the same command.
        let reads = |name: &str, readers: &[&str]| name == "normal_run" || readers.contains(&name);
        let named = |readers: &[&str]| only.is_empty() || only.iter().any(|name| reads(name, readers));
        match flags.iter().find(|(_, given, readers)| *given && !named(readers)) {
            Some((flag, _, readers)) => {
                bail!(
                    "{flag} has no effect on {}: it is for {}; other settings of an experiment go into a file for --recipe, under \
                     [settings.{}] (docs/how-to/card.md has an example)",
                    only.join(", "),
                    readers.join(" and "),
                    only[0]
                )
            }
            None => self.modes_read_them(),
        }
    }

    /// Refuses a flag that no named mode reads.
    fn modes_read_them(&self) -> Result<()> {
        let open = self.hook.iter().any(|hook| hook.intervention.is_none());
        let changes = self.hook.iter().filter_map(|hook| Some(hook.intervention.as_ref()?.to_string()));
        let modes: Vec<String> = self.modes.iter().cloned().chain(changes).collect();
        let normal = self.chosen.only.iter().any(|name| name == "normal_run");
        if modes.is_empty() || modes.iter().any(|mode| mode == "all") || (open && self.modes.is_empty()) || normal {
            return Ok(());
        }
        let of = |holds: fn(&InterventionAbout) -> bool| {
            modes.iter().any(|mode| match mode.parse::<InterventionSpec>() {
                Ok(InterventionSpec::Named { about, .. }) => holds(about),
                Ok(InterventionSpec::File { .. } | InterventionSpec::Call(_)) => false,
                // Rules and nulls read none of them; an unknown mode is refused later.
                Err(_) => !names().contains(&mode.as_str()),
            })
        };
        for (flag, given, read, what) in [
            ("--draws", self.draws.is_some(), of(|about| about.random), "draws"),
            ("--steps", !self.steps.is_empty() && self.hook.is_empty(), of(|_| true), "acts at a latent step"),
            ("--later", !self.later.is_empty(), of(|_| true), "replaces a latent input"),
            ("--at", !self.at.is_empty(), of(|_| true), "replaces a latent input"),
        ] {
            ensure!(!given || read, "{flag} has no effect: none of the modes ({}) {what}", modes.join(", "));
        }
        Ok(())
    }

    /// The recipe's settings, overridden by the command line.
    fn settings(&self) -> Result<Settings> {
        let mut settings = self.chosen.settings()?;
        set_changes(&mut settings, (&self.modes, &self.steps), &self.hook, self.draws);
        put(&mut settings.latent_intervention.later, self.later.clone());
        put(&mut settings.latent_intervention.at, self.at.clone());
        put(&mut settings.hook_intervention.heads, self.heads.clone());
        put(&mut settings.hook_intervention.positions, self.positions.clone());
        let patching = &mut settings.activation_patching;
        patching.pairs = self.pairs.map_or(patching.pairs, |pairs| pairs as usize);
        ensure!(
            settings.clone().with(&self.chosen.set)? == settings,
            "--set and another option give one setting two values: name it once"
        );
        Ok(settings)
    }
}

/// Sets what is named, of the interventions in latent inputs and at hook points.
pub(super) fn set_changes(
    settings: &mut Settings,
    (modes, steps): (&[String], &[Steps]),
    hooks: &[Change],
    draws: Option<usize>,
) {
    let (latents, at_hooks) = (&mut settings.latent_intervention, &mut settings.hook_intervention);
    put(&mut latents.modes, modes.to_vec());
    put(&mut at_hooks.modes, modes.to_vec());
    put(&mut latents.steps, steps.to_vec());
    put(&mut at_hooks.steps, steps.to_vec());
    put(&mut at_hooks.hooks, hooks.to_vec());
    latents.draws = draws.unwrap_or(latents.draws);
    at_hooks.draws = draws.unwrap_or(at_hooks.draws);
}
