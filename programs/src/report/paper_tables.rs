//! The paper's tables with our numbers next to the paper's. Knows the layout of such a table; its exhibit knows our numbers.

use anyhow::{Context, Result};

use super::cells::Cells;
use super::exhibits::{self, Exhibit};
use super::folder::Folder;
use super::paper::{Block, Paper, Unit};
use super::tables::{Cell, ColumnKind, Heading, Table};

/// A table of the paper and whether any number of ours is in it.
pub struct PaperTable {
    pub table: Table,
    pub ours: usize,
}

/// The tables of the paper that are shown for a folder, in the paper's order.
pub fn tables(paper: &Paper, folder: &Folder) -> Result<Vec<PaperTable>> {
    let mut tables = vec![];
    for block in &paper.tables {
        let exhibit = exhibits::find(&block.label).with_context(|| format!("no exhibit for '{}'", block.label))?;
        if (exhibit.beside.stands)(folder) {
            tables.push(table(block, exhibit, folder)?);
        }
    }
    Ok(tables)
}

fn table(block: &Block, exhibit: &Exhibit, folder: &Folder) -> Result<PaperTable> {
    let layout = &exhibit.beside;
    let subjects = subjects(exhibit, folder);
    let mut columns = vec![Heading::new("", ColumnKind::Text)];
    for (at, column) in block.columns.iter().enumerate() {
        let theirs = block.rows.iter().map(|row| decimals(row.values[at])).max().unwrap_or(0);
        columns.push(Heading::new(&format!("{} (paper)", column.name), ColumnKind::Published(theirs)));
        for (heading, _) in subjects.iter().filter(|_| (layout.shows)(folder, &column.key)) {
            // Small models write tens of tokens, not thousands.
            let digits = if column.unit == Unit::Tokens { 1 } else { column.unit.digits() };
            let of = if heading.is_empty() { "ours".to_owned() } else { format!("ours, {heading}") };
            let name = (layout.heading)(folder, &column.name).unwrap_or_else(|| format!("{} ({of})", column.name));
            columns.push(Heading::new(&name, ColumnKind::Measured(digits)));
        }
    }
    let rows = block.rows.iter().map(|row| {
        let name = if row.group.is_empty() { row.name.clone() } else { format!("{}: {}", row.group, row.name) };
        let name = (layout.renames)(folder, &row.key).map_or(name.clone(), |ours| format!("{name} (ours: {ours})"));
        (row.key.clone(), name, Some(&row.values))
    });
    let extra = (layout.extra)(folder).into_iter().map(|(key, name)| (key, format!("ours: {name}"), None));
    let rows: Vec<_> = rows.chain(extra).collect();
    let has = |found: &dyn Fn(&Cells, &str) -> bool| {
        rows.iter().any(|(key, _, _)| subjects.iter().any(|(_, ours)| found(ours, key)))
    };
    let there = |column: &str| has(&|ours, key| ours.get(exhibit.label, key, column).is_some());
    let beyond: Vec<_> = layout.beyond.iter().filter(|(column, _, _)| there(column)).collect();
    let words: Vec<_> = layout.words.iter().filter(|(_, of)| has(&|ours, key| of(ours, key).is_some())).collect();
    let measured = beyond.iter().map(|(_, name, unit)| (name, ColumnKind::Measured(unit.digits().max(1))));
    for (name, kind) in measured.chain(words.iter().map(|(name, _)| (name, ColumnKind::Text))) {
        columns.extend(subjects.iter().map(|_| Heading::new(&format!("{name} (ours)"), kind)));
    }
    let mut table = Table::new(exhibit.label, &block.title, columns);
    let mut found = 0;
    for (key, name, values) in rows {
        let repeats = (layout.repeats)(folder, &key);
        let mut cells = vec![Cell::Text(name)];
        for (at, column) in block.columns.iter().enumerate() {
            cells.push(values.map_or_else(Cell::nothing, |v| Cell::Published(v[at])));
            for (_, ours) in subjects.iter().filter(|_| (layout.shows)(folder, &column.key)) {
                let estimate = ours.get(exhibit.label, &key, &column.key).filter(|_| !repeats);
                found += usize::from(estimate.is_some());
                cells.push(Cell::measured(estimate.map(|e| e.scaled(column.unit.per_share()))));
            }
        }
        for (column, _, unit) in &beyond {
            let estimate = |ours: &Cells| ours.get(exhibit.label, &key, column).map(|e| e.scaled(unit.per_share()));
            cells.extend(subjects.iter().map(|(_, ours)| Cell::measured(estimate(ours))));
        }
        for (_, of) in &words {
            cells.extend(subjects.iter().map(|(_, ours)| of(ours, &key).map_or_else(Cell::nothing, Cell::Text)));
        }
        table.push(cells)?;
    }
    table.note = note(exhibit, block, folder, found);
    Ok(PaperTable { table, ours: found })
}

/// Number of decimals of a number in the paper, at most four; smaller numbers are printed in scientific notation.
fn decimals(value: f64) -> usize {
    (0..=4).find(|d| format!("{value:.d$}").parse() == Ok(value)).unwrap_or(0)
}

/// Our column groups: heading, and cells.
fn subjects<'a>(exhibit: &Exhibit, folder: &'a Folder) -> Vec<(&'a str, Cells<'a>)> {
    let sft = if exhibit.beside.rl { folder.before_grpo(exhibit.sources) } else { &folder.sft };
    let first = exhibit.sources.first().filter(|_| exhibit.per_checkpoint);
    let checkpoints = first.map_or(vec![], |experiment| folder.checkpoints(experiment));
    if checkpoints.is_empty() {
        return vec![("", Cells { folder, checkpoint: &folder.grpo, sft })];
    }
    checkpoints.into_iter().map(|checkpoint| (checkpoint, Cells { folder, checkpoint, sft })).collect()
}

fn note(exhibit: &Exhibit, block: &Block, folder: &Folder, found: usize) -> String {
    let mut parts = vec![match found {
        0 => format!("No rows of ours: {}.", exhibit.needs()),
        _ => format!("Ours: {} on {}, 95 % intervals.", folder.name, folder.dataset()),
    }];
    parts.push((exhibit.beside.note)(folder, found));
    if !block.note.is_empty() {
        parts.push(format!("On the paper's numbers: {}", block.note.split_whitespace().collect::<Vec<_>>().join(" ")));
    }
    parts.retain(|part| !part.is_empty());
    parts.join(" ")
}
