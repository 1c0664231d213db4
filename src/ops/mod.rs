//! The tensor functions a decoder is made of, each a plain composition of Burn operations.
//!
//! Knows nothing of models: shapes come in, shapes go out. A fused kernel can replace a body without touching a caller.

mod attention;
mod loss;
mod norm;
mod rope;
mod swiglu;

pub use attention::{additive_mask, grouped_pattern, grouped_scores, grouped_values};
pub use loss::{at_least_f32, entropy, log_probs_of, token_log_probs};
pub use norm::{rms_norm, rms_scale};
pub use rope::{Rotation, rotate};
pub use swiglu::swiglu;

/// What stands for minus infinity in a mask. Finite, so that a row with nothing to attend to has a defined softmax.
pub const MASKED: f32 = -1.0e30;
