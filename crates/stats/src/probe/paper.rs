//! The paper's probe, exactly: "a balanced l2-regularised logistic classifier (C = 1.0) with an 80:20 train/test split"
//! (appendix, *Probe details*). Knows no problems: rows of one problem may sit on both sides, which flatters the score.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::super::{Estimate, LEVEL, Logistic, Split, holdout, wilson};
use super::{ProbeData, balance, pick};

/// Layers of the paper's model, Qwen3-8B.
pub const PAPER_LAYERS: usize = 36;
/// The layers it probes, counted from the last one (which is 1), earliest first.
const PAPER_OFFSETS: [usize; 7] = [24, 20, 16, 12, 8, 4, 1];

/// The layer (from 1) of a model of `depth` layers at the same relative depth as the paper's offset.
pub fn paper_layer(offset: usize, depth: usize) -> usize {
    ((2 * passed(offset) * depth + PAPER_LAYERS) / (2 * PAPER_LAYERS)).clamp(1, depth.max(1))
}

/// The paper's offsets in a model of `depth` layers, as (offset, layer), earliest first. Where several offsets fall on one
/// layer, only the nearest of them is listed, the earlier one at a tie.
pub fn paper_layers(depth: usize) -> Vec<(usize, usize)> {
    let off = |offset: usize| (paper_layer(offset, depth) * PAPER_LAYERS).abs_diff(passed(offset) * depth);
    let mut out: Vec<(usize, usize)> = vec![];
    for offset in PAPER_OFFSETS {
        let layer = paper_layer(offset, depth);
        match out.last_mut() {
            Some(held) if held.1 == layer => {
                if off(offset) < off(held.0) {
                    held.0 = offset;
                }
            }
            _ => out.push((offset, layer)),
        }
    }
    out
}

/// Layers of the paper's model up to and including its offset.
fn passed(offset: usize) -> usize {
    (PAPER_LAYERS + 1).saturating_sub(offset)
}

protocol! {
    /// Settings of the paper's protocol; the defaults are the paper's.
    #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct PaperProtocol {
        /// Inverse regularisation strength, in scikit-learn's meaning.
        pub c: f64,
        /// Share of rows held out.
        pub test_share: f64,
        /// Seed of the balancing and of the split.
        pub seed: u64,
    }
}

impl Default for PaperProtocol {
    fn default() -> Self {
        Self { c: 1.0, test_share: 0.2, seed: 0 }
    }
}

/// Result of the paper's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PaperScore {
    /// Test accuracy. The Wilson interval treats test rows as independent, as the protocol does; it is too narrow if
    /// a problem contributes several.
    pub accuracy: Estimate,
    /// Accuracy on the rows trained on: far above `accuracy` means the probe had room to memorise.
    pub train_accuracy: f64,
    pub train_rows: usize,
    pub converged: bool,
}

impl PaperProtocol {
    /// Balances the rows, splits them once, fits, scores.
    pub fn run<F: Copy + Into<f64> + Sync>(&self, data: &ProbeData<'_, F>) -> Result<PaperScore> {
        let all: Vec<usize> = (0..data.labels.len()).collect();
        let kept = balance(&all, data.labels, self.seed);
        let split = holdout(kept.len(), self.test_share, self.seed)?;
        let split = Split { train: pick(&kept, &split.train), test: pick(&kept, &split.test) };
        self.score(data, &split)
    }

    /// Fits and scores on a given split of the rows, raw features.
    pub fn score<F: Copy + Into<f64> + Sync>(&self, data: &ProbeData<'_, F>, split: &Split) -> Result<PaperScore> {
        let labels = pick(data.labels, &split.train);
        let train = data.rows(&split.train);
        let model = Logistic::fit(train.view(), &labels, self.c).context("paper-protocol probe, training rows")?;
        let right = |predicted: Vec<bool>, rows: &[usize]| {
            predicted.iter().zip(rows).filter(|&(p, &r)| *p == data.labels[r]).count()
        };
        let test_right = right(model.predict(data.rows(&split.test).view()), &split.test);
        let train_right = right(model.predict(train.view()), &split.train);
        Ok(PaperScore {
            accuracy: wilson(test_right, split.test.len(), LEVEL)?,
            train_accuracy: train_right as f64 / split.train.len() as f64,
            train_rows: split.train.len(),
            converged: model.converged,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_offsets_lie_at_the_same_share_of_depth_each_layer_once() {
        assert_eq!(paper_layers(4), [(24, 1), (20, 2), (12, 3), (1, 4)]);
        assert_eq!(paper_layers(6), [(24, 2), (20, 3), (12, 4), (8, 5), (1, 6)]);
        assert_eq!(paper_layers(30), [(24, 11), (20, 14), (16, 18), (12, 21), (8, 24), (4, 28), (1, 30)]);
        assert_eq!(paper_layers(36), [(24, 13), (20, 17), (16, 21), (12, 25), (8, 29), (4, 33), (1, 36)]);
        assert_eq!(paper_layers(1), [(1, 1)]);
        // One layer is at most half a layer from where the paper's lies.
        for depth in 1..=80 {
            for (offset, layer) in paper_layers(depth) {
                let share = (PAPER_LAYERS + 1 - offset) as f64 / PAPER_LAYERS as f64;
                assert!((share * depth as f64 - layer as f64).abs() <= 0.5, "offset {offset} of {depth} layers");
            }
        }
    }
}
