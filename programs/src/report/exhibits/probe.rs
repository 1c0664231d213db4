//! tab:probe, fig:layer-probe: linear probes for the next `<swi>` at each layer; and ours, split by group, with controls.

use super::{Drawing, Exhibit, Layout, lacking, points};
use crate::report::cells::Cells;
use crate::report::figures::{Axis, Figure, Line, LineChart, Point};
use crate::report::folder::{Folder, called, sound};
use crate::report::paper::{Paper, PaperRow};
use switchyard::schema::{Features, ProbeRow, Protocol, RowFile};
use switchyard::stats::Estimate;
use switchyard::stats::probe::{PAPER_LAYERS, paper_layer, paper_layers};

const SOURCES: &[&str] = &[ProbeRow::NAME];

pub(super) const EXHIBITS: &[Exhibit] = &[
    Exhibit { cell, beside: Layout { repeats, note, ..Layout::PLAIN }, ..Exhibit::new("tab:probe", SOURCES) },
    Exhibit { draw: theirs, ..Exhibit::new("fig:layer-probe", SOURCES) },
    Exhibit { draw: grouped, ..Exhibit::new("fig:probe-grouped", SOURCES) },
    rows_table!(
        "tab:probe-grouped",
        SOURCES,
        "Probes for the next <swi>, split by group, with controls (balanced accuracy; last layer = 1)",
        |row: &ProbeRow| row.is_switch() && row.protocol == Protocol::Grouped,
        columns!(ProbeRow: features, layer, from_last, balanced_accuracy, auroc, selectivity, chance),
    ),
];

/// Number of the model's layers, from rows of `layer_probe`.
fn depth(rows: &[ProbeRow]) -> Option<usize> {
    rows.first().and_then(|r| (r.layer + r.from_last).checked_sub(1)).filter(|&layers| layers > 0)
}

/// Number of layers of the deepest model with probes in the folder.
fn deepest(folder: &Folder) -> Option<usize> {
    folder.checkpoints_with::<ProbeRow>().into_iter().filter_map(|c| depth(folder.rows(c))).max()
}

fn offset(row: &str) -> Option<usize> {
    row.trim_start_matches('-').parse().ok()
}

/// The paper's protocol, at our layer of the same relative depth.
fn cell(cells: &Cells<'_>, row: &str, column: &str) -> Option<Estimate> {
    let rows = cells.folder.rows::<ProbeRow>(cells.phase(column)?);
    let layer = paper_layer(offset(row)?, depth(rows)?);
    let ours = |r: &&ProbeRow| {
        r.is_switch() && r.protocol == Protocol::Paper && r.features == Features::ResidPost && r.layer == layer
    };
    rows.iter().find(ours).map(|r| r.accuracy.unwrap_or(r.balanced_accuracy))
}

/// Whether our layer is already in another row: a shallow model has fewer layers than tab:probe has rows.
fn repeats(folder: &Folder, row: &str) -> bool {
    let stands = |layers, offset| paper_layers(layers).iter().any(|(o, _)| *o == offset);
    deepest(folder).zip(offset(row)).is_some_and(|(layers, offset)| !stands(layers, offset))
}

fn note(folder: &Folder, _: usize) -> String {
    deepest(folder).map_or_else(String::new, |layers| {
        format!(
            "The paper's offsets count from the last of 36 layers. Each of our {layers} layers is in the row that is nearest in relative depth. Protocol of both: C = 1, one 80:20 split."
        )
    })
}

fn chart(title: String, lines: Vec<Line>) -> Option<Figure> {
    let (x, y) = (Axis::new("depth (share of layers passed)"), Axis::share("accuracy, balanced classes"));
    Figure::lines(LineChart { title, x, y, lines, levels: vec![0.5], level: "chance".into(), ..LineChart::default() })
}

/// Probe accuracy by depth: the paper's protocol, next to the paper's numbers.
fn theirs(exhibit: &Exhibit, paper: &Paper, folder: &Folder) -> Vec<Drawing> {
    let ours = |c: &str| {
        Line::bars(&format!("ours, {}", called(c)), by_depth(folder, c, Protocol::Paper, Features::ResidPost))
    };
    let is_there = |c: &str| !by_depth(folder, c, Protocol::Paper, Features::ResidPost).is_empty();
    let mut lines: Vec<Line> =
        folder.checkpoints_with::<ProbeRow>().into_iter().filter(|c| is_there(c)).map(ours).collect();
    if let (false, Ok(block)) = (lines.is_empty(), paper.block("tab:probe")) {
        for (column, name) in folder.papers(ProbeRow::NAME) {
            let of = |row: &PaperRow| {
                let offset = offset(&row.key)? as f64;
                Some(Point::bare(relative(offset, PAPER_LAYERS as f64), block.value(&row.key, column).ok()?))
            };
            lines.push(Line::bars(name, block.rows.iter().filter_map(of).collect()));
        }
    }
    let panel = chart("Probe for the next <swi>: the paper's protocol".into(), lines);
    let note = format!(
        "Bars: 95 % intervals. Depth lets 36 layers and ours share an axis.{}",
        lacking(&[&folder.sft, &folder.grpo], is_there)
    );
    exhibit.drawing("Layer probes", 1, panel.into_iter().collect(), &note)
}

/// The probes split by group with their controls, in two panels of at most four series.
fn grouped(exhibit: &Exhibit, _: &Paper, folder: &Folder) -> Vec<Drawing> {
    let stream = (Features::ResidPost, "residual stream");
    let states = [stream, (Features::Untrained, "untrained model"), (Features::Embedding, "embedding")];
    let others = [
        stream,
        (Features::Token, "token identity"),
        (Features::Margin, "logit margin"),
        (Features::Shuffled, "shuffled labels"),
    ];
    let panels = |checkpoint: &str| {
        let panel = |(what, named): (&str, &[(Features, &str)])| {
            let line = |&(features, name): &(Features, &str)| {
                Line::bars(name, by_depth(folder, checkpoint, Protocol::Grouped, features))
            };
            chart(format!("{what}: {}", called(checkpoint)), named.iter().map(line).collect())
        };
        let all = [
            ("Probe for the next <swi>, split by group", &states[..]),
            ("The same, with tokens, logits and shuffled labels", &others),
        ];
        all.into_iter().filter_map(panel).collect::<Vec<Figure>>()
    };
    let panels = folder.checkpoints_with::<ProbeRow>().into_iter().flat_map(panels).collect();
    let note = "No problem is in both training and test. Bars: 95 % intervals. Dotted: chance.";
    exhibit.drawing("Layer probes with controls (ours)", 1, panels, note)
}

/// Scores of the probes for the next `<swi>` by relative depth.
fn by_depth(folder: &Folder, checkpoint: &str, protocol: Protocol, features: Features) -> Vec<Point> {
    let layers = depth(folder.rows(checkpoint)).unwrap_or(1) as f64;
    let rows = folder.rows::<ProbeRow>(checkpoint).iter();
    let rows = rows.filter(|r| r.is_switch() && r.protocol == protocol && r.features == features);
    let score = |r: &ProbeRow| match protocol {
        Protocol::Paper => r.accuracy.and_then(sound).unwrap_or(r.balanced_accuracy),
        Protocol::Grouped => r.balanced_accuracy,
    };
    points(rows.map(|r| (relative(r.from_last as f64, layers), score(r))))
}

/// Relative depth (share of layers passed) of layer `from_last` (1 = the last) of `layers`.
fn relative(from_last: f64, layers: f64) -> f64 {
    (layers + 1.0 - from_last) / layers
}
