//! Heads between projections and attention.

use burn::tensor::Tensor;

use super::RotaryAngles;
use super::fused;

/// Outputs of the projections: queries `[B, L, H, dh]`, keys and values `[B, L, Hkv, dh]`.
pub struct Heads<'a> {
    pub q: Tensor<4>,
    pub k: Tensor<4>,
    pub v: Tensor<4>,
    /// Gains `[dh]` of the norms of queries and keys, and their epsilon.
    pub gains: Option<([Tensor<1>; 2], f64)>,
    pub rotation: &'a RotaryAngles,
}

/// Normalises and rotates queries and keys, and writes keys and values into a cache with room, keys `[B, Hkv, dh, capacity]` and values
/// `[B, Hkv, capacity, dh]`, from slot `at` on. Returns the cache and the queries; without a kernel for all of it, the unchanged cache.
pub fn append_heads(heads: &Heads, cache: [Tensor<4>; 2], at: usize) -> ([Tensor<4>; 2], Option<Tensor<4>>) {
    fused::append_heads(heads, cache, at)
}

/// `x + more` and its `rms_norm`, `[B, L, D]` each; `None` without a kernel for both.
pub fn add_rms_norm(x: &Tensor<3>, more: &Tensor<3>, gain: &Tensor<1>, eps: f64) -> Option<(Tensor<3>, Tensor<3>)> {
    fused::add_rms_norm(x, more, gain, eps)
}

/// The first `n` of an axis: on a GPU, outside autodiff, a view of the same memory.
pub fn first_of<const R: usize>(x: Tensor<R>, axis: usize, n: usize) -> Tensor<R> {
    fused::first_of(x, axis, n)
}
