//! The gated feed-forward activation (Shazeer 2020, arXiv:2002.05202).

use burn::tensor::{Tensor, activation::silu};

use super::fused;

/// `silu(gate) * up`, any shape.
pub fn swiglu<const R: usize>(gate: Tensor<R>, up: Tensor<R>) -> Tensor<R> {
    if fused::is_fused(&gate) && fused::is_fused(&up) {
        return fused::swiglu(gate, up);
    }
    composed_swiglu(gate, up)
}

/// The same in Burn's operations.
pub fn composed_swiglu<const R: usize>(gate: Tensor<R>, up: Tensor<R>) -> Tensor<R> {
    silu(gate) * up
}
