//! fig:calibration, fig:calibration-full: the trajectory of Switch-GRPO, as the paper's overlay and in full; its ends as cells
//! (`ours:training/reward/late`).

use super::{Drawing, Exhibit};
use crate::report::cells::{Cells, mean};
use crate::report::curves::{curve, rolling};
use crate::report::figures::{Axis, Figure, Line, LineChart, Point};
use crate::report::folder::{Folder, number};
use crate::report::paper::Paper;
use switchyard::schema::{GrpoStepRow, METRICS};
use switchyard::stats::{Estimate, FEWEST, unsigned_zero};
use switchyard::store::FlatRow;

const SOURCES: &[&str] = &[METRICS];

pub(super) const EXHIBITS: &[Exhibit] = &[
    Exhibit { cell, draw: overlay, ..Exhibit::new("fig:calibration", SOURCES) },
    Exhibit { cell, draw: full, ..Exhibit::new("fig:calibration-full", SOURCES) },
    Exhibit { cell, ..Exhibit::new("ours:training", SOURCES) },
];

/// The four metrics of the paper's figure: name, unit.
const SHOWN: [(&str, &str); 4] = [
    ("reward", "mean reward of a batch"),
    ("switch rate", "share of rollouts"),
    ("latent invocations", "blocks per rollout (of older rows, latent steps)"),
    ("visible tokens", "per rollout"),
];
const COLUMNS: &[&str; 4] = columns!(GrpoStepRow: reward, switch_rate, latent_calls, visible_tokens);

/// The paper's latent invocations are blocks; older rows count latent steps alone.
fn measured(rows: &[FlatRow], key: &'static str) -> &'static str {
    let [steps, blocks] = *columns!(GrpoStepRow: latent_calls, blocks);
    if key == steps && rows.iter().any(|row| number(row, blocks).is_some()) { blocks } else { key }
}

/// Ends of the trajectory: the mean of its first and of its last tenth of steps, of at least as many as an interval needs. None of a
/// run in which the two ends would overlap.
fn cell(cells: &Cells<'_>, row: &str, column: &str) -> Option<Estimate> {
    let rows = cells.folder.flat(METRICS, &cells.folder.grpo);
    let tenth = rows.len().div_ceil(10).max(FEWEST);
    if rows.len() < 2 * tenth {
        return None;
    }
    let early = matches!(column, "start" | "before");
    let part = if early { &rows[..tenth] } else { &rows[rows.len() - tenth..] };
    let key = if row == "tokens" { COLUMNS[3] } else { COLUMNS.iter().find(|key| **key == row)? };
    let key = measured(rows, key);
    let found = mean(&part.iter().filter_map(|row| number(row, key)).collect::<Vec<_>>())?;
    // The paper's figure gives this one in percent but the block in counts.
    Some(if row == "switch_rate" { found.scaled(100.0) } else { found })
}

/// Four rolling means on one axis as in the paper, each between its own smallest and largest value, which the legend has.
fn overlay(exhibit: &Exhibit, _: &Paper, folder: &Folder) -> Vec<Drawing> {
    let rows = folder.flat(METRICS, "grpo");
    let mut lines = vec![];
    for (key, (name, _)) in COLUMNS.iter().zip(SHOWN) {
        let key = measured(rows, key);
        let raw: Vec<(f64, f64)> = rows.iter().filter_map(|r| Some((number(r, "step")?, number(r, key)?))).collect();
        let smooth = rolling(&raw);
        let (low, high) = smooth.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), p| (l.min(p.y), h.max(p.y)));
        if high <= low {
            continue;
        }
        let to = |y: f64| (y - low) / (high - low);
        let points = smooth.iter().map(|p| Point::bare(p.x, to(p.y))).collect();
        let said = [low, high].map(|end| unsigned_zero(format!("{end:.2}")).replace('-', "−"));
        lines.push(Line::band(&format!("{name} ({})", said.join(" to ")), points));
    }
    let figure = Figure::lines(LineChart {
        title: "Switch-GRPO, four metrics".into(),
        x: Axis::new("optimiser step"),
        y: Axis::new("0: smallest, 1: largest"),
        lines,
        ..LineChart::default()
    });
    let note = "Each line runs between its own smallest and largest rolling mean, which stand in the legend, so that heights of two lines do not compare; the panels of fig:calibration-full have units and intervals.";
    exhibit.drawing("Switch-GRPO trajectory", 1, figure.into_iter().collect(), note)
}

/// The four curves of the trajectory with their units, raw batches and bands.
fn full(exhibit: &Exhibit, _: &Paper, folder: &Folder) -> Vec<Drawing> {
    let phases = [("grpo", folder.flat(METRICS, "grpo"))];
    let panel = |(key, (name, unit)): (&&'static str, (&str, &str))| {
        curve(&format!("Switch-GRPO: {name}"), unit, &phases, measured(phases[0].1, key), false)
    };
    let panels = COLUMNS.iter().zip(SHOWN).filter_map(panel).collect();
    let note = "Marks: batches. Band: rolling mean ± 1.96 standard errors.";
    exhibit.drawing("Switch-GRPO trajectory in full", 2, panels, note)
}
