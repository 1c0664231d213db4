//! Rows of exchanged subspaces: the number of dimensions of a latent that carry a value.

use super::Identity;
use crate::nth::Nth;
use crate::stats::{Estimate, FEWEST, LEVEL};

names! {
    /// Assumed content of a latent.
    pub enum Variable {
        /// The result.
        Value = "value",
        /// The first operand: another variable.
        Operand = "operand",
    }

    /// Origin of the exchanged subspace.
    pub enum Rotation {
        /// The whole state: nothing is learnt.
        Whole = "whole",
        /// Learnt from the training pairs.
        Trained = "trained",
        /// Random, not trained; several draws, pooled.
        Random = "random",
        /// Learnt from the training pairs with permuted predictions.
        Shuffled = "shuffled",
    }

    /// Donor values of held-out pairs.
    pub enum Donors {
        /// Values that training pairs have too.
        Seen = "seen",
        /// Values that no training pair has.
        Unseen = "unseen",
    }
}

rows! {
    /// One subspace on held-out pairs; intervals are over problems.
    pub struct SubspaceRow {
        /// `n` counts problems.
        #[serde(flatten)]
        pub identity: Identity,
        pub variable: Variable => "name": "what a latent is taken to hold of its step: value (the result) or operand (the first one)",
        pub layer: usize => LensRow,
        pub step: Nth => LensRow,
        pub rotation: Rotation => "name":
            "the exchanged subspace: whole (the state), trained, random (drawn), or shuffled (trained on predictions of other \
                pairs)",
        pub rank: usize => "dimensions": "of the exchanged subspace",
        pub donors: Donors => "name": "whose values held-out pairs put in: seen in training pairs, or unseen",
        /// 0 if it was not trained.
        pub trained_on: usize => "count": "pairs that the subspace was trained on",
        pub fitted: Option<f64> => "share": "training pairs that give the prediction they were trained on",
        pub hit_rate: Estimate => "share": "exchanges after which the answer's first token is the predicted one",
        pub chance: Estimate => "share": "the same, if the donor did not affect the answer",
        pub above_chance: Estimate => KnownValueRow,
        pub kept: Estimate => "share": "exchanges after which the answer's first token is still the gold one",
        pub erased: Estimate => "share":
            "problems whose answer's first token is the gold one where the part in the subspace is set to the training states' mean",
        /// Of `above_chance`, two-sided, Holm over all rows.
        pub p_holm: f64 => AccuracyRow,
    }
}

rows! {
    /// One column of R `[D, rank]`, whose orthonormal columns span the exchanged subspace: `h + R Rᵀ (h′ − h)`.
    pub struct SubspaceDirectionRow {
        #[serde(flatten)]
        pub identity: Identity,
        pub variable: Variable => SubspaceRow,
        pub layer: usize => LensRow,
        pub step: Nth => LensRow,
        pub rotation: Rotation => SubspaceRow,
        pub rank: usize => SubspaceRow,
        pub draw: usize => "index from 0": "the draw of a random subspace",
        pub column: usize => "index from 0": "column of R, whose span is exchanged",
        /// `[D]`, in the coordinates of the stream.
        pub direction: Vec<f64> => "JSON [number, …]": "the column, a unit vector of the stream; those of one subspace are orthogonal",
    }
}

impl SubspaceRow {
    /// The verdict that the subspace carries the variable.
    pub fn carries(&self) -> bool {
        self.identity.n >= FEWEST && self.above_chance.value > 0.0 && self.p_holm <= 1.0 - LEVEL
    }

    /// The smallest trained rank with at least `share` of the whole state's effect at the same place, on seen values.
    pub fn dimensions(rows: &[Self], variable: Variable, share: f64) -> Option<usize> {
        let of = |rotation| {
            rows.iter().filter(move |r| {
                (r.variable, r.rotation, r.donors) == (variable, rotation, Donors::Seen) && r.carries()
            })
        };
        let enough = |r: &&Self| {
            let whole = of(Rotation::Whole).find(|w| (w.layer, w.step) == (r.layer, r.step));
            whole.is_some_and(|w| r.hit_rate.value >= share * w.hit_rate.value)
        };
        of(Rotation::Trained).filter(enough).map(|r| r.rank).min()
    }
}
