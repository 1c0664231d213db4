//! Scores of a two-class prediction. Knows labels, predictions and scores, not where they come from.

use anyhow::{Result, bail, ensure};
use serde::{Deserialize, Serialize};

/// True positive and true negative rate: what does not change when the share of positives does.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Share of positives predicted positive (sensitivity).
    pub tpr: f64,
    /// Share of negatives predicted negative (specificity).
    pub tnr: f64,
}

impl Rates {
    /// Rates of `predicted` against `labels`; both classes must occur.
    pub fn new(labels: &[bool], predicted: &[bool]) -> Result<Self> {
        ensure!(labels.len() == predicted.len(), "{} labels but {} predictions", labels.len(), predicted.len());
        let (positives, negatives) = both_classes(labels)?;
        let hits = |class: bool| labels.iter().zip(predicted).filter(|(l, p)| **l == class && **p == class).count();
        Ok(Self { tpr: hits(true) as f64 / positives as f64, tnr: hits(false) as f64 / negatives as f64 })
    }

    /// (TPR + TNR) / 2: accuracy if both classes are equally frequent; chance is 0.5 for any balance.
    pub fn balanced_accuracy(&self) -> f64 {
        0.5 * (self.tpr + self.tnr)
    }

    /// Accuracy if a share `prevalence` is positive. Compare with `max(prevalence, 1 − prevalence)`, the score of a
    /// constant prediction.
    pub fn accuracy_at(&self, prevalence: f64) -> f64 {
        prevalence * self.tpr + (1.0 - prevalence) * self.tnr
    }

    /// Precision (positive predictive value) if a share `prevalence` is positive; NaN if nothing is predicted positive.
    pub fn precision_at(&self, prevalence: f64) -> f64 {
        let (hit, alarm) = (prevalence * self.tpr, (1.0 - prevalence) * (1.0 - self.tnr));
        hit / (hit + alarm)
    }
}

/// Mean of the two classes' recalls.
pub fn balanced_accuracy(labels: &[bool], predicted: &[bool]) -> Result<f64> {
    Ok(Rates::new(labels, predicted)?.balanced_accuracy())
}

/// Area under the ROC curve: the chance that a random positive scores above a random negative, ties counted half
/// (Mann–Whitney U / (n₊ n₋)).
pub fn auroc(labels: &[bool], scores: &[f64]) -> Result<f64> {
    ensure!(labels.len() == scores.len(), "{} labels but {} scores", labels.len(), scores.len());
    if let Some((i, s)) = scores.iter().enumerate().find(|(_, s)| s.is_nan()) {
        bail!("score number {i} is {s}; AUROC needs an order");
    }
    both_classes(labels)?;
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[a].total_cmp(&scores[b]));
    let items = order.iter().map(|&i| (scores[i], labels[i], 1.0));
    let (wins, pairs) = weighted_auroc_parts(items);
    Ok(wins / pairs)
}

/// Won pairs and all pairs (positive, negative) of `(score, label, weight)` sorted upwards by score; their ratio is the
/// AUROC. Serves the bootstrap, where a row's weight is how often its group was drawn.
pub(crate) fn weighted_auroc_parts(sorted: impl Iterator<Item = (f64, bool, f64)>) -> (f64, f64) {
    let (mut below, mut tied_neg, mut tied_pos, mut wins, mut positives) = (0.0, 0.0, 0.0, 0.0, 0.0);
    let mut last = f64::NEG_INFINITY;
    for (score, label, weight) in sorted {
        if score > last {
            wins += tied_pos * (below + 0.5 * tied_neg);
            below += tied_neg;
            (tied_neg, tied_pos, last) = (0.0, 0.0, score);
        }
        if label {
            tied_pos += weight;
            positives += weight;
        } else {
            tied_neg += weight;
        }
    }
    wins += tied_pos * (below + 0.5 * tied_neg);
    (wins, positives * (below + tied_neg))
}

/// Counts of (positives, negatives), or which class is missing.
pub(crate) fn both_classes(labels: &[bool]) -> Result<(usize, usize)> {
    ensure!(!labels.is_empty(), "no rows to score");
    let positives = labels.iter().filter(|&&l| l).count();
    ensure!(positives > 0, "single class: none of the {} labels is positive", labels.len());
    ensure!(positives < labels.len(), "single class: all {} labels are positive", labels.len());
    Ok((positives, labels.len() - positives))
}
