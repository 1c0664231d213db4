//! Training-free rules for any text checkpoint (method §6): the entropy of the next token decides whether a mixture of the vocabulary is fed
//! instead of one token. Latents are between text tokens, without markers.
//!
//! Both rules think until a token that ends thinking (`</think>`, or the one before the answer); all later positions are text. Differences
//! from the authors' code: `method::swireasoning`, `method::soft_thinking`.

use serde::{Deserialize, Serialize};

use super::controller::{BlockEnd, Controller, InBlock, InText};

/// SwiReasoning (Shi et al. 2026): begins with latents; changes to text when the entropy falls below its value at the beginning of the block,
/// and back to latents when it rises above its value at the beginning of the text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwiReasoning {
    /// Tokens of text before a block may open again.
    pub window: usize,
    /// Maximum number of blocks; 0: any number.
    pub budget: usize,
    /// Number of changes from latents to text after which thinking is ended; 0: never.
    #[serde(default)]
    pub switches: usize,
    /// Maximum positions of a block.
    pub limit: usize,
    /// The token that ends thinking.
    pub end: u32,
    /// Tokens that are fed instead of a latent if drawn inside a block.
    #[serde(default)]
    pub symbols: Vec<u32>,
}

impl Controller for SwiReasoning {
    fn marked(&self) -> bool {
        false
    }

    fn ends_thinking(&self, token: u32) -> bool {
        token == self.end
    }

    fn feeds(&self, token: u32) -> bool {
        self.symbols.contains(&token)
    }

    fn imposes(&self, switches: usize) -> Option<u32> {
        (self.switches > 0 && switches >= self.switches).then_some(self.end)
    }

    fn opens(&self, at: &InText) -> bool {
        let rises = at.since >= self.window && at.entropy > at.reference;
        let may = self.budget == 0 || at.blocks < self.budget;
        !at.answering && may && (at.visible + at.blocks == 0 || rises)
    }

    fn closes(&self, at: &InBlock) -> BlockEnd {
        let falls = at.entropy() < at.reference;
        if falls || at.drawn == self.end || at.step >= self.limit { BlockEnd::Forced } else { BlockEnd::Stay }
    }
}

/// Soft-Thinking (Zhang et al. 2025): latents from the first position on; text once thinking ends, or once the model has been certain for
/// `patience` positions (the "cold stop"), where the rule writes the token that ends thinking.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SoftThinking {
    /// Entropy (nats) below which the model counts as certain.
    pub certain: f64,
    /// Number of consecutive certain positions for the cold stop.
    pub patience: usize,
    /// Temperature of the entropies that are compared with `certain`.
    #[serde(default = "one")]
    pub temperature: f64,
    /// Maximum latents.
    pub limit: usize,
    /// The token that ends thinking.
    pub end: u32,
}

fn one() -> f64 {
    1.0
}

impl Controller for SoftThinking {
    fn marked(&self) -> bool {
        false
    }

    fn ends_thinking(&self, token: u32) -> bool {
        token == self.end
    }

    fn by_mixture(&self) -> bool {
        true
    }

    fn temperature(&self) -> f64 {
        self.temperature
    }

    fn opens(&self, at: &InText) -> bool {
        !at.answering && at.visible == 0 && at.blocks == 0
    }

    fn closes(&self, at: &InBlock) -> BlockEnd {
        // The position where the block opened counts too.
        let backwards = at.entropies.iter().rev().chain([&at.reference]);
        let calm = backwards.take_while(|&&entropy| entropy < self.certain).count();
        if at.drawn == self.end || (self.patience > 0 && calm >= self.patience) {
            return BlockEnd::Says(self.end);
        }
        if at.step >= self.limit { BlockEnd::Forced } else { BlockEnd::Stay }
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
        let rule = SwiReasoning { window: 3, budget: 2, switches: 3, limit: 5, end: 9, symbols: vec![6, 4] };
        assert!(rule.opens(&text(0, 0, 0, [1.0, 1.0])), "it begins with latents");
        assert!(rule.opens(&text(4, 1, 3, [1.0, 1.1])));
        assert!(!rule.opens(&text(4, 1, 2, [1.0, 1.1])), "the window is not over");
        assert!(!rule.opens(&text(4, 1, 3, [1.0, 1.0])), "the entropy has not risen");
        assert!(!rule.opens(&text(9, 2, 3, [1.0, 1.1])), "the budget is spent");
        assert!(!rule.opens(&InText { answering: true, ..text(4, 1, 3, [1.0, 1.1]) }), "thinking is over");
        let closes = |entropies: &[f64], drawn| rule.closes(&block(entropies, 1.0, drawn));
        assert_eq!([closes(&[1.0], 0), closes(&[1.2, 0.9], 0)], [BlockEnd::Stay, BlockEnd::Forced]);
        assert_eq!([closes(&[1.2], 9), closes(&[1.2; 5], 0)], [BlockEnd::Forced, BlockEnd::Forced]);
        assert_eq!([4, 5, 6].map(|token| rule.feeds(token)), [true, false, true]);
        assert_eq!([2, 3, 4].map(|switches| rule.imposes(switches)), [None, Some(9), Some(9)]);
        let free = SwiReasoning { budget: 0, switches: 0, ..rule };
        assert!(free.opens(&text(9, 9, 3, [1.0, 1.1])) && free.imposes(99).is_none(), "no budget");
    }

    #[test]
    fn soft_thinking_stops_cold_at_the_end_and_at_its_limit() {
        let rule = SoftThinking { certain: 0.1, patience: 2, temperature: 0.6, limit: 4, end: 9 };
        assert!(rule.opens(&text(0, 0, 0, [1.0, 1.0])) && !rule.opens(&text(1, 1, 1, [1.0, 2.0])));
        let closes = |entropies: &[f64], drawn| rule.closes(&block(entropies, 1.0, drawn));
        assert_eq!([closes(&[0.0, 0.5, 0.0], 0), closes(&[0.5, 0.0, 0.0], 0)], [BlockEnd::Stay, BlockEnd::Says(9)]);
        assert_eq!([closes(&[0.5], 9), closes(&[0.5; 4], 0)], [BlockEnd::Says(9), BlockEnd::Forced]);
        assert_eq!(rule.closes(&block(&[0.0], 0.0, 0)), BlockEnd::Says(9), "it was certain where the block opened");
        let patient = SoftThinking { patience: 0, ..rule };
        assert_eq!(patient.closes(&block(&[0.0; 3], 1.0, 0)), BlockEnd::Stay, "patience 0 never stops cold");
    }
}
