//! The decoder's element-wise work as single passes, each with its own backward.
//!
//! These are Burn backend extensions. On the CPU (Flex), [`FusedOps`] and [`Inference`] run the loops of `kernels`; on a GPU (Cube) they, and
//! [`Stores`] and [`Products`], run the kernels of `ops::cube`. [`CpuFusedOps`] and [`CpuInference`] exist only on the CPU. Under autodiff
//! `gradient` records one node where the composition records up to a dozen. Float types other than f32 use the plain composition of Burn
//! operations in the parent module, which is also the reference of the tests; so does a GPU in builds where Burn fuses kernels itself. On a
//! GPU the operations of a forward are single passes in bf16 and f16 too.

mod attend;
mod attend_gradient;
#[cfg(all(feature = "gpu", not(feature = "fusion")))]
mod cube;
mod flex;
mod flex_products;
mod gradient;
mod head;
mod kernels;
mod many;
mod on_gpu;
mod parts;
#[cfg(test)]
mod paths;
mod product;
mod simd;
mod stored;
mod stored_back;
mod stored_bf16;
mod stored_many;
mod stored_q8;
mod turn;

use burn::backend::{Backend, Dispatch, backend_extension, tensor::FloatTensor as Float};
use burn::tensor::{DType, Device, Scalar, Tensor};

use super::frozen::FrozenMatrix;
use super::{AdamW, Targets};
pub use gradient::of_copies;
pub use on_gpu::{Heads, add_rms_norm, append_heads, first_of};
pub(super) use product::is_shared;

/// Single-pass operations. Shapes are checked by the callers in `ops`.
#[backend_extension(Flex, Cube: cfg(all(feature = "gpu", not(feature = "fusion"))), Autodiff)]
pub(crate) trait FusedOps: Backend {
    /// `x / sqrt(mean(x²) + eps) · weight` over the last axis.
    fn rms_norm(x: Float<Self>, weight: Float<Self>, eps: f64) -> Float<Self>;
    /// `silu(gate) · up`.
    fn swiglu(gate: Float<Self>, up: Float<Self>) -> Float<Self>;
    /// RoPE on `[B, L, H, dh]` with `[B, L, 1, dh/2]` tables; by `−angle` if `back`, which is also its gradient.
    fn rotate(x: Float<Self>, cos: Float<Self>, sin: Float<Self>, back: bool) -> Float<Self>;
    /// Grouped attention in chunks of positions with at most `held` bytes of scores: q `[B, L, H, dh]`, k and v `[B, Hkv, T, dh]` →
    /// `[B, L, H, dh]`. By the mask `[B, 1, L, T]` query l sees no slot after `T − L + l`.
    fn attend_in_parts(q: Float<Self>, k: Float<Self>, v: Float<Self>, mask: Float<Self>, held: usize) -> Float<Self> {
        parts::forward(&parts::Inputs::<Self> { q, k, v, mask, held })
    }
    /// Softmax over the last axis of scores `[B, H, L, T]` plus a mask `[B, 1, L, T]`.
    fn masked_softmax(scores: Float<Self>, mask: Float<Self>) -> Float<Self>;
    /// Softmax over the last axis.
    fn row_softmax(scores: Float<Self>) -> Float<Self>;
    /// `−log softmax(h W)[target]` of each row, and whether no token was more probable: `[N, D]`, `[D, V]` → `[N]`, `[N]`.
    fn head_loss(hidden: Float<Self>, head: Float<Self>, targets: Targets) -> (Float<Self>, Float<Self>);
    /// `a b`: `[.., M, K]`, `[.., K, N]` → `[.., M, N]`; f32 is not rounded.
    fn matmul(a: Float<Self>, b: Float<Self>) -> Float<Self>;
    /// `y + scale · a b`.
    fn matmul_onto(y: Float<Self>, a: Float<Self>, b: Float<Self>, scale: f64) -> Float<Self> {
        Self::float_add(y, Self::scaled_matmul(a, b, scale))
    }
    /// `scale · a b`.
    fn scaled_matmul(a: Float<Self>, b: Float<Self>, scale: f64) -> Float<Self> {
        Self::float_mul_scalar(Self::matmul(a, b), Scalar::Float(scale))
    }
    /// `x W + scale · (x A) B`: `[1, M, K]`, a frozen W `[1, K, N]`, factors `[1, K, R]` and `[1, R, N]` → `[1, M, N]`.
    fn adapted(x: Float<Self>, weight: Float<Self>, a: Float<Self>, b: Float<Self>, scale: f64) -> Float<Self> {
        let y = Self::matmul(x.clone(), weight);
        Self::matmul_onto(y, Self::matmul(x, a), b, scale)
    }
}

/// Operations of backward passes and of losses, on tensors outside autodiff.
pub(crate) trait BackwardOps: FusedOps {
    /// Gradients of `x` and `weight`.
    fn rms_norm_backward(
        x: Float<Self>,
        weight: Float<Self>,
        grad: Float<Self>,
        eps: f64,
    ) -> (Float<Self>, Float<Self>);
    /// Gradients of `gate` and `up`.
    fn swiglu_backward(gate: Float<Self>, up: Float<Self>, grad: Float<Self>) -> (Float<Self>, Float<Self>);
    /// Gradient of the scores from the softmax's output.
    fn softmax_backward(pattern: Float<Self>, grad: Float<Self>) -> Float<Self>;
    /// `−log softmax(row)[target]` of logits `[N, V]`, and whether no token was more probable.
    fn cross_entropy(logits: Float<Self>, targets: Targets) -> (Float<Self>, Float<Self>);
    /// Gradient of the logits.
    fn cross_entropy_backward(logits: Float<Self>, targets: Targets, grad: Float<Self>) -> Float<Self>;
}

/// Products with matrices that are stored as their file stores them.
#[backend_extension(Flex, Cube: cfg(all(feature = "gpu", not(feature = "fusion"))), Autodiff)]
pub(crate) trait Stores: FusedOps {
    /// `x Wᵀ` with W `[N, K]`: `[.., K]` → `[.., N]`.
    fn linear_stored(x: Float<Self>, weight: FrozenMatrix) -> Float<Self>;
    /// Gradient of x: `[.., N]` → `[.., K]`.
    fn linear_stored_backward(grad: Float<Self>, weight: FrozenMatrix) -> Float<Self>;
    /// [`FusedOps::head_loss`] of a head whose first rows are in their file format and whose last are floats: `[N, D]`, `[n, D]` → `[N]`, `[N]`.
    fn head_loss_stored(
        hidden: Float<Self>,
        learnt: Float<Self>,
        stored: FrozenMatrix,
        targets: Targets,
    ) -> (Float<Self>, Float<Self>);
}

/// Operations that are single passes on the CPU only: products with weights, and attention with gradients.
#[backend_extension(Flex, Autodiff)]
pub(crate) trait CpuFusedOps: FusedOps {
    /// `x W`: `[.., K]`, `[K, N]` → `[.., N]`.
    fn linear(x: Float<Self>, weight: Float<Self>) -> Float<Self>;
    /// `x Tᵀ`: `[.., K]`, `[N, K]` → `[.., N]`.
    fn linear_transposed(x: Float<Self>, table: Float<Self>) -> Float<Self>;
    /// Grouped attention: q `[B, L, H, dh]`, k and v `[B, Hkv, T, dh]`, a mask `[B, 1, L, T]` → `[B, L, H, dh]`.
    fn attend(q: Float<Self>, k: Float<Self>, v: Float<Self>, mask: Float<Self>) -> Float<Self>;
}

/// Attention and its gradients, on tensors outside autodiff.
pub(crate) trait CpuBackwardOps: CpuFusedOps + BackwardOps {
    /// Attention, and the scales of its patterns `[B, L, H, 2]`, from which `attend_backward` recomputes them.
    fn attend_for_backward(
        q: Float<Self>,
        k: Float<Self>,
        v: Float<Self>,
        mask: Float<Self>,
    ) -> (Float<Self>, Float<Self>);
    /// Gradients of q, k and v. `out` and `scales` are results of `attend_for_backward`.
    fn attend_backward(
        q: Float<Self>,
        k: Float<Self>,
        v: Float<Self>,
        mask: Float<Self>,
        out: Float<Self>,
        scales: Float<Self>,
        grad: Float<Self>,
    ) -> (Float<Self>, Float<Self>, Float<Self>);
}

/// Operations that are fused outside autodiff only.
#[backend_extension(Flex, Cube: cfg(all(feature = "gpu", not(feature = "fusion"))))]
pub(crate) trait Inference: Backend {
    /// Grouped attention in which every query sees every slot: q `[B, L, H, dh]`, k and v `[B, Hkv, T, dh]` → `[B, L, H, dh]`.
    fn attend_all(q: Float<Self>, k: Float<Self>, v: Float<Self>) -> Float<Self>;
    /// Grouped attention with a mask `[B, 1, L, T]`.
    fn attend_masked(q: Float<Self>, k: Float<Self>, v: Float<Self>, mask: Float<Self>) -> Float<Self>;
    /// A weight and its two moments after a step; all of one shape.
    fn adamw(
        weight: Float<Self>,
        grad: Float<Self>,
        moment_1: Float<Self>,
        moment_2: Float<Self>,
        step: AdamW,
    ) -> (Float<Self>, Float<Self>, Float<Self>);
    /// `Σ x²` in parts, `[parts]`.
    fn sum_of_squares(x: Float<Self>) -> Float<Self>;
}

/// Products with float matrices outside autodiff; on a GPU only those of few rows.
#[backend_extension(Flex, Cube: cfg(all(feature = "gpu", not(feature = "fusion"))))]
pub(crate) trait Products: Backend {
    /// `x W`: `[.., K]`, `[K, N]` → `[.., N]`.
    fn linear_one(x: Float<Self>, weight: Float<Self>) -> Float<Self>;
    /// Two weights, one input.
    fn linear_two(x: Float<Self>, a: Float<Self>, b: Float<Self>) -> (Float<Self>, Float<Self>);
    /// With three.
    fn linear_three(
        x: Float<Self>,
        a: Float<Self>,
        b: Float<Self>,
        c: Float<Self>,
    ) -> (Float<Self>, Float<Self>, Float<Self>);
    /// `x Tᵀ`: `[.., K]`, `[N, K]` → `[.., N]`.
    fn linear_by_row(x: Float<Self>, table: Float<Self>) -> Float<Self>;
}

/// [`CpuFusedOps`] outside autodiff only.
#[backend_extension(Flex)]
pub(crate) trait CpuInference: Backend {
    /// [`Stores::linear_stored`] of one input with several weights. Not generic in their number: the kernels would be compiled in the
    /// caller's package, at a fifth of their speed.
    fn linear_stored_each(x: Float<Self>, weights: Vec<FrozenMatrix>) -> Vec<Float<Self>>;
}

/// Whether a tensor can use [`FusedOps`] and [`Inference`].
pub fn is_fused<const R: usize>(x: &Tensor<R>) -> bool {
    x.dtype() == DType::F32 && (is_cpu(&x.device()) || on_gpu(x))
}

/// Whether a tensor can use the operations of a forward; on a GPU in bf16 and f16 too. All inputs of an operation must have one type.
pub(super) fn is_forward_fused<const R: usize>(x: &Tensor<R>) -> bool {
    is_fused(x) || matches!(x.dtype(), DType::BF16 | DType::F16) && on_gpu(x)
}

/// Whether a tensor can use [`CpuFusedOps`] and [`CpuInference`].
pub(super) fn is_cpu_fused<const R: usize>(x: &Tensor<R>) -> bool {
    x.dtype() == DType::F32 && is_cpu(&x.device())
}

/// Without GPUs in the build there is only one backend.
#[cfg(not(feature = "gpu"))]
pub fn is_cpu(_device: &Device) -> bool {
    true
}

#[cfg(feature = "gpu")]
pub fn is_cpu(device: &Device) -> bool {
    matches!(device.clone().inner().as_dispatch(), burn::backend::DispatchDevice::Flex(_))
}

/// Whether the kernels of `ops::cube` run on its device.
fn on_gpu<const R: usize>(x: &Tensor<R>) -> bool {
    cfg!(all(feature = "gpu", not(feature = "fusion"))) && !is_cpu(&x.device())
}

/// Maximum rows of x for [`Products`] on a GPU: with more, kernels on tensor cores also read the matrix once.
const FEW_ON_GPU: usize = 16;

/// Whether products of a tensor with some matrices use [`Products`] on a GPU: few rows, outside autodiff.
pub(super) fn is_few_on_gpu(x: &Tensor<3>, weights: &[Tensor<2>]) -> bool {
    let [b, l, _] = x.dims();
    let alike = |w: &Tensor<2>| w.dtype() == x.dtype() && !w.is_autodiff();
    b * l <= FEW_ON_GPU && on_gpu(x) && is_forward_fused(x) && !x.is_autodiff() && weights.iter().all(alike)
}

/// Whether `ops::cube` chooses the kernels for products of such tensors: on tensor cores, where Burn's own may round.
pub(super) fn chooses_products<const R: usize>(x: &Tensor<R>) -> bool {
    #[cfg(all(feature = "gpu", not(feature = "fusion")))]
    if let burn::backend::DispatchDevice::Cube(device) = x.device().inner().as_dispatch() {
        return super::cube::chooses_products(device, x.dtype());
    }
    let _ = x;
    false
}

/// Whether products of such tensors use our kernels, not Burn's.
pub(super) fn own_products<const R: usize>(x: &Tensor<R>) -> bool {
    is_cpu_fused(x) && many::is_used()
}

/// Whether a device multiplies f32 faster in TF32. Where Burn fuses, it always does so.
pub fn has_tf32(device: &Device) -> bool {
    #[cfg(all(feature = "gpu", not(feature = "fusion")))]
    if let burn::backend::DispatchDevice::Cube(device) = device.clone().inner().as_dispatch() {
        return super::cube::has_tf32(device);
    }
    let _ = device;
    false
}

/// Bytes of the largest tensor on a GPU; `None` elsewhere (no limit), and where Burn fuses (unknown).
pub(super) fn largest_buffer(device: &Device) -> Option<u64> {
    #[cfg(all(feature = "gpu", not(feature = "fusion")))]
    if let burn::backend::DispatchDevice::Cube(device) = device.clone().inner().as_dispatch() {
        return Some(super::cube::largest_buffer(device));
    }
    let _ = device;
    None
}

/// The widest head whose attention is one pass on a GPU; `None` elsewhere (no limit).
pub(super) fn widest_head<const R: usize>(x: &Tensor<R>) -> Option<usize> {
    #[cfg(all(feature = "gpu", not(feature = "fusion")))]
    if let burn::backend::DispatchDevice::Cube(device) = x.device().inner().as_dispatch() {
        return Some(super::cube::widest_head(device));
    }
    let _ = x;
    None
}

pub(super) fn rms_norm<const R: usize>(x: Tensor<R>, weight: Tensor<1>, eps: f64) -> Tensor<R> {
    Tensor::from_dispatch(<Dispatch as FusedOps>::rms_norm(x.into_dispatch(), weight.into_dispatch(), eps))
}

pub(super) fn swiglu<const R: usize>(gate: Tensor<R>, up: Tensor<R>) -> Tensor<R> {
    Tensor::from_dispatch(<Dispatch as FusedOps>::swiglu(gate.into_dispatch(), up.into_dispatch()))
}

pub(super) fn matmul<const R: usize>(a: Tensor<R>, b: Tensor<R>) -> Tensor<R> {
    Tensor::from_dispatch(<Dispatch as FusedOps>::matmul(a.into_dispatch(), b.into_dispatch()))
}

pub(super) fn adapted(x: Tensor<3>, weight: Tensor<3>, [a, b]: [Tensor<3>; 2], scale: f64) -> Tensor<3> {
    let [x, weight, a, b] = [x, weight, a, b].map(Tensor::into_dispatch);
    Tensor::from_dispatch(<Dispatch as FusedOps>::adapted(x, weight, a, b, scale))
}

pub(super) fn linear(x: Tensor<3>, weight: Tensor<2>) -> Tensor<3> {
    Tensor::from_dispatch(<Dispatch as CpuFusedOps>::linear(x.into_dispatch(), weight.into_dispatch()))
}

pub(super) fn linear_transposed(x: Tensor<3>, table: Tensor<2>) -> Tensor<3> {
    Tensor::from_dispatch(<Dispatch as CpuFusedOps>::linear_transposed(x.into_dispatch(), table.into_dispatch()))
}

/// `x Wᵀ` with W `[N, K]` in its file format: x `[B, L, K]` in f32 → `[B, L, N]`. Only x has a gradient.
pub fn linear_stored(x: Tensor<3>, weight: &FrozenMatrix) -> Tensor<3> {
    Tensor::from_dispatch(<Dispatch as Stores>::linear_stored(x.into_dispatch(), weight.clone()))
}

/// `y W`: `[B, L, N]` → `[B, L, K]`, the backward pass of the input.
pub fn linear_stored_back(y: Tensor<3>, weight: &FrozenMatrix) -> Tensor<3> {
    Tensor::from_dispatch(<Dispatch as Stores>::linear_stored_backward(y.into_dispatch(), weight.clone()))
}

/// Outside autodiff only, as the next four.
pub(super) fn linear_one(x: Tensor<3>, weight: Tensor<2>) -> Tensor<3> {
    Tensor::from_dispatch(<Dispatch as Products>::linear_one(x.into_dispatch(), weight.into_dispatch()))
}

pub(super) fn linear_by_row(x: Tensor<3>, table: Tensor<2>) -> Tensor<3> {
    Tensor::from_dispatch(<Dispatch as Products>::linear_by_row(x.into_dispatch(), table.into_dispatch()))
}

pub(super) fn linear_two(x: Tensor<3>, [a, b]: [Tensor<2>; 2]) -> [Tensor<3>; 2] {
    let (a, b) = <Dispatch as Products>::linear_two(x.into_dispatch(), a.into_dispatch(), b.into_dispatch());
    [a, b].map(Tensor::from_dispatch)
}

pub(super) fn linear_three(x: Tensor<3>, weights: [Tensor<2>; 3]) -> [Tensor<3>; 3] {
    let [a, b, c] = weights.map(Tensor::into_dispatch);
    let (a, b, c) = <Dispatch as Products>::linear_three(x.into_dispatch(), a, b, c);
    [a, b, c].map(Tensor::from_dispatch)
}

pub(super) fn linear_stored_each<const P: usize>(x: Tensor<3>, weights: [FrozenMatrix; P]) -> [Tensor<3>; P] {
    let outs = <Dispatch as CpuInference>::linear_stored_each(x.into_dispatch(), weights.into());
    let mut outs = outs.into_iter().map(Tensor::from_dispatch);
    std::array::from_fn(|_| outs.next().unwrap_or_else(|| unreachable!("an output for each of {P} weights")))
}

/// Rows of `width` values, rounded to 8 bits as for a product with integers.
pub(super) fn rounded_to_q8(x: &[f32], width: usize) -> Vec<f32> {
    stored_q8::RoundedInputs::new(x, width).values()
}

pub(super) fn rotate(x: Tensor<4>, cos: Tensor<4>, sin: Tensor<4>) -> Tensor<4> {
    let out = <Dispatch as FusedOps>::rotate(x.into_dispatch(), cos.into_dispatch(), sin.into_dispatch(), false);
    Tensor::from_dispatch(out)
}

pub(super) fn softmax<const R: usize>(scores: Tensor<R>, mask: Option<Tensor<R>>) -> Tensor<R> {
    Tensor::from_dispatch(match mask {
        Some(mask) => <Dispatch as FusedOps>::masked_softmax(scores.into_dispatch(), mask.into_dispatch()),
        None => <Dispatch as FusedOps>::row_softmax(scores.into_dispatch()),
    })
}

/// [`super::attend`] in chunks of positions whose scores need at most `held` bytes, at least one position each.
pub fn attend_in_parts(q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, mask: Tensor<4>, held: usize) -> Tensor<4> {
    let (q, k, v) = (q.into_dispatch(), k.into_dispatch(), v.into_dispatch());
    Tensor::from_dispatch(<Dispatch as FusedOps>::attend_in_parts(q, k, v, mask.into_dispatch(), held))
}

/// With gradients, on the CPU only.
pub(super) fn attend_tracked(q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, mask: Tensor<4>) -> Tensor<4> {
    let (q, k, v) = (q.into_dispatch(), k.into_dispatch(), v.into_dispatch());
    Tensor::from_dispatch(<Dispatch as CpuFusedOps>::attend(q, k, v, mask.into_dispatch()))
}

/// Outside autodiff only.
pub(super) fn attend(q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, mask: Option<Tensor<4>>) -> Tensor<4> {
    let (q, k, v) = (q.into_dispatch(), k.into_dispatch(), v.into_dispatch());
    Tensor::from_dispatch(match mask {
        Some(mask) => <Dispatch as Inference>::attend_masked(q, k, v, mask.into_dispatch()),
        None => <Dispatch as Inference>::attend_all(q, k, v),
    })
}

pub(super) fn head_loss(hidden: Tensor<2>, head: Tensor<2>, targets: Targets) -> (Tensor<1>, Tensor<1>) {
    let (loss, hits) = <Dispatch as FusedOps>::head_loss(hidden.into_dispatch(), head.into_dispatch(), targets);
    (Tensor::from_dispatch(loss), Tensor::from_dispatch(hits))
}

/// Losses with a head whose first rows are in their file format and whose last are floats `[n, D]`, in f32.
pub fn head_loss_stored(
    hidden: Tensor<2>,
    learnt: Tensor<2>,
    stored: &FrozenMatrix,
    targets: Targets,
) -> (Tensor<1>, Tensor<1>) {
    let (hidden, learnt) = (hidden.into_dispatch(), learnt.into_dispatch());
    let (loss, hits) = <Dispatch as Stores>::head_loss_stored(hidden, learnt, stored.clone(), targets);
    (Tensor::from_dispatch(loss), Tensor::from_dispatch(hits))
}

pub(super) fn adamw<const R: usize>(
    weight: Tensor<R>,
    grad: Tensor<R>,
    [moment_1, moment_2]: [Tensor<R>; 2],
    step: AdamW,
) -> (Tensor<R>, [Tensor<R>; 2]) {
    let (moment_1, moment_2) = (moment_1.into_dispatch(), moment_2.into_dispatch());
    let (weight, moment_1, moment_2) =
        <Dispatch as Inference>::adamw(weight.into_dispatch(), grad.into_dispatch(), moment_1, moment_2, step);
    (Tensor::from_dispatch(weight), [Tensor::from_dispatch(moment_1), Tensor::from_dispatch(moment_2)])
}

pub(super) fn sum_of_squares<const R: usize>(x: Tensor<R>) -> Tensor<1> {
    Tensor::from_dispatch(<Dispatch as Inference>::sum_of_squares(x.into_dispatch()))
}
