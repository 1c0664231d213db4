//! L2-regularised logistic regression with scikit-learn's meaning of `C`: the minimum of
//! `C · Σ log(1 + exp(−y z)) + 1/2 · |w|²`, the intercept free. Knows a matrix and two classes; knows nothing of splits or of what the
//! columns are.
//!
//! `linfa-logistic` fits first, to a loose tolerance; L-BFGS continues from there to a tight one. linfa's own line search ends in an error
//! once rounding hides the descent (argmin issue 400).

use anyhow::{Context, Result, ensure};
use linfa::Dataset;
use linfa::traits::Fit;
use linfa_logistic::LogisticRegression;
use ndarray::{Array1, Array2, ArrayView2, Axis, ShapeBuilder};

use super::classify::both_classes;
use super::lbfgs::{add, dot, minimise};
use super::scale::all_finite;

/// Norm of the mean gradient (in scaled coordinates) at which a fit stops; scikit-learn's own default is 1e-4.
const TOLERANCE: f64 = 1e-7;

/// The norm at which linfa's fit stops, and its most iterations.
const LOOSE: (f64, u64) = (1e-3, 200);

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
        // The intercept is free, so centring moves only the intercept; one common scale s moves the penalty by s². Both leave the
        // optimum unchanged, and the search is well scaled whatever the scale of the model's activations.
        let mean = x.mean_axis(Axis(0)).context("features have no rows")?;
        let mut centred: Array2<f64> = (&x - &mean).as_standard_layout().into_owned();
        let rms = (centred.iter().map(|v| v * v).sum::<f64>() / centred.len() as f64).sqrt();
        let scale = if rms > 0.0 { rms } else { 1.0 };
        centred /= scale;
        let (rows, columns) = (x.nrows() as f64, x.ncols());
        let flat = centred.as_slice().context("the features are not contiguous")?;
        let mut start = None;
        let mut models = Vec::with_capacity(grid.len());
        for &c in grid {
            ensure!(c.is_finite() && c > 0.0, "C must be positive and finite, got {c}");
            let penalty = 1.0 / (c * scale * scale * rows);
            let begin = start.unwrap_or_else(|| begin(&centred, labels, penalty * rows));
            let (end, norm) = minimise(begin, tolerance, |w, gradient| {
                let (w, free) = w.split_at(columns);
                gradient.fill(0.0);
                let mut loss = 0.0;
                for (row, &label) in flat.chunks_exact(columns).zip(labels) {
                    let z = dot(row, w) + free[0];
                    let wrong = if label { -z } else { z };
                    // log(1 + exp(wrong)), and its slope in z.
                    loss += wrong.max(0.0) + (-wrong.abs()).exp().ln_1p();
                    let off = 1.0 / (1.0 + (-wrong).exp()) * if label { -1.0 } else { 1.0 } / rows;
                    add(&mut gradient[..columns], off, row);
                    gradient[columns] += off;
                }
                add(gradient, penalty, w);
                loss / rows + 0.5 * penalty * dot(w, w)
            });
            let weights = Array1::from(end[..columns].to_vec()) / scale;
            let intercept = end[columns] - weights.dot(&mean);
            models.push(Self { weights, intercept, converged: norm <= 10.0 * tolerance });
            start = Some(end);
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

/// linfa's fit of `Σ log(1 + exp(−y z)) + α/2 · |w|²`: weights, then intercept; zeros if it fails.
fn begin(centred: &Array2<f64>, labels: &[bool], alpha: f64) -> Vec<f64> {
    // Stored by columns: linfa's gradient walks down them, eight times faster than across.
    let mut records = Array2::zeros(centred.raw_dim().f());
    records.assign(centred);
    let data = Dataset::new(records, Array1::from(labels.to_vec()));
    let (stop, most) = (LOOSE.0 * labels.len() as f64, LOOSE.1);
    let zeros = vec![0.0; centred.ncols() + 1];
    let settings = LogisticRegression::default().alpha(alpha).max_iterations(most).gradient_tolerance(stop);
    let Ok(fitted) = settings.fit(&data) else { return zeros };
    // linfa calls the more frequent class positive, or the first one in the data at a tie; `true` is positive here.
    let sign = if fitted.labels().pos.class { 1.0 } else { -1.0 };
    let found: Vec<f64> = fitted.params().iter().copied().chain([fitted.intercept()]).map(|x| sign * x).collect();
    if found.iter().all(|x| x.is_finite()) { found } else { zeros }
}
