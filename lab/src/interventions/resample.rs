//! The state of the same step of another problem.

use rand::Rng;

use super::{About, Acts, Bank, Intervention};
use crate::model::Step;
use crate::model::hooks::Place;
use crate::random::keyed;

pub(super) const ABOUT: &[About] =
    &[About::new("resample", Acts::OnRun, |m, d| Box::new(Resample::new(m.bank, d.seed))).random()];

/// On the distribution, wrong content: the fairest test of whether the content matters. Misleads where most problems
/// share the value in question (a modulus of 7 leaves one in seven unchanged).
#[derive(Clone, Debug)]
pub(crate) struct Resample<'a> {
    bank: &'a Bank,
    /// Problem and block of every donor, in the order of the problems.
    donors: Vec<(usize, usize)>,
    seed: u64,
}

impl<'a> Resample<'a> {
    pub fn new(bank: &'a Bank, seed: u64) -> Self {
        Self { bank, donors: bank.of_step(0).map(|(problem, block, _)| (problem, block)).collect(), seed }
    }
}

impl Intervention for Resample<'_> {
    fn input(&self, at: &Place, _h: &[f32]) -> Option<Vec<f32>> {
        let Step::Latent { block, step } = at.step else { return None };
        let own = self.donors.partition_point(|(p, _)| *p < at.row)..self.donors.partition_point(|(p, _)| *p <= at.row);
        let others = self.donors.len() - own.len();
        if others == 0 {
            return None;
        }
        // One donor block for all steps of a block, so that its states belong together.
        let drawn = keyed([self.seed, at.row as u64, block as u64, 1]).random_range(0..others);
        let (problem, from) = self.donors[if drawn < own.start { drawn } else { drawn + own.len() }];
        self.bank.get(problem, from, step).map(<[f32]>::to_vec)
    }
}
