//! tab:intervention, fig:intervention: accuracy with other inputs at the latent steps; and answers after swapping in a known value.

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
    Exhibit { draw: followed, ..Exhibit::new("fig:known-value", &[KnownValueRow::NAME]) },
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

/// The paper's four modes.
const SHOWN: [&str; 4] = [NORMAL, "zero", "random_norm", "skip"];

/// As the paper draws it, a row of panels for each checkpoint that the paper has: accuracy on the left, changed answers on the right, of
/// all problems and of the diagnostic ones.
fn draw(exhibit: &Exhibit, paper: &Paper, folder: &Folder) -> Vec<Drawing> {
    let there = folder.checkpoints_with::<InterventionRow>();
    let mut checkpoints: Vec<&str> = there.iter().copied().filter(|c| *c == folder.sft || *c == folder.grpo).collect();
    if checkpoints.is_empty() {
        checkpoints.extend(there.first());
    }
    let panels: Vec<Figure> =
        checkpoints.iter().flat_map(|checkpoint| pair(paper, folder, checkpoint)).flatten().collect();
    let note = format!(
        "Left: right answers. Right: answers that differ from those of the unchanged model. Diagnostic: problems that it answers right with \
         latents; a changed answer is a wrong one there. Bars: 95 % intervals. fig:intervention-all has every mode.{}",
        theirs_are(&panels, "n = 50 and 21 fit them")
    );
    exhibit.drawing("Latent-state interventions", 2, panels, &note)
}

/// One series of bars: its name, our number of a mode, and the paper's.
type Bars<'a> = (&'a str, fn(&InterventionRow) -> Option<Estimate>, &'a dyn Fn(&str) -> Option<f64>);

fn pair(paper: &Paper, folder: &Folder, checkpoint: &str) -> [Option<Figure>; 2] {
    let theirs = |column: &'static str| move |mode: &str| theirs(paper, folder, checkpoint, mode, column);
    let changed = |mode: &str| theirs("diag_acc")(mode).map(|right| 1.0 - right);
    let modes: Vec<&InterventionRow> =
        SHOWN.iter().filter_map(|mode| intervention_row(folder, checkpoint, mode)).collect();
    let chart = |title: &str, y: &str, series: [Bars; 2]| {
        let of = |(name, of, theirs): &Bars| {
            let values: Vec<Option<Estimate>> = modes.iter().map(|row| of(row).and_then(sound)).collect();
            let paper = modes.iter().map(|row| theirs(&row.mode)).collect();
            BarSeries { name: with_n(name, &values), values, paper }
        };
        let chart = BarChart {
            title: format!("{title}: {}", called(checkpoint)),
            y: Axis::share(y),
            categories: modes.iter().map(|row| row.mode.replace('_', " ")).collect(),
            series: series.iter().map(of).collect(),
        };
        Figure::bars(chart).filter(|_| modes.len() > 1)
    };
    [
        chart(
            "Accuracy",
            "share of right answers",
            [("all", |row| Some(row.accuracy), &theirs("all_acc")), ("diagnostic", diagnostic, &theirs("diag_acc"))],
        ),
        chart(
            "Changed answers",
            "share of changed answers",
            [
                ("all", |row| Some(row.answer_changed), &theirs("all_changed")),
                ("diagnostic", |row| diagnostic(row).map(rest), &changed),
            ],
        ),
    ]
}

/// Accuracy on the diagnostic problems. The normal run is right on all of them by their definition, so that it has no interval.
fn diagnostic(row: &InterventionRow) -> Option<Estimate> {
    let share = row.diagnostic_accuracy?;
    Some(if row.mode == NORMAL { Estimate { low: share.value, high: share.value, ..share } } else { share })
}

/// One minus a share.
fn rest(share: Estimate) -> Estimate {
    Estimate { value: 1.0 - share.value, low: 1.0 - share.high, high: 1.0 - share.low, n: share.n }
}

/// Answers after swapping in a known value.
fn followed(exhibit: &Exhibit, _: &Paper, folder: &Folder) -> Vec<Drawing> {
    let panel = |checkpoint: &str| {
        let row = KnownValueRow::main(folder.rows(checkpoint))?;
        let all = [("predicted", row.hit_rate), ("by chance", row.chance), ("old one kept", row.kept)];
        let values = all.map(|(_, share)| sound(share)).to_vec();
        Some(Figure::Bars(BarChart {
            title: format!("Known value put in: {}", called(checkpoint)),
            y: Axis::share("share of answers"),
            categories: all.map(|(name, _)| name.to_owned()).to_vec(),
            series: vec![BarSeries { name: with_n("problems with a donor", &values), values, paper: vec![] }],
        }))
    };
    let panels = folder.checkpoints_with::<KnownValueRow>().into_iter().filter_map(panel).collect();
    let note = "Share of answers that become the one predicted from the new value, that would by chance, and that stay. Bars: 95 % \
                intervals.";
    exhibit.drawing("A known value put in (ours)", 2, panels, note)
}

/// The paper's number, for its own checkpoint only.
pub(super) fn theirs(paper: &Paper, folder: &Folder, checkpoint: &str, mode: &str, column: &str) -> Option<f64> {
    let here = checkpoint == folder.grpo;
    here.then(|| paper.cell(&format!("tab:intervention/{mode}/{column}")).ok()).flatten()
}

/// Note for a figure with the paper's diamonds.
pub(super) fn theirs_are(panels: &[Figure], n: &str) -> String {
    diamonds(panels, &format!("the paper's numbers, from its section on the model after Switch-GRPO ({n})"))
}

/// `all (n=500)`; if bars differ in n, `(n=40 to 84)`.
pub(super) fn with_n(name: &str, values: &[Option<Estimate>]) -> String {
    let n = || values.iter().flatten().map(|e| e.n);
    match (n().min().unwrap_or(0), n().max().unwrap_or(0)) {
        (least, most) if least == most => format!("{name} (n={most})"),
        (least, most) => format!("{name} (n={least} to {most})"),
    }
}
