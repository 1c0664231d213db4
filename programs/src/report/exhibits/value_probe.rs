//! Probes for the task's intermediate values at each latent step: a table, and a figure of the last probed layer.

use super::{Drawing, Exhibit, points};
use crate::report::figures::{Axis, Figure, Line, LineChart};
use crate::report::folder::{Folder, called, distinct};
use crate::report::paper::Paper;
use switchyard::schema::{Features, ProbeRow, Protocol, RowFile, stream_name};

const SOURCES: &[&str] = &[ProbeRow::NAME];

pub(super) const EXHIBITS: &[Exhibit] = &[
    rows_table!(
        "tab:probe-values",
        SOURCES,
        "Probes for the task's intermediate values at each latent step",
        |row: &ProbeRow| row.value().is_some(),
        columns!(ProbeRow:
            target, protocol, features, layer, from_last, accuracy, selectivity, chance, balanced_accuracy),
    ),
    Exhibit { draw, ..Exhibit::new("fig:value-probe", SOURCES) },
];

fn draw(exhibit: &Exhibit, _: &Paper, folder: &Folder) -> Vec<Drawing> {
    let panels =
        folder.checkpoints_with::<ProbeRow>().into_iter().filter_map(|checkpoint| panel(folder, checkpoint)).collect();
    let note = "Split by group. Bars: 95 % intervals. Chance: accuracy of the commonest value.";
    exhibit.drawing("Probes for intermediate values (ours)", 1, panels, note)
}

fn panel(folder: &Folder, checkpoint: &str) -> Option<Figure> {
    let probes = |features: Features| {
        let rows = folder.rows::<ProbeRow>(checkpoint).iter();
        let rows = rows.filter(move |r| r.features == features && r.protocol != Protocol::Paper);
        rows.filter_map(|r| r.value()?.split_once('@').map(|(value, step)| (value, step.parse::<f64>().ok(), r)))
    };
    let last = probes(Features::ResidPost).map(|(.., r)| r.layer).max()?;
    let mut names = distinct(probes(Features::ResidPost).map(|(value, ..)| value));
    // Results of steps 1, 2, … are separate only if blocks do not represent single steps.
    if names.contains(&"s_j") {
        names.retain(|name| name.starts_with("s_j"));
    }
    let line = |value: &str, features: Features, name: String| {
        let of = probes(features).filter(|(v, _, r)| *v == value && r.layer == last);
        Line::bars(&name, points(of.filter_map(|(_, step, r)| Some((step?, r.score())))))
    };
    let said = |value: &str| match value {
        "s_j" => "result of the block\u{2019}s own clause".to_owned(),
        "s_j-1" => "result before it".to_owned(),
        other => format!("result of step {}", other.trim_start_matches('s')),
    };
    // More lines than colours cannot be distinguished.
    let mut lines: Vec<Line> = names.iter().take(6).map(|v| line(v, Features::ResidPost, said(v))).collect();
    lines.extend(names.first().map(|v| line(v, Features::Shuffled, "shuffled labels".into())));
    Figure::lines(LineChart {
        title: format!("Values read at each latent step, {}: {}", stream_name(last), called(checkpoint)),
        x: Axis::new("latent step").whole(),
        y: Axis::new("accuracy").range(0.0, 1.04),
        lines,
        levels: probes(Features::ResidPost).next().map(|(.., r)| r.chance).into_iter().collect(),
        level: "chance of the first line".into(),
        ..LineChart::default()
    })
}
