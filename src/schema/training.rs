//! Rows of `train`: one per step, and one per phase.

use serde_json::{Map, Value};

use super::{Column, Columns, Identity};
use crate::stats::Estimate;

/// Prefix of the file of a phase's steps; its kind of row depends on the phase.
pub const METRICS: &str = "metrics";

/// Name of an intermediate checkpoint of phase 2 that GRPO starts from.
pub const GRPO_START: &str = "grpo_start";

rows! {
    /// A step of a supervised phase.
    pub struct StepRow {
        pub phase: String => "name": "phase of training",
        pub step: usize => "index from 0": "optimiser step of the phase",
        pub loss: f64 => "nats": "mean loss of a learnt token, with what the method adds to it",
        pub token_accuracy: f64 => "share": "learnt tokens that are the most probable ones",
        pub grad_norm: f64 => "norm": "of the gradient, before it is clipped",
        pub learning_rate: f64 => "rate": "of the step",
        pub tokens: usize => "tokens": "learnt",
        pub positions: usize => "count": "positions fed: prompts, responses and latents",
        pub latents: usize => "latent steps": "of the positions",
        pub tokens_per_s: f64 => "positions per second": "fed",
        pub skipped: usize => "count": "steps so far that were skipped, their loss or gradient not finite",
    }
}

rows! {
    /// A step of GRPO. Columns from `reward` to `token_share` are means over the surviving rollouts; absent if none survived.
    pub struct GrpoStepRow {
        pub phase: String => StepRow,
        pub step: usize => StepRow,
        pub reward: Option<f64> => "points": "mean reward of a rollout; of each term `reward_use` and so on",
        #[serde(flatten)]
        pub terms: Map<String, Value>,
        pub accuracy: Option<f64> => "share": "rollouts with the right answer",
        pub switch_rate: Option<f64> => "share": "rollouts with at least one block",
        /// Absent in old rows.
        pub switch_advantage: Option<f64> => "advantage a rollout":
            "sum of the advantages of rollouts with a block, as weighted in the loss, divided by all rollouts: above 0 the step rewards opening blocks",
        pub latent_calls: Option<f64> => AccuracyRow,
        /// The paper's latent invocations. Absent in old rows.
        pub blocks: Option<f64> => AccuracyRow,
        pub visible_tokens: Option<f64> => AccuracyRow,
        pub truncated: Option<f64> => AccuracyRow,
        pub entropy: Option<f64> => EntropyRow,
        pub token_share: Option<f64> => "share":
            "mean a of HRPO's gate over the tokens that a state was mixed into: the weight of their own embedding",
        pub groups: usize => "count": "groups of rollouts",
        pub skipped_groups: usize => "count": "groups that teach nothing: too few rollouts, or all of one reward",
        pub dropped_rollouts: usize => "count": "rollouts left out",
        /// Absent in old rows.
        pub too_long: Option<usize> => "count": "of them, those longer than `grpo.max_positions`",
        /// Absent in old rows.
        pub not_finite: Option<usize> => "count": "of them, those that met logits that are not finite",
        pub tokens: usize => StepRow,
        pub updates: usize => "count": "optimiser steps: inner epochs, 0 if nothing could be learnt",
        /// Prompts and responses of the rollouts in the loss, in all inner epochs.
        pub positions: usize => "count": "positions fed for the gradient",
        pub loss: f64 => "loss": "of the last inner epoch",
        pub ratio: f64 => "ratio": "mean probability of a decision over that in the rollout, in the last inner epoch",
        pub clip_share: f64 => "share": "decisions whose ratio is clipped, in the last inner epoch",
        pub kl: f64 => "nats a token": "from the anchor, in the last inner epoch",
        pub grad_norm: f64 => StepRow,
        /// The invariant "rollout = replay".
        pub drift: f64 => "nats": "largest difference of a log-probability between rollout and first inner epoch",
        pub cosine_text_graph: Option<f64> => "cosine": "of the gradients of segmented and text_graph replay",
        pub cosine_full_bptt: Option<f64> => "cosine": "of the gradients of segmented and full_bptt replay",
        pub skipped: usize => StepRow,
        pub seconds: f64 => "seconds": "of the step",
    }
}

/// Terms of the reward are named by the recipe.
impl Columns for Map<String, Value> {
    const COLUMNS: &'static [Column] = &[];
}

rows! {
    /// The held-out result of one phase.
    pub struct PhaseRow {
        #[serde(flatten)]
        pub identity: Identity,
        pub phase: String => "name": "phase of training that ended with this checkpoint",
        pub source: String => "name": "what enters at latent positions",
        pub accuracy: Estimate => AccuracyRow,
        pub latent_accuracy: Option<Estimate> => AccuracyRow,
        pub text_only_accuracy: Option<Estimate> => "share": "problems answered right when `<swi>` is forbidden",
        pub switch_rate: Estimate => AccuracyRow,
        pub visible_tokens: Option<Estimate> => AccuracyRow,
        pub latent_calls: Option<Estimate> => AccuracyRow,
        /// The prompt's, then one per token and latent. Absent in old rows.
        pub forward_passes: Option<Estimate> => "count": "passes of the model one after the other, a response",
        pub truncated: Estimate => AccuracyRow,
        /// Including those of the phases that it starts from; absent in old rows.
        pub train_steps: Option<usize> => "count": "optimiser steps of the checkpoint",
        pub train_positions: Option<usize> => "count": "positions fed in training",
    }
}

rows! {
    /// A phase of one run of a sweep.
    pub struct SweepRow {
        /// `key=value`, separated by spaces.
        pub point: String => "name": "the swept settings of the run, its seed left out",
        #[serde(flatten)]
        pub result: PhaseRow,
    }
}
