//! The difference left − right, and p-values against each side of a threshold. Knows estimates and tests, not claims.
//!
//! Both p-values are one-sided. With pairs they come from the paired test (McNemar's exact one at 0, Tango's score test elsewhere). Otherwise
//! from the interval: its half-widths are t₀.₉₇₅ standard errors, with degrees of freedom one below the smaller side's number of problems, so
//! that p <= .025 exactly if the 95 % interval does not reach the line.

use crate::report::claims::Op;
use switchyard::stats::{Estimate, FEWEST, Flips, LEVEL};

/// Fewest runs for a verdict: Student's interval over two is as wide as any effect.
pub(crate) const FEWEST_RUNS: usize = 3;

/// A difference in the paper's unit.
pub(crate) struct Contrast {
    pub difference: Estimate,
    /// Name of the test, for the reader.
    pub how: String,
    pub test: Test,
}

/// Source of p-values.
pub(crate) enum Test {
    Interval,
    /// Problems that flipped; a share of 1 is this much in the unit of the difference.
    Flips(Flips, f64),
    /// The interval, and an exact two-sided p-value that the difference is 0.
    AtZero(f64),
}

/// One-sided p-values: against the comparison, and for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TestEvidence {
    /// Small: it holds.
    pub holds: f64,
    /// Small: it does not.
    pub fails: f64,
}

/// `p = 0.093`, `p = 1.5e-4`, `p < 1e-15`.
pub fn shown_p(p: f64) -> String {
    match p {
        _ if p >= 1e-3 => format!("p = {p:.3}"),
        _ if p >= 1e-15 => format!("p = {p:.1e}"),
        _ => "p < 1e-15".into(),
    }
}

impl TestEvidence {
    /// Whether the estimate is on the comparison's side.
    pub(crate) fn agrees(self) -> bool {
        self.holds < self.fails
    }

    /// Whether it holds at the two-sided level of every interval.
    pub(crate) fn decides(self) -> bool {
        2.0 * self.holds <= 1.0 - LEVEL
    }

    pub(crate) fn two_sided(self) -> f64 {
        (2.0 * self.holds.min(self.fails)).min(1.0)
    }
}

impl Contrast {
    /// left − right of independent estimates. A constant has n = 0.
    pub(crate) fn independent(left: Estimate, right: Estimate) -> Self {
        let difference = left.minus(right);
        let how = if left.n.min(right.n) > 0 { "from the two intervals" } else { "from its interval" };
        Self { difference, how: how.into(), test: Test::Interval }
    }

    /// Why it is undecided: too few problems, or runs.
    pub(crate) fn too_few(&self, over_runs: bool) -> Option<String> {
        let n = self.difference.n;
        let (fewest, of) = if over_runs { (FEWEST_RUNS, "runs") } else { (FEWEST, "problems") };
        (n < fewest).then(|| format!("n = {n}: a verdict needs {fewest} {of} (below it a 95 % interval is not one)"))
    }

    /// The evidence on `difference op line`, with this slack in favour of the claim.
    pub(crate) fn judged(&self, op: Op, line: f64, slack: f64) -> TestEvidence {
        match op {
            Op::Above | Op::AtLeast => {
                TestEvidence { holds: self.p_above(line - slack), fails: self.p_below(line - slack) }
            }
            Op::Below | Op::AtMost => {
                TestEvidence { holds: self.p_below(line + slack), fails: self.p_above(line + slack) }
            }
            // Two one-sided tests: inside both edges, or outside one of them (two ways to be wrong).
            Op::About => TestEvidence {
                holds: self.p_above(line - slack).max(self.p_below(line + slack)),
                fails: (2.0 * self.p_above(line + slack).min(self.p_below(line - slack))).min(1.0),
            },
        }
    }

    /// p-value of "the difference is at most `x`".
    fn p_above(&self, x: f64) -> f64 {
        match &self.test {
            Test::Flips(flips, unit) => flips.p_above(x / unit),
            _ => self.beyond(self.difference, x),
        }
    }

    /// p-value of "the difference is at least `x`".
    fn p_below(&self, x: f64) -> f64 {
        match &self.test {
            Test::Flips(flips, unit) => flips.p_below(x / unit),
            _ => self.beyond(self.difference.scaled(-1.0), -x),
        }
    }

    /// [`Self::p_above`] of this difference or of its negative. At 0 it is the exact test's p-value; elsewhere it is clamped, so that it never
    /// falls with x.
    fn beyond(&self, d: Estimate, x: f64) -> f64 {
        let interval = d.p_above(x);
        let Test::AtZero(p) = self.test else { return interval };
        let exact = if d.value > 0.0 { 0.5 * p } else { 1.0 - 0.5 * p };
        if x == 0.0 {
            exact
        } else if x > 0.0 {
            interval.max(exact)
        } else {
            interval.min(exact)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contrast(low: f64, high: f64) -> Contrast {
        let difference = Estimate { value: 0.5 * (low + high), low, high, n: 50 };
        Contrast { difference, how: String::new(), test: Test::Interval }
    }

    #[test]
    fn evidence_crosses_its_level_where_the_interval_ends() {
        let half = 0.5 * (1.0 - LEVEL);
        for (low, high, op, slack, holds, fails) in [
            (0.1, 0.3, Op::Above, 0.0, true, false),
            (-0.1, 0.3, Op::Above, 0.0, false, false),
            (-0.3, -0.1, Op::Above, 0.0, false, true),
            (-0.3, -0.1, Op::AtMost, 0.0, true, false),
            (-0.01, 0.01, Op::About, 0.02, true, false),
            (-0.03, 0.01, Op::About, 0.02, false, false),
            (0.05, 0.06, Op::About, 0.02, false, true),
        ] {
            let found = contrast(low, high).judged(op, 0.0, slack);
            assert_eq!((found.holds < half, found.fails < half), (holds, fails), "{low} {high} {op:?}: {found:?}");
        }
        let edge = contrast(0.0, 0.4).judged(Op::Above, 0.0, 0.0);
        assert!((edge.holds - half).abs() < 1e-9, "{edge:?}");
    }

    #[test]
    fn an_interval_without_width_is_no_evidence() {
        for op in [Op::Above, Op::AtLeast, Op::Below, Op::AtMost, Op::About] {
            for at in [-0.2, 0.0, 0.2] {
                let found = contrast(at, at).judged(op, 0.0, 0.0);
                assert!(found.holds == 1.0 && found.fails == 1.0, "{op:?} at {at}: {found:?}");
            }
        }
    }

    #[test]
    fn mover_of_equal_symmetric_intervals_grows_by_root_two() {
        let e = |v: f64, n| Estimate { value: v, low: v - 0.1, high: v + 0.1, n };
        let d = Contrast::independent(e(0.7, 30), e(0.5, 90)).difference;
        assert!((d.value - 0.2).abs() < 1e-12 && (d.high - d.value - 0.1 * 2f64.sqrt()).abs() < 1e-12);
        assert_eq!(d.n, 30);
    }

    /// The exact test and the verdict at the same level never disagree, whatever the table.
    #[test]
    fn the_test_that_is_printed_is_the_one_that_decides() {
        for gained in 0..30 {
            for lost in 0..30 {
                let flips = Flips { both_right: 40, lost, gained, both_wrong: 0 };
                let difference = flips.change(LEVEL).expect("problems").scaled(100.0);
                let paired = Contrast { difference, how: String::new(), test: Test::Flips(flips, 100.0) };
                let TestEvidence { holds, fails } = paired.judged(Op::Above, 0.0, 0.0);
                let p = flips.p_value();
                assert!((2.0 * holds.min(fails)).min(1.0) - p < 1e-12, "{gained} {lost}");
                assert_eq!(difference.covers(0.0), p > 1.0 - LEVEL, "{gained} {lost}: {difference}");
                let pooled = Contrast { difference, how: String::new(), test: Test::AtZero(p) };
                let found = pooled.judged(Op::Above, 0.0, 0.0);
                assert!((2.0 * found.holds.min(found.fails)).min(1.0) - p < 1e-12, "{gained} {lost}");
            }
        }
    }
}
