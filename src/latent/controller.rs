//! Who opens, continues and closes a block. Knows what a row has done and what it would draw; nothing of tensors.

use serde::{Deserialize, Serialize};

/// A row in text mode, before its next token is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InText {
    /// Response positions so far that are not latent.
    pub visible: usize,
    /// Blocks opened so far.
    pub blocks: usize,
    /// Entropy (nats) of the next token, masked tokens left out.
    pub entropy: f64,
}

/// A row inside a block, after `step` latents of it (at least one).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InBlock {
    pub step: usize,
    /// Entropy (nats) of the full softmax at the last latent.
    pub entropy: f64,
    /// Whether `</swi>` is what the row would draw there.
    pub exit_drawn: bool,
    pub k_min: usize,
    pub k_cap: usize,
}

/// How a block goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// Another latent.
    Stay,
    /// The model left it: `</swi>` was drawn.
    Drawn,
    /// It is closed whatever the model says.
    Forced,
}

/// The rule of a method for its blocks.
pub trait Controller: Send + Sync {
    /// Whether drawing `<swi>` opens a block; otherwise text mode never draws it.
    fn model_opens(&self) -> bool;

    /// Whether a block opens here whatever the model says.
    fn opens(&self, _at: &InText) -> bool {
        false
    }

    /// Whether a block stands between `<swi>` and `</swi>`. Where not, its first latent follows the text directly, and the
    /// logits of its last one choose the next token of text.
    fn marked(&self) -> bool {
        true
    }

    /// What happens after a latent step.
    fn closes(&self, at: &InBlock) -> Closing;
}

/// The controllers that a checkpoint can name in its `reasoning.json`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "rule", deny_unknown_fields)]
pub enum Blocks {
    /// The model opens with `<swi>` and, from `K_min` steps on, leaves with `</swi>`; at `K_cap` it must (method §2).
    #[default]
    Learnt,
    /// There are none: `<swi>` is masked.
    Never,
    /// One of exactly `steps` latents directly after the prompt, and no other (Coconut).
    AfterPrompt { steps: usize },
    /// The same without `<swi>` and `</swi>` around it (pause tokens).
    Pause { steps: usize },
}

impl Blocks {
    /// Latents of the one block that stands after every prompt; `None` where blocks stand elsewhere, or there are none.
    pub fn after_prompt(&self) -> Option<usize> {
        match *self {
            Blocks::AfterPrompt { steps } | Blocks::Pause { steps } if steps > 0 => Some(steps),
            _ => None,
        }
    }
}

impl Controller for Blocks {
    fn model_opens(&self) -> bool {
        matches!(self, Blocks::Learnt)
    }

    fn opens(&self, at: &InText) -> bool {
        self.after_prompt().is_some() && at.visible == 0 && at.blocks == 0
    }

    fn marked(&self) -> bool {
        !matches!(self, Blocks::Pause { .. })
    }

    fn closes(&self, at: &InBlock) -> Closing {
        let last = match *self {
            Blocks::AfterPrompt { steps } | Blocks::Pause { steps } => steps,
            Blocks::Learnt | Blocks::Never if at.exit_drawn && at.step >= at.k_min => return Closing::Drawn,
            Blocks::Learnt | Blocks::Never => at.k_cap,
        };
        if at.step >= last { Closing::Forced } else { Closing::Stay }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(step: usize, exit_drawn: bool) -> InBlock {
        InBlock { step, entropy: 0.0, exit_drawn, k_min: 2, k_cap: 4 }
    }

    #[test]
    fn a_learnt_block_is_left_from_k_min_on_and_at_k_cap() {
        let closes = |step, drawn| Blocks::Learnt.closes(&after(step, drawn));
        assert_eq!([closes(1, true), closes(2, true)], [Closing::Stay, Closing::Drawn]);
        assert_eq!(
            [closes(3, false), closes(4, false), closes(4, true)],
            [Closing::Stay, Closing::Forced, Closing::Drawn]
        );
    }

    #[test]
    fn a_block_after_the_prompt_has_its_length_whatever_the_model_says() {
        let rule = Blocks::AfterPrompt { steps: 3 };
        assert!(rule.opens(&InText { visible: 0, blocks: 0, entropy: 1.0 }));
        assert!(!rule.opens(&InText { visible: 1, blocks: 1, entropy: 1.0 }) && !rule.model_opens());
        assert_eq!([rule.closes(&after(2, true)), rule.closes(&after(3, false))], [Closing::Stay, Closing::Forced]);
        let none = Blocks::AfterPrompt { steps: 0 };
        assert!(!none.opens(&InText { visible: 0, blocks: 0, entropy: 1.0 }), "no latents, no block");
    }
}
