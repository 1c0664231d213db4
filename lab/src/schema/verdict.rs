//! Verdicts in a word, with both sides: what a test found, or why it could find nothing.

use crate::stats::{FEWEST, LEVEL};

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

/// Fewer than [`FEWEST`] problems stand behind it.
pub(super) const FEW: &str = "too few problems";

/// What to say under a table of verdicts that so few problems can never give.
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
