//! Dose and response: the distance, in norm or angle, by which the latent input is moved. A table, and one panel per mode, because their
//! doses have different units.

use super::intervention_ladder::LADDER;
use super::{Drawing, Exhibit, points};
use crate::report::figures::{Axis, Figure, Line, LineChart};
use crate::report::folder::{Folder, called};
use crate::report::paper::Paper;
use switchyard::schema::{InterventionRow, RowFile, Steps};

const SOURCES: &[&str] = &[InterventionRow::NAME];

pub(super) const EXHIBITS: &[Exhibit] = &[
    rows_table!(
        "tab:intervention-dose",
        SOURCES,
        "Dose and response: how far, in norm or angle, the latent input is moved",
        |row: &InterventionRow| !row.is_plain() && row.dose.is_some(),
        LADDER,
    ),
    Exhibit { draw, ..Exhibit::new("fig:intervention-dose", SOURCES) },
];

fn draw(exhibit: &Exhibit, _: &Paper, folder: &Folder) -> Vec<Drawing> {
    let modes = [
        ("scale", "The latent input is made longer or shorter", "factor of its length"),
        ("rotate", "The latent input is turned", "angle (degrees)"),
    ];
    let panel = |(mode, title, unit): (&str, &str, &str)| {
        let line = |checkpoint: &str| {
            let graded = |r: &&InterventionRow| r.mode == mode && r.steps == Steps::All;
            let rows = folder.rows::<InterventionRow>(checkpoint).iter().filter(graded);
            Line::bars(&called(checkpoint), points(rows.filter_map(|r| Some((r.dose?, r.accuracy)))))
        };
        let lines = folder.checkpoints_with::<InterventionRow>().into_iter().take(7).map(line);
        Figure::lines(LineChart {
            title: title.into(),
            x: Axis::new(unit),
            y: Axis::share("accuracy"),
            lines: lines.filter(|line| line.points.len() > 1).collect(),
            ..LineChart::default()
        })
    };
    let panels = modes.into_iter().filter_map(panel).collect();
    exhibit.drawing("Dose and response (ours)", 2, panels, "Bars: 95 % intervals.")
}
