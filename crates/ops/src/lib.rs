//! The tensor functions of a decoder and its training. Each is a plain composition of Burn operations, and in f32 a
//! single pass with its own backward (`fused`): loops on the CPU, kernels on a GPU (`cube`), there in bf16 and f16 too.
//!
//! Knows nothing of models: shapes come in, shapes go out.

#![deny(unsafe_code)]

mod adamw;
mod attention;
mod cpu;
#[cfg(all(feature = "gpu", not(feature = "fusion")))]
mod cube;
mod fits;
mod frozen;
mod fused;
mod linear;
mod loss;
mod norm;
mod product;
mod rope;
mod scalars;
pub mod stored;
mod swiglu;
pub mod wide;

use std::ops::Range;

pub use adamw::{AdamW, adamw, sum_of_squares};
pub use attention::{additive_mask, attend, causal_mask, grouped_pattern, grouped_scores, grouped_values};
pub use attention::{mask_value, masked};
pub use cpu::{Cpu, VARIABLE as CPU_VARIABLE};
pub use fits::{TooLarge, ensure_attention_fits, ensure_fits, ensure_memory, free_memory};
pub use frozen::FrozenMatrix;
pub use fused::{Heads, add_rms_norm, append_heads, attend_in_parts, first_of, has_tf32, head_loss_stored};
pub use fused::{is_cpu, is_fused, linear_stored, linear_stored_back, of_copies};
pub use linear::{adapted, is_shared, is_stored_shared, linear, linear_transposed};
pub use linear::{linear_stored_each, linear_three, linear_two};
pub use loss::{Targets, entropy, head_loss, loss_in_parts, loss_of_logits, token_log_probs};
pub use norm::{rms_norm, rms_scale};
pub use product::{matmul, round_to_tf32, rounds_to_tf32};
pub use rope::{RotaryAngles, rotate};
pub use scalars::scalars;
pub use swiglu::{geglu, swiglu};

/// Minus infinity in a mask. Finite, so that a row without visible keys has a defined softmax.
pub const MASKED: f32 = -1.0e30;

/// `0..all` in parts of similar size, each of at most `most`: a short remainder would use the CPU's loops for few rows, which sum in another
/// order.
pub fn like_parts(all: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    let size = all.div_ceil(all.div_ceil(most).max(1)).max(1);
    (0..all).step_by(size).map(move |from| from..(from + size).min(all))
}

/// The compositions that the fused passes replace: their reference in tests, and the implementation of other backends.
pub mod composed {
    pub use super::adamw::composed_adamw as adamw;
    pub use super::attention::{composed_attend as attend, composed_pattern as grouped_pattern};
    pub use super::linear::{composed_linear as linear, composed_linear_transposed as linear_transposed};
    pub use super::norm::composed_rms_norm as rms_norm;
    pub use super::rope::composed_rotate as rotate;
    pub use super::swiglu::composed_swiglu as swiglu;
}
