//! Variation over seeds: held-out results of a folder's runs that differ only in their seed, with each checkpoint's mean. Measures
//! nothing.

use anyhow::Result;

use super::Exhibit;
use crate::report::folder::{Folder, distinct};
use crate::report::tables::{Cell, ColumnKind, Table};
use switchyard::schema::{PhaseRow, RowFile};
use switchyard::stats::{APART, Estimate, lie_apart, mean_of_runs};

pub(super) const EXHIBITS: &[Exhibit] = &[Exhibit { table, ..Exhibit::new("tab:seeds", &[PhaseRow::NAME]) }];

const NOTE: &str = "Mean over runs, Student's 95 % interval for it; n: runs. With three runs the interval is wide; that of a \
    share is cut to 0 and 1. Lowest and highest: accuracy of a single run. The intervals of the other tables are of one run over its \
    problems.";

/// The table, if the folder has the phases of at least two seeds (`summary`, `summary-seed1`, …): a row for each checkpoint in at least two
/// of them.
fn table(exhibit: &Exhibit, folder: &Folder) -> Result<Option<Table>> {
    let runs = folder.runs();
    let checkpoints = distinct(runs.iter().copied().flatten().map(|row| row.phase.as_str()));
    let mut table = Table::new(exhibit.label, "Every checkpoint over seeds", headings());
    let mut apart = false;
    for checkpoint in checkpoints {
        let same: Vec<&PhaseRow> =
            runs.iter().filter_map(|rows| rows.iter().find(|row| row.phase == checkpoint)).collect();
        if same.len() > 1 {
            apart |= lie_apart(&accuracies(&same));
            table.push(cells(checkpoint, &same))?;
        }
    }
    table.note = if apart { format!("{NOTE} {APART}") } else { NOTE.to_owned() };
    Ok(Some(table).filter(|table| !table.rows().is_empty()))
}

fn headings() -> [(&'static str, ColumnKind); 7] {
    use ColumnKind::{Measured, Text};
    [
        ("checkpoint", Text),
        ("accuracy", Measured(3)),
        ("lowest and highest", Text),
        ("switch rate", Measured(3)),
        ("visible tokens", Measured(1)),
        ("latent steps", Measured(1)),
        ("forward passes", Measured(1)),
    ]
}

fn accuracies(runs: &[&PhaseRow]) -> Vec<f64> {
    runs.iter().map(|row| row.accuracy.value).collect()
}

fn cells(checkpoint: &str, runs: &[&PhaseRow]) -> Vec<Cell> {
    let mean = |decimals: usize, of: fn(&PhaseRow) -> Option<Estimate>, cut: fn(&Estimate) -> Estimate| {
        let values: Option<Vec<f64>> = runs.iter().map(|row| of(row).map(|e| e.value)).collect();
        let Some(values) = values else { return Cell::nothing() };
        match mean_of_runs(&values) {
            Ok(mean) => Cell::measured(Some(cut(&mean))),
            Err(_) => Cell::Missing(format!("{:.decimals$}, all alike", values[0])),
        }
    };
    let share = |of| mean(3, of, Estimate::share);
    let number = |of| mean(1, of, |e| *e);
    let accuracies = accuracies(runs);
    let ends = [f64::min, f64::max].map(|most| accuracies.iter().copied().reduce(most).unwrap_or(f64::NAN));
    let mark = if lie_apart(&accuracies) { " †" } else { "" };
    vec![
        Cell::Text(checkpoint.to_owned()),
        share(|row| Some(row.accuracy)),
        Cell::Text(format!("{:.3}, {:.3}{mark}", ends[0], ends[1])),
        share(|row| Some(row.switch_rate)),
        number(|row| row.visible_tokens),
        number(|row| row.latent_calls),
        number(|row| row.forward_passes),
    ]
}
