//! What patching one site from another problem does, by layer and step or position.

use super::lens::grid;
use super::{Drawing, Exhibit};
use crate::report::figures::HeatMap;
use crate::report::folder::{Folder, called, sound};
use crate::report::paper::Paper;
use crate::schema::{Axis, Named, PatchRow};

pub(super) const EXHIBITS: &[Exhibit] =
    &[Exhibit { covers: true, draw, ..Exhibit::of("fig:patching", &[PatchRow::NAME]) }];

fn draw(exhibit: &Exhibit, _: &Paper, folder: &Folder) -> Vec<Drawing> {
    let mut out = vec![];
    for checkpoint in folder.of::<PatchRow>() {
        // One scale for both axes: from no effect to all of it.
        let effects = folder.rows::<PatchRow>(checkpoint).iter().filter_map(|row| sound(row.effect)).map(|e| e.value);
        let range = effects.fold((0.0, 1.0), |(low, high): (f64, f64), e| (low.min(e), high.max(e)));
        let panel = |(axis, by, x): (Axis, &str, &str)| {
            let rows = folder.rows::<PatchRow>(checkpoint).iter().filter(|r| r.axis == axis);
            let cells: Vec<_> = rows.map(|r| (r.layer, r.index, r.effect)).collect();
            let title = format!("Activation patching by {by}: {}", called(checkpoint));
            grid(
                &cells,
                HeatMap { title, x: x.into(), unit: "effect".into(), range: Some(range), ..HeatMap::default() },
            )
        };
        let axes = [(Axis::Step, "step", "latent step"), (Axis::Position, "position", "position")];
        let panels = axes.into_iter().filter_map(panel).collect();
        let note = "Means; intervals are in the rows.";
        out.extend(exhibit.drawing_of(checkpoint, "Activation patching (ours)", 1, panels, note));
    }
    out
}
