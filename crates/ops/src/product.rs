//! Products of matrices.

use std::sync::atomic::{AtomicBool, Ordering};

use burn::tensor::Tensor;

use super::fused;

static TF32: AtomicBool = AtomicBool::new(false);

/// Lets f32 products of this process round to TF32 where that is faster.
pub fn round_to_tf32() {
    TF32.store(true, Ordering::Relaxed);
}

pub fn rounds_to_tf32() -> bool {
    TF32.load(Ordering::Relaxed)
}

/// `a b` of batches of matrices, `[.., M, K]` and `[.., K, N]` → `[.., M, N]`, whose other axes are equal or 1, in the precision of their
/// type. Burn's own product rounds f32 to TF32 (10 of 23 mantissa bits) wherever that is faster on a GPU that has it; this one only after
/// [`round_to_tf32`].
pub fn matmul<const R: usize>(a: Tensor<R>, b: Tensor<R>) -> Tensor<R> {
    if fused::own_products(&a) {
        return fused::matmul(a, b);
    }
    if fused::is_cpu(&a.device()) {
        return a.matmul(b);
    }
    let (left, right) = (a.dims(), b.dims());
    let batches = std::array::from_fn(|axis| left[axis].max(right[axis]));
    let (a, b) = (repeated(a, batches), repeated(b, batches));
    if fused::chooses_products(&a) { fused::matmul(a, b) } else { a.matmul(b) }
}

/// Broadcasts a factor that has some of the product's batch axes and a single matrix for another. Burn's kernels with TMA copies (NVIDIA,
/// since Hopper) refuse such a factor, and panic if autotune chose one of them on other products of that size.
fn repeated<const R: usize>(x: Tensor<R>, batches: [usize; R]) -> Tensor<R> {
    let own = x.dims();
    let mut axes = 0..R.saturating_sub(2);
    let shares = axes.clone().any(|axis| own[axis] < batches[axis]);
    if !shares || !axes.any(|axis| own[axis] > 1) {
        return x;
    }
    x.expand(std::array::from_fn(|axis| if axis + 2 < R { batches[axis] } else { own[axis] }))
}
