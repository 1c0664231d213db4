//! Schedules of the curriculum: all spans at once, from the left, and all at the largest k from the first step: a table, and cells for claims
//! (`ours:schedule/parallel/acc`). The runs of the others are `summary-sequential` (`train --set latent.schedule=sequential`) and
//! `summary-one-shot` (`train --set 'latent.stages=[{k=8,steps=1980}]'`).

use anyhow::Result;

use super::Exhibit;
use crate::report::cells::{Cells, phase_column};
use crate::report::folder::Folder;
use crate::report::tables::{Cell, ColumnKind, Table};
use switchyard::schema::{PhaseRow, RowFile};
use switchyard::stats::Estimate;

pub(super) const EXHIBITS: &[Exhibit] = &[
    Exhibit { table, ..Exhibit::new("tab:schedule", &[PhaseRow::NAME]) },
    Exhibit { cell: of_schedule, ..Exhibit::new("ours:schedule", &[PhaseRow::NAME]) },
];

/// Key and name of a schedule, and the file of its phases.
const SCHEDULES: [(&str, &str, &str); 3] = [
    ("parallel", "all spans at once", ""),
    ("sequential", "the leftmost k spans", "sequential"),
    ("one-shot", "all spans at the largest k, in one stage", "one-shot"),
];

/// A run's phase after SFT, and those of the same seed with other schedules.
fn row<'f>(folder: &'f Folder, schedule: &str) -> Option<&'f PhaseRow> {
    let (.., file) = SCHEDULES.into_iter().find(|(key, ..)| *key == schedule)?;
    let seed = folder.phases().first()?.identity.seed;
    let rows = folder.rows::<PhaseRow>(file).iter();
    rows.filter(|row| row.identity.seed == seed).find(|row| row.phase == folder.sft)
}

fn of_schedule(cells: &Cells<'_>, schedule: &str, column: &str) -> Option<Estimate> {
    phase_column(row(cells.folder, schedule)?, column)
}

fn table(exhibit: &Exhibit, folder: &Folder) -> Result<Option<Table>> {
    let rows: Vec<_> = SCHEDULES.iter().filter_map(|(key, name, _)| Some((name, row(folder, key)?))).collect();
    if rows.len() < 2 {
        return Ok(None);
    }
    let kinds = [("accuracy", 3), ("accuracy where it switched", 3), ("switch rate", 3), ("visible tokens", 1)];
    let measured = kinds.map(|(name, digits)| (name, ColumnKind::Measured(digits)));
    let headings = std::iter::once(("spans of a stage", ColumnKind::Text)).chain(measured);
    let mut table = Table::new(exhibit.label, "Schedules of the curriculum, after SFT", headings);
    let steps: Vec<Option<usize>> = rows.iter().map(|(_, row)| row.train_steps).collect();
    for (name, row) in rows {
        let numbers = [Some(row.accuracy), row.latent_accuracy, Some(row.switch_rate), row.visible_tokens];
        table.push(std::iter::once(Cell::Text((*name).to_owned())).chain(numbers.map(Cell::measured)).collect())?;
    }
    let same = if steps.windows(2).all(|two| two[0] == two[1]) {
        "same seed and number of steps".to_owned()
    } else {
        let shown = |steps: &Option<usize>| steps.map_or_else(|| "unknown".to_owned(), |steps| steps.to_string());
        format!("same seed; optimiser steps: {}", steps.iter().map(shown).collect::<Vec<_>>().join(", "))
    };
    table.note = format!("One run each, of the {same}; the paper names the comparisons and gives no number.");
    Ok(Some(table))
}
