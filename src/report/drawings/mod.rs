//! Rows to figures: which of the paper's figures, and which of ours, a folder has rows for. Knows columns by name; how a
//! chart looks is `figures`' part. A figure without rows is named with what it needs and not drawn.

mod circuits;
mod inside;
mod interventions;
mod length;
mod probes;
mod training;

pub(crate) use inside::lens_rows;

use super::cells::sources;
use super::figures::Figure;
use super::folder::Folder;
use super::paper::Paper;

/// A figure that can be drawn.
pub struct Drawing {
    /// LaTeX label.
    pub label: String,
    pub title: String,
    pub panels: Vec<Figure>,
    /// Panels beside one another.
    pub columns: usize,
    /// What must be known to read it.
    pub note: String,
}

impl Drawing {
    fn new(label: &str, title: &str, panels: Vec<Figure>, note: &str) -> Option<Self> {
        let drawing = Self { label: label.into(), title: title.into(), panels, columns: 1, note: note.into() };
        (!drawing.panels.is_empty()).then_some(drawing)
    }

    /// The same with panels in pairs.
    fn wide(self) -> Self {
        Self { columns: 2, ..self }
    }
}

/// A figure of the paper that the rows do not suffice for.
pub struct Undrawn {
    pub label: String,
    pub title: String,
    /// Why, and which rows would do.
    pub reason: String,
}

/// Every figure of the folder, the paper's first, and those that lack rows.
pub fn all(paper: &Paper, folder: &Folder) -> (Vec<Drawing>, Vec<Undrawn>) {
    let (mut drawn, mut undrawn) = (vec![], vec![]);
    for figure in &paper.figures {
        let label = figure.label.as_str();
        let drawing = match label {
            "fig:swi-window" => probes::window(paper, folder),
            "fig:layer-probe" => probes::layers(paper, folder),
            "fig:intervention" => interventions::six(paper, folder),
            "fig:calibration" => training::overlay(folder),
            "fig:calibration-full" => training::full(folder),
            "fig:pareto" => length::pareto(folder),
            "fig:token-dist" => length::histogram(folder),
            "fig:token-cdf" => length::cdf(folder),
            "fig:per-subject" => length::per_level(paper, folder),
            _ => None,
        };
        match drawing {
            Some(drawing) => drawn.push(drawing),
            None => {
                let needs = sources(label).iter().map(|e| format!("`{e}`")).collect::<Vec<_>>().join(" or ");
                let reason =
                    if figure.diagram { "a diagram, no data".into() } else { format!("no rows: needs {needs}") };
                undrawn.push(Undrawn { label: label.into(), title: figure.title.clone(), reason });
            }
        }
    }
    drawn.extend(length::passes(folder));
    drawn.extend(probes::values(folder));
    drawn.extend(interventions::all(paper, folder));
    drawn.extend(interventions::per_step(folder));
    drawn.extend(interventions::dose(folder));
    drawn.extend(inside::exits(folder));
    drawn.extend(inside::lenses(folder));
    drawn.extend(inside::patching(folder));
    drawn.extend(circuits::circuits(folder));
    drawn.extend(training::losses(folder));
    (drawn, undrawn)
}

/// A checkpoint as a reader calls it.
pub(in crate::report) fn called(checkpoint: &str) -> String {
    match checkpoint {
        "sft" => "after SFT".into(),
        "grpo_start" => "where GRPO starts".into(),
        "grpo" => "after Switch-GRPO".into(),
        other => other.into(),
    }
}
