//! What patching one site from another problem does, by layer and step or position.

use super::lens::grid;
use super::{Drawing, Exhibit};
use crate::report::figures::HeatMap;
use crate::report::folder::{Folder, called};
use crate::report::paper::Paper;
use crate::schema::{Axis, Named, PatchRow};

pub(super) const EXHIBITS: &[Exhibit] =
    &[Exhibit { covers: true, draw, ..Exhibit::of("fig:patching", &[PatchRow::NAME]) }];

fn draw(exhibit: &Exhibit, _: &Paper, folder: &Folder) -> Vec<Drawing> {
    let mut out = vec![];
    for checkpoint in folder.of::<PatchRow>() {
        let panel = |(axis, by, x): (Axis, &str, &str)| {
            let rows = folder.rows::<PatchRow>(checkpoint).iter().filter(|r| r.axis == axis);
            let cells: Vec<_> = rows.map(|r| (r.layer, r.index, r.effect)).collect();
            let title = format!("Activation patching by {by}: {}", called(checkpoint));
            grid(&cells, HeatMap { title, x: x.into(), unit: "effect".into(), ..HeatMap::default() })
        };
        let axes = [(Axis::Step, "step", "latent step"), (Axis::Position, "position", "position")];
        let panels = axes.into_iter().filter_map(panel).collect();
        let note = "Means; intervals are in the rows.";
        out.extend(exhibit.drawing_of(checkpoint, "Activation patching (ours)", 1, panels, note));
    }
    out
}
