//! fig:pareto, fig:token-dist, fig:token-cdf, fig:per-subject. Knows the rows of `accuracy`, `summary` and `outcomes`.

use super::{Drawing, called};
use crate::report::cells::subject_key;
use crate::report::figures::{Axis, BarChart, BarSeries, Ecdf, Figure, Histogram, Line, LineChart, Point};
use crate::report::folder::{Folder, estimate, number, shown};
use crate::report::paper::Paper;
use crate::stats::{LEVEL, wilson};
use crate::store::Row;

/// Accuracy against visible tokens: one mark per way of decoding.
pub(super) fn pareto(folder: &Folder) -> Option<Drawing> {
    let mut lines: Vec<Line> = vec![];
    let mark = |row: &Row| Some(Point::new(number(row, "visible_tokens.value")?, estimate(row, "accuracy")?));
    for checkpoint in folder.checkpoints("accuracy") {
        for (group, name) in [("all", ""), ("text_only", ", <swi> masked"), ("forced", ", switching forced")] {
            let found = folder.rows("accuracy", checkpoint).iter().find(|r| shown(r, "group") == group);
            if let Some(point) = found.and_then(mark) {
                lines.push(Line::scatter(&format!("{}{name}", called(checkpoint)), vec![point]));
            }
        }
    }
    for row in folder.rows("summary", "") {
        let phase = shown(row, "phase");
        if !lines.iter().any(|l| l.name == called(&phase))
            && let Some(point) = mark(row)
        {
            lines.push(Line::scatter(&called(&phase).replace('_', " "), vec![point]));
        }
    }
    lines.truncate(8);
    let panels = if lines.len() < 2 {
        vec![]
    } else {
        vec![Figure::Lines(LineChart {
            title: "Accuracy and length".into(),
            x: Axis::new("visible tokens per problem"),
            y: Axis::new("accuracy"),
            lines,
            marks: vec![],
            levels: vec![],
        })]
    };
    Drawing::new(
        "fig:pareto",
        "Accuracy–efficiency operating points",
        panels,
        "Bars: 95 % Wilson intervals of accuracy.",
    )
}

/// Name and visible tokens per problem of each checkpoint.
fn tokens(folder: &Folder) -> Vec<(String, Vec<f64>)> {
    let of =
        |c: &str| folder.rows("outcomes", c).iter().filter_map(|r| number(r, "visible_tokens")).collect::<Vec<_>>();
    let all = folder.checkpoints("outcomes").into_iter().map(|c| (called(c), of(c)));
    all.filter(|(_, values)| !values.is_empty()).collect()
}

pub(super) fn histogram(folder: &Folder) -> Option<Drawing> {
    let samples = tokens(folder);
    let all = || samples.iter().flat_map(|(_, v)| v);
    let span = all().fold(0.0f64, |a, b| a.max(*b)) - all().fold(f64::INFINITY, |a, b| a.min(*b));
    if samples.is_empty() {
        return None;
    }
    let (x, of) = (Axis::new("visible tokens per problem"), "problems".into());
    // Bins narrower than a token would leave gaps.
    let bins = (span as usize + 1).clamp(1, 30);
    let figure = Figure::Histogram(Histogram { title: "Visible tokens per problem".into(), x, of, samples, bins });
    Drawing::new("fig:token-dist", "Distribution of visible tokens", vec![figure], "Dashed uprights: means.")
}

pub(super) fn cdf(folder: &Folder) -> Option<Drawing> {
    let samples = tokens(folder);
    if samples.is_empty() {
        return None;
    }
    let x = Axis::new("visible tokens per problem");
    let figure = Figure::Ecdf(Ecdf {
        title: "Visible tokens per problem, cumulative".into(),
        x,
        of: "problems".into(),
        samples,
    });
    Drawing::new(
        "fig:token-cdf",
        "Empirical CDF of visible tokens",
        vec![figure],
        "Bands: 95 %, simultaneous (Dvoretzky–Kiefer–Wolfowitz).",
    )
}

/// Accuracy by level and by subject; with and without latents where the outcomes tell.
pub(super) fn per_level(paper: &Paper, folder: &Folder) -> Option<Drawing> {
    let block = paper.block("tab:per-subject").ok()?;
    let mut panels = vec![];
    for checkpoint in folder.checkpoints("outcomes").into_iter().rev() {
        let rows = folder.rows("outcomes", checkpoint);
        for (key, title) in [("level", "difficulty level"), ("subject", "subject")] {
            let mut groups: Vec<String> = rows.iter().map(|r| shown(r, key)).filter(|g| !g.is_empty()).collect();
            groups.sort();
            groups.dedup();
            if groups.len() < 2 {
                continue;
            }
            let share = |group: &String, used: Option<bool>| {
                let of = rows.iter().filter(|r| shown(r, key) == *group);
                let of =
                    of.filter(|r| used.is_none() || r.get("switched").and_then(serde_json::Value::as_bool) == used);
                let right: Vec<bool> = of.filter_map(|r| r.get("correct")?.as_bool()).collect();
                wilson(right.iter().filter(|c| **c).count(), right.len(), LEVEL).ok()
            };
            let series = |name: &str, used: Option<bool>, paper: bool| {
                let values: Vec<_> = groups.iter().map(|g| share(g, used)).collect();
                let n: usize = values.iter().flatten().map(|e| e.n).sum();
                let theirs =
                    |g: &String| block.value(&subject_key(&format!("{key}:{g}")), "acc").ok().map(|v| v / 100.0);
                let paper = if paper { groups.iter().map(theirs).collect() } else { vec![] };
                BarSeries { name: format!("{name} (n={n})"), values, paper }
            };
            let series = vec![
                series("all", None, true),
                series("with latents", Some(true), false),
                series("without", Some(false), false),
            ];
            let series: Vec<BarSeries> = series.into_iter().filter(|s| s.values.iter().any(Option::is_some)).collect();
            if series.iter().flat_map(|s| s.values.iter().flatten()).any(|e| e.high > 0.0) {
                let title = format!("Accuracy by {title}: {}", called(checkpoint));
                panels.push(Figure::Bars(BarChart { title, y: Axis::new("accuracy"), categories: groups, series }));
            }
        }
    }
    Drawing::new(
        "fig:per-subject",
        "Accuracy by level and subject",
        panels,
        "Bars: 95 % Wilson intervals. Diamonds: the paper's, on MATH-500.",
    )
}
