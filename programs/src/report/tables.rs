//! A table whose measured numbers cannot lose their interval and n. Knows cells; `render_table` renders them.
//!
//! A column has text, counts, published numbers, or our estimates; there is no other way to add a number of ours.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use clap::Args;

use super::folder::sound;
use switchyard::stats::Estimate;
use switchyard::store::write_atomic;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    Text,
    /// Whole numbers that are not measurements: steps, seeds, layers.
    Count,
    /// Published numbers, with this many decimals.
    Published(usize),
    /// Our estimates, with this many decimals; renders value, interval and n.
    Measured(usize),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Heading {
    pub name: String,
    pub kind: ColumnKind,
}

impl Heading {
    pub fn new(name: &str, kind: ColumnKind) -> Self {
        Self { name: name.to_string(), kind }
    }
}

impl From<(&str, ColumnKind)> for Heading {
    fn from((name, kind): (&str, ColumnKind)) -> Self {
        Self::new(name, kind)
    }
}

/// A cell; it must fit its column's kind. [`Cell::Missing`] fits all.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    Text(String),
    Count(i64),
    Published(f64),
    Measured(Estimate),
    /// Empty, with the reason, e.g. "not testable here"; may be without.
    Missing(String),
}

impl Cell {
    /// An estimate; empty without one, or without an interval.
    pub(super) fn measured(estimate: Option<Estimate>) -> Self {
        estimate.and_then(sound).map_or_else(Self::nothing, Self::Measured)
    }

    /// Empty, without a reason.
    pub(super) fn nothing() -> Self {
        Self::Missing(String::new())
    }
}

/// A table with a label to cite it by.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// LaTeX label, e.g. `tab:main`.
    pub label: String,
    pub title: String,
    /// Printed below the table.
    pub note: String,
    pub columns: Vec<Heading>,
    rows: Vec<Vec<Cell>>,
}

/// Formats in addition to Markdown and SVG.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct Formats {
    /// Also write each table as CSV, with value, interval and n in their own columns
    #[arg(long)]
    pub csv: bool,
    /// Also write each figure as PNG
    #[arg(long)]
    pub png: bool,
    /// Also write each table as LaTeX
    #[arg(long)]
    pub tex: bool,
}

impl Formats {
    pub const ALL: Self = Self { csv: true, png: true, tex: true };
}

impl Table {
    /// An empty table.
    pub fn new<H: Into<Heading>>(label: &str, title: &str, columns: impl IntoIterator<Item = H>) -> Self {
        let columns = columns.into_iter().map(Into::into).collect();
        Self { label: label.to_string(), title: title.to_string(), note: String::new(), columns, rows: Vec::new() }
    }

    /// Adds a row; every cell must fit its column, and an estimate must be valid (finite, ordered, n > 0).
    pub fn push(&mut self, cells: Vec<Cell>) -> Result<()> {
        let number = self.rows.len();
        ensure!(
            cells.len() == self.columns.len(),
            "{}, row {number}: {} cells for {} columns",
            self.label,
            cells.len(),
            self.columns.len()
        );
        for (column, cell) in self.columns.iter().zip(&cells) {
            let place = || format!("{}, row {number}, column '{}'", self.label, column.name);
            let fits = match cell {
                Cell::Missing(_) => true,
                Cell::Text(_) => column.kind == ColumnKind::Text,
                Cell::Count(_) => column.kind == ColumnKind::Count,
                Cell::Published(_) => matches!(column.kind, ColumnKind::Published(_)),
                Cell::Measured(_) => matches!(column.kind, ColumnKind::Measured(_)),
            };
            ensure!(fits, "{}: {cell:?} in a column of {:?}", place(), column.kind);
            if let Cell::Measured(e) = cell {
                let ordered = e.low <= e.value && e.value <= e.high && e.low.is_finite() && e.high.is_finite();
                ensure!(ordered && e.n > 0, "{}: {e:?} is not an estimate with interval and n", place());
            }
        }
        self.rows.push(cells);
        Ok(())
    }

    pub fn rows(&self) -> &[Vec<Cell>] {
        &self.rows
    }

    /// Writes `<stem>.md`, and `<stem>.csv` and `<stem>.tex` if requested; returns the written files.
    pub fn save(&self, stem: &Path, formats: Formats) -> Result<Vec<PathBuf>> {
        ensure!(!self.rows.is_empty(), "table {} has no rows", self.label);
        let mut written = vec![];
        let asked = [
            (true, ".md", Self::markdown as fn(&Self) -> String),
            (formats.csv, ".csv", Self::csv),
            (formats.tex, ".tex", Self::latex),
        ];
        for (_, ending, text) in asked.into_iter().filter(|(asked, ..)| *asked) {
            let mut name = stem.as_os_str().to_owned();
            name.push(ending);
            write_atomic(Path::new(&name), text(self).as_bytes())?;
            written.push(PathBuf::from(name));
        }
        Ok(written)
    }
}
