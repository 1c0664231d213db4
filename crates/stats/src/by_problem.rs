//! Means over problems, for groups that may be too small for an interval. Knows values and problem numbers only.

use anyhow::Result;

use super::special::{normal_quantile, t_quantile};
use super::wilson::score_interval;
use crate::{Bootstrap, Estimate, FEWEST, Groups, LEVEL};

/// Mean of values, several per problem allowed: whole problems are resampled. `None` below two problems, where
/// there is nothing to resample: a number without an interval is not reported.
pub fn mean(seed: u64, values: impl IntoIterator<Item = (usize, f64)>) -> Result<Option<Estimate>> {
    let (problems, values): (Vec<usize>, Vec<f64>) = values.into_iter().unzip();
    if problems.iter().all(|p| Some(p) == problems.first()) {
        return Ok(None);
    }
    Bootstrap::seeded(seed).clustered_mean(&values, &problems).map(Some)
}

/// Share of events, several per problem allowed. If fewer than [`FEWEST`] problems have one of the rarer kind,
/// resampling them falls short: the interval is then Wilson's for as many independent
/// events as would vary that much (Korn & Graubard 1998; Dean & Pagano 2015), no fewer than problems and no more than events,
/// with Student's quantile. If all events agree, those of one problem count as copies. Problems of unequal size count as fewer: as
/// `(Σ mᵢ)² / Σ mᵢ²` (Kish 1965) for mᵢ events each.
pub fn share(seed: u64, events: &[(usize, bool)]) -> Result<Option<Estimate>> {
    let (problems, holds): (Vec<usize>, Vec<bool>) = events.iter().copied().unzip();
    if problems.iter().all(|p| Some(p) == problems.first()) {
        return Ok(None);
    }
    let groups = Groups::new(&problems)?;
    let n = groups.len();
    let held = holds.iter().filter(|holds| **holds).count();
    let all = events.len() as f64;
    let units = all * all / groups.members.iter().map(|rows| (rows.len() * rows.len()) as f64).sum::<f64>();
    let p = held as f64 / all;
    if held == 0 || held == events.len() {
        let (low, high) = score_interval(p, units, normal_quantile(0.5 + 0.5 * LEVEL));
        return Ok(Some(Estimate { value: p, low, high, n }));
    }
    let with = |kind: bool| groups.members.iter().filter(|rows| rows.iter().any(|&row| holds[row] == kind)).count();
    if with(2 * held <= events.len()) >= FEWEST {
        return mean(seed, events.iter().map(|&(problem, holds)| (problem, f64::from(holds))));
    }
    let off = |rows: &Vec<usize>| rows.iter().map(|&row| f64::from(holds[row]) - p).sum::<f64>().powi(2);
    let variance = n as f64 / (n as f64 - 1.0) * groups.members.iter().map(off).sum::<f64>() / (all * all);
    let effective = (p * (1.0 - p) / variance).clamp(units, all);
    let (low, high) = score_interval(p, effective, t_quantile(0.5 + 0.5 * LEVEL, (units - 1.0).max(1.0)));
    Ok(Some(Estimate { value: p, low, high, n }))
}

/// The estimate as text; `—` for none.
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

    #[test]
    fn few_events_count_as_what_they_vary_like() {
        // Three of 30 problems with four events each have one: independent events would vary as much, so all 120 count.
        let at = |holds: &dyn Fn(usize, usize) -> bool| {
            let events: Vec<(usize, bool)> =
                (0..30).flat_map(|p| (0..4).map(move |i| (p, i))).map(|(p, i)| (p, holds(p, i))).collect();
            share(0, &events).expect("thirty problems").expect("an estimate")
        };
        let spread = at(&|p, i| p < 3 && i == 0);
        // Three problems with all four events count as three problems of thirty.
        let copies = at(&|p, _| p < 3);
        // By hand, with t₀.₉₇₅ of 29 degrees of freedom: 2.04523.
        let wilson = |p: f64, n: f64| {
            let t2 = 2.045_23_f64.powi(2);
            let (middle, arm) = (p + t2 / (2.0 * n), (t2 * (p * (1.0 - p) / n + t2 / (4.0 * n * n))).sqrt());
            [(middle - arm) / (1.0 + t2 / n), (middle + arm) / (1.0 + t2 / n)]
        };
        for (found, [low, high]) in [(spread, wilson(0.025, 120.0)), (copies, wilson(0.1, 30.0))] {
            assert!((found.low - low).abs() < 1e-5 && (found.high - high).abs() < 1e-5 && found.n == 30, "{found}");
        }
        // With at least twenty such problems the bootstrap is used.
        let many = at(&|p, i| p < 20 && i == 0);
        let values: Vec<f64> = (0..120).map(|i| f64::from(u8::from(i / 4 < 20 && i % 4 == 0))).collect();
        let resampled = mean(0, values.iter().enumerate().map(|(i, v)| (i / 4, *v))).expect("values");
        assert_eq!(Some(many), resampled);
    }
}
