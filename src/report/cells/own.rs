//! Cells of ours that no table of the paper has, for claims that it makes in words. Knows which rows answer each.

use super::Cells;
use crate::nth::Nth;
use crate::schema::{
    AccuracyRow, At, InterventionRow, Later, Lens, LensRow, METRICS, Named, Opened, Steps, SwitchBenefitRow,
};
use crate::stats::Estimate;

/// Labels of such cells, whether they are asked of one checkpoint at a time, and the rows that answer.
pub(crate) const OWN: &[(&str, bool, &[&str])] = &[
    ("ours:step", true, &[InterventionRow::NAME, InterventionRow::STEPS]),
    ("ours:lens", true, &[LensRow::NAME]),
    ("ours:sweep", false, &[AccuracyRow::NAME]),
    ("ours:benefit", false, &[SwitchBenefitRow::NAME]),
    ("ours:training", false, &[METRICS]),
];

impl Cells<'_> {
    /// `ours:step/zero@2/accuracy_change`, `ours:lens/step1/exit_rank`, `ours:sweep/k_min:0/blocks`,
    /// `ours:benefit/chosen/benefit`, `ours:training/reward/late`.
    pub(super) fn own(&self, label: &str, row: &str, column: &str) -> Option<Estimate> {
        match label {
            "ours:step" => self.one_step(row, column),
            "ours:lens" => self.lens(row.strip_prefix("step")?.parse().ok()?, column),
            "ours:sweep" => {
                let row = self.folder.rows::<AccuracyRow>(self.sft).iter().find(|r| r.group == row)?;
                if column == "blocks" { row.blocks } else { row.latent_calls }
            }
            "ours:benefit" => {
                let rows = self.folder.rows::<SwitchBenefitRow>(&self.folder.grpo);
                rows.iter().find(|r| r.group == row).map(|r| r.benefit)
            }
            "ours:training" => self.trajectory(row, column),
            _ => None,
        }
    }

    /// A mode at one latent step (`zero@2`), at full dose.
    fn one_step(&self, row: &str, column: &str) -> Option<Estimate> {
        let (mode, step) = row.split_once('@')?;
        let steps: Steps = step.parse().ok()?;
        let plain = |r: &&InterventionRow| {
            r.mode == mode && r.steps == steps && r.at == At::Both && r.later == Later::Recompute && r.dose.is_none()
        };
        let files = [InterventionRow::NAME, InterventionRow::STEPS];
        let mut rows = files.iter().flat_map(|file| self.folder.rows_in::<InterventionRow>(file, self.checkpoint));
        let row = rows.find(plain)?;
        if column == "accuracy_change" { Some(row.accuracy_change) } else { row.diagnostic_accuracy }
    }

    /// The logit lens at the last layer, which is the model's own distribution, at a latent step.
    fn lens(&self, step: Nth, column: &str) -> Option<Estimate> {
        let rows = self.folder.rows::<LensRow>(self.checkpoint);
        let last = rows.iter().map(|r| r.layer).max()?;
        let read = |r: &&LensRow| {
            r.step == Some(step) && r.layer == last && r.lens == Lens::Logit && r.switching == Opened::Free
        };
        let row = rows.iter().find(read)?;
        Some(if column == "entropy" { row.entropy } else { row.exit_rank })
    }
}
