//! fig:pareto, fig:passes, fig:token-dist, fig:token-cdf, fig:per-subject. Knows the rows of `accuracy`, `summary` and `outcomes`.

use super::{Drawing, called};
use crate::report::beside::step_of;
use crate::report::cells::subject_key;
use crate::report::figures::{Axis, BarChart, BarSeries, Ecdf, Figure, Histogram, Line, LineChart, Point};
use crate::report::folder::{Folder, sound};
use crate::report::paper::Paper;
use crate::schema::{AccuracyRow, GRPO_START, OutcomeRow, PhaseRow};
use crate::stats::{Estimate, LEVEL, wilson};

/// Methods that write their reasoning or most of it, and methods that do not: a panel each.
const METHODS: [(&str, &[&str]); 2] = [
    (
        "Reasoning in text, in part or first",
        &["base", "text_cot_grpo", "sft", "grpo", "swireasoning", "soft_thinking", "soft_grpo"],
    ),
    ("Reasoning not in text", &["no_cot", "icot", "pause", "coconut", "codi", "colar", "fixed_embedding"]),
];

/// A panel of accuracy for each group of methods, and the methods' `length`: one mark a method.
fn by_method(folder: &Folder, x: &str, length: impl Fn(&PhaseRow) -> Option<Estimate>) -> Vec<Figure> {
    let mark = |method: &str| {
        let row = folder.phases().iter().find(|row| row.phase == method)?;
        let point = Point::new(length(row)?.value, sound(row.accuracy)?);
        let name = if method == "base" { "text CoT".into() } else { called(method).replace('_', " ") };
        Some(Line::scatter(&name, vec![point]))
    };
    let panel = |(title, methods): (&str, &[&str])| marks(title, x, methods.iter().filter_map(|m| mark(m)).collect());
    METHODS.into_iter().filter_map(panel).collect()
}

/// A panel of at least two marks.
fn marks(title: &str, x: &str, lines: Vec<Line>) -> Option<Figure> {
    let (x, y) = (Axis::new(x), Axis::new("accuracy"));
    (lines.len() > 1)
        .then(|| Figure::Lines(LineChart { title: title.into(), x, y, lines, marks: vec![], levels: vec![] }))
}

/// Accuracy against visible tokens: one mark a method, and one per way of decoding a checkpoint.
pub(super) fn pareto(folder: &Folder) -> Option<Drawing> {
    let x = "visible tokens per problem";
    let mut ways: Vec<Line> = vec![];
    // What a phase passes through on its way would hide its end.
    let ends = |checkpoint: &&str| *checkpoint != GRPO_START && step_of(checkpoint).is_none();
    for checkpoint in folder.of::<AccuracyRow>().into_iter().filter(ends) {
        for (group, name) in [("all", ""), ("text_only", ", <swi> masked"), ("forced", ", switching forced")] {
            let found = folder.rows::<AccuracyRow>(checkpoint).iter().find(|r| r.group == group);
            let point = found.and_then(|r| Some(Point::new(r.visible_tokens?.value, sound(r.accuracy)?)));
            ways.extend(point.map(|p| Line::scatter(&format!("{}{name}", called(checkpoint)), vec![p])));
        }
    }
    let panels = by_method(folder, x, |row| row.visible_tokens).into_iter().chain(marks("Ways of decoding", x, ways));
    let note = "Bars: 95 % Wilson intervals of accuracy; the panels have different scales.";
    Drawing::new("fig:pareto", "Accuracy–efficiency operating points", panels.collect(), note).map(Drawing::wide)
}

/// Accuracy against passes of the model, text and latents alike.
pub(super) fn passes(folder: &Folder) -> Option<Drawing> {
    let panels = by_method(folder, "forward passes per problem", |row| row.forward_passes);
    if panels.len() < METHODS.len() {
        return None;
    }
    let note = "Forward passes: the prompt's, then one for each token and latent. Bars: 95 % Wilson intervals of accuracy; \
        the two panels have different scales.";
    Drawing::new("fig:passes", "Accuracy and forward passes of every method", panels, note).map(Drawing::wide)
}

/// Name and visible tokens per problem of each checkpoint.
fn tokens(folder: &Folder) -> Vec<(String, Vec<f64>)> {
    let of = |c: &str| folder.rows::<OutcomeRow>(c).iter().map(|r| r.visible_tokens as f64).collect::<Vec<_>>();
    let all = folder.of::<OutcomeRow>().into_iter().map(|c| (called(c), of(c)));
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

/// Name of a group of problems, what it is called, and which group a problem is in.
type Grouping = (&'static str, &'static str, fn(&OutcomeRow) -> Option<String>);

/// Accuracy by level and by subject; with and without latents where the outcomes tell.
pub(super) fn per_level(paper: &Paper, folder: &Folder) -> Option<Drawing> {
    let block = paper.block("tab:per-subject").ok()?;
    let mut panels = vec![];
    let level: Grouping = ("level", "difficulty level", |r| r.level.map(|level| level.to_string()));
    let subject: Grouping = ("subject", "subject", |r| r.subject.clone());
    for checkpoint in folder.of::<OutcomeRow>().into_iter().rev() {
        let rows = folder.rows::<OutcomeRow>(checkpoint);
        for (key, title, group_of) in [level, subject] {
            let mut groups: Vec<String> = rows.iter().filter_map(group_of).collect();
            groups.sort();
            groups.dedup();
            if groups.len() < 2 {
                continue;
            }
            let share = |group: &String, used: Option<bool>| {
                let of = rows.iter().filter(|r| group_of(r).as_ref() == Some(group));
                let of: Vec<_> = of.filter(|r| used.is_none_or(|used| r.switched == used)).collect();
                wilson(of.iter().filter(|r| r.correct).count(), of.len(), LEVEL).ok()
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
