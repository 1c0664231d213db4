//! Single problems and single positions of their responses.

use serde::{Deserialize, Serialize};

use super::Identity;

/// One problem (fig:token-dist, fig:token-cdf).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OutcomeRow {
    #[serde(flatten)]
    pub identity: Identity,
    pub problem: usize,
    /// As its source names it.
    pub id: String,
    pub level: Option<u8>,
    pub subject: Option<String>,
    pub correct: bool,
    pub switched: bool,
    pub blocks: usize,
    /// Blocks that the model left by itself, before their cap; absent in rows of an older version.
    #[serde(default)]
    pub natural_exits: Option<usize>,
    pub visible_tokens: usize,
    pub latent_calls: usize,
    pub truncated: bool,
    pub gold: String,
    /// The final answer as it is compared; absent where the response has none.
    pub answer: Option<String>,
    /// Who compared them: `math`, `exact` or `choice`; absent in rows of an older version.
    #[serde(default)]
    pub grader: Option<String>,
    /// Which rule of the grader decided.
    #[serde(default)]
    pub rule: Option<String>,
}

/// What is at a response position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PositionKind {
    Text,
    Swi,
    Latent,
    SwiEndSampled,
    SwiEndForced,
}

/// One response position.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PositionRow {
    #[serde(flatten)]
    pub identity: Identity,
    pub problem: usize,
    /// From 0 at the first response position, latents included.
    pub index: usize,
    pub kind: PositionKind,
    pub id: u32,
    /// Text that this position adds to the response.
    pub token: String,
    pub logprob: Option<f64>,
    pub entropy: Option<f64>,
    pub p_swi: Option<f64>,
    pub p_exit: Option<f64>,
    /// JSON `[[token, p], …]` at a latent: the most probable next tokens.
    pub lens: Option<String>,
    /// Of the whole response.
    pub correct: bool,
    /// On a response's first position only.
    pub prompt: Option<String>,
}
