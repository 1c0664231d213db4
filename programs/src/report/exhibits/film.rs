//! The film of a training run: each latent step at every checkpoint, and where it changes.

use std::collections::BTreeSet;

use anyhow::Result;

use super::{Drawing, Exhibit};
use crate::report::figures::{Axis, Figure, Line, LineChart, Point};
use crate::report::folder::{Folder, sound};
use crate::report::paper::Paper;
use crate::report::render_table::number;
use crate::report::tables::{Cell, ColumnKind, Table};
use switchyard::nth::Nth;
use switchyard::schema::{FilmQuantity, FilmRow, RowFile, film_changes};
use switchyard::stats::Estimate;

const SOURCES: &[&str] = &[FilmRow::NAME];

pub(super) const EXHIBITS: &[Exhibit] = &[
    Exhibit { covers: true, table, ..Exhibit::new("tab:film", SOURCES) },
    Exhibit { draw, ..Exhibit::new("fig:film", SOURCES) },
];

/// Name of a checkpoint, by its place in the film.
fn frames(folder: &Folder) -> Vec<(usize, String)> {
    let mut frames: Vec<(usize, String)> =
        folder.all::<FilmRow>().map(|(checkpoint, row)| (row.frame.shown(), checkpoint.to_owned())).collect();
    frames.sort();
    frames.dedup();
    frames
}

fn legend(folder: &Folder) -> String {
    let name = |(number, name): &(usize, String)| format!("{number} {name}");
    frames(folder).iter().map(name).collect::<Vec<_>>().join(", ")
}

fn table(exhibit: &Exhibit, folder: &Folder) -> Result<Option<Table>> {
    use ColumnKind::{Count, Measured, Text};
    let changes = film_changes(&folder.all::<FilmRow>().map(|(_, row)| row).collect::<Vec<_>>())?;
    let columns = [
        ("step", Count),
        ("quantity", Text),
        ("checkpoints", Count),
        ("change at", Text),
        ("before", Measured(3)),
        ("after", Measured(3)),
        ("p (Holm)", Text),
        ("verdict", Text),
    ];
    let mut table = Table::new(exhibit.label, "Where does a latent step change over training?", columns);
    table.note = format!(
        "effect: accuracy lost when the step's latent is another problem's. follows: answers that follow an exchanged value, beyond chance. \
         readout: probe accuracy beyond the commonest value. Each row: the largest change between two checkpoints, \
         by weighted means before and after; p is corrected for this choice and, by Holm, for all rows. dies, born: \
         the mean after, or before, is 0 within .05 (TOST). Effects are over all problems: with fewer blocks, every \
         step has less. Checkpoints: {}.",
        legend(folder)
    );
    let names = frames(folder);
    for change in &changes {
        let from = names.iter().find(|(number, _)| *number == change.from.shown());
        table.push(vec![
            Cell::Count(change.step.shown() as i64),
            Cell::Text(change.quantity.name().to_owned()),
            Cell::Count(change.checkpoints as i64),
            from.map_or_else(Cell::nothing, |(_, name)| Cell::Text(name.clone())),
            Cell::measured(Some(change.before)),
            Cell::measured(Some(change.after)),
            Cell::Text(number(change.p_holm, 3)),
            Cell::Text(change.verdict().to_owned()),
        ])?;
    }
    Ok((!changes.is_empty()).then_some(table))
}

fn draw(exhibit: &Exhibit, _: &Paper, folder: &Folder) -> Vec<Drawing> {
    let rows: Vec<&FilmRow> = folder.all::<FilmRow>().map(|(_, row)| row).collect();
    let line = |name: &str, of: &dyn Fn(&FilmRow) -> Option<Estimate>| {
        let point = |row: &&FilmRow| Some(Point::new(row.frame.shown() as f64, of(row).and_then(sound)?));
        let mut points: Vec<Point> = rows.iter().filter_map(point).collect();
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        points.dedup_by(|a, b| a.x == b.x);
        Line::bars(name, points)
    };
    let steps: BTreeSet<Nth> = rows.iter().map(|row| row.step).collect();
    let panel = |quantity: FilmQuantity| {
        let (title, of): (_, fn(&FilmRow) -> Option<Estimate>) = match quantity {
            FilmQuantity::Effect => ("accuracy lost with another problem's latent", |row| Some(row.effect)),
            FilmQuantity::Follows => ("answers that follow the value, beyond chance", |row| row.follows),
            FilmQuantity::Readout => ("probe accuracy beyond the commonest value", |row| row.readout),
        };
        let of_step = |step: &Nth| line(&format!("step {step}"), &|row| of(row).filter(|_| row.step == *step));
        let accuracy = (quantity == FilmQuantity::Effect).then(|| line("accuracy", &|row| Some(row.accuracy)));
        Figure::lines(LineChart {
            title: title.to_owned(),
            x: Axis::new("checkpoint").whole(),
            y: Axis::new("share"),
            lines: steps.iter().map(of_step).chain(accuracy).collect(),
            ..LineChart::default()
        })
    };
    let panels =
        if frames(folder).len() > 1 { FilmQuantity::ALL.into_iter().filter_map(panel).collect() } else { vec![] };
    let note = format!("Bars: 95 % intervals over problems. Checkpoints: {}.", legend(folder));
    exhibit.drawing("Latent steps over training (ours)", 2, panels, &note)
}
