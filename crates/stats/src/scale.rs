//! Standardisation whose mean and scale come from the training rows alone. Knows columns of numbers.

use anyhow::{Result, bail, ensure};
use ndarray::{Array1, Array2, ArrayView2, Axis};

/// Per-column mean and standard deviation (population form, as scikit-learn's `StandardScaler`); a constant column keeps
/// scale 1 and becomes 0.
#[derive(Clone, Debug)]
pub struct Standardiser {
    pub mean: Array1<f64>,
    pub scale: Array1<f64>,
}

impl Standardiser {
    /// Learns from `x` [rows, columns].
    pub fn fit(x: ArrayView2<'_, f64>) -> Result<Self> {
        ensure!(x.nrows() > 0 && x.ncols() > 0, "cannot standardise an empty matrix ({} × {})", x.nrows(), x.ncols());
        all_finite(x)?;
        let n = x.nrows() as f64;
        let mean = x.sum_axis(Axis(0)) / n;
        let mut variance = Array1::<f64>::zeros(x.ncols());
        for row in x.rows() {
            variance += &(&row - &mean).mapv(|d| d * d);
        }
        // A constant column has a variance of about (eps · mean)² by rounding alone.
        let scale = ndarray::Zip::from(&variance).and(&mean).map_collect(|v, m| {
            let sd = (v / n).sqrt();
            if sd <= 10.0 * f64::EPSILON * m.abs() { 1.0 } else { sd }
        });
        Ok(Self { mean, scale })
    }

    /// `(x − mean) / scale`, column by column.
    pub fn apply(&self, x: ArrayView2<'_, f64>) -> Array2<f64> {
        (&x - &self.mean) / &self.scale
    }
}

/// Names the first value that is not a number.
pub fn all_finite(x: ArrayView2<'_, f64>) -> Result<()> {
    match x.indexed_iter().find(|(_, v)| !v.is_finite()) {
        Some(((row, column), v)) => bail!("feature at row {row}, column {column} is {v}"),
        None => Ok(()),
    }
}
