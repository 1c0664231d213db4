//! Our figures of what happens inside a block: exits, lenses, patching. Knows the rows of `exit_probability`, `logit_lens` and
//! `activation_patching`.

use super::probes::points;
use super::{Drawing, called};
use crate::report::figures::{Axis, Figure, HeatMap, Line, LineChart};
use crate::report::folder::{Folder, sound};
use crate::schema::{Axis as Across, ExitGroup, ExitRow, Lens, LensRow, PatchRow};
use crate::stats::Estimate;

/// p(`</swi>`) by latent step and correctness.
pub(super) fn exits(folder: &Folder) -> Option<Drawing> {
    let mut lines = vec![];
    for checkpoint in folder.of::<ExitRow>() {
        for (group, name) in [(ExitGroup::Correct, "correct"), (ExitGroup::Wrong, "wrong")] {
            let rows = folder.rows::<ExitRow>(checkpoint).iter().filter(|r| r.group == group);
            let points = points(rows.map(|r| (r.step.shown() as f64, r.p_exit)));
            lines.push(Line::bars(&format!("{}, {name}", called(checkpoint)), points));
        }
    }
    lines.retain(|l| !l.points.is_empty());
    let panels = if lines.is_empty() {
        vec![]
    } else {
        vec![Figure::Lines(LineChart {
            title: "Readiness to leave the block".into(),
            x: Axis::new("latent step").whole(),
            y: Axis::new("p(</swi>)"),
            lines,
            marks: vec![],
            levels: vec![],
        })]
    };
    Drawing::new(
        "fig:exit",
        "Exit probability (ours; the paper's tab:exit)",
        panels,
        "Bars: 95 % cluster bootstrap over problems.",
    )
}

/// Names of rows (topmost first) and columns of a heat map, and its cells.
struct Grid {
    rows: Vec<String>,
    columns: Vec<String>,
    cells: Vec<Vec<Option<f64>>>,
}

/// Cells of a heat map: layer upwards, another axis across.
fn grid(cells: &[(usize, usize, Estimate)]) -> Option<Grid> {
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
    let there = cells.iter().flatten().any(Option::is_some);
    there.then(|| Grid { rows: names(&layers), columns: names(&columns), cells })
}

/// Rows of a lens at latent steps, each with its step; where switching was both free and forced, those of the first that is
/// there.
pub(crate) fn lens_rows<'a>(folder: &'a Folder, checkpoint: &str, lens: Lens) -> Vec<(usize, &'a LensRow)> {
    let rows = folder.rows::<LensRow>(checkpoint).iter().filter(|r| r.lens == lens);
    let rows: Vec<(usize, &LensRow)> = rows.filter_map(|r| Some((r.step?.shown(), r))).collect();
    let switching = rows.first().map(|(_, r)| r.switching);
    rows.into_iter().filter(|(_, r)| Some(r.switching) == switching).collect()
}

/// Unit, name, value and range of what a lens is asked for.
type Reading = (&'static str, &'static str, fn(&LensRow) -> Estimate, Option<(f64, f64)>);

/// What each layer would say at each latent step.
pub(super) fn lenses(folder: &Folder) -> Vec<Drawing> {
    let mut out = vec![];
    for checkpoint in folder.of::<LensRow>() {
        let mut panels = vec![];
        for lens in [Lens::Logit, Lens::Tuned] {
            let rows = lens_rows(folder, checkpoint, lens);
            let exit: Reading = ("p(</swi>)", "p(</swi>)", |r| r.p_exit, Some((0.0, 1.0)));
            let entropy: Reading = ("nats", "entropy", |r| r.entropy, None);
            for (unit, name, value, range) in [exit, entropy] {
                let cells: Vec<_> = rows.iter().map(|(step, r)| (r.layer, *step, value(r))).collect();
                if let Some(Grid { rows, columns, cells }) = grid(&cells) {
                    panels.push(Figure::HeatMap(HeatMap {
                        title: format!(
                            "{} lens, {name}: {}",
                            if lens == Lens::Logit { "Logit" } else { "Tuned" },
                            called(checkpoint)
                        ),
                        x: "latent step".into(),
                        y: "layer".into(),
                        unit: unit.into(),
                        columns,
                        rows,
                        cells,
                        range,
                        print: true,
                    }));
                }
            }
        }
        let note = "Layer 0: the embedding; the topmost: what the model itself predicts. Means over blocks; intervals are in the rows.";
        out.extend(Drawing::new(&format!("fig:lens-{checkpoint}"), "Lens grid (ours)", panels, note));
    }
    out
}

/// What patching one site from another problem does.
pub(super) fn patching(folder: &Folder) -> Vec<Drawing> {
    let mut out = vec![];
    for checkpoint in folder.of::<PatchRow>() {
        let mut panels = vec![];
        for (axis, by, x) in [(Across::Step, "step", "latent step"), (Across::Position, "position", "position")] {
            let rows = folder.rows::<PatchRow>(checkpoint).iter().filter(|r| r.axis == axis);
            let cells: Vec<_> = rows.map(|r| (r.layer, r.index, r.effect)).collect();
            if let Some(Grid { rows, columns, cells }) = grid(&cells) {
                panels.push(Figure::HeatMap(HeatMap {
                    title: format!("Activation patching by {by}: {}", called(checkpoint)),
                    x: x.into(),
                    y: "layer".into(),
                    unit: "effect".into(),
                    columns,
                    rows,
                    cells,
                    range: None,
                    print: true,
                }));
            }
        }
        let note = "Means; intervals are in the rows.";
        out.extend(Drawing::new(&format!("fig:patching-{checkpoint}"), "Activation patching (ours)", panels, note));
    }
    out
}
