//! The interventions of `latent_intervention` at any hook point: `zero`, `mean`, `resample`, … on a head's `z`, an MLP's output or the
//! stream, at latent steps or text positions, and their effect on answers.
//!
//! `intervene --hook 'blocks.2.attn.hook_z[head=0]@latent[*,2]=resample'` is one row; `add:FILE` and `swap:FILE` use the values of a file.
//! `intervene --hook 'blocks.2.attn.hook_z' --heads 0,3 --steps 1,2 --modes zero,mean,resample` makes one row per point × mode × choice of
//! positions × heads, each compared with *normal* on the same problems. Every problem is decoded from its prompt with the one hook set;
//! later positions are recomputed. `--heads each` makes a row per head, so that `blocks.*.attn.hook_z` ranks all heads of a model.
//! Donor values come from a normal run at the same point. Outside latents the t-th token of the response (or position of the prompt)
//! counts as step t: `mean` is the mean over problems at the same t, `resample` uses another problem's value at the same t, and leaves a
//! place unchanged that the donor lacks.
//!
//! Every problem in every mode is an [`Observation`], as there; the rows are computed from the observations.
//!
//! Misleads: if two heads write the same content, replacing one shows nothing. `zero` and `mean` are off the distribution. A mode whose
//! value follows from the tokens alone (`mean` over prompts) removes the question, not a use of it. Text positions of two responses with
//! the same t need not have the same meaning.

mod run;

use anyhow::{Result, bail, ensure};

use super::intervention_table::{in_memory_summary, strictly, tables};
use super::{About, Files, Journal, Unfit};
pub use crate::interventions::Heads;
use crate::interventions::{Acts, Change, InterventionSpec, ModelChange, Steps, all};
use crate::model::{HookPoint, Select};
use crate::schema::{InterventionRow, NORMAL, Observation, Summary};
use crate::store::Measurements;
use crate::study::Study;
use crate::study::modes::{doses, names, spell_out};
use run::observe;

pub const ABOUT: About =
    About::asking("effect on answers of replaced values at any hook point (--hook), by head, latent step or position")
        .on_request();

settings! {
    pub struct Config {
        /// Changes such as `blocks.2.attn.hook_z[head=0,3]@latent[*,2]=resample`; or hook points or patterns alone, completed by the settings
        /// below. Empty: nothing runs.
        pub hooks: Vec<Change> = vec![],
        /// One row each; empty: all heads together.
        pub heads: Vec<Heads> = vec![],
        /// Latent steps, one row each; empty, and no positions: all.
        pub steps: Vec<Steps> = vec![],
        /// Other positions, one row each.
        pub positions: Vec<Select> = vec![],
        /// `all`: every one that can act at a hook point.
        pub modes: Vec<String> = ["zero", "mean", "resample", "self_patch"].map(str::to_owned).to_vec(),
        /// Draws of a random mode.
        pub draws: usize = 5,
    }
}

impl Config {
    /// With the modes spelled out.
    pub(crate) fn named(&self) -> Self {
        let mut modes = self.modes.clone();
        spell_out(&mut modes, modes_at_hooks().map(str::to_owned));
        Self { modes, ..self.clone() }
    }
}

fn modes_at_hooks() -> impl Iterator<Item = &'static str> {
    all().filter(|about| about.acts != Acts::OnLatents).map(|about| about.name)
}

/// Needs a hook. Refuses unknown names before any work.
pub fn unfit(study: &Study, config: &Config) -> Result<Unfit> {
    if config.hooks.is_empty() {
        return Ok(Some("hook_intervention needs a hook point: intervene --hook 'blocks.2.attn.hook_z'".into()));
    }
    list_cells(study, config).map(|_| None)
}

pub(crate) const FILES: &[Files] = &[(Observation::HOOKS, InterventionRow::HOOKS)];

/// Observes every cell that `rows` lacks.
pub fn measure(study: &Study, config: &Config, rows: &mut Measurements<Observation>) -> Result<()> {
    observe(study, &list_cells(study, config)?, rows)
}

pub(crate) fn conclude(_config: &Config, rows: Measurements<Observation>, journal: &mut Journal) -> Result<String> {
    tables(rows, None, journal)
}

/// The rows in memory.
///
/// # Errors
/// Before any work: unknown names. Later: a mode that never fired or changed nothing; a self-patch that changed something; failures of
/// the decoder.
pub fn rows(study: &Study, config: &Config) -> Result<Summary> {
    strictly(|rows| measure(study, config, rows))
}

/// The tables of every cell with an effect to report; for the others the reason why not.
pub fn summary(study: &Study, config: &Config) -> Result<(Summary, Vec<String>)> {
    in_memory_summary(|rows| measure(study, config, rows))
}

/// One row of the table.
struct HookCell {
    point: HookPoint,
    change: ModelChange,
    /// As rows name it, with its dose.
    mode: String,
    dose: Option<f64>,
    draws: usize,
}

/// Every cell except the normal run's; those of one hook point are adjacent.
fn list_cells(study: &Study, config: &Config) -> Result<Vec<HookCell>> {
    are_read(config)?;
    let (model, most) = (study.model.config(), study.longest_block());
    let mut out: Vec<HookCell> = vec![];
    for hook in &config.hooks {
        let points = hook.points(model)?;
        let regions = regions(config, hook, &points);
        for steps in regions.iter().map(|region| region.steps()) {
            steps.ensure_within(most)?;
        }
        let heads = match (&hook.heads, config.heads.as_slice()) {
            (Some(heads), _) => vec![heads.clone()],
            (None, []) => vec![Heads::default()],
            (None, heads) => heads.to_vec(),
        };
        let interventions = interventions(config, hook)?;
        for &point in &points {
            let heads: Vec<Heads> =
                heads.iter().map(|heads| heads.split(point, model)).collect::<Result<Vec<_>>>()?.concat();
            regions.iter().try_for_each(|&region| reached(point, region))?;
            for (mode, dose, draws, intervention) in &interventions {
                for (&region, heads) in regions.iter().flat_map(|region| heads.iter().map(move |heads| (region, heads)))
                {
                    let named = (hook.to_string(), vec![point]);
                    let change = ModelChange::new(model, named, (heads.clone(), region), intervention.clone())?;
                    add(&mut out, HookCell { point, change, mode: mode.clone(), dose: *dose, draws: *draws })?;
                }
            }
        }
    }
    ensure!(!out.is_empty(), "hook_intervention has nothing to do: no mode but the normal run");
    Ok(out)
}

/// Refuses settings that no hook leaves open.
fn are_read(config: &Config) -> Result<()> {
    let open = |is_open: fn(&Change) -> bool| config.hooks.iter().any(is_open);
    let modes = !config.modes.is_empty() && config.modes != Config::default().modes;
    let (no_heads, no_region) = (!open(|hook| hook.heads.is_none()), !open(|hook| hook.region.is_none()));
    for (setting, unused, what) in [
        ("modes", modes && !open(|hook| hook.intervention.is_none()), "intervention"),
        ("heads", !config.heads.is_empty() && no_heads, "heads"),
        ("steps", !config.steps.is_empty() && no_region, "positions"),
        ("positions", !config.positions.is_empty() && no_region, "positions"),
    ] {
        ensure!(!unused, "--{setting} has no effect: every --hook names its own {what}; omit one of the two");
    }
    Ok(())
}

fn add(out: &mut Vec<HookCell>, new: HookCell) -> Result<()> {
    let says = |cell: &HookCell| {
        let ModelChange { heads, region, .. } = &cell.change;
        (cell.point, heads.clone(), *region, cell.mode.clone(), cell.dose.map(f64::to_bits))
    };
    let twice = out.iter().any(|held| says(held) == says(&new));
    let (point, mode, ModelChange { heads, region, .. }) = (new.point, &new.mode, &new.change);
    ensure!(!twice, "--hook names `{point}` twice: {mode}, heads {heads}, {} ({})", region.place(), region.steps());
    out.push(new);
    Ok(())
}

/// The regions of a hook: its own; else those of `steps` and `positions`; else every position (for a single point, every latent step).
fn regions(config: &Config, hook: &Change, points: &[HookPoint]) -> Vec<Select> {
    let latents = |&steps: &Steps| Select::Latent { block: None, steps };
    let named: Vec<Select> = config.steps.iter().map(latents).chain(config.positions.iter().copied()).collect();
    match (hook.region, named.is_empty()) {
        (Some(region), _) => vec![region],
        (None, false) => named,
        (None, true) if hook.intervention.is_some() => vec![hook.region_at(points)],
        (None, true) => vec![latents(&Steps::All)],
    }
}

/// Mode, dose, draws and intervention.
type Cell = (String, Option<f64>, usize, InterventionSpec);

/// The intervention of a hook, or the modes if it names none; each at its doses.
fn interventions(config: &Config, hook: &Change) -> Result<Vec<Cell>> {
    ensure!(config.draws >= 1, "--draws must be at least 1, found 0");
    let asked = match &hook.intervention {
        Some(intervention) => vec![intervention.clone()],
        None => {
            let modes = config.named().modes;
            modes.iter().filter(|mode| *mode != NORMAL).map(|mode| intervention(mode)).collect::<Result<_>>()?
        }
    };
    let mut cells = vec![];
    for intervention in asked {
        let InterventionSpec::Named { about, dose } = intervention else {
            cells.push((intervention.to_string(), None, 1, intervention));
            continue;
        };
        check_acts(about.name, about.acts)?;
        let draws = if about.random { config.draws } else { 1 };
        let at = |dose| (about.name.to_owned(), dose, draws, InterventionSpec::Named { about, dose });
        cells.extend(doses(about, dose).into_iter().map(at));
    }
    Ok(cells)
}

fn intervention(mode: &str) -> Result<InterventionSpec> {
    let name = mode.split(':').next().unwrap_or_default();
    if names().contains(&name) && all().all(|about| about.name != name) {
        check_acts(name, Acts::OnLatents)?;
    }
    mode.parse()
}

fn check_acts(name: &str, acts: Acts) -> Result<()> {
    if acts == Acts::OnLatents {
        let known = modes_at_hooks().collect::<Vec<_>>().join(", ");
        bail!("mode `{name}` acts on latent inputs only; at a hook point there are {known}");
    }
    Ok(())
}

fn reached(point: HookPoint, region: Select) -> Result<()> {
    let only_latents = point.kind.is_latent() && matches!(region, Select::Prompt | Select::Text(_));
    ensure!(!only_latents, "`{point}` exists at latent steps only; {} never reaches it", region.place());
    Ok(())
}
