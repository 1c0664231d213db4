//! Whether hooks can be reached by known rows at all.

use anyhow::{Result, bail};

use crate::latent::Sequence;
use crate::model::{HookPoint, HookSpec, PointKind, Step};

/// Refuses what no position of these rows would reach.
///
/// # Errors
/// The first such spec.
pub(crate) fn check<'s>(
    specs: impl IntoIterator<Item = &'s HookSpec>,
    layers: usize,
    sequences: &[Sequence],
) -> Result<()> {
    for spec in specs {
        let points = spec.resolve(layers)?;
        let fires = |(position, step): (usize, &Step)| {
            spec.select.admits(position, *step) && points.iter().any(|point| reaches(*point, *step))
        };
        if !sequences.iter().any(|sequence| sequence.steps.iter().enumerate().any(fires)) {
            bail!("hook `{spec}` would never fire: no position of these rows reaches it");
        }
    }
    Ok(())
}

/// Whether a known row's position passes the point at all.
fn reaches(point: HookPoint, step: Step) -> bool {
    match point.kind {
        PointKind::LatentSource | PointKind::LatentInjected => matches!(step, Step::Latent { .. }),
        // Only a decoder stands at a boundary.
        PointKind::BoundaryLogits => false,
        _ => true,
    }
}
