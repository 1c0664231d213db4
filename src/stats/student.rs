//! The mean of a few independent runs and Student's interval for it: what another seed would give.

use anyhow::{Result, ensure};

use super::special::t_quantile;
use super::{Estimate, LEVEL};

/// Mean of at least two values with a two-sided interval: mean ± t · s / √n with n − 1 degrees of freedom (Student 1908). The
/// values are taken as normal: with three seeds the interval is wide, and it may leave the range of a share. Where a seed learns all
/// or nothing it holds less than 95 %: of three such seeds all agree with probability p³ + (1 − p)³, the interval then has no width,
/// and it covers the mean in .63 of cases at p = .3.
///
/// # Errors
/// Fewer than two values, or one that is not finite.
pub fn mean_of_runs(values: &[f64]) -> Result<Estimate> {
    let n = values.len();
    ensure!(n > 1, "an interval over runs needs at least two of them, found {n}");
    ensure!(values.iter().all(|x| x.is_finite()), "a run's value is not finite: {values:?}");
    let mean = values.iter().sum::<f64>() / n as f64;
    let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n as f64 - 1.0);
    let arm = t_quantile(0.5 + 0.5 * LEVEL, n as f64 - 1.0) * (variance / n as f64).sqrt();
    Ok(Estimate { value: mean, low: mean - arm, high: mean + arm, n })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_scipys_interval() {
        // scipy.stats.t.interval(0.95, 2, loc=mean, scale=sem) of [0.912, 0.928, 0.892]: 0.9107 ± 0.0448.
        let of = mean_of_runs(&[0.912, 0.928, 0.892]).expect("three runs");
        assert!((of.value - 0.910_666_67).abs() < 1e-7, "{of:?}");
        assert!((of.low - 0.865_860_3).abs() < 1e-6 && (of.high - 0.955_473_1).abs() < 1e-6, "{of:?}");
        assert!(mean_of_runs(&[1.0]).is_err() && mean_of_runs(&[1.0, f64::NAN]).is_err());
    }
}
