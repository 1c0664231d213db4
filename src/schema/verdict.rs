//! Verdicts in a word: what a test found, or why it could find nothing.

use anyhow::Result;

use crate::stats::{Estimate, FEWEST, LEVEL, by_problem, holm};

/// Adjusts the p-values of a family of tests by Holm, each in its place.
pub(crate) fn adjust<'p>(p: impl Iterator<Item = &'p mut f64>) -> Result<()> {
    let mut all: Vec<&mut f64> = p.collect();
    if !all.is_empty() {
        let adjusted = holm(&all.iter().map(|p| **p).collect::<Vec<f64>>())?;
        all.iter_mut().zip(adjusted).for_each(|(p, adjusted)| **p = adjusted);
    }
    Ok(())
}

/// How often events came, how often they would by chance, and the first minus the second, paired; of each event its problem, whether it
/// came, and its chance. `None` below two problems.
pub(crate) fn beyond_chance(seed: u64, events: &[(usize, bool, f64)]) -> Result<Option<[Estimate; 3]>> {
    let came: Vec<(usize, bool)> = events.iter().map(|&(problem, came, _)| (problem, came)).collect();
    let rate = by_problem::share(seed, &came)?;
    let chance = by_problem::mean(seed, events.iter().map(|&(problem, _, chance)| (problem, chance)))?;
    let Some((rate, chance)) = rate.zip(chance) else { return Ok(None) };
    let above = if came.iter().all(|(_, came)| *came == events[0].1) {
        // Nothing to resample: the width is that of the share.
        Some(rate.minus(chance))
    } else {
        by_problem::mean(seed, events.iter().map(|&(problem, came, chance)| (problem, f64::from(came) - chance)))?
    };
    Ok(above.map(|above| [rate, chance, above]))
}

/// Below or above nothing, by an exact test over `n` problems; `—` where it finds neither.
pub(super) fn verdict(n: usize, change: f64, p: f64, [below, above]: [&'static str; 2]) -> &'static str {
    match change {
        _ if n < FEWEST => FEW,
        _ if p > 1.0 - LEVEL => NEITHER,
        change if change < 0.0 => below,
        change if change > 0.0 => above,
        _ => NEITHER,
    }
}

/// Neither side is seen.
pub(super) const NEITHER: &str = "—";

/// It has fewer than [`FEWEST`] problems.
pub(super) const FEW: &str = "too few problems";

/// Footnote of a table whose verdicts need more problems than it has.
pub(crate) fn never(n: usize) -> Option<String> {
    (n < FEWEST).then(|| format!("\nn = {n} can never be significant here: a verdict needs {FEWEST} problems.\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_and_a_gain_are_both_seen() {
        let of = |n, change, p| verdict(n, change, p, ["hurts", "helps"]);
        assert_eq!([of(500, -0.182, 2e-17), of(500, 0.182, 2e-17)], ["hurts", "helps"]);
        assert_eq!([of(500, -0.01, 0.2), of(500, 0.0, 0.0), of(4, -1.0, 1e-9)], [NEITHER, NEITHER, FEW]);
        assert_eq!(of(500, f64::NAN, 0.0), NEITHER);
    }
}
