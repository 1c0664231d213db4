//! Direct contributions of heads and MLPs to one decision: the first of the records, which is the answer where it was measured. Knows the
//! records of `direct_logit`.

use anyhow::Result;

use super::lens::grid;
use super::{Drawing, Exhibit, largest};
use crate::report::figures::{Figure, HeatMap};
use crate::report::folder::{Folder, called};
use crate::report::paper::Paper;
use crate::report::tables::{Cell, ColumnKind, Table};
use switchyard::schema::{Component, DirectLogitRow, Part, RowFile};
use switchyard::stats::Estimate;

const SOURCES: &[&str] = &[DirectLogitRow::NAME];

pub(super) const EXHIBITS: &[Exhibit] = &[
    Exhibit { covers: true, table, ..Exhibit::new("tab:direct-logit", SOURCES) },
    Exhibit { draw, ..Exhibit::new("fig:direct-logit", SOURCES) },
];

const READING: &str = "Lead: the target's logit minus that of the best other token (nats). Direct contributions at the deciding position, \
    largest absolute one first.";

/// The record of the whole lead, and those of the contributions at the deciding position. `None` without records.
fn decision<'a>(folder: &'a Folder, checkpoint: &str) -> Option<(&'a DirectLogitRow, Vec<&'a DirectLogitRow>)> {
    let rows = folder.rows::<DirectLogitRow>(checkpoint);
    let total = rows.iter().find(|row| row.component == Component::Total)?;
    let contributes = |row: &&DirectLogitRow| {
        let same = (row.form, row.target, row.step) == (total.form, total.target, total.step);
        same && row.part == Part::Own && row.component != Component::Total
    };
    Some((total, rows.iter().filter(contributes).collect()))
}

/// `answer (latents)`, `value at latent step 1 (latents)`.
fn name(total: &DirectLogitRow) -> String {
    let step = total.step.map_or_else(String::new, |step| format!(" at latent step {step}"));
    format!("{}{step} ({})", total.target, total.form)
}

fn table(exhibit: &Exhibit, folder: &Folder) -> Result<Option<Table>> {
    use ColumnKind::{Measured, Text};
    let columns =
        [("checkpoint", Text), ("component", Text), ("to the lead", Measured(3)), ("to the logit", Measured(3))];
    let mut table = Table::new(exhibit.label, "Direct logit attribution: what each head and MLP adds", columns);
    table.note = READING.to_owned();
    for checkpoint in folder.checkpoints_with::<DirectLogitRow>() {
        let Some((total, rows)) = decision(folder, checkpoint) else { continue };
        let lead = |row: &DirectLogitRow| row.lead;
        let (rows, others) = largest(rows.into_iter(), lead, (DirectLogitRow::NAME, checkpoint));
        table.note += &format!(" {checkpoint}: {}, whole lead {:.3}.{others}", name(total), total.lead);
        for row in rows {
            table.push(vec![
                Cell::Text(checkpoint.to_owned()),
                Cell::Text(row.component.label(row.layer, row.head)),
                Cell::measured(Some(row.lead)),
                Cell::measured(Some(row.logit)),
            ])?;
        }
    }
    Ok((!table.rows().is_empty()).then_some(table))
}

/// Layer by head, with the MLP in the last column; one panel per checkpoint.
fn draw(exhibit: &Exhibit, _: &Paper, folder: &Folder) -> Vec<Drawing> {
    let panel = |checkpoint: &str| {
        let (total, rows) = decision(folder, checkpoint)?;
        let heads = rows.iter().filter_map(|row| row.head).max().map_or(0, |head| head + 1);
        let cell = |row: &&DirectLogitRow| Some((row.layer?, row.head.unwrap_or(heads), row.lead));
        let cells: Vec<(usize, usize, Estimate)> = rows.iter().filter_map(cell).collect();
        let title = format!("Lead of the {}: {}", name(total), called(checkpoint));
        let map =
            HeatMap { title, x: "head, or MLP".into(), unit: "adds to the lead (nats)".into(), ..HeatMap::default() };
        let Figure::HeatMap(map) = grid(&cells, |layer| format!("blocks.{layer}"), map)? else { return None };
        let mlp = heads.to_string();
        let column = |name: &String| if *name == mlp { "MLP".to_owned() } else { name.clone() };
        let columns: Vec<String> = map.columns.iter().map(column).collect();
        Some(Figure::HeatMap(HeatMap { columns, ..map }))
    };
    let panels = folder.checkpoints_with::<DirectLogitRow>().into_iter().filter_map(panel).collect();
    let note =
        "Direct contributions, means over problems; intervals and the embedding are in tab:direct-logit and the rows.";
    exhibit.drawing("Direct logit attribution (ours)", 1, panels, note)
}
