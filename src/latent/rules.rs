//! Training-free rules (method §6): on any text checkpoint, the entropy of the next token says where a mixture of the vocabulary
//! is fed instead of one token. Latents stand among the text with no marker around them.
//!
//! Both rules think until a token is drawn that ends thinking (`</think>`, or what stands before the answer); from there on
//! all is text. Left out of both: what the public code writes or mixes in at a switch (`<think>`, `</think>`), because text
//! checkpoints trained here do not know these tokens.

use serde::{Deserialize, Serialize};

use super::controller::{Closing, Controller, InBlock, InText};

/// SwiReasoning (Shi et al. 2026): begins with latents; text while the entropy has fallen below where the block began,
/// latents again where it has risen above where the text began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwiReasoning {
    /// Tokens of text before a block may open again.
    pub window: usize,
    /// Blocks that may open.
    pub budget: usize,
    /// Latents of a block at most.
    pub limit: usize,
    /// The token that ends thinking.
    pub end: u32,
}

impl Controller for SwiReasoning {
    fn model_opens(&self) -> bool {
        false
    }

    fn marked(&self) -> bool {
        false
    }

    fn ends_thinking(&self, token: u32) -> bool {
        token == self.end
    }

    fn opens(&self, at: &InText) -> bool {
        let rises = at.since >= self.window && at.entropy > at.reference;
        !at.answering && at.blocks < self.budget && (at.visible + at.blocks == 0 || rises)
    }

    fn closes(&self, at: &InBlock) -> Closing {
        let falls = at.entropy() < at.reference;
        if falls || at.drawn == self.end || at.step >= self.limit { Closing::Forced } else { Closing::Stay }
    }
}

/// Soft-Thinking (Zhang et al. 2025): latents from the first position on; text once thinking ends, or once the model has been
/// certain for long (the "cold stop").
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SoftThinking {
    /// Nats below which the model counts as certain.
    pub certain: f64,
    /// Latents in a row that it must be certain at.
    pub patience: usize,
    /// Latents at most.
    pub limit: usize,
    /// The token that ends thinking.
    pub end: u32,
}

impl Controller for SoftThinking {
    fn model_opens(&self) -> bool {
        false
    }

    fn marked(&self) -> bool {
        false
    }

    fn ends_thinking(&self, token: u32) -> bool {
        token == self.end
    }

    fn opens(&self, at: &InText) -> bool {
        !at.answering && at.visible == 0 && at.blocks == 0
    }

    fn closes(&self, at: &InBlock) -> Closing {
        let calm = at.entropies.iter().rev().take_while(|&&entropy| entropy < self.certain).count();
        let cold = self.patience > 0 && calm >= self.patience;
        if cold || at.drawn == self.end || at.step >= self.limit { Closing::Forced } else { Closing::Stay }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(visible: usize, blocks: usize, since: usize, [reference, entropy]: [f64; 2]) -> InText {
        InText { visible, blocks, since, reference, entropy, answering: false }
    }

    fn block(entropies: &[f64], reference: f64, drawn: u32) -> InBlock<'_> {
        InBlock { step: entropies.len(), entropies, reference, drawn, exit_drawn: false, k_min: 1, k_cap: 1 }
    }

    #[test]
    fn swireasoning_follows_the_entropy() {
        let rule = SwiReasoning { window: 3, budget: 2, limit: 5, end: 9 };
        assert!(rule.opens(&text(0, 0, 0, [1.0, 1.0])), "it begins with latents");
        assert!(rule.opens(&text(4, 1, 3, [1.0, 1.1])));
        assert!(!rule.opens(&text(4, 1, 2, [1.0, 1.1])), "the window is not over");
        assert!(!rule.opens(&text(4, 1, 3, [1.0, 1.0])), "the entropy has not risen");
        assert!(!rule.opens(&text(9, 2, 3, [1.0, 1.1])), "the budget is spent");
        assert!(!rule.opens(&InText { answering: true, ..text(4, 1, 3, [1.0, 1.1]) }), "thinking is over");
        let closes = |entropies: &[f64], drawn| rule.closes(&block(entropies, 1.0, drawn));
        assert_eq!([closes(&[1.0], 0), closes(&[1.2, 0.9], 0)], [Closing::Stay, Closing::Forced]);
        assert_eq!([closes(&[1.2], 9), closes(&[1.2; 5], 0)], [Closing::Forced, Closing::Forced]);
    }

    #[test]
    fn soft_thinking_stops_cold_at_the_end_and_at_its_limit() {
        let rule = SoftThinking { certain: 0.1, patience: 2, limit: 4, end: 9 };
        assert!(rule.opens(&text(0, 0, 0, [1.0, 1.0])) && !rule.opens(&text(1, 1, 1, [1.0, 2.0])));
        let closes = |entropies: &[f64], drawn| rule.closes(&block(entropies, 1.0, drawn));
        assert_eq!([closes(&[0.0, 0.5, 0.0], 0), closes(&[0.5, 0.0, 0.0], 0)], [Closing::Stay, Closing::Forced]);
        assert_eq!([closes(&[0.5], 9), closes(&[0.5; 4], 0)], [Closing::Forced, Closing::Forced]);
        let patient = SoftThinking { patience: 0, ..rule };
        assert_eq!(patient.closes(&block(&[0.0; 3], 1.0, 0)), Closing::Stay, "patience 0 never stops cold");
    }
}
