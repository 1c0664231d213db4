//! A random direction of the same norm (the paper's *random-norm*).

use super::{Acts, Intervention, InterventionAbout, LatentPlace, drawn_like};
use crate::random::keyed;

pub(super) const ABOUT: &[InterventionAbout] =
    &[InterventionAbout::new("random_norm", Acts::Alone, |_, d| Box::new(random_norm(d.seed))).random()];

/// Misleads: it preserves only the norm, and states never have most of these directions. It changes every coordinate, also those that are
/// read elsewhere, so that even hand-built models that do not read their latents lose accuracy (false alarms in `reports/calibration`): a
/// loss does not show that latents are read. One draw per place, keyed by seed, problem, block and step.
fn random_norm(seed: u64) -> impl Intervention {
    move |at: &LatentPlace, h: &[f32]| {
        let own: Vec<f64> = h.iter().map(|&v| f64::from(v)).collect();
        let drawn = drawn_like(&own, &mut keyed(at.key(seed)));
        Some(drawn.into_iter().map(|v| v as f32).collect())
    }
}
