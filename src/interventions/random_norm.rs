//! A random direction of the same norm (the paper's *random-norm*).

use super::{About, Acts, Intervention, LatentPlace, drawn_like};
use crate::random::keyed;

pub(super) const ABOUT: &[About] =
    &[About::new("random_norm", Acts::Alone, |_, d| Box::new(random_norm(d.seed))).random()];

/// Misleads: it keeps the norm only; a direction that no state ever takes is off the distribution too. It writes into every
/// coordinate, those that are read elsewhere too, and so lowers the accuracy of hand-built models that read nothing from their
/// latents (how often: its false alarms in `reports/calibration`). A loss under it is no evidence that latents are read. One
/// draw per place, keyed by seed, problem, block and step.
fn random_norm(seed: u64) -> impl Intervention {
    move |at: &LatentPlace, h: &[f32]| {
        let own: Vec<f64> = h.iter().map(|&v| f64::from(v)).collect();
        let drawn = drawn_like(&own, &mut keyed(at.key(seed)));
        Some(drawn.into_iter().map(|v| v as f32).collect())
    }
}
