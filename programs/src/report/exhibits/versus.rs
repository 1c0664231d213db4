//! Paired comparisons of checkpoints on the same problems, with exact tests, which are stronger than two separate intervals. Measures
//! nothing.

use std::collections::BTreeMap;

use anyhow::Result;

use super::Exhibit;
use crate::report::folder::Folder;
use crate::report::tables::{Cell, ColumnKind, Table};
use crate::report::verdicts::shown_p;
use switchyard::schema::{OutcomeRow, RowFile};
use switchyard::stats::{Estimate, Flips, LEVEL, accuracy, holm};

pub(super) const EXHIBITS: &[Exhibit] = &[Exhibit { table, ..Exhibit::new("tab:versus", &[OutcomeRow::NAME]) }];

const NOTE: &str = "Each row: the first checkpoint against the second on the same problems (greedy decoding). `where it switches`: \
    those on which the first one wrote <swi>; they are its own choice, so compare with the row above. Difference: first minus \
    second, paired, 95 % score interval; better and worse: problems that only the first, only the second has right; p: exact \
    McNemar test, Holm-corrected over the rows of this table.";

/// A comparison before its p-value is corrected.
struct CheckpointPair<'a> {
    first: &'a str,
    second: &'a str,
    problems: &'static str,
    accuracies: [Estimate; 2],
    flips: Flips,
}

/// The table, if the folder has outcomes of at least two checkpoints. The models after SFT and after Switch-GRPO are compared with every
/// other one.
fn table(exhibit: &Exhibit, folder: &Folder) -> Result<Option<Table>> {
    let all = folder.checkpoints_with::<OutcomeRow>();
    let firsts: Vec<&str> =
        [&folder.sft, &folder.grpo].map(String::as_str).into_iter().filter(|c| all.contains(c)).collect();
    let mut pairs = vec![];
    for (i, &first) in firsts.iter().enumerate() {
        for &second in all.iter().filter(|second| **second != first && !firsts[..i].contains(second)) {
            pairs.extend(compare(folder, first, second)?);
        }
    }
    if pairs.is_empty() {
        return Ok(None);
    }
    let p: Vec<f64> = pairs.iter().map(|pair| pair.flips.p_value()).collect();
    let mut table = Table::new(exhibit.label, "The same problems, checkpoint against checkpoint", headings());
    table.note = NOTE.to_owned();
    for (pair, p) in pairs.iter().zip(holm(&p)?) {
        table.push(pair.cells(p)?)?;
    }
    Ok(Some(table))
}

fn headings() -> [(&'static str, ColumnKind); 9] {
    use ColumnKind::{Count, Measured, Text};
    [
        ("checkpoint", Text),
        ("against", Text),
        ("problems", Text),
        ("accuracy", Measured(3)),
        ("of the other", Measured(3)),
        ("difference", Measured(3)),
        ("better", Count),
        ("worse", Count),
        ("p", Text),
    ]
}

/// Compares on the problems of both checkpoints and, if these are fewer, on those where the first one switched.
fn compare<'a>(folder: &Folder, first: &'a str, second: &'a str) -> Result<Vec<CheckpointPair<'a>>> {
    let outcomes = |checkpoint: &str| folder.rows::<OutcomeRow>(checkpoint).iter();
    let other: BTreeMap<&str, &OutcomeRow> = outcomes(second).map(|row| (row.id.as_str(), row)).collect();
    let both: Vec<(&OutcomeRow, &OutcomeRow)> =
        outcomes(first).filter_map(|row| Some((row, *other.get(row.id.as_str())?))).collect();
    let switched: Vec<_> = both.iter().filter(|(row, _)| row.switched).copied().collect();
    let mut pairs = vec![];
    for (problems, subset) in [("all", &both), ("where it switches", &switched)] {
        if subset.is_empty() || (problems != "all" && subset.len() == both.len()) {
            continue;
        }
        let (ours, theirs): (Vec<bool>, Vec<bool>) = subset.iter().map(|(a, b)| (a.correct, b.correct)).unzip();
        let flips = Flips::count(&theirs, &ours)?;
        pairs.push(CheckpointPair {
            first,
            second,
            problems,
            accuracies: [accuracy(&ours)?, accuracy(&theirs)?],
            flips,
        });
    }
    Ok(pairs)
}

impl CheckpointPair<'_> {
    fn cells(&self, p_holm: f64) -> Result<Vec<Cell>> {
        let text = |text: &str| Cell::Text(text.to_owned());
        let [ours, theirs] = self.accuracies;
        Ok(vec![
            text(self.first),
            text(self.second),
            text(self.problems),
            Cell::Measured(ours),
            Cell::Measured(theirs),
            Cell::Measured(self.flips.change(LEVEL)?),
            Cell::Count(self.flips.gained as i64),
            Cell::Count(self.flips.lost as i64),
            Cell::Text(shown_p(p_holm)),
        ])
    }
}
