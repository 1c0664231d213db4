//! Settings of the methods that SWITCH is compared with. Defaults are those of their public code; presets scale them.

use serde::{Deserialize, Serialize};

use super::supervised::Stage;
use crate::latent::Gradient;
use crate::latent::gumbel::Density;

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
    /// The optimiser forgets its state whenever one more token goes (`--reset_optimizer`).
    pub reset: bool,
    /// The learning rate falls as a cosine once nothing more is scheduled to go (ours); otherwise it is constant.
    pub cosine: bool,
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
            reset: true,
            cosine: false,
        }
    }
}

/// Pause tokens (Goyal et al. 2024). Start and steps are those of `no_cot`, batch and learning rate those of `base`: the pauses are
/// the only difference from `no_cot`.
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

/// When an optimiser forgets its state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reset {
    Never,
    /// Where a stage begins.
    Stage,
    /// Where a stage begins, and after each pass over the data in it.
    #[default]
    Epoch,
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
    /// Probability that a sample's stage is drawn uniformly instead, from no step gone to all of its own (`uniform_prob` of the
    /// public code).
    pub smoothing: f64,
    /// Probability that a sample's stage is one before the present one instead, stage i in proportion to i + 1 (ours).
    pub mixing: f64,
    pub reset: Reset,
    /// The learning rate falls as a cosine in the last stage (ours); otherwise it is constant.
    pub cosine: bool,
    pub gradient: Gradient,
    /// Passes over the data of each stage up to `max_stage`, where `stages` names none.
    pub stage_epochs: f64,
    /// Passes over the data of all stages, where `stages` names none: what is left after `max_stage` is the stage that drops the text.
    pub epochs: f64,
    pub stages: Vec<Stage>,
}

impl Coconut {
    /// The stages as `stages` names them, or laid out by epochs.
    pub(crate) fn schedule(&self) -> Vec<Stage> {
        if !self.stages.is_empty() {
            return self.stages.clone();
        }
        let stage = |k, epochs| Stage { k, steps: 0, epochs, c: None };
        let mut left = self.epochs;
        let mut all = vec![];
        for k in 1..=self.max_stage {
            let epochs = self.stage_epochs.min(left);
            left -= epochs;
            all.push(stage(k, epochs));
        }
        all.push(stage(self.max_stage + 1, left));
        all.retain(|stage| stage.epochs > 0.0);
        all
    }
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
            mixing: 0.0,
            reset: Reset::Epoch,
            cosine: false,
            gradient: Gradient::Through,
            stage_epochs: 3.0,
            epochs: 22.0,
            stages: vec![],
        }
    }
}

/// CODI (Shen et al. 2025): a block of projected hidden states, distilled from the chain of thought. Rate and weight of the distance
/// are those of the public GPT-2 run; for Llama 3.2 1B they are 8e-4 and 20.
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
    /// The teacher's chain keeps its last step (`include_last_cot` of the public code), which says the answer.
    pub last_step: bool,
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
            distance: 1.0,
            last_step: false,
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
    /// Which slot is the smaller one where the chain does not divide by r.
    pub short: Short,
    /// The head learns to close too: after the last slot it predicts the embedding of what ends thinking.
    pub closing: bool,
    /// The learning rate falls as a cosine (ours); otherwise it is constant.
    pub cosine: bool,
    /// Latents at most.
    pub limit: usize,
}

/// An end of a chain of slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Short {
    First,
    #[default]
    Last,
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
            width: 2048,
            slots: 1.0,
            entropy: 0.0,
            short: Short::Last,
            closing: true,
            cosine: false,
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
    /// Blocks of a response at most (ours); 0: any number.
    pub budget: usize,
    /// After so many changes from latents to text thinking is ended (`max_switch_count` of the public code); 0: never.
    pub switches: usize,
    /// Where the token drawn is a digit, a letter or an operator it is fed itself (`math_ids_tensor` of the public runs).
    pub symbols: bool,
}

impl Default for SwiReasoning {
    fn default() -> Self {
        Self { window: 512, budget: 0, switches: 0, symbols: true }
    }
}

/// Soft-Thinking (Zhang et al. 2025), training-free: on the checkpoint of `base`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SoftThinking {
    /// Tokens that are mixed at most.
    pub top_k: usize,
    /// Of these only the first that have this probability together; 1 keeps all.
    pub top_p: f64,
    pub temperature: f64,
    /// Nats below which the model counts as certain.
    pub certain: f64,
    /// Positions in a row at which it must be certain to go over to text; 0 never.
    pub patience: usize,
    /// `soft_grpo`'s τ, the temperature of the Gumbel-softmax that draws its mixtures.
    pub gumbel: f64,
    /// `soft_grpo`'s log-density of a mixture: `mean`, the public code's, or `sum`, the equation's.
    pub density: Density,
}

impl Default for SoftThinking {
    fn default() -> Self {
        Self {
            top_k: 10,
            top_p: 0.95,
            temperature: 0.6,
            certain: 0.01,
            patience: 256,
            gumbel: 0.1,
            density: Density::Mean,
        }
    }
}
