//! Cells about what happens inside a block: tab:intervention, tab:exit and the confidence of switches. Knows the rows of
//! `latent_intervention`, `exit_probability` and `traces`.

use super::Cells;
use crate::nth::Nth;
use crate::report::folder::Folder;
use crate::schema::{ExitGroup, ExitRow, InterventionRow, ResponseRow};
use crate::stats::Estimate;

/// The row of a mode on all steps at full dose.
pub(crate) fn intervention_row<'a>(folder: &'a Folder, checkpoint: &str, mode: &str) -> Option<&'a InterventionRow> {
    folder.rows::<InterventionRow>(checkpoint).iter().find(|row| row.mode == mode && row.is_plain())
}

impl Cells<'_> {
    pub(super) fn intervention(&self, mode: &str, column: &str) -> Option<Estimate> {
        let row = intervention_row(self.folder, self.checkpoint, mode)?;
        match column {
            "all_acc" => Some(row.accuracy),
            "all_changed" => Some(row.answer_changed),
            "diag_acc" => row.diagnostic_accuracy,
            // Normal is right on every problem of the subset by its definition.
            "diag_delta" => {
                let e = row.diagnostic_accuracy?;
                Some(Estimate { value: e.value - 1.0, low: e.low - 1.0, high: e.high - 1.0, n: e.n })
            }
            _ => None,
        }
    }

    pub(super) fn exit(&self, group: &str, column: &str) -> Option<Estimate> {
        let group = match group {
            "all" => ExitGroup::All,
            "correct" => ExitGroup::Correct,
            "wrong" => ExitGroup::Wrong,
            _ => return None,
        };
        let step: Nth = column.trim_start_matches("step").parse().ok()?;
        let rows = self.folder.rows::<ExitRow>(self.checkpoint);
        rows.iter().find(|r| r.group == group && r.step == step).map(|r| r.p_exit)
    }

    pub(super) fn confidence(&self, group: &str, column: &str) -> Option<Estimate> {
        let row = self.folder.rows::<ResponseRow>(self.checkpoint).iter().find(|r| r.group == group)?;
        match column {
            "p_swi" => row.p_swi,
            "entropy" => row.entropy,
            _ => None,
        }
    }
}
