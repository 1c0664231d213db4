//! Single problems and single positions of their responses.

use serde::{Deserialize, Serialize};

use super::Identity;

rows! {
    /// One problem (fig:token-dist, fig:token-cdf).
    pub struct OutcomeRow {
        #[serde(flatten)]
        pub identity: Identity,
        pub problem: usize => "index from 0": "the problem, in the order of the data",
        pub id: String => "name": "the problem, as its source names it",
        pub level: Option<u8> => "count": "difficulty, from the source",
        pub subject: Option<String> => "name": "subject, from the source",
        pub correct: bool => "true or false": "whether the answer is right",
        pub switched: bool => "true or false": "whether the response has a block",
        pub blocks: usize => AccuracyRow,
        pub natural_exits: Option<usize> => "count": "blocks of a response that the model left by itself, before their cap",
        pub visible_tokens: usize => AccuracyRow,
        pub latent_calls: usize => AccuracyRow,
        pub truncated: bool => AccuracyRow,
        pub gold: String => "text": "right answer",
        pub answer: Option<String> => "text": "final answer of the response, as it is compared",
        pub grader: Option<String> => "name": "who compared answer and gold: math, exact (the same words) or choice (the same letter)",
        pub rule: Option<String> => "name": "rule by which the grader decided (no_answer: the response states none)",
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PositionKind {
    Text,
    Swi,
    Latent,
    SwiEndSampled,
    SwiEndForced,
}

rows! {
    pub struct PositionRow {
        #[serde(flatten)]
        pub identity: Identity,
        pub problem: usize => OutcomeRow,
        pub index: usize => "index from 0": "position of the response, latents included",
        pub kind: PositionKind => "name": "text, swi, latent, swi_end_sampled or swi_end_forced",
        pub id: u32 => "token id": "the token at the position",
        pub token: String => "text": "what the position adds to the response, or the token there",
        pub logprob: Option<f64> => EntropyRow,
        pub entropy: Option<f64> => ResponseRow,
        pub p_swi: Option<f64> => ResponseRow,
        pub p_exit: Option<f64> => "probability": "of `</swi>` as the next token",
        pub lens: Option<String> => "JSON [[token, p], …]": "the most probable next tokens at a latent",
        /// Of the whole response.
        pub correct: bool => OutcomeRow,
        pub prompt: Option<String> => "text": "the question as the model reads it; on a response's first position only",
    }
}
