//! The mean state of the same step over all problems.

use super::{Bank, Intervention};
use crate::model::Step;
use crate::model::hooks::Place;

/// Removes what is specific to a problem and keeps what the step has in common. Misleads: a mean of states need not be a
/// state; its norm is smaller.
#[derive(Clone, Debug)]
pub struct Mean {
    steps: Vec<Option<Vec<f32>>>,
}

impl Mean {
    pub fn per_step(bank: &Bank) -> Self {
        let mean = |step: usize| {
            let mut sum: Vec<f64> = vec![];
            let mut n = 0_usize;
            for (_, _, h) in bank.of_step(step) {
                sum.resize(h.len(), 0.0);
                sum.iter_mut().zip(h).for_each(|(s, x)| *s += f64::from(*x));
                n += 1;
            }
            (n > 0).then(|| sum.into_iter().map(|s| (s / n as f64) as f32).collect())
        };
        Self { steps: (0..bank.steps()).map(mean).collect() }
    }
}

impl Intervention for Mean {
    fn input(&self, at: &Place, _h: &[f32]) -> Option<Vec<f32>> {
        let Step::Latent { step, .. } = at.step else { return None };
        self.steps.get(step)?.clone()
    }
}
