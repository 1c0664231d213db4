//! What is asked for → cells, one row each: a change at a hook point, on some heads and positions. What does not exist is refused
//! here, before any work.

use anyhow::{Context, Result, ensure};

use super::Config;
use crate::interventions::{Acts, Heads, Steps, Target, What, all, split};
use crate::model::{HookPoint, HookSpec, ModelConfig, PointKind, Select};
use crate::schema::NORMAL;
use crate::study::modes::{Action, cells, names};

/// One row of the table.
pub struct HookCell {
    pub point: HookPoint,
    pub heads: Heads,
    pub region: Select,
    /// As rows name it, with its dose.
    pub mode: String,
    pub dose: Option<f64>,
    pub draws: usize,
    pub what: What,
}

/// Every cell but that of the normal run; those of one hook point of an entry stand together. A block has up to `k_cap` steps.
///
/// # Errors
/// An unknown hook, head, step or mode, one that says nothing at a point, and the same cell twice.
pub fn asked(config: &Config, model: &ModelConfig, k_cap: usize) -> Result<Vec<HookCell>> {
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
    let modes = change.map_or_else(|| config.modes.clone(), |change| vec![change.to_owned()]);
    let here = || all().filter(|about| about.acts != Acts::OnLatents).map(|about| about.name);
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
