//! The gated feed-forward activations (Shazeer 2020, arXiv:2002.05202).

use burn::tensor::Tensor;
use burn::tensor::activation::{gelu_approximate, silu};

use super::fused;

/// `silu(gate) * up`, any shape.
pub fn swiglu<const R: usize>(gate: Tensor<R>, up: Tensor<R>) -> Tensor<R> {
    if fused::is_forward_fused(&gate) && gate.dtype() == up.dtype() {
        return fused::swiglu(gate, up);
    }
    composed_swiglu(gate, up)
}

pub fn composed_swiglu<const R: usize>(gate: Tensor<R>, up: Tensor<R>) -> Tensor<R> {
    silu(gate) * up
}

/// `gelu(gate) * up`, any shape, with GELU's approximation by tanh (Gemma).
pub fn geglu<const R: usize>(gate: Tensor<R>, up: Tensor<R>) -> Tensor<R> {
    gelu_approximate(gate) * up
}
