//! Maps claims to calibrated tests, and describes their error rates. Knows names of cells and the rows of `probe calibrate`.

use crate::report::claims::{Comparison, Term};
use switchyard::schema::CalibrationRow;
use switchyard::stats::LEVEL;

/// The calibrated test of a comparison: the same statistic by the same function. Only the family of Holm's correction differs (there the
/// modes of a run, here the claims).
fn test_of(c: &Comparison) -> Option<String> {
    let (left, right) = (c.left.cell()?, c.right.cell());
    let parts: Vec<&str> = left.split('/').collect();
    match parts.as_slice() {
        // The exact test of a mode against the normal run.
        ["tab:intervention", mode, "all_acc"] if right == Some("tab:intervention/normal/all_acc") => {
            Some(format!("latent_intervention/{mode}"))
        }
        // A probe's score against a number.
        ["tab:probe", ..] if matches!(c.right, Term::Number(_)) => Some("layer_probe/switch, paper".into()),
        // The same positions of two checkpoints.
        ["tab:swi-window", "grpo", "at"] if right == Some("tab:swi-window/sft/at") => Some("phases/p_swi".into()),
        _ => None,
    }
}

/// The row of a comparison's test at the largest calibrated n up to `n` (else at the smallest).
fn row_of<'r>(rows: &'r [CalibrationRow], c: &Comparison, n: usize) -> Option<&'r CalibrationRow> {
    let test = test_of(c)?;
    let of = || rows.iter().filter(|row| row.test == test && row.kind == CalibrationRow::ALL);
    let at = of().filter(|row| row.problems <= n).max_by_key(|row| row.problems);
    at.or_else(|| of().min_by_key(|row| row.problems))
}

/// A warning if a comparison's test has more false alarms than its level allows.
pub(super) fn alarms(rows: &[CalibrationRow], c: &Comparison, n: usize) -> Option<String> {
    let row = row_of(rows, c, n)?;
    let false_alarms = row.false_alarms.filter(|share| share.low > 1.0 - LEVEL)?;
    Some(format!("`{}` raises a false alarm in {false_alarms:.2} of known cases", row.test))
}

/// Error rates of a comparison's test.
pub(super) fn line(rows: &[CalibrationRow], c: &Comparison, n: usize) -> Option<String> {
    let row = row_of(rows, c, n)?;
    let test = &row.test;
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    let found = row.power.map(|p| format!("finds such an effect in {} of known cases ({p:.2})", percent(p.value)));
    let alarms = row.false_alarms.map(|p| format!("raises a false alarm in {} ({p:.2})", percent(p.value)));
    let both: Vec<String> = found.into_iter().chain(alarms).collect();
    let blind = if row.blind.is_empty() { String::new() } else { format!("; {}", row.blind) };
    Some(format!("this test {} at n = {} (reports/calibration: {test}){blind}", both.join(" and "), row.problems))
}
