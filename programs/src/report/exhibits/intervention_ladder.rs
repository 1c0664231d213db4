//! Every intervention on the latent inputs, all steps at once: a table, and accuracy and changed answers by mode; and the same by the
//! place of the intervention.

use super::intervention::{theirs, theirs_are, with_n};
use super::{Drawing, Exhibit};
use crate::report::figures::{Axis, BarChart, BarSeries, Figure};
use crate::report::folder::{Folder, called, sound};
use crate::report::paper::Paper;
use switchyard::schema::{InterventionRow, RowFile, Steps};
use switchyard::stats::Estimate;

const SOURCES: &[&str] = &[InterventionRow::NAME];

/// Columns of a table of interventions.
pub(super) const LADDER: &[&str] = columns!(InterventionRow:
    mode, dose, steps, later, at, draws, accuracy, accuracy_change, answer_changed, before, guess, diagnostic_accuracy,
    diagnostic_by_luck, wrong_to_right, logit_diff_change, lost, gained, p_holm, firings, mean_change);

pub(super) const EXHIBITS: &[Exhibit] = &[
    rows_table!(
        "tab:intervention-ladder",
        SOURCES,
        "Ladder of interventions on the latent inputs, all steps",
        InterventionRow::is_plain,
        LADDER,
    ),
    rows_table!(
        "tab:intervention-where",
        SOURCES,
        "Interventions by where they act: embedding or cache, later latents frozen or recomputed",
        |row: &InterventionRow| !row.is_plain() && row.steps == Steps::All && row.dose.is_none(),
        LADDER,
    ),
    Exhibit { draw, ..Exhibit::new("fig:intervention-all", SOURCES) },
];

fn draw(exhibit: &Exhibit, paper: &Paper, folder: &Folder) -> Vec<Drawing> {
    let mut panels = vec![];
    for checkpoint in folder.checkpoints_with::<InterventionRow>() {
        let mut rows: Vec<&InterventionRow> = vec![];
        for row in folder.rows::<InterventionRow>(checkpoint).iter().filter(|r| r.is_plain()) {
            if !rows.iter().any(|r| r.mode == row.mode) {
                rows.push(row);
            }
        }
        if rows.len() < 2 {
            continue;
        }
        let series = |name: &str, value: fn(&InterventionRow) -> Option<Estimate>, column: &str| -> BarSeries {
            let values: Vec<Option<Estimate>> = rows.iter().map(|r| value(r).and_then(sound)).collect();
            let theirs = |r: &&InterventionRow| theirs(paper, folder, checkpoint, &r.mode, column);
            BarSeries { name: with_n(name, &values), values, paper: rows.iter().map(theirs).collect() }
        };
        let categories: Vec<String> = rows.iter().map(|r| r.mode.replace('_', " ")).collect();
        let chart = |title: &str, y: &str, series: Vec<BarSeries>| {
            let title = format!("{title}: {}", called(checkpoint));
            Figure::bars(BarChart { title, y: Axis::share(y), categories: categories.clone(), series })
        };
        let accuracy = vec![
            series("all", |r| Some(r.accuracy), "all_acc"),
            series("diagnostic", |r| r.diagnostic_accuracy, "diag_acc"),
        ];
        let changed = vec![series("all", |r| Some(r.answer_changed), "all_changed")];
        // The two panels are side by side; a checkpoint without changed answers has only its table.
        if changed[0].values.iter().flatten().any(|e| e.high > 0.0) {
            panels.extend(chart("Accuracy by what enters the latents", "accuracy", accuracy));
            panels.extend(chart("Answers changed", "share of problems", changed));
        }
    }
    let note = format!(
        "Bars: 95 % intervals. Diagnostic: problems where normal switched and was right, so it can only fall.{}",
        theirs_are(&panels, "n = 50 and 21 fit them")
    );
    exhibit.drawing("Every intervention (ours)", 2, panels, &note)
}
