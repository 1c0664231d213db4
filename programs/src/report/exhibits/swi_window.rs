//! tab:swi-window, fig:swi-window: p(`<swi>`) and entropy around annotated positions.

use super::sft_vs_rl::start_row;
use super::{Drawing, Exhibit, Layout, points};
use crate::report::cells::Cells;
use crate::report::figures::{Axis, Figure, Line, LineChart, Point};
use crate::report::folder::{Folder, called};
use crate::report::paper::Paper;
use switchyard::schema::{RowFile, WindowRow};
use switchyard::stats::Estimate;

const SOURCES: &[&str] = &[WindowRow::NAME];

pub(super) const EXHIBITS: &[Exhibit] = &[
    Exhibit {
        cell,
        beside: Layout { extra: |folder| start_row(folder, SOURCES).into_iter().collect(), ..Layout::PLAIN },
        ..Exhibit::new("tab:swi-window", SOURCES)
    },
    Exhibit { draw, ..Exhibit::new("fig:swi-window", SOURCES) },
];

/// The paper's offsets: its column and ours.
const OFFSETS: [(&str, i64); 3] = [("before", -1), ("at", 0), ("after", 1)];

fn cell(cells: &Cells<'_>, row: &str, column: &str) -> Option<Estimate> {
    let (_, offset) = OFFSETS.into_iter().find(|(name, _)| *name == column)?;
    cells.folder.rows::<WindowRow>(cells.phase(row)?).iter().find(|r| r.offset == offset).map(|r| r.p_swi)
}

fn draw(exhibit: &Exhibit, paper: &Paper, folder: &Folder) -> Vec<Drawing> {
    let lines = |y: fn(&WindowRow) -> Estimate| -> Vec<Line> {
        let rows = |c: &str| points(folder.rows::<WindowRow>(c).iter().map(|r| (r.offset as f64, y(r))));
        folder.checkpoints_with::<WindowRow>().into_iter().map(|c| Line::band(&called(c), rows(c))).collect()
    };
    let mut p = lines(|r| r.p_swi);
    if p.iter().all(|line| line.points.is_empty()) {
        return vec![];
    }
    for (row, name) in folder.papers(WindowRow::NAME) {
        let value = |column: &str| paper.cell(&format!("tab:swi-window/{row}/{column}")).ok();
        let values = OFFSETS.iter().filter_map(|(column, x)| Some(Point::bare(*x as f64, value(column)?)));
        p.push(Line::scatter(name, values.collect()));
    }
    let theirs = p.iter().any(|line| !line.joined && !line.points.is_empty());
    let chart = |title: &str, y: Axis, lines: Vec<Line>| {
        let x = Axis::new("offset from the annotated position (tokens)").whole();
        Figure::lines(LineChart { title: title.into(), x, y, lines, marks: vec![0.0], ..LineChart::default() })
    };
    let panels = [
        chart("p(<swi>) around annotated positions", Axis::new("p(<swi>)").log(), p),
        chart("Entropy of the next token there", Axis::new("entropy (nats)"), lines(|r| r.entropy)),
    ];
    let three = if theirs { " The paper gives numbers at three offsets only." } else { "" };
    let note = format!("Bands: 95 % cluster bootstrap over problems.{three}");
    exhibit.drawing("Switch window", 1, panels.into_iter().flatten().collect(), &note)
}
