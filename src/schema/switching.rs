//! Rows about the decision to switch, at teacher-forced positions.

use serde::{Deserialize, Serialize};

use super::Identity;
use super::verdict::{FEW, NEITHER};
use crate::stats::{Estimate, FEWEST};

names! {
    /// A class of positions.
    pub enum Event {
        /// The next token is an annotated `<swi>`.
        SwiStart = "swi_start",
        /// The same token type (`=`) where the annotation puts no `<swi>`: a hard negative.
        SameToken = "same_token",
        /// Any other response position outside blocks.
        Other = "other",
        /// The next token begins a clause or sentence that is not tagged: the hardest negative.
        ClauseStart = "clause_start",
        /// Offsets −2, −1 and, with the block counted as one, +1 (`</swi>`) and +2 of an annotated `<swi>`.
        NearBoundary = "near_boundary",
        /// As many positions as `swi_start` has, drawn from `same_token` and `other`: the paper's control.
        Random = "random",
    }
}

/// One class on one checkpoint (tab:tf); intervals are cluster bootstraps over problems.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TeacherForcedRow {
    #[serde(flatten)]
    pub identity: Identity,
    pub event: Event,
    pub positions: usize,
    pub entropy: Estimate,
    pub p_swi: Estimate,
    pub rank: Estimate,
    /// `log p(<swi>) − log p(best other token)`, nats.
    pub margin: Estimate,
}

impl TeacherForcedRow {
    /// What the setup of rows says of the annotator of a checkpoint that tags its own solutions.
    pub const SELF_TAGGED: &str = "the checkpoint itself";

    /// The verdict that `<swi>` is more likely here than at another class of positions.
    pub fn is_sharper(&self, other: &Self) -> bool {
        self.p_swi.minus(other.p_swi).is_above(0.0)
    }
}

/// One offset from an annotated `<swi>` (tab:swi-window); intervals are cluster bootstraps over problems.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WindowRow {
    #[serde(flatten)]
    pub identity: Identity,
    pub offset: i64,
    pub positions: usize,
    /// Number of these positions inside a latent block.
    pub in_block: usize,
    pub p_swi: Estimate,
    pub entropy: Estimate,
}

impl WindowRow {
    /// The verdict that `<swi>` is more likely here than at another offset.
    pub fn is_sharper(&self, other: &Self) -> bool {
        self.p_swi.minus(other.p_swi).is_above(0.0)
    }
}

/// One class of positions on two checkpoints; every number is second − first, paired by position.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseChangeRow {
    /// Of the second checkpoint.
    #[serde(flatten)]
    pub identity: Identity,
    /// The checkpoint compared with.
    pub against: String,
    pub event: Event,
    pub positions: usize,
    pub d_p_swi: Estimate,
    pub d_entropy: Estimate,
    pub d_margin: Estimate,
    pub d_rank: Estimate,
}

impl PhaseChangeRow {
    /// The verdict that the second checkpoint places `<swi>` with another probability.
    pub fn differs(&self) -> bool {
        ["higher", "lower"].contains(&self.verdict())
    }

    /// `higher`, `lower`, or that neither is seen: p(`<swi>`) at the second checkpoint.
    pub fn verdict(&self) -> &'static str {
        match self.d_p_swi {
            d if d.n < FEWEST => FEW,
            d if d.is_above(0.0) => "higher",
            d if d.scaled(-1.0).is_above(0.0) => "lower",
            _ => NEITHER,
        }
    }
}
