//! L2-regularised logistic regression, fitted by `linfa-logistic`, with scikit-learn's meaning of `C`.
//! Knows a matrix and two classes; knows nothing of splits or of what the columns are.
//!
//! linfa minimises `Σ log(1 + exp(−y z)) + α/2 · |w|²` (a sum, intercept free); scikit-learn minimises
//! `C · Σ log(1 + exp(−y z)) + 1/2 · |w|²`. They agree at `α = 1/C`.

use anyhow::{Context, Result, ensure};
use linfa::traits::Fit;
use linfa::{Dataset, DatasetBase};
use linfa_logistic::LogisticRegression;
use ndarray::{Array1, Array2, ArrayView2, Axis, ShapeBuilder, s};

use super::{classify::both_classes, scale::all_finite};

/// Iterations before a fit is given up as unconverged.
const MAX_ITERATIONS: u64 = 2000;

/// Norm of the mean gradient (in scaled coordinates) at which a fit stops; scikit-learn's own default is 1e-4.
const TOLERANCE: f64 = 1e-6;

/// A fitted model: `z = x · weights + intercept`, positive where `z > 0`.
#[derive(Clone, Debug)]
pub struct Logistic {
    pub weights: Array1<f64>,
    pub intercept: f64,
    /// Whether the gradient came within ten times the tolerance. If not, the weights are the best found.
    pub converged: bool,
}

impl Logistic {
    /// Fits `labels` on `x` [rows, columns] with inverse regularisation strength `c` (scikit-learn's `C`).
    pub fn fit(x: ArrayView2<'_, f64>, labels: &[bool], c: f64) -> Result<Self> {
        Ok(Self::path(x, labels, &[c], TOLERANCE)?.remove(0))
    }

    /// One fit per value of `grid`, each started from the last (sort it upwards), to a tolerance on the mean gradient.
    pub fn path(x: ArrayView2<'_, f64>, labels: &[bool], grid: &[f64], tolerance: f64) -> Result<Vec<Self>> {
        ensure!(x.nrows() == labels.len(), "{} feature rows but {} labels", x.nrows(), labels.len());
        ensure!(x.ncols() > 0, "features have no columns");
        ensure!(tolerance > 0.0, "tolerance must be positive, got {tolerance}");
        both_classes(labels)?;
        all_finite(x)?;
        // The intercept is free, so centring moves only the intercept; one common scale s moves alpha by s². Both leave the
        // optimum where it is, and L-BFGS then starts from a problem of ordinary size whatever the model's activations are.
        let mean = x.mean_axis(Axis(0)).context("features have no rows")?;
        // Stored by columns: linfa's gradient walks down them, eight times faster than across.
        let mut centred = Array2::zeros(x.raw_dim().f());
        centred.assign(&(&x - &mean));
        let rms = (centred.iter().map(|v| v * v).sum::<f64>() / centred.len() as f64).sqrt();
        let scale = if rms > 0.0 { rms } else { 1.0 };
        centred /= scale;
        let data = Dataset::new(centred, Array1::from(labels.to_vec()));
        let mut start = Array1::zeros(x.ncols() + 1);
        let mut models = Vec::with_capacity(grid.len());
        for &c in grid {
            ensure!(c.is_finite() && c > 0.0, "C must be positive and finite, got {c}");
            let alpha = 1.0 / (c * scale * scale);
            start = solve(&data, alpha, start, tolerance)?;
            let (weights, free) = (start.slice(s![..x.ncols()]).to_owned(), start[x.ncols()]);
            let converged = mean_gradient(&data, alpha, &weights, free) <= 10.0 * tolerance;
            let weights = weights / scale;
            let intercept = free - weights.dot(&mean);
            models.push(Self { weights, intercept, converged });
        }
        Ok(models)
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

/// Runs linfa's L-BFGS from `start` (weights, then intercept) and returns the same.
fn solve(data: &Rows, alpha: f64, start: Array1<f64>, tolerance: f64) -> Result<Array1<f64>> {
    let (rows, columns) = data.records.dim();
    // linfa calls the more frequent class positive, the one it meets first where both are equal; `true` is positive here.
    let positives = data.targets.iter().filter(|&&y| y).count();
    let flipped = 2 * positives < rows || (2 * positives == rows && !data.targets[0]);
    let sign = if flipped { -1.0 } else { 1.0 };
    let mut stop = tolerance * rows as f64;
    // argmin's line search ends in an error once rounding hides the descent (argmin issue 400) and then returns no
    // parameters. The path is deterministic, so a looser stop returns the last good point of the same path.
    let fitted = loop {
        let settings = LogisticRegression::default()
            .alpha(alpha)
            .max_iterations(MAX_ITERATIONS)
            .gradient_tolerance(stop)
            .initial_params(&start * sign);
        match settings.fit(data) {
            Ok(fitted) => break fitted,
            Err(_) if stop < 1e-2 * rows as f64 => stop *= 10.0,
            Err(error) => {
                return Err(error)
                    .with_context(|| format!("logistic fit of {rows} rows × {columns} columns, alpha {alpha:.3e}"));
            }
        }
    };
    let sign = if fitted.labels().pos.class { 1.0 } else { -1.0 };
    let mut end = start;
    end.slice_mut(s![..columns]).assign(fitted.params());
    end[columns] = fitted.intercept();
    Ok(end * sign)
}

type Rows = DatasetBase<Array2<f64>, Array1<bool>>;

/// Norm of the objective's gradient divided by the number of rows; linfa does not say whether it converged.
fn mean_gradient(data: &Rows, alpha: f64, weights: &Array1<f64>, intercept: f64) -> f64 {
    let z = data.records.dot(weights) + intercept;
    let residual: Array1<f64> =
        z.iter().zip(&data.targets).map(|(z, &y)| 1.0 / (1.0 + (-z).exp()) - f64::from(u8::from(y))).collect();
    let slope = data.records.t().dot(&residual) + alpha * weights;
    (slope.dot(&slope) + residual.sum().powi(2)).sqrt() / z.len() as f64
}
