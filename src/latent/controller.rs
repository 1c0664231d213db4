//! Rules that open, continue and close blocks. Knows a row's history and its next draw; no tensors.

use serde::{Deserialize, Serialize};

use super::SwitchIds;
use super::rules::{SoftThinking, SwiReasoning};

/// A row in text mode, before its next token is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InText {
    /// Response positions so far that are not latent.
    pub visible: usize,
    /// Blocks opened so far.
    pub blocks: usize,
    /// Tokens of text since the last block, or since the prompt.
    pub since: usize,
    /// Entropy (nats) of the next token, masked tokens left out.
    pub entropy: f64,
    /// The entropy where this text began: after the prompt, or where the last block closed.
    pub reference: f64,
    /// Whether thinking has ended ([`Controller::ends_thinking`]).
    pub answering: bool,
}

/// A row inside a block, after `step` positions of it (at least one).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InBlock<'a> {
    /// Latents, and tokens that were fed in place of one ([`Controller::feeds`]).
    pub step: usize,
    /// Entropy (nats) at each of them, `[step]`: of the full softmax; in a block without markers, as in text, at the rule's
    /// temperature.
    pub entropies: &'a [f64],
    /// Entropy of the token in whose place the block opened.
    pub reference: f64,
    /// The token that the row would draw at the last of them; for a rule on mixtures, the token of largest weight in the next one.
    pub drawn: u32,
    /// Whether that token is `</swi>`.
    pub exit_drawn: bool,
    pub k_min: usize,
    pub k_cap: usize,
}

impl InBlock<'_> {
    /// Entropy at the last latent.
    pub fn entropy(&self) -> f64 {
        self.entropies.last().copied().unwrap_or(self.reference)
    }
}

/// Continuation of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockEnd {
    /// Another latent.
    Stay,
    /// The model ended it: `</swi>` was drawn.
    Drawn,
    /// The rule closes it.
    Forced,
    /// The rule closes it, and this token is written next.
    Says(u32),
}

/// Blocks whose end depends only on their length and the drawn token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Number of latents from which on a drawn `</swi>` ends the block; `None`: never.
    pub leaves_from: Option<usize>,
    /// Number of latents after which the block is closed.
    pub closes_at: usize,
}

names! {
    /// How a block that the model opened ends before its cap.
    #[derive(Default)]
    pub enum Exit {
        /// If `</swi>` is drawn like text, at the temperature of the decode (the paper's text).
        #[default]
        Sampled = "sampled",
        /// If `</swi>` is the most probable token, at any temperature (the released code).
        Argmax = "argmax",
    }
}

/// The rule of blocks that the model opens with `<swi>`. The default is the paper's text, [`LearntRule::RELEASED`] the released code;
/// they differ (method §2, §9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LearntRule {
    #[serde(skip_serializing_if = "is_default")]
    pub exit: Exit,
    /// Whether the model's exit is an action: it has a log-probability, and the GRPO loss includes it.
    #[serde(skip_serializing_if = "Clone::clone")]
    pub exit_in_loss: bool,
    /// Whether text never draws `<latent>` and, outside a block, `</swi>`.
    #[serde(skip_serializing_if = "Clone::clone")]
    pub mask_markers: bool,
}

fn is_default(exit: &Exit) -> bool {
    *exit == Exit::default()
}

impl LearntRule {
    pub const PAPER: Self = Self { exit: Exit::Sampled, exit_in_loss: true, mask_markers: true };
    pub const RELEASED: Self = Self { exit: Exit::Argmax, exit_in_loss: false, mask_markers: false };
}

impl Default for LearntRule {
    fn default() -> Self {
        Self::PAPER
    }
}

/// The rule of a method for its blocks.
pub trait Controller: Send + Sync {
    /// The underlying rule, which decides everything that this one does not, except the end of a block.
    fn own(&self) -> Option<&dyn Controller> {
        None
    }

    /// Whether drawing `<swi>` opens a block; otherwise text mode never draws it.
    fn model_opens(&self) -> bool {
        self.own().is_some_and(Controller::model_opens)
    }

    /// Settings of blocks that the model opens; other rules have none and return the default.
    fn learnt(&self) -> LearntRule {
        self.own().map_or_else(LearntRule::default, Controller::learnt)
    }

    /// Tokens that text mode never draws: `<latent>` and `</swi>` unless the rule allows them, and `<swi>` where no block may open.
    fn masked_in_text(&self, ids: &SwitchIds, may_open: bool) -> Vec<u32> {
        match self.own() {
            Some(own) => own.masked_in_text(ids, may_open),
            None => mask_markers(self.learnt().mask_markers, ids, may_open),
        }
    }

    /// Whether a block opens here regardless of the model.
    fn opens(&self, at: &InText) -> bool {
        self.own().is_some_and(|own| own.opens(at))
    }

    /// Whether blocks are enclosed in `<swi>` and `</swi>`. If not, the first latent follows the text directly, and the logits of the last
    /// one choose the next token of text.
    fn marked(&self) -> bool {
        self.own().is_none_or(Controller::marked)
    }

    /// Whether drawing this token ends thinking: no block opens from there on.
    fn ends_thinking(&self, token: u32) -> bool {
        self.own().is_some_and(|own| own.ends_thinking(token))
    }

    /// Whether thinking ends by the token of largest weight in the next mixture, not by the drawn token.
    fn by_mixture(&self) -> bool {
        self.own().is_some_and(Controller::by_mixture)
    }

    /// Temperature of the entropies passed to the rule.
    fn temperature(&self) -> f64 {
        self.own().map_or(1.0, Controller::temperature)
    }

    /// Whether this token, if drawn inside a block, is fed instead of a latent. The block continues after it.
    fn feeds(&self, token: u32) -> bool {
        self.own().is_some_and(|own| own.feeds(token))
    }

    /// The token that the rule writes after the next one, once the row has changed from latents to text this often; `None`: the model
    /// decides.
    fn imposes(&self, switches: usize) -> Option<u32> {
        self.own()?.imposes(switches)
    }

    /// How the block continues after a latent step.
    fn closes(&self, at: &InBlock) -> BlockEnd;

    /// Numbers that determine the end of blocks, if it depends only on length and drawn token and no rule opens a block after the first
    /// position: then the device can decide without the host.
    fn bounds(&self, _k_min: usize, _k_cap: usize) -> Option<Bounds> {
        None
    }
}

fn mask_markers(mask: bool, ids: &SwitchIds, may_open: bool) -> Vec<u32> {
    let markers = [ids.latent, ids.swi_end].into_iter().filter(|_| mask);
    markers.chain((!may_open).then_some(ids.swi)).collect()
}

/// The controllers that a checkpoint can name in its `reasoning.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "rule", deny_unknown_fields)]
pub enum Blocks {
    /// The model opens blocks with `<swi>` and, from `K_min` steps on, ends them with `</swi>`; `K_cap` forces the end (method §2).
    Learnt(LearntRule),
    /// No blocks: `<swi>` is masked.
    Never,
    /// No blocks and no masks, as in plain generation: markers are ordinary tokens, and no hidden state is fed.
    Plain,
    /// One block of exactly `steps` latents directly after the prompt (Coconut).
    AfterPrompt { steps: usize },
    /// One block of exactly `steps` latents after the prompt, without `<swi>` and `</swi>` (pause tokens).
    Pause { steps: usize },
    /// One block directly after the prompt: the model ends it with `</swi>` or, if latents are mixtures, with the next mixture's largest
    /// weight on `</swi>` (CoLaR, Latent-SFT). `limit` latents force the end.
    Thinking { limit: usize },
    /// The entropy of the next token opens and closes blocks.
    #[serde(rename = "swireasoning")]
    SwiReasoning(SwiReasoning),
    /// One block from the first position on, until thinking ends.
    SoftThinking(SoftThinking),
}

impl Default for Blocks {
    fn default() -> Self {
        Self::LEARNT
    }
}

impl Blocks {
    /// The rule of the paper's text.
    pub const LEARNT: Self = Blocks::Learnt(LearntRule::PAPER);

    /// Number of latents of the one block after every prompt; `None` if blocks are elsewhere or absent.
    pub fn after_prompt(&self) -> Option<usize> {
        match *self {
            Blocks::AfterPrompt { steps } | Blocks::Pause { steps } if steps > 0 => Some(steps),
            _ => None,
        }
    }

    /// Whether there is one block after every prompt, of a fixed length or one that the model chooses.
    pub(crate) fn follow_prompt(&self) -> bool {
        self.after_prompt().is_some() || matches!(self, Blocks::Thinking { .. })
    }

    /// Maximum latent steps of a block, 0 without blocks; `None` if the rule decides.
    pub fn longest(&self, k_cap: usize) -> Option<usize> {
        match *self {
            Blocks::Learnt(_) => Some(k_cap),
            Blocks::Never | Blocks::Plain => Some(0),
            Blocks::AfterPrompt { steps } | Blocks::Pause { steps } => Some(steps),
            Blocks::Thinking { limit } => Some(limit),
            Blocks::SwiReasoning(_) | Blocks::SoftThinking(_) => None,
        }
    }
}

impl Controller for Blocks {
    fn own(&self) -> Option<&dyn Controller> {
        match self {
            Blocks::SwiReasoning(rule) => Some(rule),
            Blocks::SoftThinking(rule) => Some(rule),
            _ => None,
        }
    }

    fn model_opens(&self) -> bool {
        matches!(self, Blocks::Learnt(_))
    }

    fn learnt(&self) -> LearntRule {
        if let Blocks::Learnt(rule) = self { *rule } else { LearntRule::default() }
    }

    fn masked_in_text(&self, ids: &SwitchIds, may_open: bool) -> Vec<u32> {
        match self {
            Blocks::Plain => vec![],
            _ => mask_markers(self.learnt().mask_markers, ids, may_open),
        }
    }

    fn opens(&self, at: &InText) -> bool {
        match self.own() {
            Some(rule) => rule.opens(at),
            None => self.follow_prompt() && at.visible == 0 && at.blocks == 0,
        }
    }

    fn marked(&self) -> bool {
        self.own().map_or(!matches!(self, Blocks::Pause { .. }), Controller::marked)
    }

    fn by_mixture(&self) -> bool {
        matches!(self, Blocks::Thinking { .. }) || self.own().is_some_and(Controller::by_mixture)
    }

    fn closes(&self, at: &InBlock) -> BlockEnd {
        let last = match *self {
            Blocks::SwiReasoning(ref rule) => return rule.closes(at),
            Blocks::SoftThinking(ref rule) => return rule.closes(at),
            Blocks::AfterPrompt { steps } | Blocks::Pause { steps } => steps,
            Blocks::Thinking { .. } if at.exit_drawn => return BlockEnd::Drawn,
            Blocks::Thinking { limit } => limit,
            Blocks::Learnt(_) | Blocks::Never | Blocks::Plain if at.exit_drawn && at.step >= at.k_min => {
                return BlockEnd::Drawn;
            }
            Blocks::Learnt(_) | Blocks::Never | Blocks::Plain => at.k_cap,
        };
        if at.step >= last { BlockEnd::Forced } else { BlockEnd::Stay }
    }

    fn bounds(&self, k_min: usize, k_cap: usize) -> Option<Bounds> {
        match *self {
            Blocks::Learnt(_) | Blocks::Never | Blocks::Plain => {
                Some(Bounds { leaves_from: Some(k_min), closes_at: k_cap })
            }
            Blocks::AfterPrompt { steps } => Some(Bounds { leaves_from: None, closes_at: steps }),
            Blocks::Thinking { limit } => Some(Bounds { leaves_from: Some(0), closes_at: limit }),
            Blocks::Pause { .. } | Blocks::SwiReasoning(_) | Blocks::SoftThinking(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(step: usize, exit_drawn: bool) -> InBlock<'static> {
        InBlock { step, entropies: &[0.0], reference: 0.0, drawn: 0, exit_drawn, k_min: 2, k_cap: 4 }
    }

    fn text(visible: usize, blocks: usize) -> InText {
        InText { visible, blocks, since: 0, entropy: 1.0, reference: 1.0, answering: false }
    }

    /// Says nothing but how a block ends, as a rule does that cuts another one short.
    struct Cut<'a>(&'a Blocks);

    impl Controller for Cut<'_> {
        fn own(&self) -> Option<&dyn Controller> {
            Some(self.0)
        }

        fn closes(&self, _at: &InBlock) -> BlockEnd {
            BlockEnd::Forced
        }
    }

    #[test]
    fn a_rule_that_follows_another_says_whatever_that_one_says() {
        let swireasoning = SwiReasoning { window: 3, budget: 2, switches: 3, limit: 5, end: 9, symbols: vec![4, 6] };
        let soft = SoftThinking { certain: 0.1, patience: 2, temperature: 0.6, limit: 5, end: 9 };
        let rules = [
            Blocks::default(),
            Blocks::Learnt(LearntRule::RELEASED),
            Blocks::Plain,
            Blocks::Never,
            Blocks::AfterPrompt { steps: 2 },
            Blocks::Pause { steps: 2 },
            Blocks::Thinking { limit: 3 },
            Blocks::SwiReasoning(swireasoning),
            Blocks::SoftThinking(soft),
        ];
        let said = |rule: &dyn Controller| {
            let opens = [text(0, 0), text(1, 0), text(4, 1)].map(|at| rule.opens(&at));
            let tokens = [4, 9].map(|token| (rule.ends_thinking(token), rule.feeds(token)));
            let imposed = [0, 3].map(|switches| rule.imposes(switches));
            let masked = rule.masked_in_text(&SwitchIds { swi: 1, swi_end: 2, latent: 3 }, true);
            (masked, rule.model_opens(), rule.marked(), rule.by_mixture(), rule.temperature(), opens, tokens, imposed)
        };
        for rule in &rules {
            assert_eq!(said(&Cut(rule)), said(rule), "{rule:?}");
            assert_eq!(Cut(rule).bounds(1, 4), None, "blocks end otherwise than {rule:?} says");
        }
        let all: Vec<_> = rules.iter().map(|rule| said(rule)).collect();
        assert!((1..all.len()).filter(|&i| all[i] != all[0]).count() > 5, "the rules say different things");
    }

    #[test]
    fn a_thinking_block_opens_once_and_is_left_when_the_model_says_so_or_at_its_limit() {
        let rule = Blocks::Thinking { limit: 3 };
        assert!(rule.opens(&text(0, 0)) && !rule.opens(&text(0, 1)) && !rule.opens(&text(1, 0)) && !rule.model_opens());
        let closes = |step, drawn| rule.closes(&after(step, drawn));
        assert_eq!([closes(1, false), closes(1, true)], [BlockEnd::Stay, BlockEnd::Drawn]);
        assert_eq!([closes(3, false), closes(3, true)], [BlockEnd::Forced, BlockEnd::Drawn]);
    }

    #[test]
    fn a_learnt_block_is_left_from_k_min_on_and_at_k_cap() {
        let closes = |step, drawn| Blocks::default().closes(&after(step, drawn));
        assert_eq!([closes(1, true), closes(2, true)], [BlockEnd::Stay, BlockEnd::Drawn]);
        assert_eq!(
            [closes(3, false), closes(4, false), closes(4, true)],
            [BlockEnd::Stay, BlockEnd::Forced, BlockEnd::Drawn]
        );
    }

    #[test]
    fn bounds_say_what_the_rule_does() {
        let rules = [Blocks::default(), Blocks::Never, Blocks::AfterPrompt { steps: 3 }, Blocks::Thinking { limit: 3 }];
        for (rule, step, drawn) in
            rules.iter().flat_map(|rule| (1..=5).flat_map(move |k| [(rule, k, false), (rule, k, true)]))
        {
            let bounds = rule.bounds(2, 4).expect("bounds");
            let leaves = drawn && bounds.leaves_from.is_some_and(|from| step >= from);
            let stays = !leaves && step < bounds.closes_at;
            assert_eq!(rule.closes(&after(step, drawn)) == BlockEnd::Stay, stays, "{rule:?} after {step}, {drawn}");
        }
        assert_eq!(Blocks::Pause { steps: 3 }.bounds(2, 4), None);
    }

    #[test]
    fn a_block_after_the_prompt_has_its_length_whatever_the_model_says() {
        let rule = Blocks::AfterPrompt { steps: 3 };
        assert!(rule.opens(&text(0, 0)));
        assert!(!rule.opens(&text(1, 1)) && !rule.model_opens());
        assert_eq!([rule.closes(&after(2, true)), rule.closes(&after(3, false))], [BlockEnd::Stay, BlockEnd::Forced]);
        let none = Blocks::AfterPrompt { steps: 0 };
        assert!(!none.opens(&text(0, 0)), "no latents, no block");
    }
}
