//! Settings of Switch-GRPO (phase 3).

use serde::{Deserialize, Serialize};

use super::ranges::Range::{BelowOne, Count, NotNegative, Positive, Typed};
use super::ranges::{BATCH, POSITIONS, STEPS};
use super::{Reward, is_default, is_true};
use crate::latent::Gradient;
use crate::latent::gumbel::Density;

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
pub enum KlAnchor {
    /// The policy that made the rollouts (the paper).
    #[default]
    Old,
    /// The policy at the start of the phase.
    Reference,
}

/// What a rollout teaches that ran into a limit: of its text, or of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Invalid {
    /// As much as any other.
    #[default]
    Learn,
    /// Nothing; mean and deviation of its group are with it.
    Mask,
    /// Nothing; mean and deviation of its group are without it.
    Exclude,
}

/// The stage of phase 2 whose checkpoint GRPO starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected \"best\" or the k of a stage of latent.stages")]
pub enum FromStage {
    Named(Strongest),
    Stage(usize),
}

/// Chosen by accuracy on validation problems.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strongest {
    Best,
}

/// How many sampled positions a rollout's term of the loss is divided by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossMean {
    /// By those of its question, and the questions that teach something are averaged (`E_q` and `N_tok` of the paper's `L_3`).
    Question,
    /// By those of all questions of the step: questions with long answers weigh more.
    #[default]
    Tokens,
}

/// How the terms of tokens become a loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossForm {
    /// Clipped ratios to the rollout, their mean over the tokens of all rollouts.
    #[default]
    Tokens,
    /// As HRPO's public code: log-probabilities at temperature 1, no ratio but that of the value itself, the KL term as it is, a mean over
    /// each response and then over responses; 1e-4 added to a group's deviation, and groups without variance kept for their KL term.
    Authors,
}

settings! {
    /// Phase 3: Switch-GRPO.
    pub struct Grpo {
        pub steps: usize = 0 => Count(0, STEPS),
        /// Start from the phase-2 weights after this step of the last stage; 0 takes the finished phase.
        pub from_step: usize = 0 => Count(0, STEPS),
        /// Start from the end of a stage of phase 2: of stage k, or (`"best"`) of that which answers most validation problems, the later
        /// of equals.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub from_stage: Option<FromStage> = None => Typed,
        pub questions: usize = 1 => Count(1, BATCH),
        /// `questions` are those of each process (`mpirun -n`), so that all of them roll out; otherwise they are shared out.
        pub per_process: bool = false => Typed,
        pub group: usize = 5 => Count(2, BATCH),
        pub inner_epochs: usize = 3 => Count(1, BATCH),
        pub learning_rate: f64 = 1e-6 => Positive,
        pub temperature: f64 = 0.5 => Positive,
        pub k_min: usize = 4 => Count(0, POSITIONS),
        /// Rollouts cannot be ill-formed: text never draws `</swi>`. Otherwise it may, as the paper samples, and `reward.format` punishes it.
        #[serde(skip_serializing_if = "is_true")]
        pub mask_tags: bool = true => Typed,
        /// Rollouts are text: `<swi>` is masked, as in a trainer without the recurrence. Evaluations open blocks as always.
        #[serde(skip_serializing_if = "is_default")]
        pub text_rollouts: bool = false => Typed,
        pub clip: f64 = 0.2 => Positive,
        pub beta: f64 = 1e-3 => NotNegative,
        pub anchor: KlAnchor = KlAnchor::Old => Typed,
        /// The paper's 1e-8 is always added; a floor keeps the smallest term from being scale-free (recipe notes).
        pub std_floor: f64 = 0.0 => NotNegative,
        #[serde(skip_serializing_if = "is_default")]
        pub loss_mean: LossMean = LossMean::Tokens => Typed,
        pub replay: ReplayMode = ReplayMode::Segmented => Typed,
        /// Latents of a row between states that `full_bptt` keeps; what lies between is run again in the backward pass, so that less is
        /// in memory. 0 keeps the whole graph.
        pub checkpoint_every: usize = 0 => Count(0, POSITIONS),
        /// Share of each block's outputs that is masked, one mask a rollout, in rollout and replay; 0 is none.
        pub dropout_rollouts: f64 = 0.0 => BelowOne,
        /// τ of the Gumbel noise that draws mixtures of the vocabulary in rollouts of `switch`, if these are its `latent.source`; 0
        /// switches it off. `soft_grpo` and `latent_grpo` have their own.
        pub gumbel: f64 = 0.0 => NotNegative,
        /// σ of the Gaussian noise on the hidden states that rollouts of `switch` feed as latents, relative to their root mean square; each
        /// latent is then an action with a density. 0 switches it off.
        #[serde(skip_serializing_if = "is_default")]
        pub latent_noise: f64 = 0.0 => NotNegative,
        /// `soft_thinking.density`.
        #[serde(skip)]
        pub density: Density = Density::Mean,
        /// `hrpo.loss`.
        #[serde(skip)]
        pub loss: LossForm = LossForm::Tokens,
        /// `latent_grpo.top_p`.
        #[serde(skip)]
        pub top_p: f64 = 1.0,
        /// `latent_grpo.invalid`.
        #[serde(skip)]
        pub invalid: Invalid = Invalid::Learn,
        /// `latent_grpo.first`.
        #[serde(skip)]
        pub first: bool = false,
        /// Learning rates of parameters whose names begin so, instead of `learning_rate` (`hrpo`).
        #[serde(skip)]
        pub own_rates: Vec<(&'static str, f64)> = vec![],
        /// Adds `log(1 − p_exit)` for each choice to stay in a block.
        pub continue_term: bool = false => Typed,
        /// Rollouts with more positions are dropped from their group.
        pub max_positions: usize = 8192 => Count(1, POSITIONS),
        /// Steps between probes of the cosine between the replay modes' gradients; 0 never.
        pub cosine_every: usize = 20 => Count(0, STEPS),
        /// Steps between saved checkpoints, each a phase (`grpo_step20`); 0 saves none.
        pub keep_every: usize = 0 => Count(0, STEPS),
        /// Steps of the window that watches for reward hacking; 0 never stops early.
        pub early_stop_window: usize = 0 => Count(0, STEPS),
        pub reward: Reward = Reward::default(),
    }
}

impl Grpo {
    /// Questions of a step, over all processes.
    pub(crate) fn questions_of(&self, processes: usize) -> usize {
        if self.per_process { self.questions * processes } else { self.questions }
    }
}
