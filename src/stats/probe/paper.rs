//! The paper's probe, exactly: "a balanced l2-regularised logistic classifier (C = 1.0) with an 80:20 train/test split"
//! (appendix, *Probe details*). Knows no problems: rows of one problem may sit on both sides, which flatters the score.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::super::{Estimate, LEVEL, Logistic, Split, holdout, wilson};
use super::{ProbeData, balance, pick};

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

impl Default for PaperProtocol {
    fn default() -> Self {
        Self { c: 1.0, test_share: 0.2, seed: 0 }
    }
}

/// What the paper's protocol yields.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PaperScore {
    /// Test accuracy. The Wilson interval takes the test rows for independent, as the protocol does; it is too narrow where
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
