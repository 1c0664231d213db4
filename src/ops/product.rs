//! Products of matrices.

use burn::tensor::Tensor;

use super::fused;

/// `a b` of batches of matrices, `[.., M, K]` and `[.., K, N]` → `[.., M, N]`, whose other axes are equal or 1, in the arithmetic of
/// their type. Burn's own product rounds f32 to TF32 (10 bits of mantissa of 23) wherever that is faster on a GPU that has it.
pub fn matmul<const R: usize>(a: Tensor<R>, b: Tensor<R>) -> Tensor<R> {
    if fused::rounds_products(&a) { fused::matmul(a, b) } else { a.matmul(b) }
}
