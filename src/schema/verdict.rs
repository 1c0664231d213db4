//! Verdicts in a word: the result of a test, or why it could find nothing.

use anyhow::Result;

use crate::stats::{Bootstrap, Estimate, FEWEST, LEVEL, by_problem, holm, wilson};

/// Holm-adjusts the p-values of a family of tests in place.
pub(crate) fn adjust<'p>(p: impl Iterator<Item = &'p mut f64>) -> Result<()> {
    let mut all: Vec<&mut f64> = p.collect();
    if !all.is_empty() {
        let adjusted = holm(&all.iter().map(|p| **p).collect::<Vec<f64>>())?;
        all.iter_mut().zip(adjusted).for_each(|(p, adjusted)| **p = adjusted);
    }
    Ok(())
}

/// Rate of events (problem, whether it occurred, chance), their rate by chance, and the paired difference. `None` for one problem.
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

/// Σ `moved` / Σ `whole` over units, each `[moved, whole]`; the interval resamples units.
pub(super) fn ratio_of_sums(seed: u64, units: &[[f64; 2]]) -> Result<Estimate> {
    Bootstrap::seeded(seed).units(units.len(), |counts| {
        let sum =
            |part: usize| -> f64 { units.iter().zip(counts).map(|(of, &times)| f64::from(times) * of[part]).sum() };
        sum(0) / sum(1)
    })
}

/// The word for a change below or above 0, by an exact test over `n` problems; `—` if it finds neither.
pub(super) fn verdict(n: usize, change: f64, p: f64, [below, above]: [&'static str; 2]) -> &'static str {
    match change {
        _ if n < FEWEST => FEW,
        _ if p > 1.0 - LEVEL => NEITHER,
        change if change < 0.0 => below,
        change if change > 0.0 => above,
        _ => NEITHER,
    }
}

/// Accuracy before a change, and accuracy of guessing. A model that only guesses is right by luck: any disturbance makes some of its right
/// answers wrong.
#[derive(Clone, Copy, Debug)]
pub(super) struct Baseline {
    before: Estimate,
    guess: f64,
}

impl Baseline {
    /// `None` for rows of older versions, which have no guess.
    pub fn new(before: Estimate, guess: Option<f64>) -> Option<Self> {
        guess.map(|guess| Self { before, guess })
    }

    /// The accuracy before a change, from the accuracy after it and the change, both over the same problems.
    pub fn undo(after: Estimate, change: Estimate, guess: Option<f64>) -> Option<Self> {
        let right = ((after.value - change.value) * after.n as f64).round().max(0.0) as usize;
        wilson(right.min(after.n), after.n, LEVEL).ok().and_then(|before| Self::new(before, guess))
    }

    /// Both numbers, if the accuracy is not above that of guessing.
    pub fn at_chance(self) -> Option<(Estimate, f64)> {
        (self.before.low <= self.guess).then_some((self.before, self.guess))
    }
}

/// [`verdict`] on accuracy; instead of a loss, [`AT_CHANCE`] if the accuracy before the change is not above that of guessing.
pub(super) fn loss(
    n: usize,
    change: f64,
    p: f64,
    words: [&'static str; 2],
    baseline: Option<Baseline>,
) -> &'static str {
    match verdict(n, change, p, words) {
        word if word == FEW || word == words[1] => word,
        _ if baseline.and_then(Baseline::at_chance).is_some() => AT_CHANCE,
        word => word,
    }
}

/// Expected number of problems that are right by luck, if all wrong ones were guesses: `right` of `n` are right.
pub(crate) fn by_luck(right: usize, n: usize, guess: f64) -> f64 {
    if guess >= 1.0 {
        return right as f64;
    }
    ((n - right) as f64 * guess / (1.0 - guess)).min(right as f64)
}

/// Accuracy before the change is not above that of guessing: no loss could be seen.
pub const AT_CHANCE: &str = "at chance before";

/// Neither side is seen.
pub(super) const NEITHER: &str = "—";

/// Fewer than [`FEWEST`] problems.
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

    #[test]
    fn a_model_at_chance_has_nothing_to_lose() {
        // The case that was reported as a loss: 22 of 121 right at a chance of 1/7, all of them wrong after the change.
        let at = |right, n| Baseline::new(wilson(right, n, LEVEL).expect("a share"), Some(1.0 / 7.0));
        let of = |n, change, p, baseline| loss(n, change, p, ["lower", "higher"], baseline);
        assert_eq!(of(121, -0.18, 1e-6, at(22, 121)), AT_CHANCE);
        assert_eq!(of(121, -0.01, 0.8, at(22, 121)), AT_CHANCE, "that nothing is lost has the same reason");
        assert_eq!(of(121, 0.2, 1e-6, at(22, 121)), "higher", "a gain needs nothing to lose");
        assert_eq!(of(121, -0.18, 1e-6, at(60, 121)), "lower");
        assert_eq!(of(121, -0.01, 0.8, at(60, 121)), NEITHER);
        assert_eq!(of(12, -0.8, 1e-6, at(2, 12)), FEW);
        assert!((by_luck(22, 121, 1.0 / 7.0) - 16.5).abs() < 1e-9);
        assert_eq!((by_luck(60, 60, 0.5), by_luck(0, 9, 0.5)), (0.0, 0.0));
        assert_eq!(by_luck(10, 121, 0.5), 10.0, "no more than there are");
        let after = wilson(10, 121, LEVEL).expect("a share");
        let undone = Baseline::undo(after, Estimate { value: -12.0 / 121.0, ..after }, Some(0.1)).expect("a guess");
        assert_eq!(undone.before, wilson(22, 121, LEVEL).expect("a share"));
    }
}
