//! [`FusedOps`], [`BackwardOps`], [`Stores`], [`Inference`] and [`Products`] on Burn's GPU backend: the kernels of `ops::cube`.

use burn::backend::tensor::FloatTensor as Float;
use burn_cubecl::CubeBackend;

use super::on_gpu::OnGpu;
use super::{AdamW, BackwardOps, FusedOps, Inference, Products, Stores, Targets, head};
use crate::cube;
use crate::frozen::FrozenMatrix;

impl FusedOps for CubeBackend {
    fn rms_norm(x: Float<Self>, weight: Float<Self>, eps: f64) -> Float<Self> {
        cube::rms_norm(x, weight, eps)
    }

    fn swiglu(gate: Float<Self>, up: Float<Self>) -> Float<Self> {
        cube::swiglu(gate, up)
    }

    fn rotate(x: Float<Self>, cos: Float<Self>, sin: Float<Self>, back: bool) -> Float<Self> {
        cube::rotate(x, cos, sin, back)
    }

    fn masked_softmax(scores: Float<Self>, mask: Float<Self>) -> Float<Self> {
        cube::softmax(scores, Some(mask))
    }

    fn row_softmax(scores: Float<Self>) -> Float<Self> {
        cube::softmax(scores, None)
    }

    fn head_loss(hidden: Float<Self>, head: Float<Self>, targets: Targets) -> (Float<Self>, Float<Self>) {
        head::forward(&hidden, &head::Floats::<Self>(&head), &targets)
    }

    fn matmul(a: Float<Self>, b: Float<Self>) -> Float<Self> {
        cube::matmul(a, b)
    }

    fn matmul_onto(y: Float<Self>, a: Float<Self>, b: Float<Self>, scale: f64) -> Float<Self> {
        cube::matmul_onto(y, a, b, scale)
    }

    fn scaled_matmul(a: Float<Self>, b: Float<Self>, scale: f64) -> Float<Self> {
        cube::scaled_matmul(a, b, scale)
    }
}

impl BackwardOps for CubeBackend {
    fn rms_norm_backward(
        x: Float<Self>,
        weight: Float<Self>,
        grad: Float<Self>,
        eps: f64,
    ) -> (Float<Self>, Float<Self>) {
        cube::rms_norm_backward(x, weight, grad, eps)
    }

    fn swiglu_backward(gate: Float<Self>, up: Float<Self>, grad: Float<Self>) -> (Float<Self>, Float<Self>) {
        cube::swiglu_backward(gate, up, grad)
    }

    fn softmax_backward(pattern: Float<Self>, grad: Float<Self>) -> Float<Self> {
        cube::softmax_backward(pattern, grad)
    }

    fn cross_entropy(logits: Float<Self>, targets: Targets) -> (Float<Self>, Float<Self>) {
        cube::cross_entropy(logits, &targets)
    }

    fn cross_entropy_backward(logits: Float<Self>, targets: Targets, grad: Float<Self>) -> Float<Self> {
        cube::cross_entropy_backward(logits, &targets, grad)
    }
}

impl Products for CubeBackend {
    fn linear_one(x: Float<Self>, weight: Float<Self>) -> Float<Self> {
        let [out] = cube::linear(x, [weight]);
        out
    }

    fn linear_two(x: Float<Self>, a: Float<Self>, b: Float<Self>) -> (Float<Self>, Float<Self>) {
        cube::linear(x, [a, b]).into()
    }

    fn linear_three(
        x: Float<Self>,
        a: Float<Self>,
        b: Float<Self>,
        c: Float<Self>,
    ) -> (Float<Self>, Float<Self>, Float<Self>) {
        cube::linear(x, [a, b, c]).into()
    }

    fn linear_by_row(x: Float<Self>, table: Float<Self>) -> Float<Self> {
        cube::linear_by_row(x, table)
    }
}

impl Stores for CubeBackend {
    fn linear_stored(x: Float<Self>, weight: FrozenMatrix) -> Float<Self> {
        weight.on_device().product(x)
    }

    fn linear_stored_backward(grad: Float<Self>, weight: FrozenMatrix) -> Float<Self> {
        weight.on_device().back(grad)
    }

    fn head_loss_stored(
        hidden: Float<Self>,
        learnt: Float<Self>,
        stored: FrozenMatrix,
        targets: Targets,
    ) -> (Float<Self>, Float<Self>) {
        head::forward(&hidden, &head::MixedRows::<Self> { stored: &stored, learnt: &learnt }, &targets)
    }
}

impl Inference for CubeBackend {
    fn attend_masked(q: Float<Self>, k: Float<Self>, v: Float<Self>, mask: Float<Self>) -> Float<Self> {
        cube::attend(q, k, v, Some(mask))
    }

    fn attend_all(q: Float<Self>, k: Float<Self>, v: Float<Self>) -> Float<Self> {
        cube::attend(q, k, v, None)
    }

    fn adamw(
        weight: Float<Self>,
        grad: Float<Self>,
        moment_1: Float<Self>,
        moment_2: Float<Self>,
        step: AdamW,
    ) -> (Float<Self>, Float<Self>, Float<Self>) {
        cube::adamw(weight, grad, [moment_1, moment_2], step)
    }

    fn sum_of_squares(x: Float<Self>) -> Float<Self> {
        cube::sum_of_squares(x)
    }
}

impl OnGpu for CubeBackend {
    fn append_heads(
        q: Float<Self>,
        k: Float<Self>,
        v: Float<Self>,
        q_gain: Float<Self>,
        k_gain: Float<Self>,
        cos: Float<Self>,
        sin: Float<Self>,
        keys: Float<Self>,
        values: Float<Self>,
        at: usize,
        eps: Option<f64>,
    ) -> (Float<Self>, Float<Self>, Float<Self>) {
        cube::append_heads([q, k, v], [q_gain, k_gain], [cos, sin], [keys, values], at, eps)
    }

    fn add_rms_norm(x: Float<Self>, more: Float<Self>, weight: Float<Self>, eps: f64) -> (Float<Self>, Float<Self>) {
        cube::add_rms_norm(x, more, weight, eps)
    }

    fn first_of(x: Float<Self>, axis: usize, n: usize) -> Float<Self> {
        cube::first_of(x, axis, n)
    }
}
