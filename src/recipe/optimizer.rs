//! How weights are updated, and in which float type they are computed with.

use anyhow::{Result, ensure};
use burn::tensor::{Device, FloatDType};
use serde::{Deserialize, Serialize};

use crate::model::Decoder;

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
    /// What forward and backward are computed in (`--dtype`); weights and optimiser state are always f32.
    pub dtype: Compute,
    /// Recompute cheap activations in the backward pass instead of keeping them: less memory, more time.
    pub gradient_checkpointing: bool,
}

/// The float type of a computation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Compute {
    #[default]
    F32,
    Bf16,
}

impl Compute {
    fn dtype(self) -> FloatDType {
        match self {
            Compute::F32 => FloatDType::F32,
            Compute::Bf16 => FloatDType::BF16,
        }
    }

    /// # Errors
    /// A device that does not compute in this type.
    pub fn check(self, device: &Device) -> Result<()> {
        ensure!(
            device.supports_dtype(self.dtype()),
            "optimizer.dtype (--dtype): {device:?} does not compute in {self:?}; use f32"
        );
        Ok(())
    }

    /// The decoder computing in this type; f32 is what it is in already.
    pub fn apply(self, model: Decoder) -> Decoder {
        if self == Compute::F32 { model } else { model.cast(self.dtype()) }
    }
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
