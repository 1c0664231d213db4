//! Every table and figure: one file has its records, our number for a cell, rows beyond the paper's, the note and the drawing. A new one is a
//! file and a line in the list; one with too few records is named and not shown.
//!
//! Labels are the paper's (`tab:main`), ours of the same form (`tab:versus`), or `ours:…` for numbers that no table of the paper has and that
//! its claims request.

use anyhow::Result;

use super::cells::Cells;
use super::figures::{Figure, Point};
use super::folder::{Folder, called, sound};
use super::paper::{Paper, Unit};
use super::tables::Table;
use switchyard::stats::Estimate;

pub(super) use card::{cards, side_by_side};
pub(super) use circuit::graphs;
pub(super) use lens::lens_rows;
pub(super) use main::{answers, of_other_set};

/// A table, a figure, or numbers for claims. Most fields default to "none".
pub(crate) struct Exhibit {
    /// LaTeX label.
    pub label: &'static str,
    /// Kinds of records that it needs; the first is what `probe` or `intervene` must have run.
    pub sources: &'static [&'static str],
    /// Whether it shows these records, so that they need no table of all their columns.
    pub covers: bool,
    /// Whether its cells belong to one checkpoint that the paper's rows and columns do not name.
    pub per_checkpoint: bool,
    /// Whether its cells are statistics over runs: their `n` counts runs, not problems.
    pub over_runs: bool,
    /// Our number for a row and a column of the paper's.
    pub cell: fn(&Cells<'_>, &str, &str) -> Option<Estimate>,
    /// Layout of the paper's table with ours.
    pub beside: Layout,
    /// A table of ours.
    pub table: fn(&Exhibit, &Folder) -> Result<Option<Table>>,
    /// Its figures, one in all or one per checkpoint.
    pub draw: fn(&Exhibit, &Paper, &Folder) -> Vec<Drawing>,
}

/// Contents of a table's row.
type Words = fn(&Cells<'_>, &str) -> Option<String>;

/// Our additions to one of the paper's tables, next to the cells.
pub(crate) struct Layout {
    /// Columns of the paper that get one of ours; the paper's settings do not.
    pub shows: fn(&Folder, &str) -> bool,
    /// Our name for a row of the paper's, if ours differs.
    pub renames: fn(&Folder, &str) -> Option<String>,
    /// Heading of our column, if it is not the paper's heading and the checkpoint.
    pub heading: fn(&Folder, &str) -> Option<String>,
    /// Whether the table is shown for a folder.
    pub stands: fn(&Folder) -> bool,
    /// Our columns beyond the paper's, if the folder has numbers for them: key, heading, unit.
    pub beyond: &'static [(&'static str, &'static str, Unit)],
    /// The same for text: heading, and a row's content.
    pub words: &'static [(&'static str, Words)],
    /// Rows of ours that the paper lacks: key and name.
    pub extra: fn(&Folder) -> Vec<(String, String)>,
    /// Whether our number of a row is already in another row.
    pub repeats: fn(&Folder, &str) -> bool,
    /// Whether "after SFT" is the checkpoint that GRPO started from.
    pub rl: bool,
    /// Footnote. Takes the number of our cells in the table.
    pub note: fn(&Folder, usize) -> String,
}

impl Layout {
    pub(super) const PLAIN: Layout = Layout {
        shows: |_, _| true,
        renames: |_, _| None,
        heading: |_, _| None,
        stands: Folder::beside_paper,
        beyond: &[],
        words: &[],
        extra: |_| vec![],
        repeats: |_, _| false,
        rl: false,
        note: |_, _| String::new(),
    };
}

impl Exhibit {
    /// An exhibit with records only.
    pub(super) const fn new(label: &'static str, sources: &'static [&'static str]) -> Self {
        Self {
            label,
            sources,
            covers: false,
            per_checkpoint: false,
            over_runs: false,
            cell: |_, _, _| None,
            beside: Layout::PLAIN,
            table: |_, _| Ok(None),
            draw: |_, _, _| vec![],
        }
    }

    /// `needs a or b`: the experiments to run.
    pub(super) fn needs(&self) -> String {
        format!("needs {}", self.sources.iter().map(|rows| format!("`{rows}`")).collect::<Vec<_>>().join(" or "))
    }

    /// Its figure, with this many panels per row; empty without panels.
    fn drawing(&self, title: &str, columns: usize, panels: Vec<Figure>, note: &str) -> Vec<Drawing> {
        self.drawing_of("", title, columns, panels, note)
    }

    /// Its figure for one checkpoint, with this many panels per row; empty without panels.
    fn drawing_of(
        &self,
        checkpoint: &str,
        title: &str,
        columns: usize,
        panels: Vec<Figure>,
        note: &str,
    ) -> Vec<Drawing> {
        let label = if checkpoint.is_empty() { self.label.into() } else { format!("{}-{checkpoint}", self.label) };
        let cut = if panels.iter().any(Figure::is_cut) { CUT } else { "" };
        let drawing = Drawing { label, title: title.into(), panels, columns, note: format!("{note}{cut}") };
        if drawing.panels.is_empty() { vec![] } else { vec![drawing] }
    }
}

/// Note of a figure with an axis that excludes zero.
const CUT: &str = " A zigzag at the foot of an axis: it does not begin at zero.";

/// A table straight from rows: label, files, title, and `Row: columns` for all rows, or a filter of rows and columns.
macro_rules! rows_table {
    ($label:literal, $sources:expr, $title:literal, $row:ident: $($column:ident),+ $(,)?) => {
        rows_table!($label, $sources, $title, |_: &$row| true, columns!($row: $($column),+))
    };
    ($label:literal, $sources:expr, $title:literal, $keep:expr, $columns:expr $(,)?) => {
        Exhibit {
            covers: true,
            table: |exhibit, folder| exhibit.of_rows(folder, $title, $keep, $columns),
            ..Exhibit::new($label, $sources)
        }
    };
}

macro_rules! exhibits {
    ($($file:ident),* $(,)?) => {
        $(mod $file;)*

        /// All exhibits; their tables and figures are in this order on the page.
        const FILES: &[&[Exhibit]] = &[$($file::EXHIBITS),*];
    };
}

exhibits! {
    card, main, sft_vs_rl, tf, swi_window, probe, intervention, exit, appendix_sweep, per_subject, gen_analysis, calibration, pareto,
    token_dist, intervention_ladder, intervention_steps, intervention_dose, switch_benefit, adaptive, value_probe, switching, lens, early_stop,
    decoded_trace, subspaces, monitor, film, patching, direct_logit, attention, circuit, training, schedule, fate, versus, seeds, dependence,
    row_tables,
}

pub(super) fn all() -> impl Iterator<Item = &'static Exhibit> {
    FILES.iter().copied().flatten()
}

pub(super) fn find(label: &str) -> Option<&'static Exhibit> {
    all().find(|exhibit| exhibit.label == label)
}

/// Rows that answer a label's cells.
pub(super) fn sources(label: &str) -> &'static [&'static str] {
    find(label).map_or(&[], |exhibit| exhibit.sources)
}

/// Points (x, estimate), in order of x.
fn points(of: impl Iterator<Item = (f64, Estimate)>) -> Vec<Point> {
    let mut points: Vec<Point> = of.filter_map(|(x, y)| Some(Point::new(x, sound(y)?))).collect();
    points.sort_by(|a, b| a.x.total_cmp(&b.x));
    points
}

/// Maximum number of rows of a checkpoint in a table of the largest values.
const MOST_ROWS: usize = 20;

/// The rows with the largest |estimate|, largest first, and a note on the others: ` 5 more in direct_logit-sft.parquet.` The last argument is
/// the experiment and the checkpoint.
fn largest<'a, R: 'a>(
    rows: impl Iterator<Item = &'a R>,
    estimate: fn(&R) -> Estimate,
    (experiment, checkpoint): (&str, &str),
) -> (Vec<&'a R>, String) {
    let mut rows: Vec<&'a R> = rows.filter(|row| sound(estimate(row)).is_some()).collect();
    rows.sort_by(|a, b| estimate(b).value.abs().total_cmp(&estimate(a).value.abs()));
    let others = rows.len().saturating_sub(MOST_ROWS);
    rows.truncate(MOST_ROWS);
    let note = if others > 0 { format!(" {others} more in {experiment}-{checkpoint}.parquet.") } else { String::new() };
    (rows, note)
}

/// The note on the paper's numbers, if some panels have them.
fn diamonds(panels: &[Figure], are: &str) -> String {
    if panels.iter().any(Figure::has_paper) { format!(" Diamonds: {are}.") } else { String::new() }
}

/// A note with the checkpoints that the paper's figure has and ours lacks.
fn lacking(checkpoints: &[&str], is_there: impl Fn(&str) -> bool) -> String {
    let missing: Vec<String> = checkpoints.iter().filter(|c| !is_there(c)).map(|c| called(c)).collect();
    if missing.is_empty() { String::new() } else { format!(" Missing, without rows: {}.", missing.join(", ")) }
}

/// A figure that can be drawn.
pub struct Drawing {
    pub label: String,
    pub title: String,
    pub panels: Vec<Figure>,
    /// Panels in a row.
    pub columns: usize,
    pub note: String,
}

/// A figure of the paper for which there are not enough rows.
pub struct MissingFigure {
    pub label: String,
    pub title: String,
    /// The reason, and the rows that would suffice.
    pub reason: String,
}

/// Every figure of the folder, the paper's first, and the paper's figures that lack records.
pub(super) fn drawings(paper: &Paper, folder: &Folder) -> (Vec<Drawing>, Vec<MissingFigure>) {
    let (mut drawn, mut undrawn) = (vec![], vec![]);
    for figure in &paper.figures {
        let exhibit = find(&figure.label);
        let mut found = exhibit.map_or(vec![], |e| (e.draw)(e, paper, folder));
        if found.is_empty() {
            let needs = exhibit.map_or_else(String::new, Exhibit::needs);
            let reason = if figure.diagram { "a diagram, no data".into() } else { format!("no rows: {needs}") };
            undrawn.push(MissingFigure { label: figure.label.clone(), title: figure.title.clone(), reason });
        }
        drawn.append(&mut found);
    }
    let of_ours = all().filter(|e| paper.figures.iter().all(|figure| figure.label != e.label));
    drawn.extend(of_ours.flat_map(|e| (e.draw)(e, paper, folder)));
    (drawn, undrawn)
}

/// Every table of ours for which the folder has rows; rows of unknown kinds are shown with all their columns.
pub fn tables(folder: &Folder) -> Result<Vec<Table>> {
    let mut tables: Vec<Table> = vec![];
    for exhibit in all() {
        tables.extend((exhibit.table)(exhibit, folder)?);
    }
    tables.extend(row_tables::unknown_tables(folder)?);
    Ok(tables)
}
