//! Settings of the optimiser, and the compute type.

use super::ranges::BATCH;
use super::ranges::Range::{BelowOne, Count, NotNegative, Positive, Typed};
use crate::machine::Compute;

settings! {
    /// AdamW (Loshchilov & Hutter 2019) with PyTorch's defaults.
    pub struct Optimizer {
        pub beta_1: f64 = 0.9 => BelowOne,
        pub beta_2: f64 = 0.999 => BelowOne,
        pub epsilon: f64 = 1e-8 => Positive,
        pub weight_decay: f64 = 0.01 => NotNegative,
        /// Largest global gradient norm.
        pub clip: f64 = 1.0 => Positive,
        /// Micro-batches summed into one step.
        pub accumulate: usize = 1 => Count(1, BATCH),
        /// What forward and backward are computed in (`--dtype`). Weights that are trained and optimiser state are always f32.
        pub dtype: Compute = Compute::F32 => Typed,
        /// Recompute cheap activations in the backward pass instead of keeping them: less memory, more time.
        pub gradient_checkpointing: bool = false => Typed,
    }
}
