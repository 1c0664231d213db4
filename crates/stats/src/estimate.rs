//! A number that cannot be separated from its interval and its n. Knows nothing of how it was computed.

use std::fmt;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::special::{t_cdf, t_quantile};
use super::{FEWEST, LEVEL, wilson};

/// A value, its interval and the number of independent units.
///
/// The unit is that of the quantity (a share, a difference of shares, nats). `n` counts what was sampled independently:
/// problems if rows of one problem are correlated, rows otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    pub value: f64,
    pub low: f64,
    pub high: f64,
    pub n: usize,
}

impl Estimate {
    /// Whether the interval contains `x` (both ends included).
    pub fn covers(&self, x: f64) -> bool {
        self.low <= x && x <= self.high
    }

    /// Wilson's interval over the n units if all are right, or none: a bootstrap then has no width.
    pub fn of_ends(self) -> Result<Self> {
        match self.value {
            0.0 => wilson(0, self.n, LEVEL),
            1.0 => wilson(self.n, self.n, LEVEL),
            _ => Ok(self),
        }
    }

    /// The same estimate, its interval stretched to contain `x`.
    pub fn reaching(&self, x: f64) -> Self {
        Self { low: self.low.min(x), high: self.high.max(x), ..*self }
    }

    /// This minus an independent one (MOVER: Zou & Donner 2008). A constant has n = 0.
    pub fn minus(&self, other: Self) -> Self {
        let value = self.value - other.value;
        let down = (self.value - self.low).hypot(other.high - other.value);
        let up = (self.high - self.value).hypot(other.value - other.low);
        let n = if self.n.min(other.n) > 0 { self.n.min(other.n) } else { self.n.max(other.n) };
        Self { value, low: value - down, high: value + up, n }
    }

    /// One-sided p-value of "at most `x`", from the arm of the 95 % interval that points to `x`: its length counts as t₀.₉₇₅ standard
    /// errors with n − 1 degrees of freedom. 1 for an interval without width.
    pub fn p_above(&self, x: f64) -> f64 {
        let gap = self.value - x;
        let arm = if gap > 0.0 { self.value - self.low } else { self.high - self.value };
        if self.n < 2 || arm <= 0.0 {
            return 1.0;
        }
        let df = self.n as f64 - 1.0;
        t_cdf(-gap / arm * t_quantile(0.5 + 0.5 * LEVEL, df), df)
    }

    /// p-value of "it is `margin` or more away from 0" (TOST): the larger of the two one-sided p-values.
    pub fn p_equivalent(&self, margin: f64) -> f64 {
        self.p_above(-margin).max(self.scaled(-1.0).p_above(-margin))
    }

    /// The verdict "above `x`": at the two-sided level of every interval, and with at least [`FEWEST`] problems.
    pub fn is_above(&self, x: f64) -> bool {
        self.n >= FEWEST && 2.0 * self.p_above(x) <= 1.0 - LEVEL
    }

    /// The same estimate, its interval clipped to [0, 1].
    pub fn share(&self) -> Self {
        Self { low: self.low.max(0.0), high: self.high.min(1.0), ..*self }
    }

    /// The same estimate in another unit, e.g. `scaled(100.0)` for percent. A negative factor swaps the ends.
    pub fn scaled(&self, factor: f64) -> Self {
        let (a, b) = (self.low * factor, self.high * factor);
        Self { value: self.value * factor, low: a.min(b), high: a.max(b), n: self.n }
    }
}

/// `0.872 [0.840, 0.898] n=500`; a precision (`{:.1}`) applies to the three numbers.
impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let p = f.precision().unwrap_or(3);
        let shown = [self.value, self.low, self.high].map(|x| unsigned_zero(format!("{x:.p$}")));
        write!(f, "{} [{}, {}] n={}", shown[0], shown[1], shown[2], self.n)
    }
}

/// A printed number, without the minus sign if it rounds to zero.
pub fn unsigned_zero(number: String) -> String {
    match number.strip_prefix('-') {
        Some(rest) if rest.chars().all(|c| matches!(c, '0' | '.')) => rest.to_owned(),
        _ => number,
    }
}
