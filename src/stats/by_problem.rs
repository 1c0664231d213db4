//! Means over problems, where a group may be too small to have an interval. Knows values and problem numbers only.

use anyhow::Result;

use crate::stats::{Bootstrap, Estimate, LEVEL, wilson};

/// Mean of values that may come several to a problem: whole problems are resampled. `None` below two problems, where
/// there is nothing to resample: a number without an interval is not reported.
///
/// # Errors
/// A value that is not finite.
pub fn mean(seed: u64, values: impl IntoIterator<Item = (usize, f64)>) -> Result<Option<Estimate>> {
    let (problems, values): (Vec<usize>, Vec<f64>) = values.into_iter().unzip();
    if problems.iter().all(|p| Some(p) == problems.first()) {
        return Ok(None);
    }
    Bootstrap::seeded(seed).clustered_mean(&values, &problems).map(Some)
}

/// Share of events that may come several to a problem. Where all agree, resampling would claim certainty: the interval is
/// then Wilson's with one event a problem, as if those of one problem were copies.
///
/// # Errors
/// As [`mean`].
pub fn share(seed: u64, events: &[(usize, bool)]) -> Result<Option<Estimate>> {
    let values = events.iter().map(|&(problem, holds)| (problem, f64::from(holds)));
    let Some(estimate) = mean(seed, values)? else { return Ok(None) };
    match estimate.value {
        0.0 => wilson(0, estimate.n, LEVEL).map(Some),
        1.0 => wilson(estimate.n, estimate.n, LEVEL).map(Some),
        _ => Ok(Some(estimate)),
    }
}

/// `—` where there is no estimate.
pub fn cell(estimate: Option<Estimate>, decimals: usize) -> String {
    estimate.map_or_else(|| "—".into(), |e| format!("{e:.decimals$}"))
}

#[cfg(test)]
mod tests {
    use super::{mean, share};

    #[test]
    fn one_problem_has_no_interval() {
        assert_eq!(mean(0, []).expect("no values"), None);
        assert_eq!(mean(0, [(3, 1.0), (3, 2.0)]).expect("one problem"), None);
        let two = mean(0, [(3, 1.0), (3, 2.0), (4, 6.0)]).expect("two problems").expect("an estimate");
        assert_eq!((two.value, two.n), (3.0, 2));
        assert!(mean(0, [(3, 1.0), (4, f64::NAN)]).is_err());
    }

    #[test]
    fn agreement_is_not_certainty() {
        let all = share(0, &[(0, true), (0, true), (1, true)]).expect("two problems").expect("an estimate");
        assert_eq!((all.value, all.high, all.n), (1.0, 1.0, 2));
        assert!(all.low < 0.5, "two problems do not make a law: {all}");
        let some = share(0, &[(0, true), (0, false), (1, true)]).expect("two problems").expect("an estimate");
        assert!((some.value - 2.0 / 3.0).abs() < 1e-12 && some.high > some.low);
    }
}
