//! Settings of the methods that SWITCH is compared with. Defaults are those of their public code; presets scale them.

use serde::{Deserialize, Serialize};

use super::supervised::Stage;
use crate::latent::Gradient;

/// Stepwise internalisation (Deng et al. 2024): the leftmost tokens of the chain go, more and more of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Icot {
    pub steps: usize,
    /// Instead of `steps`: passes over the data.
    pub epochs: f64,
    pub batch: usize,
    pub learning_rate: f64,
    pub warmup: usize,
    /// Tokens that are removed in each pass over the data, one after the other; 0 removes none.
    pub remove_per_epoch: f64,
    /// The whole chain goes at once when this many tokens are gone; 0: tokens go one by one to the end.
    pub remove_all_from: usize,
    /// λ of the removal smoothing: a sample loses o more tokens with p(o) ∝ e^{−λo}. `inf` is no smoothing.
    pub smoothing: f64,
}

impl Default for Icot {
    fn default() -> Self {
        Self {
            steps: 0,
            epochs: 0.0,
            batch: 32,
            learning_rate: 5e-5,
            warmup: 0,
            remove_per_epoch: 8.0,
            remove_all_from: 0,
            smoothing: 4.0,
        }
    }
}

/// Pause tokens (Goyal et al. 2024). Steps are those of `no_cot`, batch and learning rate those of `base`: the pauses are the
/// only difference from `no_cot`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Pause {
    /// M: pause tokens after the prompt.
    pub tokens: usize,
}

impl Default for Pause {
    fn default() -> Self {
        Self { tokens: 10 }
    }
}

/// Coconut (Hao et al. 2024): stage k replaces the first k steps of the chain by c·k latents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Coconut {
    pub batch: usize,
    pub learning_rate: f64,
    pub warmup: usize,
    /// Latents a step.
    pub c: usize,
    /// Steps that latents are added for. Of a later stage all text of the chain is gone, with as many latents as of this one.
    pub max_stage: usize,
    /// Probability that a sample's stage is drawn uniformly instead (`uniform_prob` of the public code).
    pub smoothing: f64,
    pub gradient: Gradient,
    pub stages: Vec<Stage>,
}

impl Default for Coconut {
    fn default() -> Self {
        Self {
            batch: 32,
            learning_rate: 1e-4,
            warmup: 0,
            c: 2,
            max_stage: 3,
            smoothing: 0.0,
            gradient: Gradient::Through,
            stages: vec![],
        }
    }
}

/// CODI (Shen et al. 2025): a block of projected hidden states, distilled from the chain of thought.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Codi {
    pub steps: usize,
    /// Instead of `steps`: passes over the data.
    pub epochs: f64,
    pub batch: usize,
    pub learning_rate: f64,
    pub warmup: usize,
    pub latents: usize,
    /// Weight of the teacher's cross-entropy.
    pub teacher: f64,
    /// Weight of the distance between the hidden states of student and teacher.
    pub distance: f64,
}

impl Default for Codi {
    fn default() -> Self {
        Self {
            steps: 0,
            epochs: 0.0,
            batch: 128,
            learning_rate: 3e-3,
            warmup: 0,
            latents: 6,
            teacher: 1.0,
            distance: 20.0,
        }
    }
}

/// CoLaR (Tan et al. 2025): the chain of thought in compressed slots, which a head of its own predicts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Colar {
    pub steps: usize,
    /// Instead of `steps`: passes over the data.
    pub epochs: f64,
    pub batch: usize,
    pub learning_rate: f64,
    pub warmup: usize,
    /// r is drawn from these for each sample and step: tokens of a slot.
    pub factors: Vec<usize>,
    /// Width of the head inside.
    pub width: usize,
    /// Weight of the head's loss.
    pub slots: f64,
    /// Reward of a nat of the head's entropy.
    pub entropy: f64,
    /// Latents at most.
    pub limit: usize,
}

impl Default for Colar {
    fn default() -> Self {
        Self {
            steps: 0,
            epochs: 0.0,
            batch: 256,
            learning_rate: 1e-4,
            warmup: 0,
            factors: vec![1, 2, 3, 4, 5],
            width: 512,
            slots: 1.0,
            entropy: 1e-6,
            limit: 64,
        }
    }
}

/// SwiReasoning (Shi et al. 2026), training-free: on the checkpoint of `base`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SwiReasoning {
    /// Tokens of text before a block may open again.
    pub window: usize,
    /// Blocks of a response at most.
    pub budget: usize,
}

impl Default for SwiReasoning {
    fn default() -> Self {
        Self { window: 512, budget: 2 }
    }
}

/// Soft-Thinking (Zhang et al. 2025), training-free: on the checkpoint of `base`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SoftThinking {
    /// Tokens that are mixed.
    pub top_k: usize,
    pub temperature: f64,
    /// Nats below which the model counts as certain.
    pub certain: f64,
    /// Latents in a row at which it must be certain to go over to text; 0 never.
    pub patience: usize,
    /// `soft_grpo`'s τ, the temperature of the Gumbel-softmax that draws its mixtures (ours).
    pub gumbel: f64,
}

impl Default for SoftThinking {
    fn default() -> Self {
        Self { top_k: 10, temperature: 0.6, certain: 0.01, patience: 256, gumbel: 0.1 }
    }
}
