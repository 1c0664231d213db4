//! Patterns of heads and predictions of layers at single positions of single problems, for the prompt explorer.

use serde::{Deserialize, Serialize};

use super::Identity;
use super::outcomes::PositionKind;

/// Where one head looks from one position.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PatternRow {
    #[serde(flatten)]
    pub identity: Identity,
    pub problem: usize,
    pub layer: usize,
    pub head: usize,
    /// From 0 at the first token of the prompt, latents included.
    pub position: usize,
    /// Absent in the prompt.
    pub kind: Option<PositionKind>,
    /// Text that the position adds.
    pub token: String,
    /// Attention to each position from 0 to this one, rounded to a millionth: they make 1.
    pub weights: Vec<f64>,
}

/// The next token that one layer predicts at one position.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenLensRow {
    #[serde(flatten)]
    pub identity: Identity,
    pub problem: usize,
    /// Blocks passed: 0 is the input of the first, the last is the model's own distribution.
    pub layer: usize,
    /// As in [`PatternRow`].
    pub position: usize,
    pub kind: Option<PositionKind>,
    pub token: String,
    /// JSON `[[token, p], …]`: the most probable next tokens.
    pub top: String,
    /// Nats.
    pub entropy: f64,
}
