//! L2-regularised logistic regression, fitted by `linfa-logistic`, with scikit-learn's meaning of `C`.
//! Knows a matrix and two classes; knows nothing of splits or of what the columns are.
//!
//! linfa minimises `Σ log(1 + exp(−y z)) + α/2 · |w|²` (a sum, intercept free); scikit-learn minimises
//! `C · Σ log(1 + exp(−y z)) + 1/2 · |w|²`. They agree at `α = 1/C`.

use anyhow::{Context, Result, ensure};
use linfa::Dataset;
use linfa::traits::Fit;
use linfa_logistic::LogisticRegression;
use ndarray::{Array1, Array2, ArrayView2, Axis};

use super::{classify::both_classes, scale::all_finite};

/// Iterations before a fit is given up as unconverged.
const MAX_ITERATIONS: u64 = 2000;

/// Norm of the mean gradient (in scaled coordinates) at which a fit counts as converged; scikit-learn stops at 1e-4.
const TOLERANCE: f64 = 1e-7;

/// A fitted model: `z = x · weights + intercept`, positive where `z > 0`.
#[derive(Clone, Debug)]
pub struct Logistic {
    pub weights: Array1<f64>,
    pub intercept: f64,
    /// Whether the gradient met the tolerance. If not, the weights are the best found.
    pub converged: bool,
}

impl Logistic {
    /// Fits `labels` on `x` [rows, columns] with inverse regularisation strength `c` (scikit-learn's `C`).
    pub fn fit(x: ArrayView2<'_, f64>, labels: &[bool], c: f64) -> Result<Self> {
        ensure!(
            x.nrows() == labels.len(),
            "{} feature rows but {} labels",
            x.nrows(),
            labels.len()
        );
        ensure!(x.ncols() > 0, "features have no columns");
        ensure!(
            c.is_finite() && c > 0.0,
            "C must be positive and finite, got {c}"
        );
        both_classes(labels)?;
        all_finite(x)?;
        // The intercept is free, so centring moves only the intercept; one common scale s moves alpha by s². Both leave the
        // optimum where it is, and L-BFGS then starts from a problem of ordinary size whatever the model's activations are.
        let mean = x.mean_axis(Axis(0)).context("features have no rows")?;
        let mut centred = &x - &mean;
        let rms = (centred.iter().map(|v| v * v).sum::<f64>() / centred.len() as f64).sqrt();
        let scale = if rms > 0.0 { rms } else { 1.0 };
        centred /= scale;
        let (weights, intercept, converged) = solve(centred, labels, 1.0 / (c * scale * scale))?;
        let weights = weights / scale;
        let intercept = intercept - weights.dot(&mean);
        Ok(Self {
            weights,
            intercept,
            converged,
        })
    }

    /// The log-odds `z` of each row.
    pub fn scores(&self, x: ArrayView2<'_, f64>) -> Array1<f64> {
        x.dot(&self.weights) + self.intercept
    }

    /// `z > 0` for each row.
    pub fn predict(&self, x: ArrayView2<'_, f64>) -> Vec<bool> {
        self.scores(x).iter().map(|&z| z > 0.0).collect()
    }
}

/// Runs linfa's L-BFGS; returns weights, intercept and whether the gradient met [`TOLERANCE`].
fn solve(x: Array2<f64>, labels: &[bool], alpha: f64) -> Result<(Array1<f64>, f64, bool)> {
    let rows = x.nrows() as f64;
    let data = Dataset::new(x, Array1::from(labels.to_vec()));
    let mut tolerance = TOLERANCE * rows;
    // argmin's line search ends in an error once rounding hides the descent (argmin issue 400) and then returns no
    // parameters. The path is deterministic, so a looser stop returns the last good point of the same path.
    let fitted = loop {
        let settings = LogisticRegression::default()
            .alpha(alpha)
            .max_iterations(MAX_ITERATIONS)
            .gradient_tolerance(tolerance);
        match settings.fit(&data) {
            Ok(fitted) => break fitted,
            Err(_) if tolerance < 1e-2 * rows => tolerance *= 10.0,
            Err(error) => {
                return Err(error).with_context(|| {
                    format!(
                        "logistic fit of {rows} rows × {} columns, alpha {alpha:.3e}",
                        data.records.ncols()
                    )
                });
            }
        }
    };
    // linfa calls the more frequent class positive; turn the sign so that `true` is positive.
    let sign = if fitted.labels().pos.class { 1.0 } else { -1.0 };
    let (weights, intercept) = (fitted.params() * sign, fitted.intercept() * sign);
    let gradient = mean_gradient(&data.records, labels, alpha, &weights, intercept);
    Ok((weights, intercept, gradient <= 100.0 * TOLERANCE))
}

/// Norm of the objective's gradient divided by the number of rows; linfa does not say whether it converged.
fn mean_gradient(
    x: &Array2<f64>,
    labels: &[bool],
    alpha: f64,
    weights: &Array1<f64>,
    intercept: f64,
) -> f64 {
    let z = x.dot(weights) + intercept;
    let residual: Array1<f64> = z
        .iter()
        .zip(labels)
        .map(|(z, &y)| 1.0 / (1.0 + (-z).exp()) - f64::from(u8::from(y)))
        .collect();
    let slope = x.t().dot(&residual) + alpha * weights;
    (slope.dot(&slope) + residual.sum().powi(2)).sqrt() / x.nrows() as f64
}
