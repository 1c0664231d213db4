//! Our number for a cell of the paper, read from rows. Knows which experiment and column answers which cell; nothing of
//! tables or files. Shares stay shares; what the paper prints in percent is scaled by the caller.
//!
//! Where the paper's rows or columns name a phase (`sft`, `grpo`) ours are the checkpoints that the folder names so, in a run
//! `sft` and `grpo`; where they do not ([`per_checkpoint`]) the cells are asked of one checkpoint at a time.

mod latent;
mod own;
mod quality;
mod switch;

use super::folder::{Folder, sound};
use crate::schema::{
    AccuracyRow, ExitRow, InterventionRow, METRICS, Named, OutcomeRow, PhaseRow, ProbeRow, ResponseRow,
    TeacherForcedRow, WindowRow,
};
use crate::stats::Estimate;

pub(crate) use latent::intervention_row;
pub(crate) use own::OWN;
pub(crate) use quality::subject_key;
pub use switch::depth;
pub(crate) use switch::{random_event, repeats_a_layer};

/// Whose numbers.
#[derive(Clone, Copy)]
pub(crate) struct Cells<'a> {
    pub folder: &'a Folder,
    /// Answers where the paper's table does not say which checkpoint it is of.
    pub checkpoint: &'a str,
    /// Answers where the paper says "after SFT": the finished phase, or, where RL is asked about, its start.
    pub sft: &'a str,
}

/// Whether the cells under a label are of one checkpoint that the paper's rows and columns do not name.
pub(crate) fn per_checkpoint(label: &str) -> bool {
    ["tab:intervention", "tab:exit", "tab:gen-analysis", "tab:per-subject", "sec:appendix-gen"].contains(&label)
        || OWN.iter().any(|(own, single, _)| *own == label && *single)
}

/// Experiments whose rows answer a label's cells; the first is what `probe` or `intervene` must have run.
pub fn sources(label: &str) -> &'static [&'static str] {
    match label {
        "tab:main" | "tab:sft-vs-rl" | "tab:appendix-sweep" | "tab:per-subject" | "fig:pareto" | "fig:per-subject" => {
            &[AccuracyRow::NAME, PhaseRow::NAME]
        }
        "tab:tf" => &[TeacherForcedRow::NAME],
        "tab:swi-window" | "fig:swi-window" => &[WindowRow::NAME],
        "tab:probe" | "fig:layer-probe" => &[ProbeRow::NAME],
        "tab:intervention" | "fig:intervention" => &[InterventionRow::NAME],
        "tab:exit" => &[ExitRow::NAME],
        "tab:gen-analysis" => &[OutcomeRow::NAME],
        "sec:appendix-gen" => &[ResponseRow::NAME],
        "fig:calibration" | "fig:calibration-full" => &[METRICS],
        "fig:token-dist" | "fig:token-cdf" => &[OutcomeRow::NAME],
        own => OWN.iter().find(|(label, ..)| *label == own).map_or(&[], |(_, _, rows)| *rows),
    }
}

impl Cells<'_> {
    /// Our number for `label/row/column`, if the rows hold it. Rows beyond the paper's are asked by their own key.
    pub fn get(&self, label: &str, row: &str, column: &str) -> Option<Estimate> {
        let found = match label {
            "tab:main" => self.main(row, column),
            "tab:sft-vs-rl" => self.sft_vs_rl(row, column),
            "tab:appendix-sweep" => self.sweep(row, column),
            "tab:per-subject" => self.per_subject(row, column),
            "tab:gen-analysis" => self.generation(row, column),
            "fig:pareto" => self.pareto(row, column),
            "fig:calibration" | "fig:calibration-full" => self.trajectory(row, column),
            "tab:tf" => self.teacher_forced(row, column),
            "tab:swi-window" => self.window(row, column),
            "tab:probe" => self.probe(row, column),
            "tab:intervention" => self.intervention(row, column),
            "tab:exit" => self.exit(row, column),
            "sec:appendix-gen" => self.confidence(row, column),
            own => self.own(own, row, column),
        };
        found.and_then(sound)
    }

    /// The checkpoint that a key names: `sft…` or `grpo…` of the paper's, or `at:<checkpoint>` of a row of ours.
    fn phase<'k>(&'k self, key: &'k str) -> Option<&'k str> {
        if let Some(named) = key.strip_prefix("at:") {
            return Some(named);
        }
        match key.split('_').next() {
            Some("sft") => Some(self.sft),
            Some("grpo") => Some(&self.folder.grpo),
            _ => None,
        }
    }
}
