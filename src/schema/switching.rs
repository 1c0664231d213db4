//! Rows about the decision to switch, at teacher-forced positions.

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

rows! {
    /// One class on one checkpoint (tab:tf); intervals are cluster bootstraps over problems.
    pub struct TeacherForcedRow {
        #[serde(flatten)]
        pub identity: Identity,
        pub event: Event => "name": "class of positions (annotated `<swi>`, same token, start of a clause, random, …)",
        pub positions: usize => EntropyRow,
        pub entropy: Estimate => ResponseRow,
        pub p_swi: Estimate => ResponseRow,
        pub rank: Estimate => "rank from 1": "of `<swi>` among the next tokens",
        pub margin: Estimate => "nats": "log p(`<swi>`) minus log p of the best other token",
    }
}

impl TeacherForcedRow {
    /// The annotator in the setup of rows if a checkpoint tags its own solutions.
    pub const SELF_TAGGED: &str = "the checkpoint itself";

    /// The verdict that `<swi>` is more likely here than at another class of positions.
    pub fn is_sharper(&self, other: &Self) -> bool {
        self.p_swi.minus(other.p_swi).is_above(0.0)
    }
}

rows! {
    /// One offset from an annotated `<swi>` (tab:swi-window); intervals are cluster bootstraps over problems.
    pub struct WindowRow {
        #[serde(flatten)]
        pub identity: Identity,
        pub offset: i64 => "positions": "from the annotated `<swi>`; 0 is the position that predicts it",
        pub positions: usize => EntropyRow,
        pub in_block: usize => "count": "of the positions, those inside a latent block",
        pub p_swi: Estimate => ResponseRow,
        pub entropy: Estimate => ResponseRow,
    }
}

impl WindowRow {
    /// The verdict that `<swi>` is more likely here than at another offset.
    pub fn is_sharper(&self, other: &Self) -> bool {
        self.p_swi.minus(other.p_swi).is_above(0.0)
    }
}

rows! {
    /// One class of positions on two checkpoints; every number is second − first, paired by position.
    pub struct PhaseChangeRow {
        /// Of the second checkpoint.
        #[serde(flatten)]
        pub identity: Identity,
        pub against: String => "name": "the earlier checkpoint: every number is this one minus that one, paired by position",
        pub event: Event => TeacherForcedRow,
        pub positions: usize => EntropyRow,
        pub d_p_swi: Estimate => "probability": "change of p(`<swi>`)",
        pub d_entropy: Estimate => "nats": "change of the entropy",
        pub d_margin: Estimate => "nats": "change of the margin of `<swi>`",
        pub d_rank: Estimate => "ranks": "change of the rank of `<swi>`",
    }
}

impl PhaseChangeRow {
    /// The verdict that the second checkpoint places `<swi>` with another probability.
    pub fn differs(&self) -> bool {
        ["higher", "lower"].contains(&self.verdict())
    }

    /// p(`<swi>`) at the second checkpoint: `higher`, `lower` or neither.
    pub fn verdict(&self) -> &'static str {
        match self.d_p_swi {
            d if d.n < FEWEST => FEW,
            d if d.is_above(0.0) => "higher",
            d if d.scaled(-1.0).is_above(0.0) => "lower",
            _ => NEITHER,
        }
    }
}
