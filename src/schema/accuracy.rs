//! Rows about groups of problems under one way of decoding: accuracy and its cost, length and confidence.

use serde::{Deserialize, Serialize};

use super::Identity;
use crate::stats::Estimate;

/// One group of problems under one way of decoding (tab:main, tab:sft-vs-rl, tab:per-subject, tab:appendix-sweep).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AccuracyRow {
    #[serde(flatten)]
    pub identity: Identity,
    /// `all`, `switched`, `not_switched`, `level:<l>`, `subject:<s>`; `text_only`, `forced`, `k_min:<k>`.
    pub group: String,
    pub k_min: usize,
    pub k_cap: usize,
    pub accuracy: Estimate,
    /// On the problems with at least one block; absent if there is none.
    pub latent_accuracy: Option<Estimate>,
    /// On the others.
    pub text_accuracy: Option<Estimate>,
    pub switch_rate: Estimate,
    pub blocks: Option<Estimate>,
    pub latent_calls: Option<Estimate>,
    pub visible_tokens: Option<Estimate>,
    /// Share of problems that ran out of tokens.
    pub truncated: Estimate,
    /// Share of blocks that `k_cap` ended; 1 means that `K_min` and the cap leave the model no choice.
    pub forced_exits: Option<Estimate>,
    /// Accuracy against the free decode of the same problems, paired.
    pub difference: Option<Estimate>,
    pub lost: Option<usize>,
    pub gained: Option<usize>,
    /// Exact McNemar.
    pub p_value: Option<f64>,
    /// Holm-adjusted over this experiment's comparisons.
    pub p_holm: Option<f64>,
}

/// One group of responses (tab:gen-analysis).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResponseRow {
    #[serde(flatten)]
    pub identity: Identity,
    /// `all`, `correct`, `wrong`, and the last two split by whether they switched: `correct_no_swi`, `correct_swi`, …
    pub group: String,
    pub visible_tokens: Option<Estimate>,
    /// `<swi>` a response.
    pub blocks: Option<Estimate>,
    /// Latent steps a response.
    pub latent_calls: Option<Estimate>,
    pub switch_rate: Estimate,
    /// At the emitted `<swi>`, nats; absent if there is none.
    pub entropy: Option<Estimate>,
    pub p_swi: Option<Estimate>,
    /// Visible tokens before the first `<swi>`, as a share of the response's.
    pub first_swi: Option<Estimate>,
    pub truncated: Estimate,
}
