//! Settings of Switch-GRPO (phase 3).

use serde::{Deserialize, Serialize};

use crate::latent::Gradient;
use crate::latent::gumbel::Density;

/// How `r_use` pays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UseReward {
    /// `r_corr · 1[well formed] · 1[used]` (the paper's formula).
    #[default]
    Signed,
    /// `1[correct] · 1[well formed] · 1[used]` (the paper's prose).
    Gated,
}

/// Weights of the reward terms (the paper's appendix).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Reward {
    pub correct: f64,
    pub format: f64,
    #[serde(rename = "use")]
    pub usage: f64,
    pub use_form: UseReward,
    pub brevity: f64,
    pub t_lo: usize,
    pub t_hi: usize,
    /// Grade rollouts strictly ([`Grading::strict`](crate::grade::Grading)): evaluation grades as math-verify does, which pays for
    /// some wrong answers.
    pub strict: bool,
}

impl Default for Reward {
    fn default() -> Self {
        Self {
            correct: 1.0,
            format: 0.1,
            usage: 0.1,
            use_form: UseReward::Signed,
            brevity: 0.0,
            t_lo: 800,
            t_hi: 2000,
            strict: true,
        }
    }
}

/// How a rollout is replayed for its gradient.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplayMode {
    #[default]
    Segmented,
    TextGraph,
    FullBptt,
}

impl ReplayMode {
    pub fn gradient(self) -> Gradient {
        match self {
            ReplayMode::Segmented => Gradient::Segmented,
            ReplayMode::TextGraph => Gradient::Frozen,
            ReplayMode::FullBptt => Gradient::Through,
        }
    }
}

/// What the KL term is measured against.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Anchor {
    /// The policy that made the rollouts (the paper).
    #[default]
    Old,
    /// The policy at the start of the phase.
    Reference,
}

/// Phase 3: Switch-GRPO.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Grpo {
    pub steps: usize,
    /// Start from the phase-2 weights after this step of the last stage; 0 takes the finished phase.
    pub from_step: usize,
    pub questions: usize,
    pub group: usize,
    pub inner_epochs: usize,
    pub learning_rate: f64,
    pub temperature: f64,
    pub k_min: usize,
    pub clip: f64,
    pub beta: f64,
    pub anchor: Anchor,
    /// The paper's 1e-8 is always added; a floor keeps the smallest term from being scale-free (recipe notes).
    pub std_floor: f64,
    pub replay: ReplayMode,
    /// Share of each block's outputs that is masked, one mask a rollout, in rollout and replay; 0 is none.
    pub dropout_rollouts: f64,
    /// τ of the Gumbel noise that draws mixtures of the vocabulary in rollouts (`soft_grpo`); 0 is no noise.
    pub gumbel: f64,
    /// `soft_thinking.density`.
    #[serde(skip)]
    pub density: Density,
    /// Adds `log(1 − p_exit)` for each choice to stay in a block.
    pub continue_term: bool,
    /// Rollouts with more positions are dropped from their group.
    pub max_positions: usize,
    /// Steps between probes of the cosine between the replay modes' gradients; 0 never.
    pub cosine_every: usize,
    /// Steps between checkpoints that are kept, each as a phase of its own (`grpo_step20`); 0 keeps none.
    pub keep_every: usize,
    /// Steps of the window that watches for reward hacking; 0 never stops early.
    pub early_stop_window: usize,
    pub reward: Reward,
}

impl Default for Grpo {
    fn default() -> Self {
        Self {
            steps: 0,
            from_step: 0,
            questions: 1,
            group: 5,
            inner_epochs: 3,
            learning_rate: 1e-6,
            temperature: 0.5,
            k_min: 4,
            clip: 0.2,
            beta: 1e-3,
            anchor: Anchor::Old,
            std_floor: 0.0,
            replay: ReplayMode::Segmented,
            dropout_rollouts: 0.0,
            gumbel: 0.0,
            density: Density::Mean,
            continue_term: false,
            max_positions: 8192,
            cosine_every: 20,
            keep_every: 0,
            early_stop_window: 0,
            reward: Reward::default(),
        }
    }
}
