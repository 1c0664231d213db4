//! The next token that each layer predicts at each latent step.

use serde::{Deserialize, Serialize};

use super::Identity;
use crate::nth::Nth;
use crate::stats::{Estimate, FEWEST};

names! {
    /// How a layer is read.
    pub enum Lens {
        /// Final norm and head on the state as it is.
        Logit = "logit",
        /// Final norm and head after the layer's translator.
        Tuned = "tuned",
    }

    /// Who opened the blocks that are read.
    pub enum Opening {
        /// The model.
        Free = "free",
        /// Nobody: `<swi>` was put first.
        Forced = "forced",
    }

    /// Readings of a latent's state as the answer.
    pub enum Transport {
        /// Final norm and head on the mean Jacobian times the state.
        Jacobian = "jacobian",
        /// Final norm and head on the state as it is.
        Logit = "logit",
        /// As `Jacobian`, of another problem's state: what the Jacobian says by itself.
        Others = "others",
    }
}

/// One lens at one layer and latent step; intervals are cluster bootstraps over problems.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LensRow {
    #[serde(flatten)]
    pub identity: Identity,
    pub switching: Opening,
    pub lens: Lens,
    /// Absent for unseen text positions.
    pub step: Option<Nth>,
    pub layer: usize,
    pub positions: usize,
    /// Nats.
    pub entropy: Estimate,
    /// p(`</swi>`).
    pub p_exit: Estimate,
    /// Of `</swi>`, from 1.
    pub exit_rank: Estimate,
    /// JSON `[[token, mean probability], …]`, the most probable first.
    pub top: String,
    /// KL from the model's own distribution to the lens', nats.
    pub kl: Estimate,
    /// Share of positions where both name the same token.
    pub agreement: Estimate,
    /// Share of positions whose most probable token begins the value of the problem's own step that the block stands for, of blocks
    /// that stand for one; absent where values are not known, and in rows of older versions.
    pub own_value: Option<Estimate>,
}

impl LensRow {
    /// The verdict that the layer's `</swi>` is more likely than not.
    pub fn says_exit(&self) -> bool {
        self.p_exit.is_above(0.5)
    }
}

/// One reading of one layer at one latent step of the last block, for the answer, on problems that the Jacobian was not made
/// of; intervals are over problems.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JacobianLensRow {
    #[serde(flatten)]
    pub identity: Identity,
    pub lens: Transport,
    pub step: Nth,
    pub layer: usize,
    /// Share of problems whose most probable token is the model's answer token.
    pub says_answer: Estimate,
    /// Of that token, nats.
    pub logprob: Estimate,
    /// `‖J₁ − J₂‖ / ‖(J₁ + J₂)/2‖` (Frobenius) of the two halves' Jacobians; absent where no Jacobian is used.
    pub split_error: Option<f64>,
}

impl JacobianLensRow {
    /// The verdict that the state has the answer: it gives it more often than another problem's by the same Jacobian.
    pub fn says(&self, null: &Self) -> bool {
        self.identity.n >= FEWEST && self.says_answer.low > null.says_answer.high
    }
}
