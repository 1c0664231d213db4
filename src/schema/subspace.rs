//! Rows of exchanged subspaces: how many dimensions of a latent carry a value.

use serde::{Deserialize, Serialize};

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
        /// Drawn, not trained; several draws, pooled.
        Random = "random",
        /// Learnt from the training pairs with their predictions dealt to other pairs.
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

/// One subspace on held-out pairs; intervals are over problems.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SubspaceRow {
    /// `n` counts problems.
    #[serde(flatten)]
    pub identity: Identity,
    pub variable: Variable,
    /// 0 is the input of the first block, l the stream after the l-th.
    pub layer: usize,
    /// Latent step.
    pub step: Nth,
    pub rotation: Rotation,
    /// Dimensions of the subspace.
    pub rank: usize,
    pub donors: Donors,
    /// Pairs that it was trained on; 0 where it was not.
    pub trained_on: usize,
    /// Share of the training pairs that give the prediction they were trained on.
    pub fitted: Option<f64>,
    /// Share of exchanges after which the answer's first token is the predicted one.
    pub hit_rate: Estimate,
    /// The hit rate if the donor did not affect the answer.
    pub chance: Estimate,
    /// The difference of the two, paired.
    pub above_chance: Estimate,
    /// Share of exchanges after which the answer's first token is still the gold one.
    pub kept: Estimate,
    /// Share of the same problems answered right where the part in the subspace is set to the mean of the training states.
    pub erased: Estimate,
    /// Of `above_chance`, two-sided, Holm over all rows.
    pub p_holm: f64,
}

/// One column of R `[D, rank]`, the orthonormal columns whose span is exchanged: `h + R Rᵀ (h′ − h)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SubspaceDirectionRow {
    #[serde(flatten)]
    pub identity: Identity,
    pub variable: Variable,
    /// As in [`SubspaceRow`].
    pub layer: usize,
    pub step: Nth,
    pub rotation: Rotation,
    pub rank: usize,
    /// Of a random subspace.
    pub draw: usize,
    pub column: usize,
    /// `[D]`, in the coordinates of the stream.
    pub direction: Vec<f64>,
}

impl SubspaceRow {
    /// The verdict that the subspace carries the variable.
    pub fn carries(&self) -> bool {
        self.identity.n >= FEWEST && self.above_chance.value > 0.0 && self.p_holm <= 1.0 - LEVEL
    }

    /// The smallest trained rank that does `share` or more of what the whole state does at the same place, on seen values.
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
