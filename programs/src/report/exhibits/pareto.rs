//! fig:pareto, and ours over forward passes: accuracy against what an answer costs.

use super::sft_vs_rl::SOURCES;
use super::{Drawing, Exhibit};
use crate::report::cells::step_of;
use crate::report::figures::{Axis, Figure, Line, LineChart, Point};
use crate::report::folder::{Folder, called, sound};
use crate::report::paper::Paper;
use switchyard::method::{Panel, Phase, TableRow, declared};
use switchyard::schema::{AccuracyRow, GRPO_START, PhaseRow};
use switchyard::stats::Estimate;

pub(super) const EXHIBITS: &[Exhibit] = &[
    Exhibit {
        cell: |cells, row, column| cells.phase_quality(if row == "default" { &cells.folder.grpo } else { row }, column),
        draw: pareto,
        ..Exhibit::new("fig:pareto", SOURCES)
    },
    Exhibit { draw: decoding, ..Exhibit::new("fig:decoding", SOURCES) },
    Exhibit { draw: passes, ..Exhibit::new("fig:passes", SOURCES) },
];

/// The panels, with their titles.
const PANELS: [(Panel, &str); 2] =
    [(Panel::Text, "Reasoning in text, in part or first"), (Panel::Latent, "Reasoning not in text")];

/// A panel per group of methods: accuracy against `length`, one mark per method.
fn by_method(paper: &Paper, folder: &Folder, x: &str, length: impl Fn(&PhaseRow) -> Option<Estimate>) -> Vec<Figure> {
    let mark = |phase: &Phase| {
        let row = folder.phases().iter().find(|row| row.phase == phase.name)?;
        let point = Point::new(length(row).and_then(sound)?.value, sound(row.accuracy)?);
        Some(Line::scatter(&method_name(paper, phase), vec![point]))
    };
    let phases = declared();
    let marks_of = |panel| phases.iter().filter(move |phase| phase.panel == panel).filter_map(|phase| mark(phase));
    PANELS.into_iter().filter_map(|(panel, title)| marks(title, x, marks_of(panel).collect())).collect()
}

/// A method's name in the paper's table, else our short name: `SIM-CoT` for `Coconut whose … (SIM-CoT)`.
fn method_name(paper: &Paper, phase: &Phase) -> String {
    let of_paper = |key: &str| {
        let rows = &paper.block("tab:main").ok()?.rows;
        Some(rows.iter().find(|row| row.key == key)?.name.clone())
    };
    match phase.row {
        // A parenthesis would not be part of a series' name.
        TableRow::Paper(key) => {
            of_paper(key).map_or_else(|| called(phase.name), |name| name.replace(" (", ", ").replace(')', ""))
        }
        TableRow::Ours(caption) => match caption.trim_end_matches(')').rsplit_once(" (") {
            Some((what, "control" | "training-free")) => what.to_owned(),
            Some((_, name)) => name.to_owned(),
            None => caption.to_owned(),
        },
        TableRow::None => called(phase.name),
    }
}

/// A panel of at least two marks.
fn marks(title: &str, x: &str, lines: Vec<Line>) -> Option<Figure> {
    let (x, y) = (Axis::new(x), Axis::new("accuracy"));
    let chart = LineChart { title: title.into(), x, y, lines, ..LineChart::default() };
    Some(chart).filter(|chart| chart.lines.len() > 1).and_then(Figure::lines)
}

const X: &str = "visible tokens per problem";

/// One mark per way of decoding a checkpoint.
fn ways(folder: &Folder) -> Option<Figure> {
    let mut ways: Vec<Line> = vec![];
    // Intermediate checkpoints of a phase would hide its end.
    let ends = |checkpoint: &&str| *checkpoint != GRPO_START && step_of(checkpoint).is_none();
    for checkpoint in folder.checkpoints_with::<AccuracyRow>().into_iter().filter(ends) {
        for (group, name) in [("all", ""), ("text_only", ", <swi> masked"), ("forced", ", switching forced")] {
            let found = folder.rows::<AccuracyRow>(checkpoint).iter().find(|r| r.group == group);
            let point = found.and_then(|r| Some(Point::new(sound(r.visible_tokens?)?.value, sound(r.accuracy)?)));
            ways.extend(point.map(|p| Line::scatter(&format!("{}{name}", called(checkpoint)), vec![p])));
        }
    }
    marks("Ways of decoding", X, ways)
}

/// Accuracy against visible tokens, one mark per method; for a folder without a run, per way of decoding.
fn pareto(exhibit: &Exhibit, paper: &Paper, folder: &Folder) -> Vec<Drawing> {
    let mut panels = by_method(paper, folder, X, |row| row.visible_tokens);
    if panels.is_empty() {
        panels.extend(ways(folder));
    }
    let (columns, note) = (panels.len().max(1), format!("{BARS}; the panels have different scales."));
    exhibit.drawing("Accuracy–efficiency operating points", columns, panels, &note)
}

/// The ways of decoding, if fig:pareto shows methods.
fn decoding(exhibit: &Exhibit, paper: &Paper, folder: &Folder) -> Vec<Drawing> {
    let methods = !by_method(paper, folder, X, |row| row.visible_tokens).is_empty();
    let panel = ways(folder).filter(|_| methods);
    exhibit.drawing("Ways of decoding (ours)", 1, panel.into_iter().collect(), &format!("{BARS}."))
}

const BARS: &str = "Bars: 95 % Wilson intervals of accuracy";

/// Accuracy against passes of the model, text and latents alike.
fn passes(exhibit: &Exhibit, paper: &Paper, folder: &Folder) -> Vec<Drawing> {
    let panels = by_method(paper, folder, "forward passes per problem", |row| row.forward_passes);
    if panels.len() < PANELS.len() {
        return vec![];
    }
    let note = format!(
        "Forward passes: the prompt's, then one for each token and latent. {BARS}; the two panels have different scales."
    );
    exhibit.drawing("Accuracy and forward passes of every method", 2, panels, &note)
}
