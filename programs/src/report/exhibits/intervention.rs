//! tab:intervention, fig:intervention: what other inputs at the latent steps leave of right answers.

use super::{Drawing, Exhibit, Layout, diamonds};
use crate::report::cells::{Cells, intervention_row};
use crate::report::figures::{Axis, BarChart, BarSeries, Figure};
use crate::report::folder::{Folder, called, distinct, sound};
use crate::report::paper::Paper;
use switchyard::schema::{InterventionRow, KnownValueRow, NORMAL, RowFile};
use switchyard::stats::Estimate;

const SOURCES: &[&str] = &[InterventionRow::NAME];

pub(super) const EXHIBITS: &[Exhibit] = &[
    Exhibit {
        per_checkpoint: true,
        cell,
        beside: Layout { extra, ..Layout::PLAIN },
        ..Exhibit::new("tab:intervention", SOURCES)
    },
    Exhibit { draw, ..Exhibit::new("fig:intervention", SOURCES) },
];

fn cell(cells: &Cells<'_>, mode: &str, column: &str) -> Option<Estimate> {
    let row = intervention_row(cells.folder, cells.checkpoint, mode)?;
    match column {
        "all_acc" => Some(row.accuracy),
        "all_changed" => Some(row.answer_changed),
        "diag_acc" => row.diagnostic_accuracy,
        // Normal is right on every problem of the subset by its definition.
        "diag_delta" => {
            let e = row.diagnostic_accuracy?;
            Some(Estimate { value: e.value - 1.0, low: e.low - 1.0, high: e.high - 1.0, n: e.n })
        }
        _ => None,
    }
}

/// Modes that the paper lacks.
fn extra(folder: &Folder) -> Vec<(String, String)> {
    let known = |mode: &str| [NORMAL, "zero", "random_norm", "skip"].contains(&mode);
    let plain = folder.all::<InterventionRow>().map(|(_, row)| row).filter(|row| row.is_plain() && !known(&row.mode));
    let modes = distinct(plain.map(|row| row.mode.as_str()));
    modes.into_iter().map(|mode| (mode.to_owned(), mode.replace('_', " "))).collect()
}

/// What enters the latents in the figure.
const SHOWN: [(&str, &str); 5] = [
    (NORMAL, "normal"),
    ("zero", "zero"),
    ("random_norm", "random norm"),
    ("resample", "resample"),
    ("embedding_argmax", "own token"),
];

/// The finding, a row of panels a checkpoint that the paper has: what five inputs leave of right answers, and what becomes of
/// answers when a known value is put in.
fn draw(exhibit: &Exhibit, paper: &Paper, folder: &Folder) -> Vec<Drawing> {
    let there = folder.checkpoints_with::<InterventionRow>();
    let mut checkpoints: Vec<&str> = there.iter().copied().filter(|c| *c == folder.sft || *c == folder.grpo).collect();
    if checkpoints.is_empty() {
        checkpoints.extend(there.first());
    }
    let of = |checkpoint: &&str| [kept(paper, folder, checkpoint), followed(folder, checkpoint)];
    let panels: Vec<[Option<Figure>; 2]> = checkpoints.iter().map(of).collect();
    let columns = if panels.iter().flatten().all(Option::is_some) { 2 } else { 1 };
    let panels: Vec<Figure> = panels.into_iter().flatten().flatten().collect();
    let note = format!(
        "Right answers: of those that the unchanged model gives with latents (diagnostic problems), the share that stays right. \
         Known value: the share of answers that become what arithmetic predicts from the value put in, that would by chance, and \
         that stay. Bars: 95 % intervals.{}",
        theirs_are(&panels, "n = 21 fits them")
    );
    exhibit.drawing("Latent-state interventions", columns, panels, &note)
}

/// Bars of one checkpoint under a title, what their height is and what they are of; none where fewer than two are known.
fn bars(
    [title, of, series]: [&str; 3],
    checkpoint: &str,
    bars: &[(&str, Option<Estimate>, Option<f64>)],
) -> Option<Figure> {
    let bars: Vec<_> = bars.iter().filter(|(_, value, _)| value.is_some()).collect();
    let values: Vec<Option<Estimate>> = bars.iter().map(|(_, value, _)| *value).collect();
    (bars.len() > 1).then(|| {
        Figure::Bars(BarChart {
            title: format!("{title}: {}", called(checkpoint)),
            y: Axis::share(of),
            categories: bars.iter().map(|(name, ..)| (*name).to_owned()).collect(),
            series: vec![BarSeries {
                name: with_n(series, &values),
                values,
                paper: bars.iter().map(|b| b.2).collect(),
            }],
        })
    })
}

fn kept(paper: &Paper, folder: &Folder, checkpoint: &str) -> Option<Figure> {
    let left = |mode: &str| intervention_row(folder, checkpoint, mode)?.diagnostic_accuracy.and_then(sound);
    let all = SHOWN.map(|(mode, name)| (name, left(mode), theirs(paper, folder, checkpoint, mode, "diag_acc")));
    bars(
        ["Right answers by what enters the latents", "share that stays right", "diagnostic problems"],
        checkpoint,
        &all,
    )
}

fn followed(folder: &Folder, checkpoint: &str) -> Option<Figure> {
    let row = KnownValueRow::main(folder.rows(checkpoint))?;
    let all = [("predicted", row.hit_rate), ("by chance", row.chance), ("old one kept", row.kept)];
    let all = all.map(|(name, share)| (name, sound(share), None));
    bars(["Answers when a known value is put in", "share of answers", "problems with a donor"], checkpoint, &all)
}

/// The paper's number, for its own checkpoint only.
pub(super) fn theirs(paper: &Paper, folder: &Folder, checkpoint: &str, mode: &str, column: &str) -> Option<f64> {
    let here = checkpoint == folder.grpo;
    here.then(|| paper.cell(&format!("tab:intervention/{mode}/{column}")).ok()).flatten()
}

/// What a figure with the paper's diamonds must say.
pub(super) fn theirs_are(panels: &[Figure], n: &str) -> String {
    diamonds(panels, &format!("the paper's numbers, from its section on the model after Switch-GRPO ({n})"))
}

/// `all (n=500)`; where bars differ in it, `(n=40 to 84)`.
pub(super) fn with_n(name: &str, values: &[Option<Estimate>]) -> String {
    let n = || values.iter().flatten().map(|e| e.n);
    match (n().min().unwrap_or(0), n().max().unwrap_or(0)) {
        (least, most) if least == most => format!("{name} (n={most})"),
        (least, most) => format!("{name} (n={least} to {most})"),
    }
}
