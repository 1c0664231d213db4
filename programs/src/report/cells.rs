//! Our numbers for cells of the paper, from records: their checkpoints, and numbers that several exhibits share. The exhibit chooses the
//! record and column of a cell. Shares stay shares; callers scale to the paper's percent.
//!
//! If the paper's rows or columns name a phase (`sft`, `grpo`), ours are the folder's checkpoints with these roles; otherwise
//! (`Exhibit::per_checkpoint`) cells are computed for one checkpoint at a time.

use super::exhibits;
use super::folder::{Folder, sound};
use switchyard::schema::{AccuracyRow, InterventionRow, PhaseRow, Steps};
use switchyard::stats::{Bootstrap, Estimate};

#[derive(Clone, Copy)]
pub(crate) struct Cells<'a> {
    pub folder: &'a Folder,
    /// The checkpoint for a table of the paper that does not name one.
    pub checkpoint: &'a str,
    /// The checkpoint for the paper's "after SFT": the finished phase or, for questions about RL, its start.
    pub sft: &'a str,
}

/// The number in a column of the paper's tables: records of groups and of phases have the same columns.
macro_rules! quality {
    ($row:ident, $column:ident) => {
        match $column {
            "acc" => Some($row.accuracy),
            "latent_acc" => $row.latent_accuracy,
            "tokens" => $row.visible_tokens,
            "switch_rate" => Some($row.switch_rate),
            "latent_calls" => $row.latent_calls,
            "truncated" => Some($row.truncated),
            _ => None,
        }
    };
}

pub(super) fn group_column(row: &AccuracyRow, column: &str) -> Option<Estimate> {
    quality!(row, column)
}

pub(super) fn phase_column(row: &PhaseRow, column: &str) -> Option<Estimate> {
    quality!(row, column)
}

impl Cells<'_> {
    /// Our number for `label/row/column`, if there are records for it. Rows beyond the paper's have their own key.
    pub fn get(&self, label: &str, row: &str, column: &str) -> Option<Estimate> {
        (exhibits::find(label)?.cell)(self, row, column).and_then(sound)
    }

    /// The checkpoint that a key names: `sft…` or `grpo…` of the paper's, or `at:<checkpoint>` of a row of ours.
    pub(super) fn phase<'k>(&'k self, key: &'k str) -> Option<&'k str> {
        if let Some(named) = key.strip_prefix("at:") {
            return Some(named);
        }
        match key.split('_').next() {
            Some("sft") => Some(self.sft),
            Some("grpo") => Some(&self.folder.grpo),
            _ => None,
        }
    }

    /// A quality of a group of problems: from `accuracy-<checkpoint>`, else from the run's own `summary`.
    pub(super) fn quality(&self, checkpoint: &str, group: &str, column: &str) -> Option<Estimate> {
        let rows = self.folder.rows::<AccuracyRow>(checkpoint);
        if let Some(found) = rows.iter().find(|r| r.group == group).and_then(|row| group_column(row, column)) {
            return Some(found);
        }
        let row = self.folder.phases().iter().find(|r| r.phase == checkpoint)?;
        match (group, column) {
            ("all", column) => phase_column(row, column),
            ("switched", "acc") => row.latent_accuracy,
            ("text_only", "acc") => row.text_only_accuracy,
            _ => None,
        }
    }

    pub(super) fn phase_quality(&self, checkpoint: &str, column: &str) -> Option<Estimate> {
        match column {
            "latent_acc" => self.quality(checkpoint, "switched", "acc"),
            other => self.quality(checkpoint, "all", other),
        }
    }
}

/// Bootstrap mean; `None` for fewer than two values, which have no interval.
pub(super) fn mean(values: &[f64]) -> Option<Estimate> {
    Bootstrap::default().mean(values).ok()
}

/// The row of a mode on all steps at full dose.
pub(crate) fn intervention_row<'a>(folder: &'a Folder, checkpoint: &str, mode: &str) -> Option<&'a InterventionRow> {
    folder.rows::<InterventionRow>(checkpoint).iter().find(|row| row.mode == mode && row.is_plain())
}

/// The step, of rows about a single latent step.
pub(super) fn single_step(steps: Steps) -> Option<usize> {
    if let Steps::Only(step) = steps { Some(step) } else { None }
}

/// The step of an intermediate checkpoint (`grpo_step20`, setting `grpo.keep_every`).
pub(super) fn step_of(checkpoint: &str) -> Option<usize> {
    checkpoint.rsplit_once("_step")?.1.parse().ok()
}
