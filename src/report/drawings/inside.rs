//! fig:intervention and our figures of what happens inside a block: single steps, dose and response, exits, lenses,
//! patching. Knows the rows of `latent_intervention`, `exit_probability`, `logit_lens` and `activation_patching`.

use super::probes::points;
use super::{Drawing, called};
use crate::nth::Nth;
use crate::report::figures::{Axis, BarChart, BarSeries, Figure, HeatMap, Line, LineChart, Point};
use crate::report::folder::{Folder, sound};
use crate::report::paper::Paper;
use crate::schema::{
    Axis as Across, ExitGroup, ExitRow, InterventionRow, Lens, LensRow, NORMAL, Named, PatchRow, Steps,
};
use crate::stats::Estimate;

/// Accuracy and changed answers by mode.
pub(super) fn interventions(paper: &Paper, folder: &Folder) -> Option<Drawing> {
    let block = paper.block("tab:intervention").ok()?;
    let mut panels = vec![];
    for checkpoint in folder.of::<InterventionRow>() {
        let mut rows: Vec<&InterventionRow> = vec![];
        for row in folder.rows::<InterventionRow>(checkpoint).iter().filter(|r| r.is_plain()) {
            if !rows.iter().any(|r| r.mode == row.mode) {
                rows.push(row);
            }
        }
        if rows.len() < 2 {
            continue;
        }
        let series = |name: &str, value: fn(&InterventionRow) -> Option<Estimate>, column: &str| -> BarSeries {
            let values: Vec<Option<Estimate>> = rows.iter().map(|r| value(r).and_then(sound)).collect();
            let n = values.iter().flatten().map(|e| e.n).max().unwrap_or(0);
            let paper = rows.iter().map(|r| block.value(&r.mode, column).ok()).collect();
            BarSeries { name: format!("{name} (n={n})"), values, paper }
        };
        let categories: Vec<String> = rows.iter().map(|r| r.mode.replace('_', " ")).collect();
        let chart = |title: String, y: &str, series: Vec<BarSeries>| {
            Figure::Bars(BarChart { title, y: Axis::new(y), categories: categories.clone(), series })
        };
        let accuracy = vec![
            series("all", |r| Some(r.accuracy), "all_acc"),
            series("diagnostic", |r| r.diagnostic_accuracy, "diag_acc"),
        ];
        let accuracy = accuracy.into_iter().filter(|s| s.values.iter().any(Option::is_some)).collect();
        panels.push(chart(
            format!("Accuracy by what enters the latents: {}", called(checkpoint)),
            "accuracy",
            accuracy,
        ));
        let changed = vec![series("all", |r| Some(r.answer_changed), "all_changed")];
        if changed[0].values.iter().flatten().any(|e| e.high > 0.0) {
            panels.push(chart(format!("Answers changed: {}", called(checkpoint)), "share of problems", changed));
        }
    }
    let note = "Bars: 95 % Wilson intervals. Diagnostic: problems where normal switched and was right, so it can only fall. Diamonds: the paper's numbers (n = 50 and 21 fit them).";
    Drawing::new("fig:intervention", "Latent-state interventions", panels, note)
}

/// Rows at single steps, each with its step from 1; those of a run without `all` where the other has none.
fn stepped<'a>(folder: &'a Folder, checkpoint: &str) -> Vec<(usize, &'a InterventionRow)> {
    let of = |file: &str| -> Vec<(usize, &'a InterventionRow)> {
        let step = |row: &'a InterventionRow| match row.steps {
            Steps::Only(step) => Some((Nth::of(step).shown(), row)),
            _ => None,
        };
        folder.rows_in::<InterventionRow>(file, checkpoint).iter().filter_map(step).collect()
    };
    let rows = of(InterventionRow::NAME);
    if rows.is_empty() { of(InterventionRow::STEPS) } else { rows }
}

/// What one step at a time does to answers.
pub(super) fn per_step(folder: &Folder) -> Option<Drawing> {
    let mut checkpoints = folder.of::<InterventionRow>();
    checkpoints.extend(folder.checkpoints(InterventionRow::STEPS));
    checkpoints.sort_unstable_by(|a, b| b.cmp(a));
    checkpoints.dedup();
    let mut panels = vec![];
    for checkpoint in checkpoints {
        let rows = stepped(folder, checkpoint);
        let mut modes: Vec<&str> = vec![];
        for mode in rows.iter().map(|(_, r)| r.mode.as_str()) {
            if !modes.contains(&mode) && mode != NORMAL && mode != "self_patch" {
                modes.push(mode);
            }
        }
        let line = |mode: &&str| {
            let mut points: Vec<Point> = vec![];
            for (step, row) in rows.iter().filter(|(_, r)| r.mode == *mode) {
                let x = *step as f64;
                // One point a step: the first variant (later latents recomputed) where there are several.
                if let Some(e) = sound(row.answer_changed).filter(|_| !points.iter().any(|p| p.x == x)) {
                    points.push(Point::new(x, e));
                }
            }
            Line::bars(&mode.replace('_', " "), points)
        };
        let lines: Vec<Line> = modes.iter().take(7).map(line).filter(|l| !l.points.is_empty()).collect();
        if !lines.is_empty() {
            panels.push(Figure::Lines(LineChart {
                title: format!("One latent step replaced at a time: {}", called(checkpoint)),
                x: Axis::new("latent step"),
                y: Axis::new("answers changed (share)"),
                lines,
                marks: vec![],
                levels: vec![0.0],
            }));
        }
    }
    Drawing::new("fig:intervention-steps", "Interventions step by step (ours)", panels, "Bars: 95 % Wilson intervals.")
}

/// Response to a graded intervention.
pub(super) fn dose(folder: &Folder) -> Option<Drawing> {
    let mut panels = vec![];
    for checkpoint in folder.of::<InterventionRow>() {
        let rows = || folder.rows::<InterventionRow>(checkpoint).iter().filter(|r| r.dose.is_some());
        let mut modes: Vec<&str> = rows().map(|r| r.mode.as_str()).collect();
        modes.sort_unstable();
        modes.dedup();
        let line = |mode: &&str| {
            let of = rows().filter(|r| r.mode == *mode && r.steps == Steps::All);
            Line::bars(&mode.replace('_', " "), points(of.filter_map(|r| Some((r.dose?, r.accuracy)))))
        };
        let lines: Vec<Line> = modes.iter().take(7).map(line).filter(|l| l.points.len() > 1).collect();
        if !lines.is_empty() {
            panels.push(Figure::Lines(LineChart {
                title: format!("Dose and response: {}", called(checkpoint)),
                x: Axis::new("dose"),
                y: Axis::new("accuracy"),
                lines,
                marks: vec![],
                levels: vec![],
            }));
        }
    }
    Drawing::new("fig:intervention-dose", "Dose and response (ours)", panels, "Bars: 95 % Wilson intervals.")
}

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
            x: Axis::new("latent step"),
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
