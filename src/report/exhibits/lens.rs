//! What each layer would say at each latent step: grids of the logit and the tuned lens, and cells of the last layer
//! (`ours:lens/step1/exit_rank`).

use super::{Drawing, Exhibit};
use crate::nth::Nth;
use crate::report::cells::Cells;
use crate::report::figures::{Figure, HeatMap};
use crate::report::folder::{Folder, called, sound};
use crate::report::paper::Paper;
use crate::schema::{Lens, LensRow, Named, Opened};
use crate::stats::Estimate;

const SOURCES: &[&str] = &[LensRow::NAME];

pub(super) const EXHIBITS: &[Exhibit] = &[
    Exhibit { covers: true, draw, ..Exhibit::of("fig:lens", SOURCES) },
    Exhibit { per_checkpoint: true, cell, ..Exhibit::of("ours:lens", SOURCES) },
];

/// The logit lens at the last layer, which is the model's own distribution, at a latent step.
fn cell(cells: &Cells<'_>, row: &str, column: &str) -> Option<Estimate> {
    let step: Nth = row.strip_prefix("step")?.parse().ok()?;
    let rows = cells.folder.rows::<LensRow>(cells.checkpoint);
    let last = rows.iter().map(|r| r.layer).max()?;
    let read =
        |r: &&LensRow| r.step == Some(step) && r.layer == last && r.lens == Lens::Logit && r.switching == Opened::Free;
    let row = rows.iter().find(read)?;
    Some(if column == "entropy" { row.entropy } else { row.exit_rank })
}

/// A heat map's cells: layer upwards, another axis across; none of rows without a number.
pub(super) fn grid(cells: &[(usize, usize, Estimate)], map: HeatMap) -> Option<Figure> {
    let axis = |of: fn(&(usize, usize, Estimate)) -> usize| {
        let mut all: Vec<usize> = cells.iter().map(of).collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    let (mut layers, columns) = (axis(|c| c.0), axis(|c| c.1));
    layers.reverse();
    let at = |layer, column| {
        let there = cells.iter().find(|c| (c.0, c.1) == (layer, column));
        there.and_then(|c| sound(c.2)).map(|e| e.value).filter(|v| v.is_finite())
    };
    let cells: Vec<Vec<_>> = layers.iter().map(|&l| columns.iter().map(|&c| at(l, c)).collect()).collect();
    let names = |all: &[usize]| all.iter().map(usize::to_string).collect::<Vec<_>>();
    let map = HeatMap { y: "layer".into(), columns: names(&columns), rows: names(&layers), cells, print: true, ..map };
    map.cells.iter().flatten().any(Option::is_some).then_some(Figure::HeatMap(map))
}

/// Rows of a lens at latent steps, each with its step; where switching was both free and forced, those of the first that is
/// there.
pub(in crate::report) fn lens_rows<'a>(folder: &'a Folder, checkpoint: &str, lens: Lens) -> Vec<(usize, &'a LensRow)> {
    let rows = folder.rows::<LensRow>(checkpoint).iter().filter(|r| r.lens == lens);
    let rows: Vec<(usize, &LensRow)> = rows.filter_map(|r| Some((r.step?.shown(), r))).collect();
    let switching = rows.first().map(|(_, r)| r.switching);
    rows.into_iter().filter(|(_, r)| Some(r.switching) == switching).collect()
}

/// Unit, name, value and range of what a lens is asked for.
type Reading = (&'static str, &'static str, fn(&LensRow) -> Estimate, Option<(f64, f64)>);

fn draw(exhibit: &Exhibit, _: &Paper, folder: &Folder) -> Vec<Drawing> {
    let exit: Reading = ("p(</swi>)", "p(</swi>)", |r| r.p_exit, Some((0.0, 1.0)));
    let entropy: Reading = ("nats", "entropy", |r| r.entropy, None);
    let mut out = vec![];
    for checkpoint in folder.of::<LensRow>() {
        let mut panels = vec![];
        for (lens, of) in [(Lens::Logit, "Logit"), (Lens::Tuned, "Tuned")] {
            let rows = lens_rows(folder, checkpoint, lens);
            for (unit, name, value, range) in [exit, entropy] {
                let cells: Vec<_> = rows.iter().map(|(step, r)| (r.layer, *step, value(r))).collect();
                let title = format!("{of} lens, {name}: {}", called(checkpoint));
                let map = HeatMap { title, x: "latent step".into(), unit: unit.into(), range, ..HeatMap::default() };
                panels.extend(grid(&cells, map));
            }
        }
        let note = "Layer 0: the embedding; the topmost: what the model itself predicts. Means over blocks; intervals are in the rows.";
        out.extend(exhibit.drawing_of(checkpoint, "Lens grid (ours)", 1, panels, note));
    }
    out
}
