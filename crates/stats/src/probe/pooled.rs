//! Out-of-fold predictions pooled over folds, and their scores as functions of how often each problem is counted, for a
//! cluster bootstrap. Knows scores and labels, not how they were predicted.

use super::super::{Groups, Rates, classify::weighted_auroc_parts};

/// One fold's test rows with the log-odds of its probe.
pub(super) struct Fold {
    pub rows: Vec<usize>,
    pub scores: Vec<f64>,
    /// The C chosen inside this fold's training rows.
    pub c: f64,
    pub converged: bool,
}

/// Inputs of the scores, precomputed per problem.
pub(super) struct PooledSums {
    /// Per group: [positives called positive, positives, negatives called negative, negatives].
    counts: Vec<[f64; 4]>,
    /// Per fold: (score, label, group) sorted upwards by score.
    ranked: Vec<Vec<(f64, bool, usize)>>,
}

impl PooledSums {
    pub fn new(folds: &[Fold], labels: &[bool], groups: &Groups) -> Self {
        let mut counts = vec![[0.0; 4]; groups.len()];
        let mut ranked = Vec::with_capacity(folds.len());
        for fold in folds {
            let mut items: Vec<(f64, bool, usize)> = Vec::with_capacity(fold.rows.len());
            for (&row, &score) in fold.rows.iter().zip(&fold.scores) {
                let (label, group) = (labels[row], groups.of_row[row]);
                let class = if label { 0 } else { 2 };
                counts[group][class] += f64::from(u8::from((score > 0.0) == label));
                counts[group][class + 1] += 1.0;
                items.push((score, label, group));
            }
            items.sort_by(|a, b| a.0.total_cmp(&b.0));
            ranked.push(items);
        }
        Self { counts, ranked }
    }

    /// Rates with group g counted `times[g]` times; NaN where a class is absent.
    pub fn rates(&self, times: &[u32]) -> Rates {
        let mut sum = [0.0; 4];
        for (counts, &times) in self.counts.iter().zip(times) {
            sum.iter_mut().zip(counts).for_each(|(s, c)| *s += f64::from(times) * c);
        }
        Rates { tpr: sum[0] / sum[1], tnr: sum[2] / sum[3] }
    }

    /// Area under the ROC curve over pairs within a fold: scores of different folds come from different probes and have no common scale.
    pub fn auroc(&self, times: &[u32]) -> f64 {
        let (mut wins, mut pairs) = (0.0, 0.0);
        for fold in &self.ranked {
            let items = fold.iter().map(|&(score, label, group)| (score, label, f64::from(times[group])));
            let (w, p) = weighted_auroc_parts(items);
            wins += w;
            pairs += p;
        }
        wins / pairs
    }
}
