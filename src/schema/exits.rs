//! Probability of leaving a latent block, by latent step (tab:exit).

use serde::{Deserialize, Serialize};

use super::Identity;
use crate::nth::Nth;
use crate::stats::Estimate;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitGroup {
    All,
    Correct,
    Wrong,
}

rows! {
    /// One latent step of one group; intervals are cluster bootstraps over problems.
    pub struct ExitRow {
        #[serde(flatten)]
        pub identity: Identity,
        pub group: ExitGroup => AccuracyRow,
        pub step: Nth => LensRow,
        pub blocks: usize => "count": "blocks that reach the step",
        pub p_exit: Estimate => PositionRow,
        pub exits: Estimate => "share": "blocks at which `</swi>` is the most probable token",
    }
}

impl ExitRow {
    /// The verdict that leaving is more likely than not.
    pub fn ends(&self) -> bool {
        self.exits.is_above(0.5)
    }
}
