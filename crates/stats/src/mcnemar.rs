//! Two modes graded on the same problems: who flips, and could it be chance? Knows right and wrong, not why.

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::special::binomial_half_cdf;

/// The 2×2 table of paired outcomes. `lost` is right → wrong, `gained` wrong → right.
///
/// Report both: a subset chosen because the first mode was right can only lose (`method.md` §8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flips {
    pub both_right: usize,
    pub lost: usize,
    pub gained: usize,
    pub both_wrong: usize,
}

impl Flips {
    /// Counts the table of `before[i]` against `after[i]`, problem by problem.
    pub fn count(before: &[bool], after: &[bool]) -> Result<Self> {
        ensure!(!before.is_empty(), "no paired outcomes to compare");
        ensure!(
            before.len() == after.len(),
            "paired outcomes differ in length: {} before, {} after",
            before.len(),
            after.len()
        );
        let mut table = Self::default();
        for pair in before.iter().zip(after) {
            match pair {
                (true, true) => table.both_right += 1,
                (true, false) => table.lost += 1,
                (false, true) => table.gained += 1,
                (false, false) => table.both_wrong += 1,
            }
        }
        Ok(table)
    }

    pub fn n(&self) -> usize {
        self.both_right + self.lost + self.gained + self.both_wrong
    }

    /// Exact two-sided McNemar p-value: under no difference `lost` is Binomial(lost + gained, 1/2) (McNemar 1947, exact form).
    pub fn p_value(&self) -> f64 {
        let flips = self.lost + self.gained;
        (2.0 * binomial_half_cdf(self.lost.min(self.gained), flips)).min(1.0)
    }

    /// Change in accuracy, after − before.
    pub fn difference(&self) -> f64 {
        (self.gained as f64 - self.lost as f64) / self.n() as f64
    }
}
