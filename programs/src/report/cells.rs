//! Our numbers for cells of the paper, from records: their checkpoints, and numbers that several exhibits share. The exhibit chooses the
//! record and column of a cell. Shares stay shares; callers scale to the paper's percent.
//!
//! If the paper's rows or columns name a phase (`sft`, `grpo`), ours are the folder's checkpoints with these roles; otherwise
//! (`Exhibit::per_checkpoint`) cells are computed for one checkpoint at a time.

use super::exhibits;
use super::folder::{Folder, sound};
use switchyard::schema::{AccuracyRow, InterventionRow, PhaseRow};
use switchyard::stats::{Bootstrap, Estimate};

#[derive(Clone, Copy)]
pub(crate) struct Cells<'a> {
    pub folder: &'a Folder,
    /// The checkpoint for a table of the paper that does not name one.
    pub checkpoint: &'a str,
    /// The checkpoint for the paper's "after SFT": the finished phase or, for questions about RL, its start.
    pub sft: &'a str,
}

/// A number of a group of problems that both rows of groups and rows of phases have.
#[derive(Clone, Copy)]
pub(super) enum Quality {
    Accuracy,
    LatentAccuracy,
    SwitchRate,
    LatentCalls,
    VisibleTokens,
    Truncated,
}

/// The qualities of a record, in the order of [`Quality`]: both kinds of records have the same columns.
macro_rules! qualities {
    ($r:ident) => {
        [
            Some($r.accuracy),
            $r.latent_accuracy,
            Some($r.switch_rate),
            $r.latent_calls,
            $r.visible_tokens,
            Some($r.truncated),
        ]
    };
}

impl Quality {
    pub(super) fn of_group(self, row: &AccuracyRow) -> Option<Estimate> {
        qualities!(row)[self as usize]
    }

    pub(super) fn of_phase(self, row: &PhaseRow) -> Option<Estimate> {
        qualities!(row)[self as usize]
    }

    /// The quality in a column of the paper's tables.
    pub(super) fn named(column: &str) -> Option<Self> {
        Some(match column {
            "acc" => Quality::Accuracy,
            "latent_acc" => Quality::LatentAccuracy,
            "tokens" => Quality::VisibleTokens,
            "switch_rate" => Quality::SwitchRate,
            "latent_calls" => Quality::LatentCalls,
            "truncated" => Quality::Truncated,
            _ => return None,
        })
    }
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
    pub(super) fn quality(&self, checkpoint: &str, group: &str, quality: Quality) -> Option<Estimate> {
        let rows = self.folder.rows::<AccuracyRow>(checkpoint);
        if let Some(found) = rows.iter().find(|r| r.group == group).and_then(|row| quality.of_group(row)) {
            return Some(found);
        }
        let row = self.folder.phases().iter().find(|r| r.phase == checkpoint)?;
        match (group, quality) {
            ("all", quality) => quality.of_phase(row),
            ("switched", Quality::Accuracy) => row.latent_accuracy,
            ("text_only", Quality::Accuracy) => row.text_only_accuracy,
            _ => None,
        }
    }

    pub(super) fn phase_quality(&self, checkpoint: &str, column: &str) -> Option<Estimate> {
        match column {
            "latent_acc" => self.quality(checkpoint, "switched", Quality::Accuracy),
            other => self.quality(checkpoint, "all", Quality::named(other)?),
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

/// The step of an intermediate checkpoint (`grpo_step20`, setting `grpo.keep_every`).
pub(super) fn step_of(checkpoint: &str) -> Option<usize> {
    checkpoint.rsplit_once("_step")?.1.parse().ok()
}
