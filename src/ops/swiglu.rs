//! The gated feed-forward activation (Shazeer 2020, arXiv:2002.05202).

use burn::tensor::{Tensor, activation::silu};

/// `silu(gate) * up`, any shape.
pub fn swiglu<const R: usize>(gate: Tensor<R>, up: Tensor<R>) -> Tensor<R> {
    silu(gate) * up
}
