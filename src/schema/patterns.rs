//! Patterns of heads and predictions of layers at single positions of single problems, for the prompt explorer.

use super::Identity;
use super::outcomes::PositionKind;

rows! {
    /// Attention of one head from one position.
    pub struct PatternRow {
        #[serde(flatten)]
        pub identity: Identity,
        pub problem: usize => OutcomeRow,
        pub layer: usize => LensRow,
        pub head: usize => "index from 0": "attention head of the layer",
        pub position: usize => "index from 0": "position that looks, from the prompt's first token, latents included",
        /// Absent in the prompt.
        pub kind: Option<PositionKind> => PositionRow,
        pub token: String => PositionRow,
        /// Rounded to a millionth.
        pub weights: Vec<f64> => "JSON [share, …]": "attention to each position from 0 to this one; together 1",
    }
}

rows! {
    /// The next token that one layer predicts at one position.
    pub struct TokenLensRow {
        #[serde(flatten)]
        pub identity: Identity,
        pub problem: usize => OutcomeRow,
        pub layer: usize => LensRow,
        pub position: usize => "index from 0": "from the prompt's first token, latents included",
        pub kind: Option<PositionKind> => PositionRow,
        pub token: String => PositionRow,
        pub top: String => "JSON [[token, p], …]": "the most probable next tokens",
        pub entropy: f64 => "nats": "of the next-token distribution",
    }
}
