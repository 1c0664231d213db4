//! Accuracy when a block is closed early, by the number of latents that remain.

use super::{Drawing, Exhibit, points};
use crate::report::figures::{Axis, Figure, Line, LineChart};
use crate::report::folder::{Folder, called};
use crate::report::paper::Paper;
use switchyard::schema::{EarlyStopRow, RowFile};
use switchyard::stats::Estimate;

const SOURCES: &[&str] = &[EarlyStopRow::NAME];

pub(super) const EXHIBITS: &[Exhibit] = &[
    rows_table!(
        "tab:early-stop",
        SOURCES,
        "After how many latents is the answer settled? Every block closed after its first k",
        EarlyStopRow: k, of, accuracy, guess, same_answer, others_answer, committed, reversed, gold_logprob, difference, p_holm, resampled, resampled_difference, resampled_p_holm,
    ),
    Exhibit { draw, ..Exhibit::new("fig:early-stop", SOURCES) },
];

fn draw(exhibit: &Exhibit, _: &Paper, folder: &Folder) -> Vec<Drawing> {
    let panel = |checkpoint: &str| {
        let line = |name: &str, of: fn(&EarlyStopRow) -> Option<Estimate>| {
            let rows = folder.rows::<EarlyStopRow>(checkpoint).iter();
            Line::bars(name, points(rows.filter_map(|r| Some((r.k as f64, of(r)?)))))
        };
        Figure::lines(LineChart {
            title: called(checkpoint),
            x: Axis::new("latents before each block is closed").whole(),
            y: Axis::share("share of problems"),
            lines: vec![
                line("right", |r| Some(r.accuracy)),
                line("right, later latents of another problem", |r| r.resampled),
                line("answer of the full run", |r| Some(r.same_answer)),
                line("settled", |r| Some(r.committed)),
                line("answer of another problem's full run", |r| Some(r.others_answer)),
            ],
            ..LineChart::default()
        })
    };
    let panels = folder.checkpoints_with::<EarlyStopRow>().into_iter().filter_map(panel).collect();
    let note = format!(
        "Bars: 95 % Wilson intervals. Settled: the answer stays that of the full run from there on. {}",
        EarlyStopRow::READING
    );
    exhibit.drawing("Early stop (ours)", 2, panels, &note)
}
