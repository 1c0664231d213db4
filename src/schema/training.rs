//! What `train` writes: a row a step, and a row a phase.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Identity;
use crate::stats::Estimate;

/// The part before the phase in the name of a file of steps. What its rows hold depends on the phase.
pub const METRICS: &str = "metrics";

/// The checkpoint inside phase 2 that GRPO starts from, where it does not start from the finished one, as the method names it.
pub const GRPO_START: &str = "grpo_start";

/// A step of a supervised phase.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StepRow {
    pub phase: String,
    pub step: usize,
    pub loss: f64,
    pub token_accuracy: f64,
    pub grad_norm: f64,
    pub learning_rate: f64,
    /// Learnt.
    pub tokens: usize,
    /// Fed: prompts, responses and latents.
    pub positions: usize,
    pub latents: usize,
    pub tokens_per_s: f64,
    pub skipped: usize,
}

/// A step of Switch-GRPO.
#[derive(Clone, Debug, Serialize)]
pub struct GrpoStepRow {
    pub phase: String,
    pub step: usize,
    /// This and what follows to `entropy` are means over the rollouts that survived; absent where none did.
    pub reward: Option<f64>,
    /// Of each term, `reward_use` and so on.
    #[serde(flatten)]
    pub terms: Map<String, Value>,
    pub accuracy: Option<f64>,
    pub switch_rate: Option<f64>,
    pub latent_calls: Option<f64>,
    /// The paper's latent invocations. Absent in old rows.
    pub blocks: Option<f64>,
    pub visible_tokens: Option<f64>,
    pub truncated: Option<f64>,
    pub entropy: Option<f64>,
    /// Mean a of the gate over the tokens that states were mixed into; of `hrpo` alone.
    pub token_share: Option<f64>,
    pub groups: usize,
    pub skipped_groups: usize,
    pub dropped_rollouts: usize,
    /// Of them: longer than `grpo.max_positions`. Absent in old rows.
    pub too_long: Option<usize>,
    /// Of them: met logits that are not finite. Absent in old rows.
    pub not_finite: Option<usize>,
    pub tokens: usize,
    /// Number of optimiser steps: inner epochs, 0 if nothing could be learnt.
    pub updates: usize,
    /// Fed for the gradient: prompts and responses of the rollouts that are learnt from, in every inner epoch.
    pub positions: usize,
    pub loss: f64,
    pub ratio: f64,
    pub clip_share: f64,
    pub kl: f64,
    pub grad_norm: f64,
    /// max |Δ log-prob| of the first inner epoch: the invariant "rollout = replay".
    pub drift: f64,
    pub cosine_text_graph: Option<f64>,
    pub cosine_full_bptt: Option<f64>,
    pub skipped: usize,
    pub seconds: f64,
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
        /// Passes of the model, one after the other: the prompt's, then one for each token and latent that is fed. Absent in old rows.
        pub forward_passes: Option<Estimate> => "count": "passes of the model one after the other, a response",
        pub truncated: Estimate => AccuracyRow,
        /// Optimiser steps after the checkpoint, those of the phases that it starts from included; absent in old rows.
        pub train_steps: Option<usize> => "count": "optimiser steps of the checkpoint",
        pub train_positions: Option<usize> => "count": "positions fed in training",
    }
}

rows! {
    /// A phase of one run of a sweep.
    pub struct SweepRow {
        /// The swept settings but the seed, `key=value` with a space between.
        pub point: String => "name": "the swept settings of the run, its seed left out",
        #[serde(flatten)]
        pub result: PhaseRow,
    }
}
