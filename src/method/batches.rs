//! Which samples make up step `n`: a function of seed, phase and step alone, so that a resumed run draws the same ones.

use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::random::{fnv1a, keyed};
use crate::text::Sample;

/// Batches sorted by length before they are cut: a batch of like lengths has little padding.
const BUCKET: usize = 16;

/// What each sample costs, in tokens.
pub(crate) fn lengths_of(samples: &[Sample]) -> Vec<usize> {
    samples.iter().map(Sample::length).collect()
}

/// Steps of one pass over `samples` samples.
pub(crate) fn per_epoch(samples: usize, batch: usize) -> usize {
    (samples / batch.min(samples).max(1)).max(1)
}

/// Steps of a phase whose recipe names steps, or passes over the data.
pub(crate) fn steps_of(steps: usize, epochs: f64, per_epoch: usize) -> usize {
    steps.max((epochs * per_epoch as f64).ceil() as usize)
}

/// The order of batches over a corpus.
#[derive(Clone, Debug)]
pub(crate) struct Batches {
    lengths: Vec<usize>,
    batch: usize,
    seed: u64,
}

impl Batches {
    /// `lengths[i]` is what sample i costs; a batch never exceeds the corpus.
    pub fn new(lengths: Vec<usize>, batch: usize, seed: u64, phase: &str) -> Self {
        let batch = batch.min(lengths.len()).max(1);
        Self { lengths, batch, seed: seed ^ fnv1a(phase.bytes()) }
    }

    pub(crate) fn per_epoch(&self) -> usize {
        per_epoch(self.lengths.len(), self.batch)
    }

    /// Indices of the samples of a step (from 0). Each epoch is a new permutation; its odd rest is left out.
    pub(crate) fn indices(&self, step: usize) -> Vec<usize> {
        let per_epoch = self.per_epoch();
        let (epoch, within) = (step / per_epoch, step % per_epoch);
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed.wrapping_add(epoch as u64));
        let mut order: Vec<usize> = (0..self.lengths.len()).collect();
        order.shuffle(&mut rng);
        // Whole buckets are shuffled as they are: only this step's bucket is sorted and cut.
        let bucket = within / BUCKET;
        let size = BUCKET * self.batch;
        let end = ((bucket + 1) * size).min(per_epoch * self.batch);
        let mut members = order[bucket * size..end].to_vec();
        members.sort_by_key(|&i| (self.lengths[i], i));
        let mut cut: Vec<Vec<usize>> = members.chunks(self.batch).map(<[usize]>::to_vec).collect();
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed ^ fnv1a(format!("{epoch}/{bucket}").bytes()));
        cut.shuffle(&mut rng);
        cut.swap_remove(within % BUCKET)
    }
}

/// A generator that belongs to one sample of one step.
pub(crate) fn sample_rng(seed: u64, phase: &str, step: usize, sample: usize) -> impl Rng {
    keyed([seed, fnv1a(phase.bytes()), step as u64, sample as u64])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_visits_every_sample_once() {
        let lengths = (0..100).map(|i| i % 7).collect();
        let batches = Batches::new(lengths, 5, 3, "base");
        for epoch in 0..2 {
            let mut seen: Vec<usize> = (0..20).flat_map(|s| batches.indices(epoch * 20 + s)).collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..100).collect::<Vec<_>>());
        }
        assert_ne!(batches.indices(0), batches.indices(20));
        assert_eq!(batches.indices(7), batches.indices(7));
    }
}
