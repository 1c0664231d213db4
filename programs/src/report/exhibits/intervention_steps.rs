//! One latent step replaced at a time: a table, a figure, and the cells that claims request (`ours:step/zero@2/accuracy_change`).

use super::intervention_ladder::LADDER;
use super::{Drawing, Exhibit};
use crate::report::cells::{Cells, single_step};
use crate::report::figures::{Axis, Figure, Line, LineChart, Point};
use crate::report::folder::{Folder, called, distinct, sound};
use crate::report::paper::Paper;
use switchyard::nth::Nth;
use switchyard::schema::{At, InterventionRow, Later, NORMAL, RowFile, Steps};
use switchyard::stats::Estimate;

/// Rows of single steps are in a separate file if the command had no `all`.
const SOURCES: &[&str] = &[InterventionRow::NAME, InterventionRow::STEPS];

pub(super) const EXHIBITS: &[Exhibit] = &[
    rows_table!(
        "tab:intervention-steps",
        SOURCES,
        "Interventions at one latent step at a time",
        |row: &InterventionRow| replaces(&row.mode) && row.steps != Steps::All,
        LADDER,
    ),
    Exhibit { draw, ..Exhibit::new("fig:intervention-steps", SOURCES) },
    Exhibit { per_checkpoint: true, cell, ..Exhibit::new("ours:step", SOURCES) },
];

/// Whether a mode replaces the latent input.
fn replaces(mode: &str) -> bool {
    ![NORMAL, "self_patch"].contains(&mode)
}

/// A mode at one latent step (`zero@2`), at full dose.
fn cell(cells: &Cells<'_>, row: &str, column: &str) -> Option<Estimate> {
    let (mode, step) = row.split_once('@')?;
    let steps: Steps = step.parse().ok()?;
    let plain = |r: &&InterventionRow| {
        r.mode == mode && r.steps == steps && r.at == At::Both && r.later == Later::Recompute && r.dose.is_none()
    };
    let mut rows = SOURCES.iter().flat_map(|file| cells.folder.rows_in::<InterventionRow>(file, cells.checkpoint));
    let row = rows.find(plain)?;
    if column == "accuracy_change" { Some(row.accuracy_change) } else { row.diagnostic_accuracy }
}

/// Rows at single steps, each with its step from 1; if the main file has none, from the separate file.
fn stepped<'a>(folder: &'a Folder, checkpoint: &str) -> Vec<(usize, &'a InterventionRow)> {
    let of = |file: &&str| -> Vec<(usize, &'a InterventionRow)> {
        let step = |row: &'a InterventionRow| Some((Nth::new(single_step(row.steps)?).shown(), row));
        folder.rows_in::<InterventionRow>(file, checkpoint).iter().filter_map(step).collect()
    };
    SOURCES.iter().map(of).find(|rows| !rows.is_empty()).unwrap_or_default()
}

/// Maximum number of modes drawn: more lines than colours cannot be distinguished.
const MOST: usize = 7;

fn draw(exhibit: &Exhibit, _: &Paper, folder: &Folder) -> Vec<Drawing> {
    let mut checkpoints: Vec<&str> = SOURCES.iter().flat_map(|file| folder.checkpoints(file)).collect();
    checkpoints.sort_unstable_by(|a, b| b.cmp(a));
    checkpoints.dedup();
    let (mut panels, mut all) = (vec![], 0);
    for checkpoint in checkpoints {
        let rows = stepped(folder, checkpoint);
        let modes = distinct(rows.iter().map(|(_, r)| r.mode.as_str()).filter(|mode| replaces(mode)));
        all = all.max(modes.len());
        let line = |mode: &&str| {
            let mut points: Vec<Point> = vec![];
            for (step, row) in rows.iter().filter(|(_, r)| r.mode == *mode) {
                let x = *step as f64;
                // One point per step: if there are several variants, the first (later latents recomputed).
                if let Some(e) = sound(row.answer_changed).filter(|_| !points.iter().any(|p| p.x == x)) {
                    points.push(Point::new(x, e));
                }
            }
            Line::bars(&mode.replace('_', " "), points)
        };
        panels.extend(Figure::lines(LineChart {
            title: format!("One latent step replaced at a time: {}", called(checkpoint)),
            x: Axis::new("latent step").whole(),
            y: Axis::new("answers changed (share)"),
            lines: modes.iter().take(MOST).map(line).collect(),
            ..LineChart::default()
        }));
    }
    let scales = if panels.len() > 1 { " Each panel has its own scale." } else { "" };
    let cut = match all {
        0..=MOST => String::new(),
        all => format!(" Drawn: the first {MOST} of up to {all} modes; all are in tab:intervention-steps."),
    };
    let note = format!("Bars: 95 % intervals.{scales}{cut}");
    exhibit.drawing("Interventions step by step (ours)", 1, panels, &note)
}
