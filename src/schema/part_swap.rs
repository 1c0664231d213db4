//! Which part of the weights carries the change of a later phase.

use serde::{Deserialize, Serialize};

use super::Identity;
use super::verdict::{Baseline, loss};
use crate::stats::Estimate;

rows! {
    /// One part of the weights copied from one phase into the other. Changes are against the receiving model, on the same problems.
    pub struct PartSwapRow {
        /// Of the later phase.
        #[serde(flatten)]
        pub identity: Identity,
        pub against: String => "name": "the earlier phase",
        /// `embed`, `blocks.<l>.attn`, `blocks.<l>.mlp` (each with the norms before and after it), `blocks.<l>`, `head`, `all`.
        pub part: String => "name": "embed, a half of a block or a block with its norms, head (with the final norm), all",
        pub host: Host => "name": "phase that the part of the other one is put into: earlier or later",
        pub weight_change: f64 => "ratio": "Frobenius norm of the part's change over that of its tensors that changed",
        pub accuracy: Estimate => AccuracyRow,
        pub accuracy_change: Estimate => "share": "accuracy minus that of the normal run, paired",
        pub guess: Option<f64> => EarlyStopRow,
        pub switch_rate: Estimate => AccuracyRow,
        pub switch_change: Estimate => "share": "change of the share of problems with at least one block, paired by problem",
        /// Exact McNemar of accuracy, Holm over the table.
        pub p_holm: f64 => AccuracyRow,
    }
}

/// The receiving phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Host {
    Earlier,
    Later,
}

impl PartSwapRow {
    /// `lowers`, `raises`, neither, or at chance before.
    pub fn verdict(&self) -> &'static str {
        let baseline = Baseline::undo(self.accuracy, self.accuracy_change, self.guess);
        loss(self.identity.n, self.accuracy_change.value, self.p_holm, ["lowers", "raises"], baseline)
    }
}
