//! The interventions of `latent_intervention` at any hook point: `zero`, `mean`, `resample`, … on a head's `z`, an MLP's output, the
//! stream, at latent steps or at positions of text, and what that does to answers.
//!
//! `intervene --hook 'blocks.2.attn.hook_z[head=0]@latent[*,2]=resample'` is one row, and with `add:FILE` or `swap:FILE` the values are
//! those of a file. `intervene --hook 'blocks.2.attn.hook_z' --heads 0,3 --steps 1,2 --modes zero,mean,resample`: one row for each point × mode × choice
//! of positions × heads, each against *normal* on the same problems. Every problem is decoded from its prompt with the one hook
//! set; what follows is recomputed. `--heads each` writes a record for every head, so that `blocks.*.attn.hook_z` ranks all heads of a model. The values to put in are those of a normal run at the same point. Outside latents an
//! intervention knows the t-th token of the response (or the position of the prompt) as it knows latent step t: `mean` is the mean
//! over problems of the same t, `resample` takes another problem's value of the same t, and leaves a place alone that its donor lacks.
//!
//! Every problem under every mode is an [`Observation`], as there; the rows follow from the observations.
//!
//! Misleads: a place that two heads write is not seen by replacing one. `zero` and `mean` are off the distribution. A mode whose
//! change follows from the tokens themselves (`mean` over prompts) removes the question, not a use of it. Text positions of two
//! responses with the same t need not say the same thing.

mod run;

use anyhow::{Context, Result, ensure};

use super::{About, Files, Journal, Unfit, latent_intervention};
pub use crate::interventions::Heads;
use crate::interventions::{Acts, Steps, Target, What, all, split};
use crate::model::{HookPoint, HookSpec, ModelConfig, PointKind, Select};
use crate::schema::{InterventionRow, NORMAL, Observation, Summary};
use crate::store::Measurements;
use crate::study::Study;
use crate::study::modes::{Action, cells, names, spell_out};
use run::observe;

pub const ABOUT: About =
    About::asking("what replaced values at any hook point (--hook) do to answers, by head, latent step or position")
        .on_request();

settings! {
    pub struct Config {
        /// Changes, `blocks.2.attn.hook_z[head=0,3]@latent[*,2]=resample`; or hook points alone, or patterns of them, of which what
        /// they leave open is said below. None: nothing is run.
        pub hooks: Vec<String> = vec![],
        /// One row each; none: all heads together.
        pub heads: Vec<Heads> = vec![],
        /// Latent steps, one row each; none, and no positions: all.
        pub steps: Vec<Steps> = vec![],
        /// Other positions, one row each.
        pub positions: Vec<Select> = vec![],
        /// `all`: every one that acts at a hook point.
        pub modes: Vec<String> = ["zero", "mean", "resample", "self_patch"].map(str::to_owned).to_vec(),
        /// Draws of a random mode.
        pub draws: usize = 5,
    }
}

impl Config {
    /// With the modes spelled out.
    pub(crate) fn named(&self) -> Self {
        let mut modes = self.modes.clone();
        spell_out(&mut modes, here().map(str::to_owned));
        Self { modes, ..self.clone() }
    }
}

/// The modes that act at a hook point.
fn here() -> impl Iterator<Item = &'static str> {
    all().filter(|about| about.acts != Acts::OnLatents).map(|about| about.name)
}

/// Needs a hook. Refuses what does not exist, before any work.
///
/// # Errors
/// An unknown hook, head, step or mode.
pub fn unfit(study: &Study, config: &Config) -> Result<Unfit> {
    if config.hooks.is_empty() {
        return Ok(Some("hook_intervention needs a hook point: intervene --hook 'blocks.2.attn.hook_z'".into()));
    }
    asked(study, config).map(|_| None)
}

pub(crate) const FILES: &[Files] = &[(Observation::HOOKS, InterventionRow::HOOKS)];

/// Observes every cell, so far as it is not there yet.
///
/// # Errors
/// As [`rows`]; unfinished observations of another run.
pub fn measure(study: &Study, config: &Config, rows: &mut Measurements<Observation>) -> Result<()> {
    observe(study, &asked(study, config)?, rows)
}

pub(crate) fn conclude(_config: &Config, rows: Measurements<Observation>, journal: &mut Journal) -> Result<String> {
    latent_intervention::tables(rows, None, journal)
}

/// The rows in memory.
///
/// # Errors
/// What does not exist, before any work; a mode that never fired or moved nothing; a self-patch that changed something; as the
/// decoder's.
pub fn rows(study: &Study, config: &Config) -> Result<Summary> {
    latent_intervention::strictly(|rows| measure(study, config, rows))
}

/// One row of the table.
struct HookCell {
    point: HookPoint,
    heads: Heads,
    region: Select,
    /// As rows name it, with its dose.
    mode: String,
    dose: Option<f64>,
    draws: usize,
    what: What,
}

/// Every cell but that of the normal run; those of one hook point of an entry stand together.
///
/// # Errors
/// An unknown hook, head, step or mode, one that says nothing at a point, and the same cell twice.
fn asked(study: &Study, config: &Config) -> Result<Vec<HookCell>> {
    let (model, k_cap) = (study.model.config(), study.recipe.evaluation.k_cap);
    let mut out: Vec<HookCell> = vec![];
    for hook in &config.hooks {
        let (target, change) = split(hook);
        let target: Target = target.parse().with_context(|| format!("--hook `{hook}`"))?;
        let points = HookSpec::all(&target.pattern).resolve_in(model)?;
        let regions = regions(config, &target, change.is_some());
        for steps in regions.iter().map(|region| region.steps()) {
            let first = steps.first();
            ensure!(first < k_cap, "step {} does not exist: a block has at most {k_cap} latent steps", first + 1);
        }
        let heads = match (&target.heads, config.heads.as_slice()) {
            (Some(heads), _) => vec![heads.clone()],
            (None, []) => vec![Heads::default()],
            (None, heads) => heads.to_vec(),
        };
        for &point in &points {
            let heads: Vec<Heads> =
                heads.iter().map(|heads| heads.apart(point, model)).collect::<Result<Vec<_>>>()?.concat();
            heads.iter().try_for_each(|heads| heads.exist(point, model))?;
            regions.iter().try_for_each(|&region| reached(point, region))?;
            for (mode, dose, draws, what) in changes(config, change, point, model)? {
                what.makes_sense(point)?;
                for (&region, heads) in regions.iter().flat_map(|region| heads.iter().map(move |heads| (region, heads)))
                {
                    let (mode, what, heads) = (mode.clone(), what.clone(), heads.clone());
                    add(&mut out, HookCell { point, heads, region, mode, dose, draws, what })?;
                }
            }
        }
    }
    ensure!(!out.is_empty(), "hook_intervention has nothing to do: no mode but the normal run");
    Ok(out)
}

fn add(out: &mut Vec<HookCell>, new: HookCell) -> Result<()> {
    let says = |h: &HookCell| (h.point, h.heads.clone(), h.region, h.mode.clone(), h.dose.map(f64::to_bits));
    let twice = out.iter().any(|held| says(held) == says(&new));
    let (point, mode, heads, place) = (new.point, &new.mode, &new.heads, new.region.place());
    ensure!(!twice, "--hook names `{point}` twice: {mode}, heads {heads}, {place} ({})", new.region.steps());
    out.push(new);
    Ok(())
}

/// Where an entry acts: as it says; else as `steps` and `positions` say; else at every position, of a point alone at latent steps.
fn regions(config: &Config, target: &Target, whole: bool) -> Vec<Select> {
    let latents = |&steps: &Steps| Select::Latent { block: None, steps };
    let named = config.steps.iter().map(latents).chain(config.positions.iter().copied());
    let named: Vec<Select> = named.collect();
    match (target.region, named.is_empty()) {
        (Some(region), _) => vec![region],
        (None, false) => named,
        (None, true) if whole => vec![Select::All],
        (None, true) => vec![latents(&Steps::All)],
    }
}

/// Mode, dose, draws and what is done.
type Cell = (String, Option<f64>, usize, What);

fn changes(config: &Config, change: Option<&str>, point: HookPoint, model: &ModelConfig) -> Result<Vec<Cell>> {
    if let Some(change) = change
        && let Some(what) = What::of_file(change, &[point], model)?
    {
        return Ok(vec![(change.to_owned(), None, 1, what)]);
    }
    let modes = change.map_or_else(|| config.named().modes, |change| vec![change.to_owned()]);
    for mode in &modes {
        let name = mode.split(':').next().unwrap_or_default();
        let elsewhere = names().contains(&name) && name != NORMAL && !here().any(|known| known == name);
        let known = || here().collect::<Vec<_>>().join(", ");
        ensure!(!elsewhere, "mode `{mode}` acts on latent inputs only; at a hook point there are {}", known());
    }
    let cells = cells(&modes, &[Steps::All], config.draws, usize::MAX)?.into_iter();
    let made = cells.filter_map(|cell| match cell.action {
        Action::Replace(about) => Some((cell.mode, cell.dose, cell.draws, What::Made { about, dose: cell.dose })),
        _ => None,
    });
    Ok(made.collect())
}

fn reached(point: HookPoint, region: Select) -> Result<()> {
    let inputs = matches!(point.kind, PointKind::LatentSource | PointKind::LatentInjected);
    let only_latents = inputs && matches!(region, Select::Prompt | Select::Text(_));
    ensure!(!only_latents, "`{point}` exists at latent steps only; {} never reaches it", region.place());
    Ok(())
}
