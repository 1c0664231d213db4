//! The state of the same step of another problem.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Bank, Intervention};
use crate::model::Step;
use crate::model::hooks::Place;

/// On the distribution, wrong content: the fairest test of whether the content matters. Misleads where most problems
/// share the value in question (a modulus of 7 leaves one in seven unchanged).
#[derive(Clone, Debug)]
pub struct Resample<'a> {
    /// Per step: problem, block and state of every donor.
    donors: Vec<Vec<(usize, usize, &'a [f32])>>,
    seed: u64,
}

impl<'a> Resample<'a> {
    pub fn new(bank: &'a Bank, seed: u64) -> Self {
        Self { donors: (0..bank.steps()).map(|step| bank.of_step(step).collect()).collect(), seed }
    }
}

impl Intervention for Resample<'_> {
    fn name(&self) -> &'static str {
        "resample"
    }

    fn input(&self, at: &Place, _h: &[f32]) -> Option<Vec<f32>> {
        let Step::Latent { block, step } = at.step else { return None };
        // One donor block for all steps of a block, so that its states belong together.
        let mut key = [0_u8; 32];
        for (chunk, value) in key.chunks_mut(8).zip([self.seed, at.row as u64, block as u64, 1]) {
            chunk.copy_from_slice(&value.to_le_bytes());
        }
        let first = self.donors.first()?;
        let others: Vec<_> = first.iter().filter(|(problem, _, _)| *problem != at.row).collect();
        if others.is_empty() {
            return None;
        }
        let (problem, from_block, _) = others[ChaCha8Rng::from_seed(key).random_range(0..others.len())];
        let donor = self.donors.get(step)?.iter().find(|(p, b, _)| p == problem && b == from_block)?;
        Some(donor.2.to_vec())
    }
}
