//! tab:intervention, fig:intervention: what other inputs at the latent steps leave of right answers.

use super::{Drawing, Exhibit, Layout};
use crate::report::cells::{Cells, intervention_row};
use crate::report::figures::{Axis, BarChart, BarSeries, Figure};
use crate::report::folder::{Folder, called, sound};
use crate::report::paper::Paper;
use crate::schema::{InterventionRow, KnownValueRow, NORMAL, Named};
use crate::stats::Estimate;

const SOURCES: &[&str] = &[InterventionRow::NAME];

pub(super) const EXHIBITS: &[Exhibit] = &[
    Exhibit {
        per_checkpoint: true,
        cell,
        beside: Layout { extra, ..Layout::PLAIN },
        ..Exhibit::of("tab:intervention", SOURCES)
    },
    Exhibit { draw, ..Exhibit::of("fig:intervention", SOURCES) },
];

fn cell(cells: &Cells<'_>, mode: &str, column: &str) -> Option<Estimate> {
    let row = intervention_row(cells.folder, cells.checkpoint, mode)?;
    match column {
        "all_acc" => Some(row.accuracy),
        "all_changed" => Some(row.answer_changed),
        "diag_acc" => row.diagnostic_accuracy,
        // Normal is right on every problem of the subset by its definition.
        "diag_delta" => {
            let e = row.diagnostic_accuracy?;
            Some(Estimate { value: e.value - 1.0, low: e.low - 1.0, high: e.high - 1.0, n: e.n })
        }
        _ => None,
    }
}

/// Modes that the paper lacks.
fn extra(folder: &Folder) -> Vec<(String, String)> {
    let known = |mode: &str| [NORMAL, "zero", "random_norm", "skip"].contains(&mode);
    let mut modes: Vec<&str> = vec![];
    for (_, row) in folder.all::<InterventionRow>().filter(|(_, row)| row.is_plain() && !known(&row.mode)) {
        if !modes.contains(&row.mode.as_str()) {
            modes.push(&row.mode);
        }
    }
    modes.into_iter().map(|mode| (mode.to_owned(), mode.replace('_', " "))).collect()
}

/// What the bars show, besides the known value.
const SHOWN: [(&str, &str); 5] = [
    (NORMAL, "normal"),
    ("zero", "zero"),
    ("random_norm", "random norm"),
    ("resample", "resample"),
    ("embedding_argmax", "own token"),
];

/// The finding in one panel: what five inputs leave of right answers, and how often the answer follows a known value.
fn draw(exhibit: &Exhibit, paper: &Paper, folder: &Folder) -> Vec<Drawing> {
    let of_sft = folder.of::<InterventionRow>().into_iter().find(|c| *c == folder.sft);
    let Some(checkpoint) = of_sft.or_else(|| folder.of::<InterventionRow>().first().copied()) else { return vec![] };
    let left =
        |mode: &str| intervention_row(folder, checkpoint, mode).and_then(|r| r.diagnostic_accuracy).and_then(sound);
    let theirs = |mode: &str| paper.cell(&format!("tab:intervention/{mode}/diag_acc")).ok();
    let known = KnownValueRow::main(folder.rows(checkpoint)).and_then(|row| sound(row.hit_rate));
    let mut bars: Vec<(&str, Option<Estimate>, Option<f64>)> =
        SHOWN.iter().map(|(mode, name)| (*name, left(mode), theirs(mode))).collect();
    bars.push(("known value", known, None));
    bars.retain(|(_, value, _)| value.is_some());
    if bars.len() < 2 {
        return vec![];
    }
    let values: Vec<Option<Estimate>> = bars.iter().map(|(_, value, _)| *value).collect();
    let series = vec![BarSeries {
        name: with_n("of the diagnostic problems", &values),
        values,
        paper: bars.iter().map(|b| b.2).collect(),
    }];
    let panel = Figure::Bars(BarChart {
        title: format!("What enters the latents, and what becomes of right answers: {}", called(checkpoint)),
        y: Axis::new("share").range(0.0, 1.04),
        categories: bars.iter().map(|(name, ..)| (*name).to_owned()).collect(),
        series,
    });
    let note = "Bars: share of the answers that were right with latents (diagnostic problems) and stay right; the last one: share that \
                becomes what arithmetic predicts from the value put in. 95 % Wilson intervals. Diamonds: the paper's numbers \
                (n = 21 fits them).";
    exhibit.drawing("Latent-state interventions", 1, vec![panel], note)
}

/// `all (n=500)`; where bars differ in it, `(n=40 to 84)`.
pub(super) fn with_n(name: &str, values: &[Option<Estimate>]) -> String {
    let n = || values.iter().flatten().map(|e| e.n);
    match (n().min().unwrap_or(0), n().max().unwrap_or(0)) {
        (least, most) if least == most => format!("{name} (n={most})"),
        (least, most) => format!("{name} (n={least} to {most})"),
    }
}
