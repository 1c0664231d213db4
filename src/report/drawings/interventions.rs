//! fig:intervention and our figures of what other inputs at the latent steps do: every mode, single steps, dose and response.
//! Knows the rows of `latent_intervention` and `known_value`.

use super::probes::points;
use super::{Drawing, called};
use crate::nth::Nth;
use crate::report::cells::intervention_row;
use crate::report::figures::{Axis, BarChart, BarSeries, Figure, Line, LineChart, Point};
use crate::report::folder::{Folder, sound};
use crate::report::paper::Paper;
use crate::schema::{InterventionRow, KnownValueRow, NORMAL, Named, Steps};
use crate::stats::Estimate;

/// What the six bars show.
const SIX: [(&str, &str); 5] = [
    (NORMAL, "normal"),
    ("zero", "zero"),
    ("random_norm", "random norm"),
    ("resample", "resample"),
    ("embedding_argmax", "own token"),
];

/// The finding in one panel: what five inputs leave of right answers, and how often the answer follows a known value.
pub(super) fn six(paper: &Paper, folder: &Folder) -> Option<Drawing> {
    let of_sft = folder.of::<InterventionRow>().into_iter().find(|c| *c == folder.sft);
    let checkpoint = of_sft.or_else(|| folder.of::<InterventionRow>().first().copied())?;
    let (block, rows) = (paper.block("tab:intervention").ok()?, folder.rows::<KnownValueRow>(checkpoint));
    let left =
        |mode: &str| intervention_row(folder, checkpoint, mode).and_then(|r| r.diagnostic_accuracy).and_then(sound);
    let known = KnownValueRow::main(rows).and_then(|row| sound(row.hit_rate));
    let mut bars: Vec<(&str, Option<Estimate>, Option<f64>)> =
        SIX.iter().map(|(mode, name)| (*name, left(mode), block.value(mode, "diag_acc").ok())).collect();
    bars.push(("known value", known, None));
    bars.retain(|(_, value, _)| value.is_some());
    if bars.len() < 2 {
        return None;
    }
    let values: Vec<Option<Estimate>> = bars.iter().map(|(_, value, _)| *value).collect();
    let series = vec![BarSeries {
        name: named("of the diagnostic problems", &values),
        values,
        paper: bars.iter().map(|b| b.2).collect(),
    }];
    let panel = Figure::Bars(BarChart {
        title: format!("What enters the latents, and what becomes of right answers: {}", called(checkpoint)),
        y: Axis::new("share").range(0.0, 1.04),
        categories: bars.iter().map(|(name, ..)| (*name).to_owned()).collect(),
        series,
    });
    let note = "Bars: share of the answers that were right with latents (diagnostic problems) and stay right; the last one: share that \
                becomes what arithmetic predicts from the value put in. 95 % Wilson intervals. Diamonds: the paper's numbers \
                (n = 21 fits them).";
    Drawing::new("fig:intervention", "Latent-state interventions", vec![panel], note)
}

/// `all (n=500)`; where bars differ in it, `(n=40 to 84)`.
fn named(name: &str, values: &[Option<Estimate>]) -> String {
    let n = || values.iter().flatten().map(|e| e.n);
    match (n().min().unwrap_or(0), n().max().unwrap_or(0)) {
        (least, most) if least == most => format!("{name} (n={most})"),
        (least, most) => format!("{name} (n={least} to {most})"),
    }
}

/// Accuracy and changed answers by mode, side by side.
pub(super) fn all(paper: &Paper, folder: &Folder) -> Option<Drawing> {
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
            let paper = rows.iter().map(|r| block.value(&r.mode, column).ok()).collect();
            BarSeries { name: named(name, &values), values, paper }
        };
        let categories: Vec<String> = rows.iter().map(|r| r.mode.replace('_', " ")).collect();
        let chart = |title: &str, y: &str, series: Vec<BarSeries>| {
            let title = format!("{title}: {}", called(checkpoint));
            Figure::Bars(BarChart { title, y: Axis::new(y), categories: categories.clone(), series })
        };
        let accuracy = vec![
            series("all", |r| Some(r.accuracy), "all_acc"),
            series("diagnostic", |r| r.diagnostic_accuracy, "diag_acc"),
        ];
        let accuracy = accuracy.into_iter().filter(|s| s.values.iter().any(Option::is_some)).collect();
        let changed = vec![series("all", |r| Some(r.answer_changed), "all_changed")];
        // The two stand side by side: a checkpoint without changed answers has nothing that its table does not say.
        if changed[0].values.iter().flatten().any(|e| e.high > 0.0) {
            panels.push(chart("Accuracy by what enters the latents", "accuracy", accuracy));
            panels.push(chart("Answers changed", "share of problems", changed));
        }
    }
    let note = "Bars: 95 % Wilson intervals. Diagnostic: problems where normal switched and was right, so it can only fall. \
                Diamonds: the paper's numbers (n = 50 and 21 fit them).";
    Some(Drawing::new("fig:intervention-all", "Every intervention (ours)", panels, note)?.wide())
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
                x: Axis::new("latent step").whole(),
                y: Axis::new("answers changed (share)"),
                lines,
                marks: vec![],
                levels: vec![0.0],
            }));
        }
    }
    Drawing::new("fig:intervention-steps", "Interventions step by step (ours)", panels, "Bars: 95 % Wilson intervals.")
}

/// Response to a graded intervention: one panel a mode, because their doses have different units.
pub(super) fn dose(folder: &Folder) -> Option<Drawing> {
    let mut panels = vec![];
    for (mode, title, unit) in [
        ("scale", "The latent input is made longer or shorter", "factor of its length"),
        ("rotate", "The latent input is turned", "angle (degrees)"),
    ] {
        let line = |checkpoint: &str| {
            let graded = |r: &&InterventionRow| r.mode == mode && r.steps == Steps::All;
            let rows = folder.rows::<InterventionRow>(checkpoint).iter().filter(graded);
            Line::bars(&called(checkpoint), points(rows.filter_map(|r| Some((r.dose?, r.accuracy)))))
        };
        let lines = folder.of::<InterventionRow>().into_iter().take(7).map(line);
        let lines: Vec<Line> = lines.filter(|l| l.points.len() > 1).collect();
        if !lines.is_empty() {
            panels.push(Figure::Lines(LineChart {
                title: title.into(),
                x: Axis::new(unit),
                y: Axis::new("accuracy"),
                lines,
                marks: vec![],
                levels: vec![],
            }));
        }
    }
    Some(
        Drawing::new("fig:intervention-dose", "Dose and response (ours)", panels, "Bars: 95 % Wilson intervals.")?
            .wide(),
    )
}
