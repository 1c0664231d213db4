//! The state of the same step of another problem.

use rand::Rng;

use super::{Acts, Bank, Intervention, InterventionAbout, LatentPlace};
use crate::random::keyed;

pub(super) const ABOUT: &[InterventionAbout] =
    &[InterventionAbout::new("resample", Acts::OnRun, |m, d| Box::new(resampled(m.bank, d.seed)))
        .random()
        .positive_at(|_| true)];

/// On the distribution, with wrong content: the fairest test of whether the content matters. Misleads if most problems share the value
/// in question (a modulus of 7 leaves one in seven unchanged).
pub(crate) fn resampled(bank: &Bank, seed: u64) -> impl Intervention {
    let donors = bank.blocks();
    move |at: &LatentPlace, _: &[f32]| {
        let own = donors.partition_point(|(p, _)| *p < at.problem)..donors.partition_point(|(p, _)| *p <= at.problem);
        let others = donors.len() - own.len();
        if others == 0 {
            return None;
        }
        // One donor block for all steps of a block, so that its states belong together.
        let drawn = keyed([seed, at.problem as u64, at.block as u64, 1]).random_range(0..others);
        let (problem, from) = donors[if drawn < own.start { drawn } else { drawn + own.len() }];
        bank.get(problem, from, at.step).map(<[f32]>::to_vec)
    }
}
