//! tab:exit, and as a figure: p(`</swi>`) at each latent step, by correctness.

use super::{Drawing, Exhibit, Layout, points};
use crate::report::cells::Cells;
use crate::report::figures::{Axis, Figure, Line, LineChart};
use crate::report::folder::{Folder, called};
use crate::report::paper::Paper;
use switchyard::nth::Nth;
use switchyard::schema::{ExitGroup, ExitRow, RowFile};
use switchyard::stats::Estimate;

const SOURCES: &[&str] = &[ExitRow::NAME];

pub(super) const EXHIBITS: &[Exhibit] = &[
    Exhibit {
        per_checkpoint: true,
        cell,
        beside: Layout { extra: |_| vec![("all".into(), "all".into())], ..Layout::PLAIN },
        ..Exhibit::new("tab:exit", SOURCES)
    },
    Exhibit { draw, ..Exhibit::new("fig:exit", SOURCES) },
];

fn cell(cells: &Cells<'_>, group: &str, column: &str) -> Option<Estimate> {
    let group = match group {
        "all" => ExitGroup::All,
        "correct" => ExitGroup::Correct,
        "wrong" => ExitGroup::Wrong,
        _ => return None,
    };
    let step: Nth = column.trim_start_matches("step").parse().ok()?;
    let rows = cells.folder.rows::<ExitRow>(cells.checkpoint);
    rows.iter().find(|r| r.group == group && r.step == step).map(|r| r.p_exit)
}

fn draw(exhibit: &Exhibit, _: &Paper, folder: &Folder) -> Vec<Drawing> {
    let panel = |checkpoint: &str| {
        let mut lines = vec![];
        for (group, name) in [(ExitGroup::Correct, "right"), (ExitGroup::Wrong, "wrong")] {
            let rows = folder.rows::<ExitRow>(checkpoint).iter().filter(|r| r.group == group);
            let points = points(rows.map(|r| (r.step.shown() as f64, r.p_exit)));
            let n = folder.rows::<ExitRow>(checkpoint).iter().filter(|r| r.group == group).map(|r| r.p_exit.n).max();
            lines.push(Line::bars(&format!("answered {name} (n={})", n.unwrap_or(0)), points));
        }
        Figure::lines(LineChart {
            title: format!("Readiness to leave the block: {}", called(checkpoint)),
            x: Axis::new("latent step").whole(),
            y: Axis::new("p(</swi>)").log(),
            lines,
            ..LineChart::default()
        })
    };
    let panels: Vec<Figure> = folder.checkpoints_with::<ExitRow>().into_iter().filter_map(panel).collect();
    let note = "Bars: 95 % cluster bootstrap over problems; some are narrower than the mark.";
    exhibit.drawing("Exit probability (ours; the paper's tab:exit)", panels.len().clamp(1, 2), panels, note)
}
