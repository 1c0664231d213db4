//! fig:calibration and fig:calibration-full from the metrics of Switch-GRPO, and the supervised losses. Knows the rows of
//! `metrics`.

use super::Drawing;
use crate::report::curves::{SUPERVISED, curve, rolling};
use crate::report::figures::{Axis, Figure, Line, LineChart, Point};
use crate::report::folder::{Folder, number};
use crate::schema::{GrpoStepRow, METRICS, StepRow, columns};
use crate::store::FlatRow;

/// The four metrics of the paper's figure: name, unit.
const SHOWN: [(&str, &str); 4] = [
    ("reward", "mean reward of a batch"),
    ("switch rate", "share of rollouts"),
    ("latent calls", "per rollout"),
    ("visible tokens", "per rollout"),
];
/// Their columns.
const COLUMNS: &[&str; 4] = columns!(GrpoStepRow: reward, switch_rate, latent_calls, visible_tokens);

/// Four rolling means on one axis, each between its own smallest and largest value; the legend has start → end.
pub(super) fn overlay(folder: &Folder) -> Option<Drawing> {
    let rows = folder.flat(METRICS, "grpo");
    let mut lines = vec![];
    for (key, (name, _)) in COLUMNS.iter().zip(SHOWN) {
        let raw: Vec<(f64, f64)> = rows.iter().filter_map(|r| Some((number(r, "step")?, number(r, key)?))).collect();
        let smooth = rolling(&raw);
        let (low, high) = smooth.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), p| (l.min(p.y), h.max(p.y)));
        let (Some(first), Some(last)) = (smooth.first(), smooth.last()) else { continue };
        if high <= low {
            continue;
        }
        let to = |y: f64| (y - low) / (high - low);
        let points = smooth.iter().map(|p| Point::bare(p.x, to(p.y))).collect();
        lines.push(Line::band(&format!("{name} {:.2} → {:.2}", first.y, last.y), points));
    }
    if lines.is_empty() {
        return None;
    }
    let figure = Figure::Lines(LineChart {
        title: "Switch-GRPO, four metrics".into(),
        x: Axis::new("optimiser step"),
        y: Axis::new("rolling mean, min to max"),
        lines,
        marks: vec![],
        levels: vec![],
    });
    let note = "Each line runs between its own smallest and largest rolling mean; the panels of fig:calibration-full have units and intervals.";
    Drawing::new("fig:calibration", "Switch-GRPO trajectory", vec![figure], note)
}

/// The same four with their units, raw batches and bands.
pub(super) fn full(folder: &Folder) -> Option<Drawing> {
    let rows = folder.flat(METRICS, "grpo");
    let has = |key: &str| rows.iter().any(|r| number(r, key).is_some());
    let phases = [("grpo", rows)];
    let panels: Vec<Figure> = COLUMNS
        .iter()
        .zip(SHOWN)
        .filter(|(key, _)| has(key))
        .map(|(key, (name, unit))| curve(&format!("Switch-GRPO: {name}"), unit, &phases, key, false))
        .collect();
    Drawing::new(
        "fig:calibration-full",
        "Switch-GRPO trajectory in full",
        panels,
        "Marks: batches. Band: rolling mean ± 1.96 standard errors.",
    )
}

/// Loss and token accuracy of the supervised phases.
pub(super) fn losses(folder: &Folder) -> Option<Drawing> {
    let has = |rows: &[FlatRow], key: &str| rows.iter().any(|r| number(r, key).is_some());
    let phases: Vec<(&str, &[FlatRow])> = SUPERVISED.iter().map(|p| (*p, folder.flat(METRICS, p))).collect();
    let of = |key: &str| phases.iter().filter(|(_, rows)| has(rows, key)).copied().collect::<Vec<_>>();
    let mut panels = vec![];
    let keys: &[&str; 2] = columns!(StepRow: loss, token_accuracy);
    let titles = [("Training loss", "cross-entropy (nats)", true), ("Training accuracy", "token accuracy", false)];
    for (key, (title, y, log)) in keys.iter().zip(titles) {
        if !of(key).is_empty() {
            panels.push(curve(title, y, &of(key), key, log));
        }
    }
    Drawing::new(
        "fig:training",
        "Supervised training (ours)",
        panels,
        "Rolling means of 20 steps with ± 1.96 standard errors.",
    )
}
