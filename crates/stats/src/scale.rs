//! Standardisation whose mean and scale come from the training rows alone. Knows columns of numbers.

use anyhow::{Result, bail, ensure};
use ndarray::{Array1, Array2, ArrayView2, Axis};

/// Per-column mean and standard deviation (population form, as scikit-learn's `StandardScaler`). A column that is constant up to
/// rounding has scale 1. Hidden states are computed in f32: if other columns are of size 1, a standard deviation below 1e-7 is rounding.
/// At unit variance a probe would read it, and an outlier could be 1e8 standard deviations away.
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
        let size = (x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64).sqrt();
        // A constant column has a variance of about (eps · mean)² by rounding alone.
        let scale = ndarray::Zip::from(&variance).and(&mean).map_collect(|v, m| {
            let sd = (v / n).sqrt();
            let rounding = (10.0 * f64::EPSILON * m.abs()).max(f64::from(f32::EPSILON) * size);
            if sd <= rounding { 1.0 } else { sd }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_varies_by_rounding_only_is_not_scaled() {
        let x = ndarray::array![[1.0, 0.0, 4.0], [-1.0, -5e-9, 4.0], [1.0, -5e-9, 4.0], [-1.0, 0.0, 4.0]];
        let scaler = Standardiser::fit(x.view()).expect("numbers");
        assert_eq!(scaler.scale.to_vec(), [1.0, 1.0, 1.0]);
        let apart = scaler.apply(ndarray::array![[0.0, 1.0, 4.0]].view());
        assert!((apart[[0, 1]] - 1.0).abs() < 1e-6, "{apart}");
        // A column is judged relative to the others; alone, it has no others.
        let alone = Standardiser::fit(x.select(Axis(1), &[1]).view()).expect("numbers");
        assert!(alone.scale[0] < 1e-8);
    }
}
