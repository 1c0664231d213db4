//! L2-regularised multinomial logistic regression with scikit-learn's meaning of `C`: the minimum of
//! `C · Σ −log p(class | x) + 1/2 · |W|²`, intercepts free. Knows a matrix and class numbers.
//!
//! linfa's log-sum-exp uses one maximum over all rows: rows whose logits are some 35 below it are scored wrongly, as they do
//! with C above 1.

use anyhow::{Context, Result, ensure};
use ndarray::{Array1, Array2, ArrayView2, Axis};

use super::distinct;
use super::lbfgs::{add, dot, minimise};
use super::scale::all_finite;

/// A fitted model; it predicts the classes it has seen.
#[derive(Clone, Debug)]
pub struct Softmax {
    /// Those seen, ascending.
    classes: Vec<usize>,
    /// [classes, columns]
    weights: Array2<f64>,
    intercepts: Array1<f64>,
}

impl Softmax {
    /// Fits classes on `x` [rows, columns], which should be standardised, with inverse regularisation strength `c`.
    pub fn fit(x: ArrayView2<'_, f64>, classes: &[usize], c: f64) -> Result<Self> {
        Ok(Self::path(x, classes, &[c], 1e-6)?.remove(0))
    }

    /// One fit per value of `grid`, each started from the last (sort it upwards), to a tolerance on the mean gradient.
    pub(crate) fn path(x: ArrayView2<'_, f64>, values: &[usize], grid: &[f64], tolerance: f64) -> Result<Vec<Self>> {
        ensure!(tolerance > 0.0, "tolerance must be positive, got {tolerance}");
        ensure!(x.nrows() == values.len(), "{} feature rows but {} labels", x.nrows(), values.len());
        ensure!(x.nrows() > 0 && x.ncols() > 0, "features are empty ({} × {})", x.nrows(), x.ncols());
        let classes = distinct(values);
        ensure!(classes.len() > 1, "single class: all {} labels are {}", values.len(), values[0]);
        all_finite(x)?;
        let (rows, columns, k) = (x.nrows() as f64, x.ncols(), classes.len());
        let x = x.as_standard_layout();
        let flat = x.as_slice().context("the features are not contiguous")?;
        let own: Vec<usize> = values.iter().map(|value| classes.partition_point(|class| class < value)).collect();
        // Weights by class, then intercepts.
        let mut start = vec![0.0; k * columns + k];
        let mut models = Vec::with_capacity(grid.len());
        for &c in grid {
            ensure!(c.is_finite() && c > 0.0, "C must be positive and finite, got {c}");
            let penalty = 1.0 / (c * rows);
            let (end, _) = minimise(start, tolerance, |w, gradient| {
                let (w, free) = w.split_at(k * columns);
                gradient.fill(0.0);
                let (mut loss, mut scores) = (0.0, vec![0.0; k]);
                for (row, &own) in flat.chunks_exact(columns).zip(&own) {
                    for (class, score) in scores.iter_mut().enumerate() {
                        *score = dot(row, &w[class * columns..(class + 1) * columns]) + free[class];
                    }
                    let score = scores[own];
                    let log_sum = to_probabilities(&mut scores);
                    loss += log_sum - score;
                    scores[own] -= 1.0;
                    for (class, off) in scores.iter().map(|off| off / rows).enumerate() {
                        add(&mut gradient[class * columns..(class + 1) * columns], off, row);
                        gradient[k * columns + class] += off;
                    }
                }
                add(gradient, penalty, w);
                loss / rows + 0.5 * penalty * dot(w, w)
            });
            let weights = Array2::from_shape_vec((k, columns), end[..k * columns].to_vec())?;
            let intercepts = Array1::from(end[k * columns..].to_vec());
            models.push(Self { classes: classes.clone(), weights, intercepts });
            start = end;
        }
        Ok(models)
    }

    /// The most probable class of each row.
    pub fn predict(&self, x: ArrayView2<'_, f64>) -> Vec<usize> {
        let most = |row: ndarray::ArrayView1<f64>| {
            let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(class, _)| class);
            self.classes[best]
        };
        self.probabilities(x).rows().into_iter().map(most).collect()
    }

    /// Probability of each class [rows, classes], classes in ascending order of those seen.
    pub fn probabilities(&self, x: ArrayView2<'_, f64>) -> Array2<f64> {
        let mut scores = x.dot(&self.weights.t()) + &self.intercepts;
        for mut row in scores.axis_iter_mut(Axis(0)) {
            let mut held = row.to_vec();
            to_probabilities(&mut held);
            row.assign(&Array1::from(held));
        }
        scores
    }
}

/// Softmax in place; returns the logarithm of the sum of exponentials.
fn to_probabilities(scores: &mut [f64]) -> f64 {
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    scores.iter_mut().for_each(|score| *score = (*score - largest).exp());
    let sum: f64 = scores.iter().sum();
    scores.iter_mut().for_each(|score| *score /= sum);
    largest + sum.ln()
}
