//! The Wilson score interval of a share (Wilson 1927). Knows counts only.

use anyhow::{Result, ensure};

use super::{Estimate, LEVEL, special::normal_quantile};

/// The share `successes / n` with its Wilson interval at `level` (0.95 for 95 %).
///
/// Centre `(p + z²/2n) / (1 + z²/n)`, half-width `z/(1 + z²/n) · sqrt(p(1−p)/n + z²/4n²)`. Unlike the Wald interval it
/// stays inside [0, 1] and does not collapse at 0 or n successes.
pub fn wilson(successes: usize, n: usize, level: f64) -> Result<Estimate> {
    ensure!(n > 0, "a share needs at least one observation, got n = 0");
    ensure!(successes <= n, "{successes} successes among {n} observations");
    ensure!(level > 0.0 && level < 1.0, "confidence level must lie between 0 and 1, got {level}");
    let z = normal_quantile(0.5 + 0.5 * level);
    let p = successes as f64 / n as f64;
    let (low, high) = score_interval(p, n as f64, z);
    Ok(Estimate { value: p, low, high, n })
}

/// The ends for the share `p` of `n` independent observations, which need not be a whole number, and the quantile `z`.
pub(super) fn score_interval(p: f64, n: f64, z: f64) -> (f64, f64) {
    let shrink = 1.0 + z * z / n;
    let centre = (p + z * z / (2.0 * n)) / shrink;
    let half = z / shrink * (p * (1.0 - p) / n + z * z / (4.0 * n * n)).sqrt();
    // At 0 and 1 the end is exact; rounding must not push it past the value.
    (if p == 0.0 { 0.0 } else { centre - half }, if p == 1.0 { 1.0 } else { centre + half })
}

/// Accuracy of graded answers, one per problem, with its 95 % Wilson interval.
pub fn accuracy(correct: &[bool]) -> Result<Estimate> {
    wilson(correct.iter().filter(|&&c| c).count(), correct.len(), LEVEL)
}
