//! fig:intervention and our figures of what happens inside a block: single steps, dose and response, exits, lenses,
//! patching. Knows the rows of `latent_intervention`, `exit_probability`, `logit_lens` and `activation_patching`.

use super::probes::points;
use super::{Drawing, called};
use crate::report::cells::is_plain;
use crate::report::figures::{Axis, BarChart, BarSeries, Figure, HeatMap, Line, LineChart, Point};
use crate::report::folder::{Folder, estimate, is, number, shown};
use crate::report::paper::Paper;
use crate::stats::Estimate;
use crate::store::Row;

const INTERVENTION: &str = "latent_intervention";

/// Accuracy and changed answers by mode.
pub(super) fn interventions(paper: &Paper, folder: &Folder) -> Option<Drawing> {
    let block = paper.block("tab:intervention").ok()?;
    let mut panels = vec![];
    for checkpoint in folder.checkpoints(INTERVENTION) {
        let mut rows: Vec<&Row> = vec![];
        for row in folder.rows(INTERVENTION, checkpoint).iter().filter(|r| is_plain(r)) {
            if !rows.iter().any(|r| shown(r, "mode") == shown(row, "mode")) {
                rows.push(row);
            }
        }
        if rows.len() < 2 {
            continue;
        }
        let series = |name: &str, key: &str, column: &str| -> BarSeries {
            let values: Vec<Option<Estimate>> = rows.iter().map(|r| estimate(r, key)).collect();
            let n = values.iter().flatten().map(|e| e.n).max().unwrap_or(0);
            let paper = rows.iter().map(|r| block.value(&shown(r, "mode"), column).ok()).collect();
            BarSeries { name: format!("{name} (n={n})"), values, paper }
        };
        let categories: Vec<String> = rows.iter().map(|r| shown(r, "mode").replace('_', " ")).collect();
        let chart = |title: String, y: &str, series: Vec<BarSeries>| {
            Figure::Bars(BarChart { title, y: Axis::new(y), categories: categories.clone(), series })
        };
        let accuracy =
            vec![series("all", "accuracy", "all_acc"), series("diagnostic", "diagnostic_accuracy", "diag_acc")];
        let accuracy = accuracy.into_iter().filter(|s| s.values.iter().any(Option::is_some)).collect();
        panels.push(chart(
            format!("Accuracy by what enters the latents: {}", called(checkpoint)),
            "accuracy",
            accuracy,
        ));
        let changed = vec![series("all", "answer_changed", "all_changed")];
        if changed[0].values.iter().flatten().any(|e| e.high > 0.0) {
            panels.push(chart(format!("Answers changed: {}", called(checkpoint)), "share of problems", changed));
        }
    }
    let note = "Bars: 95 % Wilson intervals. Diagnostic: problems where normal switched and was right, so it can only fall. Diamonds: the paper's numbers (n = 50 and 21 fit them).";
    Drawing::new("fig:intervention", "Latent-state interventions", panels, note)
}

/// Rows at single steps; those of the older file where the newer has none.
fn stepped<'a>(folder: &'a Folder, checkpoint: &str) -> Vec<&'a Row> {
    let of = |experiment: &str| -> Vec<&'a Row> {
        let rows = folder.rows(experiment, checkpoint).iter();
        rows.filter(|r| shown(r, "steps").parse::<u32>().is_ok()).collect()
    };
    Some(of(INTERVENTION)).filter(|rows| !rows.is_empty()).unwrap_or_else(|| of("latent_intervention_steps"))
}

/// What one step at a time does to answers.
pub(super) fn per_step(folder: &Folder) -> Option<Drawing> {
    let mut checkpoints = folder.checkpoints(INTERVENTION);
    checkpoints.extend(folder.checkpoints("latent_intervention_steps"));
    checkpoints.sort_unstable_by(|a, b| b.cmp(a));
    checkpoints.dedup();
    let mut panels = vec![];
    for checkpoint in checkpoints {
        let mut modes: Vec<String> = vec![];
        for mode in stepped(folder, checkpoint).into_iter().map(|r| shown(r, "mode")) {
            if !modes.contains(&mode) && mode != "normal" && mode != "self_patch" {
                modes.push(mode);
            }
        }
        let line = |mode: &String| {
            let of = stepped(folder, checkpoint).into_iter().filter(|r| shown(r, "mode") == *mode);
            let mut points: Vec<Point> = vec![];
            for row in of {
                // One point a step: the first variant (later latents recomputed) where there are several.
                if let (Ok(step), Some(e)) = (shown(row, "steps").parse::<f64>(), estimate(row, "answer_changed"))
                    && !points.iter().any(|p| p.x == step)
                {
                    points.push(Point::new(step, e));
                }
            }
            Line::bars(&mode.replace('_', " "), points)
        };
        let lines: Vec<Line> = modes.iter().take(7).map(line).filter(|l| !l.points.is_empty()).collect();
        if !lines.is_empty() {
            panels.push(Figure::Lines(LineChart {
                title: format!("One latent step replaced at a time: {}", called(checkpoint)),
                x: Axis::new("latent step (from 0)"),
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
    for checkpoint in folder.checkpoints(INTERVENTION) {
        let rows = || folder.rows(INTERVENTION, checkpoint).iter().filter(|r| number(r, "dose").is_some());
        let mut modes: Vec<String> = rows().map(|r| shown(r, "mode")).collect();
        modes.dedup();
        modes.sort();
        modes.dedup();
        let line = |mode: &String| {
            let of = rows().filter(|r| shown(r, "mode") == *mode && ["", "all"].contains(&shown(r, "steps").as_str()));
            Line::bars(&mode.replace('_', " "), points(of, "dose", "accuracy"))
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
    for checkpoint in folder.checkpoints("exit_probability") {
        for group in ["correct", "wrong"] {
            let rows = folder.rows("exit_probability", checkpoint).iter().filter(|r| is(r, "group", group));
            lines.push(Line::bars(&format!("{}, {group}", called(checkpoint)), points(rows, "step", "p_exit")));
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

/// Cells of a heat map from rows: layer upwards, another column across.
fn grid(rows: &[&Row], across: &str, value: impl Fn(&Row) -> Option<f64>) -> Option<Grid> {
    let axis = |key: &str| {
        let mut all: Vec<i64> = rows.iter().filter_map(|r| number(r, key)).map(|x| x as i64).collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    let (mut layers, columns) = (axis("layer"), axis(across));
    layers.reverse();
    let at = |layer: i64, column: i64| {
        let there = |r: &&&Row| number(r, "layer") == Some(layer as f64) && number(r, across) == Some(column as f64);
        rows.iter().find(there).and_then(|r| value(r)).filter(|v| v.is_finite())
    };
    let cells: Vec<Vec<_>> = layers.iter().map(|&l| columns.iter().map(|&c| at(l, c)).collect()).collect();
    let names = |all: &[i64]| all.iter().map(i64::to_string).collect::<Vec<_>>();
    let there = cells.iter().flatten().any(Option::is_some);
    there.then(|| Grid { rows: names(&layers), columns: names(&columns), cells })
}

/// Rows of a lens at latent steps; where switching was both free and forced, those of the first that is there.
pub fn lens_rows<'a>(folder: &'a Folder, checkpoint: &str, lens: &str) -> Vec<&'a Row> {
    let rows = folder.rows("logit_lens", checkpoint).iter();
    let rows: Vec<&Row> =
        rows.filter(|r| is(r, "lens", lens) && number(r, "step").is_some_and(|step| step >= 1.0)).collect();
    let switching = rows.first().map(|r| shown(r, "switching")).unwrap_or_default();
    rows.into_iter().filter(|r| is(r, "switching", &switching)).collect()
}

/// What each layer would say at each latent step.
pub(super) fn lenses(folder: &Folder) -> Vec<Drawing> {
    let mut out = vec![];
    for checkpoint in folder.checkpoints("logit_lens") {
        let mut panels = vec![];
        for lens in ["logit", "tuned"] {
            let rows = lens_rows(folder, checkpoint, lens);
            for (key, unit, name) in [("p_exit", "p(</swi>)", "p(</swi>)"), ("entropy", "nats", "entropy")] {
                if let Some(Grid { rows, columns, cells }) = grid(&rows, "step", |r| estimate(r, key).map(|e| e.value))
                {
                    panels.push(Figure::HeatMap(HeatMap {
                        title: format!(
                            "{} lens, {name}: {}",
                            if lens == "logit" { "Logit" } else { "Tuned" },
                            called(checkpoint)
                        ),
                        x: "latent step".into(),
                        y: "layer".into(),
                        unit: unit.into(),
                        columns,
                        rows,
                        cells,
                        range: (key == "p_exit").then_some((0.0, 1.0)),
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
    for checkpoint in folder.checkpoints("activation_patching") {
        let mut panels = vec![];
        for (axis, x) in [("step", "latent step"), ("position", "position")] {
            let rows: Vec<&Row> =
                folder.rows("activation_patching", checkpoint).iter().filter(|r| is(r, "axis", axis)).collect();
            if let Some(Grid { rows, columns, cells }) =
                grid(&rows, "index", |r| estimate(r, "effect").map(|e| e.value))
            {
                panels.push(Figure::HeatMap(HeatMap {
                    title: format!("Activation patching by {axis}: {}", called(checkpoint)),
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
