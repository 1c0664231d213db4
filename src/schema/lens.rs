//! The next token that each layer predicts at each latent step.

use super::Identity;
use crate::nth::Nth;
use crate::stats::{Estimate, FEWEST};

names! {
    /// Map from a layer's state to logits.
    pub enum Lens {
        /// Final norm and head on the state as it is.
        Logit = "logit",
        /// Final norm and head after the layer's translator.
        Tuned = "tuned",
    }

    /// How the blocks were opened.
    pub enum Opening {
        /// By the model.
        Free = "free",
        /// Forced: `<swi>` is the first token of the response.
        Forced = "forced",
    }

    /// Readings of a latent's state as the answer.
    pub enum Transport {
        /// Final norm and head on the mean Jacobian times the state.
        Jacobian = "jacobian",
        /// Final norm and head on the state as it is.
        Logit = "logit",
        /// As `Jacobian`, on another problem's state: the control.
        Others = "others",
    }
}

rows! {
    /// One lens at one layer and latent step; intervals are cluster bootstraps over problems.
    pub struct LensRow {
        #[serde(flatten)]
        pub identity: Identity,
        pub switching: Opening => "name": "free: the model opened the blocks; forced: `<swi>` was put first",
        pub lens: Lens => "name": "logit: final norm and head; tuned: after the layer's translator",
        pub step: Option<Nth> => "latent step from 1": "of the block; absent at text",
        pub layer: usize => "layer":
            "of the stream: layers passed, 0 is the embedding, l the output of `blocks.{l-1}`; of a head or MLP: the number in its \
                hook",
        pub positions: usize => EntropyRow,
        pub entropy: Estimate => "nats": "of the next-token distribution",
        pub p_exit: Estimate => PositionRow,
        pub exit_rank: Estimate => "rank from 1": "of `</swi>` in the lens' distribution",
        pub top: String => "JSON [[token, p], …]": "the most probable tokens, their mean probabilities",
        pub kl: Estimate => "nats": "from the model's own distribution to the lens'",
        pub agreement: Estimate => "share": "positions where lens and model name the same token",
        /// Over blocks that replace a step with a known value; absent without such blocks, and in rows of older versions.
        pub own_value: Option<Estimate> => "share": "positions whose most probable token begins the value of the block's own step",
    }
}

impl LensRow {
    /// The verdict that the layer's `</swi>` is more likely than not.
    pub fn says_exit(&self) -> bool {
        self.p_exit.is_above(0.5)
    }
}

rows! {
    /// One reading of one layer at one latent step of the last block, on the other half's problems; intervals are over problems.
    pub struct JacobianLensRow {
        #[serde(flatten)]
        pub identity: Identity,
        pub lens: Transport => "name": "how the state is read: jacobian, logit, or others' (another problem's state by the same Jacobian)",
        pub step: Nth => "latent step from 1": "of the last block before the answer",
        pub layer: usize => "layers passed": "0 is the embedding, l the output of `blocks.{l-1}`",
        pub says_answer: Estimate => "share": "problems whose most probable token by this reading is the model's answer token",
        pub logprob: Estimate => "nats": "log-probability of the model's answer token by this reading",
        /// `‖J₁ − J₂‖ / ‖(J₁ + J₂)/2‖` (Frobenius) of the two halves' Jacobians; absent if no Jacobian is used.
        pub split_error: Option<f64> => "share":
            "norm of the difference between the Jacobians of two halves of the problems, over that of their mean",
    }
}

impl JacobianLensRow {
    /// The verdict that the state has the answer: it names it more often than another problem's state does with the same Jacobian.
    pub fn says(&self, null: &Self) -> bool {
        self.identity.n >= FEWEST && self.says_answer.low > null.says_answer.high
    }
}
