//! Attention of the position that decides the answer to latent steps. Knows the records of `attention_to_latents`.

use std::collections::BTreeMap;

use anyhow::Result;

use super::lens::grid;
use super::{Drawing, Exhibit, largest};
use crate::report::figures::HeatMap;
use crate::report::folder::{Folder, called};
use crate::report::paper::Paper;
use crate::report::tables::{Cell, ColumnKind, Table};
use switchyard::schema::{AttentionRow, Form, RowFile, place_name};
use switchyard::stats::Estimate;

const SOURCES: &[&str] = &[AttentionRow::NAME];

pub(super) const EXHIBITS: &[Exhibit] = &[
    Exhibit { covers: true, table, ..Exhibit::new("tab:attention", SOURCES) },
    Exhibit { draw, ..Exhibit::new("fig:attention", SOURCES) },
];

/// Records of the position that decides the answer, in the form with latents.
fn deciding<'a>(folder: &'a Folder, checkpoint: &str) -> Vec<&'a AttentionRow> {
    let rows = folder.rows::<AttentionRow>(checkpoint).iter();
    rows.filter(|row| row.form == Form::Latents && row.from == "answer").collect()
}

fn is_latent(row: &AttentionRow) -> bool {
    row.to.starts_with("latent[")
}

fn table(exhibit: &Exhibit, folder: &Folder) -> Result<Option<Table>> {
    use ColumnKind::{Count, Measured, Text};
    let columns = [
        ("checkpoint", Text),
        ("layer", Text),
        ("head", Count),
        ("attends to", Text),
        ("attention", Measured(3)),
        ("to the lead", Measured(3)),
    ];
    let mut table =
        Table::new(exhibit.label, "Which heads attend to latent steps where the answer is decided?", columns);
    table.note = "Share of the head's attention from the position that decides the answer, and what it adds from there to the lead of \
        the answer's logit (nats); largest attention first."
        .to_owned();
    for checkpoint in folder.checkpoints_with::<AttentionRow>() {
        let latents = deciding(folder, checkpoint).into_iter().filter(|row| is_latent(row));
        let mass = |row: &AttentionRow| row.mass;
        let (rows, others) = largest(latents, mass, (AttentionRow::NAME, checkpoint));
        table.note += &others;
        for row in rows {
            table.push(vec![
                Cell::Text(checkpoint.to_owned()),
                Cell::Text(format!("blocks.{}", row.layer)),
                Cell::Count(row.head as i64),
                Cell::Text(place_name(&row.to, row.back)),
                Cell::measured(Some(row.mass)),
                Cell::measured(row.direct),
            ])?;
        }
    }
    Ok((!table.rows().is_empty()).then_some(table))
}

/// Layer by head: the share of attention to all latent steps; one panel per checkpoint.
fn draw(exhibit: &Exhibit, _: &Paper, folder: &Folder) -> Vec<Drawing> {
    let panel = |checkpoint: &str| {
        let rows = deciding(folder, checkpoint);
        if !rows.iter().any(|row| is_latent(row)) {
            return None;
        }
        // Attention to latents and to everything, summed over queries.
        let mut sums: BTreeMap<(usize, usize), [f64; 2]> = BTreeMap::new();
        for row in rows {
            let mass = row.mass.value * row.queries as f64;
            let [latents, all] = sums.entry((row.layer, row.head)).or_default();
            *latents += if is_latent(row) { mass } else { 0.0 };
            *all += mass;
        }
        // The map shows values only: the rows have intervals of each latent step, not of their sum.
        let cells = sums.into_iter().map(|((layer, head), [latents, all])| {
            let value = latents / all;
            (layer, head, Estimate { value, low: value, high: value, n: 1 })
        });
        let cells: Vec<(usize, usize, Estimate)> = cells.collect();
        let title = format!("Attention to latent steps: {}", called(checkpoint));
        let (x, unit, range) = ("head".into(), "share of attention".into(), Some((0.0, 1.0)));
        let map = HeatMap { title, x, unit, range, ..HeatMap::default() };
        grid(&cells, |layer| format!("blocks.{layer}"), map)
    };
    let panels = folder.checkpoints_with::<AttentionRow>().into_iter().filter_map(panel).collect();
    let note = "From the position that decides the answer to all latent steps of all blocks, mean over problems; intervals by latent \
        step are in tab:attention.";
    exhibit.drawing("Attention to latent steps (ours)", 1, panels, note)
}
