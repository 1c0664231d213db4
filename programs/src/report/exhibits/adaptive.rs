//! Whether the model opens blocks when the question's budget is too small for text.

use std::collections::BTreeSet;

use super::{Drawing, Exhibit, points};
use crate::report::figures::{Axis, Figure, Line, LineChart};
use crate::report::folder::{Folder, called};
use crate::report::paper::Paper;
use switchyard::schema::{AdaptiveRow, RowFile};
use switchyard::stats::Estimate;

const SOURCES: &[&str] = &[AdaptiveRow::NAME];

pub(super) const EXHIBITS: &[Exhibit] = &[
    rows_table!(
        "tab:adaptive",
        SOURCES,
        "Does the model switch where a block helps? By the question's token budget, and by steps",
        AdaptiveRow: budget, level, switch_rate, optimum, optimal_rate, as_optimal, accuracy, best_accuracy, with_block, without_block, benefit,
    ),
    Exhibit { draw, ..Exhibit::new("fig:adaptive", SOURCES) },
];

fn draw(exhibit: &Exhibit, _: &Paper, folder: &Folder) -> Vec<Drawing> {
    let panel = |checkpoint: &str, what: &str, y: Axis, of: fn(&AdaptiveRow) -> Estimate| {
        let rows = folder.rows::<AdaptiveRow>(checkpoint);
        let budgets: BTreeSet<usize> = rows.iter().filter_map(|row| row.budget).collect();
        let line = |budget: usize| {
            let cells = rows.iter().filter(|row| row.budget == Some(budget));
            let cells = cells.filter_map(|row| Some((f64::from(row.level?), of(row))));
            Line::bars(&format!("{budget} tokens"), points(cells))
        };
        Figure::lines(LineChart {
            title: format!("{}: {what}", called(checkpoint)),
            x: Axis::new("steps of the problem").whole(),
            y,
            lines: budgets.into_iter().map(line).collect(),
            levels: if what == BENEFIT { vec![0.0] } else { vec![] },
            ..LineChart::default()
        })
    };
    let both = |checkpoint: &str| {
        [
            panel(checkpoint, "what the model does", Axis::share("switch rate"), |r| r.switch_rate),
            panel(checkpoint, BENEFIT, Axis::new("accuracy, difference").range(-1.04, 1.04), |r| r.benefit),
        ]
    };
    let panels = folder.checkpoints_with::<AdaptiveRow>().into_iter().flat_map(both).flatten().collect();
    let note = "One line per budget. Bars: 95 % intervals. The optimal policy switches where the benefit is above 0.";
    exhibit.drawing("Adaptive switching (ours)", 2, panels, note)
}

const BENEFIT: &str = "what a block is worth";
