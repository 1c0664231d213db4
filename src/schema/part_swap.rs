//! Which part of the weights carries what a later phase changed.

use serde::{Deserialize, Serialize};

use super::Identity;
use super::verdict::{Baseline, loss};
use crate::stats::Estimate;

/// One part of the weights moved from one phase into the other. Changes are against the receiving model, on the same problems.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PartSwapRow {
    /// Of the later phase.
    #[serde(flatten)]
    pub identity: Identity,
    /// The earlier phase.
    pub against: String,
    /// `embed`, `blocks.<l>.attn`, `blocks.<l>.mlp` (each with the norms before and after it), `blocks.<l>`, `head`, `all`.
    pub part: String,
    /// The receiving phase.
    pub host: Host,
    /// Frobenius norm of the part's change over that of its tensors that changed, as the earlier phase has them.
    pub weight_change: f64,
    pub accuracy: Estimate,
    pub accuracy_change: Estimate,
    /// Share of problems that a guess gets right.
    #[serde(default)]
    pub guess: Option<f64>,
    pub switch_rate: Estimate,
    pub switch_change: Estimate,
    /// Exact McNemar of accuracy, Holm over the table.
    pub p_holm: f64,
}

/// Which phase keeps the rest of its weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Host {
    Earlier,
    Later,
}

impl PartSwapRow {
    /// `lowers`, `raises`, that neither is seen, or that there was nothing to lose.
    pub fn verdict(&self) -> &'static str {
        let baseline = Baseline::undo(self.accuracy, self.accuracy_change, self.guess);
        loss(self.identity.n, self.accuracy_change.value, self.p_holm, ["lowers", "raises"], baseline)
    }
}
