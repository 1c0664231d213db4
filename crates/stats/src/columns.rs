//! Many ratios over the same units, resampled together: a map of a thousand cells costs one set of draws, not a thousand.

use anyhow::{Result, ensure};
use ndarray::{Array2, ArrayView2, Axis, s};
use rayon::prelude::*;

use super::{Bootstrap, Estimate};

/// Columns whose draws are in memory at once: 8 MB per thread.
const WIDTH: usize = 256;

impl Bootstrap {
    /// For each column c the ratio `Σ_u sums[u, c] / Σ_u sizes[u, c]` over units u (problems, pairs), with the interval that
    /// [`Bootstrap::units`] gives. A unit of size 0 in a column is left out there, and `n` counts the others. `None`
    /// if fewer than two are left, or so few that one draw in twenty has none of them.
    ///
    /// # Errors
    /// Tables of different shape, values that are not finite, settings that [`Bootstrap::units`] refuses.
    pub fn columns(&self, sums: ArrayView2<f64>, sizes: ArrayView2<f64>) -> Result<Vec<Option<Estimate>>> {
        ensure!(sums.dim() == sizes.dim(), "sums are {:?}, sizes {:?}", sums.dim(), sizes.dim());
        let finite = sums.iter().chain(&sizes).all(|x| x.is_finite());
        ensure!(finite, "a sum or size is not finite: a ratio needs finite values");
        let (units, columns) = sums.dim();
        self.check()?;
        if units < 2 || columns == 0 {
            return Ok(vec![None; columns]);
        }
        let mut counts = Array2::zeros((self.resamples(units), units));
        for (draw, mut row) in counts.outer_iter_mut().enumerate() {
            self.draw(draw, units, |unit| row[unit] += 1.0);
        }
        let starts: Vec<usize> = (0..columns).step_by(WIDTH).collect();
        let parts = starts.into_par_iter().map(|from| {
            let part = s![.., from..(from + WIDTH).min(columns)];
            let (sums, sizes) = (sums.slice(part), sizes.slice(part));
            let (num, den) = (counts.dot(&sums), counts.dot(&sizes));
            (0..sums.ncols()).map(|c| self.column(sums.column(c).sum(), sizes.column(c), (&num, &den), c)).collect()
        });
        let parts: Vec<Vec<Option<Estimate>>> = parts.collect();
        Ok(parts.into_iter().flatten().collect())
    }

    fn column(
        &self,
        sum: f64,
        sizes: ndarray::ArrayView1<f64>,
        (num, den): (&Array2<f64>, &Array2<f64>),
        c: usize,
    ) -> Option<Estimate> {
        let n = sizes.iter().filter(|size| **size != 0.0).count();
        let value = sum / sizes.sum();
        let ratios = num.index_axis(Axis(1), c).into_iter().zip(den.index_axis(Axis(1), c)).map(|(a, b)| a / b);
        let drawn: Vec<f64> = ratios.filter(|v| v.is_finite()).collect();
        if n < 2 || !value.is_finite() || (num.nrows() - drawn.len()) * 20 > num.nrows() {
            return None;
        }
        Some(self.percentiles(value, drawn, n))
    }
}

#[cfg(test)]
mod tests {
    use ndarray::array;

    use super::*;

    #[test]
    fn a_column_is_what_it_would_be_alone() {
        let sums = array![[1.0, 0.0], [2.0, 0.0], [4.0, 0.0], [8.0, 3.0]];
        let sizes = array![[1.0, 0.0], [2.0, 0.0], [1.0, 0.0], [2.0, 1.0]];
        let bootstrap = Bootstrap::seeded(3);
        let found = bootstrap.columns(sums.view(), sizes.view()).expect("estimates");
        let alone = bootstrap.units(4, |counts| {
            let sum = |column: &Array2<f64>| (0..4).map(|u| f64::from(counts[u]) * column[[u, 0]]).sum::<f64>();
            sum(&sums) / sum(&sizes)
        });
        assert_eq!(found, [Some(alone.expect("an estimate")), None], "one unit has no interval");
        assert!(bootstrap.columns(sums.view(), sizes.slice(s![..3, ..])).is_err());
        assert!(bootstrap.columns(array![[f64::NAN], [1.0]].view(), array![[1.0], [1.0]].view()).is_err());
        let none = Bootstrap { draws: 0, ..bootstrap };
        assert!(none.columns(sums.view(), sizes.view()).is_err(), "an interval of no draws");
    }

    #[test]
    fn the_resamples_of_five_units_are_enumerated() {
        let (sums, sizes) = (array![[1.0], [2.0], [4.0], [8.0], [16.0]], Array2::ones((5, 1)));
        let of = |seed| Bootstrap::seeded(seed).columns(sums.view(), sizes.view()).expect("an estimate");
        assert_eq!(of(0), of(1), "no draw depends on the seed");
        assert_eq!(of(0), [Some(Bootstrap::seeded(2).mean(&[1.0, 2.0, 4.0, 8.0, 16.0]).expect("a mean"))]);
    }
}
