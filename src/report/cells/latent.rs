//! Cells about what happens inside a block: tab:intervention, tab:exit and the confidence of switches. Knows the rows of
//! `latent_intervention`, `exit_probability` and `traces`.

use super::Cells;
use crate::report::folder::{Folder, estimate, find, is, shown};
use crate::stats::Estimate;
use crate::store::Row;

/// The row of a mode on all steps at full dose.
pub fn intervention_row<'a>(folder: &'a Folder, checkpoint: &str, mode: &str) -> Option<&'a Row> {
    folder.rows("latent_intervention", checkpoint).iter().find(|row| is(row, "mode", mode) && is_plain(row))
}

/// Whether a row intervenes as the paper does: on all steps, at full dose, on what enters the stream.
pub fn is_plain(row: &Row) -> bool {
    let one_of = |key: &str, allowed: &[&str]| allowed.contains(&shown(row, key).as_str());
    one_of("steps", &["", "all"])
        && one_of("dose", &["", "1", "1.0", "none"])
        && one_of("angle", &["", "none"])
        && one_of("at", &["", "embedding", "both", "input", "all", "injected"])
        && one_of("later", &["", "recomputed", "recompute"])
}

impl Cells<'_> {
    pub(super) fn intervention(&self, mode: &str, column: &str) -> Option<Estimate> {
        let row = intervention_row(self.folder, self.checkpoint, mode)?;
        match column {
            "all_acc" => estimate(row, "accuracy"),
            "all_changed" => estimate(row, "answer_changed"),
            "diag_acc" => estimate(row, "diagnostic_accuracy"),
            // Normal is right on every problem of the subset by its definition.
            "diag_delta" => {
                let e = estimate(row, "diagnostic_accuracy")?;
                Some(Estimate { value: e.value - 1.0, low: e.low - 1.0, high: e.high - 1.0, n: e.n })
            }
            _ => None,
        }
    }

    pub(super) fn exit(&self, group: &str, column: &str) -> Option<Estimate> {
        let rows = self.folder.rows("exit_probability", self.checkpoint);
        estimate(find(rows, &[("group", group), ("step", column.trim_start_matches("step"))])?, "p_exit")
    }

    pub(super) fn confidence(&self, group: &str, column: &str) -> Option<Estimate> {
        estimate(find(self.folder.rows("traces", self.checkpoint), &[("group", group)])?, column)
    }
}
