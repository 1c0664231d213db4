//! How weights are updated, and in which float type they are computed with.

use serde::{Deserialize, Serialize};

use crate::machine::Compute;

/// AdamW (Loshchilov & Hutter 2019) with PyTorch's defaults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Optimizer {
    pub beta_1: f64,
    pub beta_2: f64,
    pub epsilon: f64,
    pub weight_decay: f64,
    /// Largest global gradient norm.
    pub clip: f64,
    /// Micro-batches summed into one step.
    pub accumulate: usize,
    /// What forward and backward are computed in (`--dtype`). Weights that are trained and optimiser state are always f32.
    pub dtype: Compute,
    /// Recompute cheap activations in the backward pass instead of keeping them: less memory, more time.
    pub gradient_checkpointing: bool,
}

impl Default for Optimizer {
    fn default() -> Self {
        Self {
            beta_1: 0.9,
            beta_2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.01,
            clip: 1.0,
            accumulate: 1,
            dtype: Compute::F32,
            gradient_checkpointing: false,
        }
    }
}
