//! fig:swi-window, fig:layer-probe, and our probes for intermediate values. Knows the rows of `switch_window` and
//! `layer_probe`.

use super::{Drawing, called};
use crate::report::cells::depth;
use crate::report::figures::{Axis, Figure, Line, LineChart, Point};
use crate::report::folder::{Folder, estimate, is, number, shown};
use crate::report::paper::Paper;
use crate::store::Row;

/// Points (x, estimate) of rows, in order of x.
pub(super) fn points<'a>(rows: impl Iterator<Item = &'a Row>, x: &str, y: &str) -> Vec<Point> {
    let mut points: Vec<Point> = rows.filter_map(|r| Some(Point::new(number(r, x)?, estimate(r, y)?))).collect();
    points.sort_by(|a, b| a.x.total_cmp(&b.x));
    points
}

/// p(`<swi>`) and entropy around annotated positions.
pub(super) fn window(paper: &Paper, folder: &Folder) -> Option<Drawing> {
    let checkpoints = folder.checkpoints("switch_window");
    let lines = |y: &str| -> Vec<Line> {
        let of = |c: &&str| Line::band(&called(c), points(folder.rows("switch_window", c).iter(), "offset", y));
        checkpoints.iter().map(of).filter(|l| !l.points.is_empty()).collect()
    };
    let mut p = lines("p_swi");
    if p.is_empty() {
        return None;
    }
    for (row, name) in [("sft", "paper, SFT"), ("grpo", "paper, Switch-GRPO")] {
        let at = [(-1.0, "before"), (0.0, "at"), (1.0, "after")];
        let block = paper.block("tab:swi-window").ok()?;
        let values = at.iter().filter_map(|(x, column)| Some(Point::bare(*x, block.value(row, column).ok()?)));
        p.push(Line::scatter(name, values.collect()));
    }
    let chart = |title: &str, y: Axis, lines: Vec<Line>| {
        let x = Axis::new("offset from the annotated position (tokens)");
        Figure::Lines(LineChart { title: title.into(), x, y, lines, marks: vec![0.0], levels: vec![] })
    };
    let panels = vec![
        chart("p(<swi>) around annotated positions", Axis::new("p(<swi>)").log(), p),
        chart("Entropy of the next token there", Axis::new("entropy (nats)"), lines("entropy")),
    ];
    let note = "Bands: 95 % cluster bootstrap over problems. The paper gives numbers at three offsets only.";
    Drawing::new("fig:swi-window", "Switch window", panels, note)
}

/// Probe accuracy by depth: the paper's protocol beside the paper's numbers, then ours with its controls.
pub(super) fn layers(paper: &Paper, folder: &Folder) -> Option<Drawing> {
    let switch = |c: &str, protocol: &str, features: &str| -> Vec<Point> {
        let rows = folder.rows("layer_probe", c).iter();
        let rows: Vec<&Row> = rows
            .filter(|r| is(r, "target", "switch") && is(r, "protocol", protocol) && is(r, "features", features))
            .collect();
        let key = |r: &&Row| {
            if estimate(r, "accuracy").is_some() && protocol == "paper" { "accuracy" } else { "balanced_accuracy" }
        };
        let deepest = depth(folder.rows("layer_probe", c)).max(1.0);
        let mut points: Vec<Point> = rows
            .iter()
            .filter_map(|r| Some(Point::new(relative(number(r, "from_last")?, deepest), estimate(r, key(r))?)))
            .collect();
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        points
    };
    let checkpoints = folder.checkpoints("layer_probe");
    let mut theirs: Vec<Line> = checkpoints
        .iter()
        .map(|c| Line::bars(&format!("ours, {}", called(c)), switch(c, "paper", "resid_post")))
        .filter(|l| !l.points.is_empty())
        .collect();
    let block = paper.block("tab:probe").ok()?;
    if !theirs.is_empty() {
        for (column, name) in [("sft", "paper, SFT"), ("grpo", "paper, Switch-GRPO")] {
            let of = |row: &crate::report::paper::PaperRow| {
                let offset: f64 = row.key.trim_start_matches('-').parse().ok()?;
                Some(Point::bare(relative(offset, 36.0), block.value(&row.key, column).ok()?))
            };
            theirs.push(Line::bars(name, block.rows.iter().filter_map(of).collect()));
        }
    }
    let chart = |title: String, lines: Vec<Line>| {
        let (x, y) = (Axis::new("depth (share of layers passed)"), Axis::new("accuracy, balanced classes"));
        Figure::Lines(LineChart { title, x, y, lines, marks: vec![], levels: vec![0.5] })
    };
    let mut panels = vec![];
    if !theirs.is_empty() {
        panels.push(chart("Probe for the next <swi>: the paper's protocol".into(), theirs));
    }
    for checkpoint in &checkpoints {
        let named = [
            ("resid_post", "residual stream"),
            ("untrained", "untrained model"),
            ("embedding", "embedding"),
            ("token", "token identity"),
            ("margin", "logit margin"),
            ("shuffled", "shuffled labels"),
        ];
        let lines: Vec<Line> = named
            .iter()
            .map(|(features, name)| Line::bars(name, switch(checkpoint, "grouped", features)))
            .filter(|l| !l.points.is_empty())
            .collect();
        if !lines.is_empty() {
            panels.push(chart(format!("The same, split by problem, with controls: {}", called(checkpoint)), lines));
        }
    }
    Drawing::new(
        "fig:layer-probe",
        "Layer probes",
        panels,
        "Bars: 95 % intervals. Dotted: chance. Depth lets 36 layers and ours share an axis.",
    )
}

/// Layer `from_last` (1 = the last) of `layers`, as the share of layers passed.
fn relative(from_last: f64, layers: f64) -> f64 {
    (layers + 1.0 - from_last) / layers
}

/// Probes for the task's intermediate values, by layer.
pub(super) fn values(folder: &Folder) -> Option<Drawing> {
    let mut panels = vec![];
    for checkpoint in folder.checkpoints("layer_probe") {
        let rows = folder.rows("layer_probe", checkpoint);
        let kept = |r: &&Row| is(r, "features", "resid_post") && !is(r, "protocol", "paper");
        let mut targets: Vec<String> =
            rows.iter().filter(kept).map(|r| shown(r, "target")).filter(|t| t.starts_with("value")).collect();
        targets.sort();
        targets.dedup();
        targets.truncate(7); // more lines than colours cannot be told apart
        let line = |t: &String| {
            let of = rows.iter().filter(kept).filter(|r| shown(r, "target") == *t);
            Line::bars(t.trim_start_matches("value:"), points(of, "layer", "balanced_accuracy"))
        };
        let lines: Vec<Line> = targets.iter().map(line).filter(|l| !l.points.is_empty()).collect();
        let chance = rows.iter().find(|r| shown(r, "target").starts_with("value")).and_then(|r| number(r, "chance"));
        if !lines.is_empty() {
            panels.push(Figure::Lines(LineChart {
                title: format!("Probes for intermediate values: {}", called(checkpoint)),
                x: Axis::new("layer"),
                y: Axis::new("balanced accuracy"),
                lines,
                marks: vec![],
                levels: chance.into_iter().collect(),
            }));
        }
    }
    Drawing::new(
        "fig:value-probe",
        "Probes for intermediate values (ours)",
        panels,
        "Split by problem. Dotted: chance.",
    )
}
