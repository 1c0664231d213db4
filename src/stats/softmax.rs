//! L2-regularised multinomial logistic regression, fitted by `linfa-logistic`, with scikit-learn's meaning of `C`.
//! Knows a matrix and class numbers; see `logistic` for how linfa's alpha and scikit-learn's C agree.
//!
//! linfa takes one maximum over all rows in its log-sum-exp, so rows whose logits lie some 35 below the largest of the whole
//! matrix are scored wrongly; on standardised columns with C <= 1 logits stay far within that.

use anyhow::{Context, Result, ensure};
use linfa::Dataset;
use linfa::traits::{Fit, Predict};
use linfa_logistic::{MultiFittedLogisticRegression, MultiLogisticRegression};
use ndarray::{Array1, Array2, ArrayView2};

use super::scale::all_finite;

/// A fitted model; it predicts the classes it has seen.
#[derive(Clone, Debug)]
pub struct Softmax {
    model: MultiFittedLogisticRegression<f64, usize>,
}

impl Softmax {
    /// Fits classes on `x` [rows, columns], which should be standardised, with inverse regularisation strength `c`.
    pub fn fit(x: ArrayView2<'_, f64>, classes: &[usize], c: f64) -> Result<Self> {
        Self::fit_to(x, classes, c, 1e-5)
    }

    /// The same to a tolerance on the mean gradient.
    pub(crate) fn fit_to(x: ArrayView2<'_, f64>, classes: &[usize], c: f64, tolerance: f64) -> Result<Self> {
        ensure!(tolerance > 0.0, "tolerance must be positive, got {tolerance}");
        ensure!(x.nrows() == classes.len(), "{} feature rows but {} labels", x.nrows(), classes.len());
        ensure!(x.nrows() > 0 && x.ncols() > 0, "features are empty ({} × {})", x.nrows(), x.ncols());
        ensure!(c.is_finite() && c > 0.0, "C must be positive and finite, got {c}");
        ensure!(
            classes.iter().any(|k| *k != classes[0]),
            "single class: all {} labels are {}",
            classes.len(),
            classes[0]
        );
        all_finite(x)?;
        let data = Dataset::new(x.to_owned(), Array1::from(classes.to_vec()));
        let rows = x.nrows() as f64;
        let mut tolerance = tolerance * rows;
        // As in `logistic`: a line search that fails at rounding level is repeated with an earlier stop.
        loop {
            let settings =
                MultiLogisticRegression::default().alpha(1.0 / c).max_iterations(1000).gradient_tolerance(tolerance);
            match settings.fit(&data) {
                Ok(model) => return Ok(Self { model }),
                Err(_) if tolerance < 1e-2 * rows => tolerance *= 10.0,
                Err(error) => {
                    return Err(error)
                        .with_context(|| format!("multinomial fit of {rows} rows × {} columns", x.ncols()));
                }
            }
        }
    }

    /// The most probable class of each row.
    pub fn predict(&self, x: ArrayView2<'_, f64>) -> Vec<usize> {
        self.model.predict(&x).to_vec()
    }

    /// Probability of each class [rows, classes], classes in ascending order of those seen.
    pub fn probabilities(&self, x: ArrayView2<'_, f64>) -> Array2<f64> {
        self.model.predict_probabilities(&x)
    }
}
