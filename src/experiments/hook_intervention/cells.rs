//! What is asked for → cells, one row each: a mode at a hook point, on some heads and positions. What does not exist is refused here,
//! before any work.

use anyhow::{Result, bail, ensure};

use super::region::{Heads, Positions, Region};
use super::{Config, MODES};
use crate::interventions::Steps;
use crate::model::config::ModelConfig;
use crate::model::{HookPoint, PointKind};
use crate::schema::NORMAL;
use crate::study::modes::{Action, Cell, cells, names};

/// One row of the table.
pub struct Hooked {
    pub point: HookPoint,
    pub heads: Heads,
    pub region: Region,
    pub cell: Cell,
}

impl Hooked {
    /// The values of its heads, of those of a whole position.
    pub fn part(&self, all: &[f32], model: &ModelConfig) -> Vec<f32> {
        let heads = heads_at(self.point.kind, model).unwrap_or(1);
        let width = all.len() / heads;
        let of_heads = self.heads.of((0..heads).map(|head| head * width..(head + 1) * width).collect());
        of_heads.into_iter().flat_map(|range| all[range].iter().copied()).collect()
    }

    /// For messages.
    pub fn label(&self) -> String {
        format!("{} at {}, heads {}, {}", self.cell.mode, self.point, self.heads, self.region.place())
    }
}

/// Every cell but that of the normal run; those of one hook point stand together. A block has up to `k_cap` steps.
///
/// # Errors
/// An unknown hook, head, step or mode, one that says nothing at a point, and the same cell twice.
pub fn asked(config: &Config, model: &ModelConfig, k_cap: usize) -> Result<Vec<Hooked>> {
    let mut points: Vec<HookPoint> = vec![];
    for hook in &config.hooks {
        ensure!(
            !hook.contains('@'),
            "--hook `{hook}`: write the point alone; --steps and --positions say where it acts"
        );
        for point in HookPoint::resolve(hook, model.num_hidden_layers)? {
            ensure!(!points.contains(&point), "--hook names `{point}` twice");
            points.push(point);
        }
    }
    let latents =
        if config.steps.is_empty() && config.positions.is_empty() { &[Steps::All][..] } else { &config.steps };
    for step in latents {
        ensure!(step.first() < k_cap, "step {step} does not exist: a block has at most {k_cap} latent steps");
    }
    let latents = latents.iter().map(|&steps| Region::Latents(steps));
    let regions: Vec<Region> = latents.chain(config.positions.iter().map(|&p| Region::Other(p))).collect();
    let all = [Heads::default()];
    let heads = if config.heads.is_empty() { &all[..] } else { &config.heads };
    for mode in &config.modes {
        let name = mode.split(':').next().unwrap_or_default();
        let elsewhere = names().contains(&name) && name != NORMAL && !MODES.contains(&name);
        ensure!(!elsewhere, "mode `{mode}` acts on latent inputs only; at a hook point there are {}", MODES.join(", "));
    }
    let modes = cells(&config.modes, &[Steps::All], config.draws, k_cap)?;
    let mut out = vec![];
    for &point in &points {
        heads.iter().try_for_each(|heads| has(point, heads, model))?;
        for cell in modes.iter().filter(|cell| matches!(cell.action, Action::Replace(_))) {
            makes_sense(point, cell)?;
            for &region in &regions {
                reached(point, region)?;
                for heads in heads {
                    out.push(Hooked { point, heads: heads.clone(), region, cell: cell.clone() });
                }
            }
        }
    }
    ensure!(!out.is_empty(), "hook_intervention has nothing to do: no mode but the normal run");
    Ok(out)
}

/// How many heads the values at a point have.
fn heads_at(kind: PointKind, model: &ModelConfig) -> Option<usize> {
    match kind {
        PointKind::Q | PointKind::RotQ | PointKind::Z | PointKind::Result | PointKind::Pattern => {
            Some(model.num_attention_heads)
        }
        PointKind::K | PointKind::V | PointKind::RotK => Some(model.num_key_value_heads),
        _ => None,
    }
}

fn has(point: HookPoint, heads: &Heads, model: &ModelConfig) -> Result<()> {
    let Some(&last) = heads.named().last() else { return Ok(()) };
    match heads_at(point.kind, model) {
        None => bail!("--heads {heads}: `{point}` has no heads; did you mean `blocks.*.attn.hook_z`?"),
        Some(n) if last >= n => {
            bail!("--heads {heads}: `{point}` has {n} heads, 0 to {}: there is no head {last}", n - 1)
        }
        Some(_) => Ok(()),
    }
}

fn reached(point: HookPoint, region: Region) -> Result<()> {
    let inputs = matches!(point.kind, PointKind::LatentSource | PointKind::LatentInjected);
    let only_latents = inputs && matches!(region, Region::Other(Positions::Prompt | Positions::Text(_)));
    ensure!(!only_latents, "`{point}` exists at latent steps only; --positions {} never reaches it", region.place());
    Ok(())
}

fn makes_sense(point: HookPoint, cell: &Cell) -> Result<()> {
    let (mode, kind) = (&cell.mode, point.kind);
    let scale = matches!(kind, PointKind::Ln1Scale | PointKind::Ln2Scale | PointKind::LnFinalScale);
    let nothing = mode == "zero" || cell.dose == Some(0.0);
    ensure!(!(scale && nothing), "{mode} at `{point}`: the stream is divided by it");
    // Its columns are the slots of a cache: another row's are other positions.
    let own = ["zero", "scale", "self_patch"].contains(&mode.as_str());
    ensure!(
        kind != PointKind::Pattern || own,
        "{mode} at `{point}`: a row's pattern has its own length; zero or scale it"
    );
    ensure!(
        kind != PointKind::AttnScores,
        "`{point}` holds the mask: what is put there would look at positions that must not be seen; did you mean \
         `blocks.{}.attn.hook_pattern`?",
        point.layer.unwrap_or_default()
    );
    Ok(())
}
