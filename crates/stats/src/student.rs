//! The mean of a few independent runs with Student's interval, for what to expect from another seed.

use anyhow::{Result, ensure};

use super::special::t_quantile;
use super::{Estimate, LEVEL};

/// Mean of at least two values with a two-sided interval: mean ± t · s / √n with n − 1 degrees of freedom (Student 1908). The
/// values are assumed normal: with three seeds the interval is wide, and it may leave the range of a share. If a seed learns all
/// or nothing, coverage is below 95 % ([`lie_apart`] detects that): three such seeds all agree with probability p³ + (1 − p)³, and
/// otherwise the interval covers the mean in .63 of cases at p = .3.
///
/// # Errors
/// Fewer than two values, one that is not finite, and values that are all equal.
pub fn mean_of_runs(values: &[f64]) -> Result<Estimate> {
    let n = values.len();
    ensure!(n > 1, "an interval over runs needs at least two of them, found {n}");
    ensure!(values.iter().all(|x| x.is_finite()), "a run's value is not finite: {values:?}");
    ensure!(values.iter().any(|x| x != &values[0]), "all {n} runs have {}: no interval over runs", values[0]);
    let mean = values.iter().sum::<f64>() / n as f64;
    let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n as f64 - 1.0);
    let arm = t_quantile(0.5 + 0.5 * LEVEL, n as f64 - 1.0) * (variance / n as f64).sqrt();
    Ok(Estimate { value: mean, low: mean - arm, high: mean + arm, n })
}

/// Footnote of a mean over runs that [`lie_apart`].
pub const APART: &str = "† The runs lie in two clumps, more like all or nothing than like a normal spread: the interval holds \
    less than 95 % (.63 where three of ten runs succeed).";

/// Whether shares of runs form two clusters: .2 or more apart, and four times the range of either. Then the normal
/// interval of [`mean_of_runs`] is too short.
pub fn lie_apart(shares: &[f64]) -> bool {
    let mut sorted = shares.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.last() else { return false };
    let gaps = sorted.windows(2).map(|two| (two[1] - two[0], (two[0] - sorted[0]).max(last - two[1])));
    gaps.into_iter().any(|(gap, spread)| gap >= 0.2 && gap >= 4.0 * spread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_clumps_of_runs_are_told_from_a_spread() {
        for apart in [&[0.644, 0.942, 0.936][..], &[0.0, 1.0], &[0.504, 0.238, 0.196], &[0.1, 0.9, 0.1, 0.9, 0.9]] {
            assert!(lie_apart(apart), "{apart:?}");
        }
        for not in [&[0.636, 0.46, 0.258][..], &[0.158, 0.492, 0.248], &[0.9, 0.95, 0.9], &[0.5], &[]] {
            assert!(!lie_apart(not), "{not:?}");
        }
    }

    #[test]
    fn it_is_scipys_interval() {
        // scipy.stats.t.interval(0.95, 2, loc=mean, scale=sem) of [0.912, 0.928, 0.892]: 0.9107 ± 0.0448.
        let of = mean_of_runs(&[0.912, 0.928, 0.892]).expect("three runs");
        assert!((of.value - 0.910_666_67).abs() < 1e-7, "{of:?}");
        assert!((of.low - 0.865_860_3).abs() < 1e-6 && (of.high - 0.955_473_1).abs() < 1e-6, "{of:?}");
        assert!(mean_of_runs(&[1.0]).is_err() && mean_of_runs(&[1.0, f64::NAN]).is_err());
        let alike = mean_of_runs(&[0.5; 3]).expect_err("no width").to_string();
        assert_eq!(alike, "all 3 runs have 0.5: no interval over runs");
    }
}
