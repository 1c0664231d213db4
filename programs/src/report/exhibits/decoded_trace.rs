//! Solutions decoded from latents step by step, and verified.

use super::{Drawing, Exhibit, points};
use crate::report::figures::{Axis, Figure, Line, LineChart};
use crate::report::folder::{Folder, called};
use crate::report::paper::Paper;
use switchyard::schema::{DecodedTraceRow, Reader, RowFile, stream_name};
use switchyard::stats::Estimate;

const SOURCES: &[&str] = &[DecodedTraceRow::NAME];

pub(super) const EXHIBITS: &[Exhibit] = &[
    rows_table!(
        "tab:decoded-trace",
        SOURCES,
        "Do the steps read from latents form a valid solution? Right answers; two readers, two nulls",
        DecodedTraceRow: reader, layer, step, reads, valid, follows, shuffled, valid_of_several, permuted, p_holm,
    ),
    Exhibit { draw, ..Exhibit::new("fig:decoded-trace", SOURCES) },
];

fn draw(exhibit: &Exhibit, _: &Paper, folder: &Folder) -> Vec<Drawing> {
    let panel = |checkpoint: &str| {
        let all = folder.rows::<DecodedTraceRow>(checkpoint);
        let layer = all.iter().map(|r| r.layer).max()?;
        let line = |name: &str, reader, of: fn(&DecodedTraceRow) -> Option<Estimate>| {
            let rows = all.iter().filter(|r| (r.reader, r.layer) == (reader, layer));
            Line::bars(name, points(rows.filter_map(|r| Some((r.step.shown() as f64, of(r)?)))))
        };
        let lines = vec![
            line("read by a probe", Reader::Probe, |r| Some(r.valid)),
            line("read by the logit lens", Reader::Logit, |r| Some(r.valid)),
            line("another problem's, by a probe", Reader::Probe, |r| r.shuffled),
            line("another problem's, by the logit lens", Reader::Logit, |r| r.shuffled),
        ];
        Figure::lines(LineChart {
            title: format!("{}, {}", called(checkpoint), stream_name(layer)),
            x: Axis::new("latent of each block that is read").whole(),
            y: Axis::share("valid solutions"),
            lines,
            ..LineChart::default()
        })
    };
    let panels = folder.checkpoints_with::<DecodedTraceRow>().into_iter().filter_map(panel).collect();
    let note = "Problems answered right. Bars: 95 % Wilson intervals.";
    exhibit.drawing("Solutions read from latents (ours)", 2, panels, note)
}
