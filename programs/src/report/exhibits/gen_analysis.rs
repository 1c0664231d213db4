//! tab:gen-analysis: length and switches by correctness; and the confidence of switches, which the appendix states in text.

use super::{Exhibit, Layout};
use crate::report::cells::{Cells, mean};
use switchyard::schema::{OutcomeRow, ResponseRow, RowFile};
use switchyard::stats::Estimate;

pub(super) const EXHIBITS: &[Exhibit] = &[
    Exhibit {
        per_checkpoint: true,
        cell,
        beside: Layout {
            note: |_, _| "A group with fewer than two problems has no interval and is left out.".into(),
            ..Layout::PLAIN
        },
        ..Exhibit::new("tab:gen-analysis", &[OutcomeRow::NAME])
    },
    Exhibit {
        per_checkpoint: true,
        cell: |cells, group, column| {
            let row = cells.folder.rows::<ResponseRow>(cells.checkpoint).iter().find(|r| r.group == group)?;
            match column {
                "p_swi" => row.p_swi,
                "entropy" => row.entropy,
                _ => None,
            }
        },
        ..Exhibit::new("sec:appendix-gen", &[ResponseRow::NAME])
    },
];

/// Means over the problems of a group, `correct_swi` and so on.
fn cell(cells: &Cells<'_>, row: &str, column: &str) -> Option<Estimate> {
    let (correct, switched) = row.split_once('_')?;
    let of = |r: &&OutcomeRow| r.correct == (correct == "correct") && r.switched == (switched == "swi");
    let value = |r: &OutcomeRow| match column {
        "tokens" => r.visible_tokens as f64,
        "switches" => r.blocks as f64,
        _ => r.latent_calls as f64,
    };
    mean(&cells.folder.rows::<OutcomeRow>(cells.checkpoint).iter().filter(of).map(value).collect::<Vec<_>>())
}
