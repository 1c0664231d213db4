//! fig:swi-window, fig:layer-probe, and our probes for intermediate values. Knows the rows of `switch_window` and
//! `layer_probe`.

use super::{Drawing, called};
use crate::report::cells::depth;
use crate::report::figures::{Axis, Figure, Line, LineChart, Point};
use crate::report::folder::{Folder, sound};
use crate::report::paper::Paper;
use crate::schema::{Features, ProbeRow, Protocol, WindowRow};
use crate::stats::Estimate;
use crate::stats::probe::PAPER_LAYERS;

/// Points (x, estimate), in order of x.
pub(super) fn points(of: impl Iterator<Item = (f64, Estimate)>) -> Vec<Point> {
    let mut points: Vec<Point> = of.filter_map(|(x, y)| Some(Point::new(x, sound(y)?))).collect();
    points.sort_by(|a, b| a.x.total_cmp(&b.x));
    points
}

/// p(`<swi>`) and entropy around annotated positions.
pub(super) fn window(paper: &Paper, folder: &Folder) -> Option<Drawing> {
    let checkpoints = folder.of::<WindowRow>();
    let lines = |y: fn(&WindowRow) -> Estimate| -> Vec<Line> {
        let rows = |c: &str| points(folder.rows::<WindowRow>(c).iter().map(|r| (r.offset as f64, y(r))));
        checkpoints.iter().map(|c| Line::band(&called(c), rows(c))).filter(|l| !l.points.is_empty()).collect()
    };
    let mut p = lines(|r| r.p_swi);
    if p.is_empty() {
        return None;
    }
    for (row, name) in [("sft", "paper, SFT"), ("grpo", "paper, Switch-GRPO")] {
        let at = [(-1.0, "before"), (0.0, "at"), (1.0, "after")];
        let block = paper.block("tab:swi-window").ok()?;
        let values = at.iter().filter_map(|(x, column)| Some(Point::bare(*x, block.value(row, column).ok()?)));
        p.push(Line::scatter(name, values.collect()));
    }
    p.retain(|line| !line.points.is_empty());
    if p.is_empty() {
        return None;
    }
    let chart = |title: &str, y: Axis, lines: Vec<Line>| {
        let x = Axis::new("offset from the annotated position (tokens)").whole();
        Figure::Lines(LineChart { title: title.into(), x, y, lines, marks: vec![0.0], levels: vec![] })
    };
    let panels = vec![
        chart("p(<swi>) around annotated positions", Axis::new("p(<swi>)").log(), p),
        chart("Entropy of the next token there", Axis::new("entropy (nats)"), lines(|r| r.entropy)),
    ];
    let note = "Bands: 95 % cluster bootstrap over problems. The paper gives numbers at three offsets only.";
    Drawing::new("fig:swi-window", "Switch window", panels, note)
}

/// Probe accuracy by depth: the paper's protocol beside the paper's numbers, then ours with its controls.
pub(super) fn layers(paper: &Paper, folder: &Folder) -> Option<Drawing> {
    let switch = |c: &str, protocol: Protocol, features: Features| -> Vec<Point> {
        let layers = depth(folder.rows(c)).unwrap_or(1) as f64;
        let rows = folder.rows::<ProbeRow>(c).iter();
        let rows = rows.filter(|r| r.is_switch() && r.protocol == protocol && r.features == features);
        let score = |r: &ProbeRow| match protocol {
            Protocol::Paper => r.accuracy.and_then(sound).unwrap_or(r.balanced_accuracy),
            Protocol::Grouped => r.balanced_accuracy,
        };
        points(rows.map(|r| (relative(r.from_last as f64, layers), score(r))))
    };
    let checkpoints = folder.of::<ProbeRow>();
    let mut theirs: Vec<Line> = checkpoints
        .iter()
        .map(|c| Line::bars(&format!("ours, {}", called(c)), switch(c, Protocol::Paper, Features::ResidPost)))
        .filter(|l| !l.points.is_empty())
        .collect();
    let block = paper.block("tab:probe").ok()?;
    if !theirs.is_empty() {
        for (column, name) in [("sft", "paper, SFT"), ("grpo", "paper, Switch-GRPO")] {
            let of = |row: &crate::report::paper::PaperRow| {
                let offset: f64 = row.key.trim_start_matches('-').parse().ok()?;
                Some(Point::bare(relative(offset, PAPER_LAYERS as f64), block.value(&row.key, column).ok()?))
            };
            theirs.push(Line::bars(name, block.rows.iter().filter_map(of).collect()));
        }
        theirs.retain(|line| !line.points.is_empty());
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
            (Features::ResidPost, "residual stream"),
            (Features::Untrained, "untrained model"),
            (Features::Embedding, "embedding"),
            (Features::Token, "token identity"),
            (Features::Margin, "logit margin"),
            (Features::Shuffled, "shuffled labels"),
        ];
        let lines: Vec<Line> = named
            .iter()
            .map(|(features, name)| Line::bars(name, switch(checkpoint, Protocol::Grouped, *features)))
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

/// Probes for the task's intermediate values at each latent step, in the last layer that was probed.
pub(super) fn values(folder: &Folder) -> Option<Drawing> {
    let mut panels = vec![];
    for checkpoint in folder.of::<ProbeRow>() {
        let probes = |features: Features| {
            let rows = folder.rows::<ProbeRow>(checkpoint).iter();
            let rows = rows.filter(move |r| r.features == features && r.protocol != Protocol::Paper);
            rows.filter_map(|r| r.value()?.split_once('@').map(|(value, step)| (value, step.parse::<f64>().ok(), r)))
        };
        let Some(last) = probes(Features::ResidPost).map(|(.., r)| r.layer).max() else { continue };
        let mut names: Vec<&str> = vec![];
        for (value, ..) in probes(Features::ResidPost) {
            if !names.contains(&value) {
                names.push(value);
            }
        }
        // The results of steps 1, 2, … apart only where no block stands for a step of its own.
        if names.contains(&"s_j") {
            names.retain(|name| name.starts_with("s_j"));
        }
        let line = |value: &str, features: Features, name: String| {
            let of = probes(features).filter(|(v, _, r)| *v == value && r.layer == last);
            Line::bars(&name, points(of.filter_map(|(_, step, r)| Some((step?, r.balanced_accuracy)))))
        };
        let said = |value: &str| match value {
            "s_j" => "result of the block\u{2019}s own clause".to_owned(),
            "s_j-1" => "result before it".to_owned(),
            other => format!("result of step {}", other.trim_start_matches('s')),
        };
        // More lines than colours cannot be told apart.
        let mut lines: Vec<Line> = names.iter().take(6).map(|v| line(v, Features::ResidPost, said(v))).collect();
        lines.extend(names.first().map(|v| line(v, Features::Shuffled, "shuffled labels".into())));
        lines.retain(|line| !line.points.is_empty());
        panels.push(Figure::Lines(LineChart {
            title: format!("Values read at each latent step, layer {last}: {}", called(checkpoint)),
            x: Axis::new("latent step").whole(),
            y: Axis::new("balanced accuracy").range(0.0, 1.04),
            lines,
            marks: vec![],
            levels: probes(Features::ResidPost).next().map(|(.., r)| r.chance).into_iter().collect(),
        }));
    }
    Drawing::new(
        "fig:value-probe",
        "Probes for intermediate values (ours)",
        panels,
        "Split by problem. Bars: 95 % intervals. Dotted: chance.",
    )
}
