//! A difference of shares on the same problems: its interval, and a test against any difference. Both agree with McNemar's exact
//! test. Knows counts only.
//!
//! With g gained and l lost of n problems the difference g/n − l/n has Tango's score interval (Tango 1998, *Statistics in
//! Medicine* 17; recommended for paired shares by Fagerland, Lydersen & Laake 2014). A bootstrap has no width where no problem
//! flips; a score interval does: 0 of 8 flips leaves [−.32, .32].
//!
//! McNemar's exact test decides whether the difference is 0. If it disagrees with the score test, at few flips, the interval
//! is extended to 0: an interval never excludes a 0 that the exact test does not.

use anyhow::{Result, ensure};

use super::special::{binomial_half_cdf, normal_cdf};
use super::{Estimate, Flips};

impl Flips {
    /// Change in accuracy, after − before, with its interval at `level`: every x that neither [`Flips::p_above`] nor
    /// [`Flips::p_below`] rejects at half of 1 − level.
    ///
    /// # Errors
    /// No problems; a level outside (0, 1).
    pub fn change(&self, level: f64) -> Result<Estimate> {
        ensure!(self.n() > 0, "a paired difference needs at least one problem, got n = 0");
        ensure!(level > 0.0 && level < 1.0, "confidence level must lie between 0 and 1, got {level}");
        let (value, half) = (self.difference(), 0.5 * (1.0 - level));
        let low = self.lower_end(half);
        let high = -self.turned().lower_end(half);
        Ok(Estimate { value, low: low.min(value), high: high.max(value), n: self.n() })
    }

    /// One-sided p-value of "the change is at most `x`": small if the data show that it is larger. Exact (McNemar) at
    /// x = 0, Tango's score test elsewhere, never on the other side of the exact one.
    pub fn p_above(&self, x: f64) -> f64 {
        self.p_beside(self.exact_above(), x)
    }

    /// [`Self::p_above`] of 0.
    fn exact_above(&self) -> f64 {
        binomial_half_cdf(self.lost, self.lost + self.gained)
    }

    fn p_beside(&self, exact: f64, x: f64) -> f64 {
        if x == 0.0 {
            return exact;
        }
        let score = normal_cdf(-self.score(x));
        if x > 0.0 { score.max(exact) } else { score.min(exact) }
    }

    /// One-sided p-value of "the change is at least `x`".
    pub fn p_below(&self, x: f64) -> f64 {
        self.turned().p_above(-x)
    }

    /// p-value of "the change is `margin` or more, in either direction" (TOST, Schuirmann 1987): small if the data show that it is less.
    /// The larger of the two one-sided p-values.
    pub fn p_equivalent(&self, margin: f64) -> f64 {
        self.p_above(-margin).max(self.p_below(margin))
    }

    /// Exchanges before and after.
    fn turned(&self) -> Self {
        Self { lost: self.gained, gained: self.lost, ..*self }
    }

    /// The smallest x that `p_above` does not reject at `half`.
    fn lower_end(&self, half: f64) -> f64 {
        let exact = self.exact_above();
        let (mut low, mut high) = (-1.0, 1.0);
        for _ in 0..60 {
            let middle = 0.5 * (low + high);
            if self.p_beside(exact, middle) > half { high = middle } else { low = middle }
        }
        high
    }

    /// Tango's statistic for the difference x, about normal if x is the true one: (g − l − n x) / √(n (2q + x(1 − x))), where
    /// q is the most likely share of lost problems under x.
    fn score(&self, x: f64) -> f64 {
        let (n, lost, gained) = (self.n() as f64, self.lost as f64, self.gained as f64);
        let b = (2.0 * n - gained + lost) * x - gained - lost;
        let c = -lost * x * (1.0 - x);
        let q = ((b * b - 8.0 * n * c).max(0.0).sqrt() - b) / (4.0 * n);
        let distance = gained - lost - n * x;
        let variance = n * (2.0 * q + x * (1.0 - x));
        // At x = ±1 only one table is possible: any other is infinitely far from it.
        if variance > 0.0 { distance / variance.sqrt() } else { distance * f64::MAX }
    }
}
