//! The trace of a decode: every position with kind and probability, sufficient for a replay.

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::SwitchIds;
use super::drawn::DrawnInput;
use super::hybrid::MixedInput;
use super::sequence::Sequence;
pub use crate::schema::PositionKind as PositionRole;

/// Why a row ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// A stop token.
    Stop,
    /// The token budget: the response is truncated.
    Budget,
    /// Logits that are not finite.
    NonFinite,
    Cancelled,
}

/// One response position.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Position {
    pub token: u32,
    pub kind: PositionRole,
    /// Log-probability (nats) under the policy that drew it (with its masks and temperature); only if sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprob: Option<f64>,
    /// Entropy (nats, temperature 1) of the distribution it was drawn from; at a latent, of its own next token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entropy: Option<f64>,
    /// p(`<swi>`) before it, temperature 1, in text mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p_swi: Option<f64>,
    /// p(`</swi>`) after a latent step, temperature 1, full softmax.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p_exit: Option<f64>,
    /// The input drawn for this latent, if any; `logprob` is then its log-density.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drawn: Option<DrawnInput>,
    /// The state mixed into this token, in rollouts that mix states into text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mixed: Option<MixedInput>,
}

impl Position {
    /// Whether the policy chose it: such positions have a log-probability and enter the GRPO loss. A `<swi>` that a rule writes where the
    /// model cannot draw one has none.
    pub(crate) fn is_sampled(&self) -> bool {
        self.logprob.is_some()
            && match self.kind {
                PositionRole::Text | PositionRole::Swi | PositionRole::SwiEndSampled => true,
                PositionRole::Latent => self.drawn.is_some(),
                PositionRole::SwiEndForced => false,
            }
    }

    /// A token of text that was drawn inside a block without markers.
    pub(crate) fn text(token: u32, logprob: f64, entropy: f64) -> Self {
        let logprob = Some(logprob).filter(|p| p.is_finite());
        Self { entropy: Some(entropy), ..Self::bare(token, PositionRole::Text, logprob) }
    }

    /// A token with only its log-probability recorded.
    pub(crate) fn bare(token: u32, kind: PositionRole, logprob: Option<f64>) -> Self {
        Self { token, kind, logprob, entropy: None, p_swi: None, p_exit: None, drawn: None, mixed: None }
    }
}

/// One decoded row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    pub problem: usize,
    pub rollout: usize,
    pub prompt: Vec<u32>,
    pub positions: Vec<Position>,
    pub end: End,
}

/// One latent block of a trace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Block {
    /// Number of visible tokens before it.
    pub after: usize,
    /// p(`</swi>`) after each latent step.
    pub p_exit: Vec<f64>,
    pub forced: bool,
}

impl Trace {
    /// # Errors
    /// A row that ended with non-finite logits: it is neither right nor wrong.
    pub(crate) fn ensure_finite(&self) -> Result<()> {
        ensure!(
            self.end != End::NonFinite,
            "problem {}: the logits after {} response tokens are not finite (NaN or infinity); `probe activations` shows \
             where they begin",
            self.problem,
            self.positions.len()
        );
        Ok(())
    }

    pub fn truncated(&self) -> bool {
        self.end == End::Budget
    }

    /// Whether the model itself ended its text and all its blocks, without reaching a limit.
    pub fn ends_by_itself(&self) -> bool {
        self.end == End::Stop && self.positions.iter().all(|p| p.kind != PositionRole::SwiEndForced)
    }

    /// Mean log-probability of the sampled positions; 0 without any.
    pub fn mean_logprob(&self) -> f64 {
        let sampled = self.positions.iter().filter(|position| position.is_sampled());
        let logprobs: Vec<f64> = sampled.filter_map(|position| position.logprob).collect();
        logprobs.iter().sum::<f64>() / logprobs.len().max(1) as f64
    }

    /// Positions of prompt and response.
    pub fn length(&self) -> usize {
        self.prompt.len() + self.positions.len()
    }

    /// Response tokens without latents, boundary tokens included.
    pub fn visible(&self) -> Vec<u32> {
        self.positions.iter().filter(|p| p.kind != PositionRole::Latent).map(|p| p.token).collect()
    }

    /// Response tokens without latents and boundary tokens, as a grader reads them.
    pub fn text(&self) -> Vec<u32> {
        self.positions.iter().filter(|p| p.kind == PositionRole::Text).map(|p| p.token).collect()
    }

    pub fn visible_tokens(&self) -> usize {
        self.positions.len() - self.latent_calls()
    }

    pub fn latent_calls(&self) -> usize {
        self.positions.iter().filter(|p| p.kind == PositionRole::Latent).count()
    }

    pub fn switched(&self) -> bool {
        self.positions.iter().any(|p| matches!(p.kind, PositionRole::Swi | PositionRole::Latent))
    }

    pub fn blocks(&self) -> Vec<Block> {
        let (mut blocks, mut after, mut open) = (vec![], 0, false);
        for position in &self.positions {
            let inside = matches!(position.kind, PositionRole::Swi | PositionRole::Latent);
            if inside && !open {
                blocks.push(Block { after, p_exit: vec![], forced: false });
            }
            open = inside;
            match (position.kind, blocks.last_mut()) {
                (PositionRole::Latent, Some(block)) => block.p_exit.extend(position.p_exit),
                (PositionRole::SwiEndForced, Some(block)) => block.forced = true,
                _ => {}
            }
            after += usize::from(position.kind != PositionRole::Latent);
        }
        blocks
    }

    /// The whole row as a known sequence, for [`super::unroll()`].
    ///
    /// # Errors
    /// An empty prompt.
    pub fn sequence(&self, ids: &SwitchIds) -> Result<Sequence> {
        let tokens = self.prompt.iter().copied().chain(self.positions.iter().map(|p| p.token)).collect();
        let prompt = self.prompt.len();
        // By kind: a rule that masks no marker may draw `<latent>` as text.
        Sequence::with_latents(self.problem, tokens, prompt, |at, id| match at.checked_sub(prompt) {
            Some(at) => self.positions[at].kind == PositionRole::Latent,
            None => id == ids.latent,
        })
    }
}
