//! A number that cannot be separated from its interval and its n. Knows nothing of how it was computed.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A value, its interval and the number of independent units it rests on.
///
/// The unit is that of the quantity (a share, a difference of shares, nats). `n` counts what was sampled independently:
/// problems where rows of one problem hang together, rows otherwise.
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

    /// The same estimate, its interval stretched to contain `x`.
    pub(crate) fn reaching(&self, x: f64) -> Self {
        Self { low: self.low.min(x), high: self.high.max(x), ..*self }
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
        write!(f, "{:.p$} [{:.p$}, {:.p$}] n={}", self.value, self.low, self.high, self.n)
    }
}
