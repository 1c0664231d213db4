//! Predictions of each layer at each latent step: grids of the logit and the tuned lens, and cells of the last layer
//! (`ours:lens/step1/exit_rank`).

use std::collections::BTreeSet;

use super::{Drawing, Exhibit};
use crate::report::cells::Cells;
use crate::report::figures::{Figure, HeatMap};
use crate::report::folder::{Folder, called, sound};
use crate::report::paper::Paper;
use switchyard::nth::Nth;
use switchyard::schema::{JacobianLensRow, Lens, LensRow, Opening, RowFile, Transport, stream_name};
use switchyard::stats::Estimate;

const SOURCES: &[&str] = &[LensRow::NAME];

pub(super) const EXHIBITS: &[Exhibit] = &[
    Exhibit { covers: true, draw, ..Exhibit::new("fig:lens", SOURCES) },
    Exhibit { per_checkpoint: true, cell, ..Exhibit::new("ours:lens", SOURCES) },
    Exhibit { draw: draw_jacobian, ..Exhibit::new("fig:jacobian-lens", &[JacobianLensRow::NAME]) },
];

/// The logit lens at the last layer, which is the model's own distribution, at a latent step.
fn cell(cells: &Cells<'_>, row: &str, column: &str) -> Option<Estimate> {
    let step: Nth = row.strip_prefix("step")?.parse().ok()?;
    let rows = cells.folder.rows::<LensRow>(cells.checkpoint);
    let last = rows.iter().map(|r| r.layer).max()?;
    let read =
        |r: &&LensRow| r.step == Some(step) && r.layer == last && r.lens == Lens::Logit && r.switching == Opening::Free;
    let row = rows.iter().find(read)?;
    Some(if column == "entropy" { row.entropy } else { row.exit_rank })
}

/// A heat map's cells: layers upwards, another axis across; `name` gives the label of a layer. `None` without numbers.
pub(super) fn grid(cells: &[(usize, usize, Estimate)], name: fn(usize) -> String, map: HeatMap) -> Option<Figure> {
    let axis = |of: fn(&(usize, usize, Estimate)) -> usize| cells.iter().map(of).collect::<BTreeSet<usize>>();
    let (layers, columns) = (axis(|c| c.0), axis(|c| c.1));
    let at = |layer, column| {
        let there = cells.iter().find(|c| (c.0, c.1) == (layer, column));
        there.and_then(|c| sound(c.2)).map(|e| e.value).filter(|v| v.abs() < 1e300)
    };
    let cells: Vec<Vec<_>> = layers.iter().rev().map(|&l| columns.iter().map(|&c| at(l, c)).collect()).collect();
    let columns = columns.iter().map(usize::to_string).collect();
    let rows = layers.into_iter().rev().map(name).collect();
    let map = HeatMap { y: "layer".into(), columns, rows, cells, print: true, ..map };
    map.cells.iter().flatten().any(Option::is_some).then_some(Figure::HeatMap(map))
}

/// Records of a lens at latent steps, each with its step; from free switching if it has any, else from forced.
pub(in crate::report) fn lens_rows<'a>(folder: &'a Folder, checkpoint: &str, lens: Lens) -> Vec<(usize, &'a LensRow)> {
    let rows = folder.rows::<LensRow>(checkpoint).iter().filter(|r| r.lens == lens);
    let rows: Vec<(usize, &LensRow)> = rows.filter_map(|r| Some((r.step?.shown(), r))).collect();
    let switching = rows.first().map(|(_, r)| r.switching);
    rows.into_iter().filter(|(_, r)| Some(r.switching) == switching).collect()
}

/// Quantity of a lens: unit, name, value and upper end (by default the largest value).
type Reading = (&'static str, &'static str, fn(&LensRow) -> Option<Estimate>, Option<f64>);

fn draw(exhibit: &Exhibit, _: &Paper, folder: &Folder) -> Vec<Drawing> {
    let readings: [Reading; 3] = [
        ("p(</swi>)", "p(</swi>)", |r| Some(r.p_exit), Some(1.0)),
        ("nats", "entropy", |r| Some(r.entropy), None),
        ("share", "top-1 is the own value", |r| r.own_value, Some(1.0)),
    ];
    let mut out = vec![];
    for checkpoint in folder.checkpoints_with::<LensRow>() {
        // One colour scale for both lenses.
        let entropies = folder.rows::<LensRow>(checkpoint).iter().filter_map(|row| sound(row.entropy)).map(|e| e.value);
        let most = entropies.fold(1e-9, f64::max);
        let mut panels = vec![];
        for (unit, name, value, end) in readings {
            for (lens, of) in [(Lens::Logit, "Logit"), (Lens::Tuned, "Tuned")] {
                let rows = lens_rows(folder, checkpoint, lens);
                let cells: Vec<_> = rows.iter().filter_map(|(step, r)| Some((r.layer, *step, value(r)?))).collect();
                let title = format!("{of} lens, {name}: {}", called(checkpoint));
                let (x, range) = ("latent step".into(), Some((0.0, end.unwrap_or(most))));
                panels.extend(grid(
                    &cells,
                    stream_name,
                    HeatMap { title, x, unit: unit.into(), range, ..HeatMap::default() },
                ));
            }
        }
        // The two lenses side by side.
        let columns = if lens_rows(folder, checkpoint, Lens::Tuned).is_empty() { 1 } else { 2 };
        let note = "A layer is read at its output; the topmost is the model's own prediction. Means over blocks; intervals are in the rows.";
        out.extend(exhibit.drawing_of(checkpoint, "Lens grid (ours)", columns, panels, note));
    }
    out
}

/// Accuracy of each reading for the answer, by layer and latent step.
fn draw_jacobian(exhibit: &Exhibit, _: &Paper, folder: &Folder) -> Vec<Drawing> {
    let mut out = vec![];
    for checkpoint in folder.checkpoints_with::<JacobianLensRow>() {
        let mut panels = vec![];
        let readings =
            [(Transport::Jacobian, "Jacobian lens"), (Transport::Logit, "Logit lens"), (Transport::Others, "Null")];
        for (lens, name) in readings {
            let rows = folder.rows::<JacobianLensRow>(checkpoint).iter().filter(|r| r.lens == lens);
            let cells: Vec<_> = rows.map(|r| (r.layer, r.step.shown(), r.says_answer)).collect();
            let title = format!("{name}, share of answers named: {}", called(checkpoint));
            let (x, range) = ("latent step".into(), Some((0.0, 1.0)));
            panels.extend(grid(
                &cells,
                stream_name,
                HeatMap { title, x, unit: "share".into(), range, ..HeatMap::default() },
            ));
        }
        let note =
            "Last block before the answer, on problems not used for the Jacobian. Null: another problem's state.";
        out.extend(exhibit.drawing_of(checkpoint, "Jacobian lens (ours)", 3, panels, note));
    }
    out
}
