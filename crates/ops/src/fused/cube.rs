//! [`FusedOps`], [`Stores`], [`Inference`] and [`Products`] on Burn's GPU backend: the kernels of `ops::cube`.

use burn::backend::tensor::FloatTensor;
use burn_cubecl::CubeBackend;

use super::on_gpu::OnGpu;
use super::{AdamW, FusedOps, Inference, Products, Stores, Targets, head};
use crate::cube;
use crate::frozen::FrozenMatrix;

impl FusedOps for CubeBackend {
    fn rms_norm(x: FloatTensor<Self>, weight: FloatTensor<Self>, eps: f64) -> FloatTensor<Self> {
        cube::rms_norm(x, weight, eps)
    }

    fn rms_norm_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        eps: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        cube::rms_norm_backward(x, weight, grad, eps)
    }

    fn swiglu(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self> {
        cube::swiglu(gate, up)
    }

    fn swiglu_backward(
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        grad: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        cube::swiglu_backward(gate, up, grad)
    }

    fn rotate(x: FloatTensor<Self>, cos: FloatTensor<Self>, sin: FloatTensor<Self>, back: bool) -> FloatTensor<Self> {
        cube::rotate(x, cos, sin, back)
    }

    fn masked_softmax(scores: FloatTensor<Self>, mask: FloatTensor<Self>) -> FloatTensor<Self> {
        cube::softmax(scores, Some(mask))
    }

    fn row_softmax(scores: FloatTensor<Self>) -> FloatTensor<Self> {
        cube::softmax(scores, None)
    }

    fn softmax_backward(pattern: FloatTensor<Self>, grad: FloatTensor<Self>) -> FloatTensor<Self> {
        cube::softmax_backward(pattern, grad)
    }

    fn head_loss(
        hidden: FloatTensor<Self>,
        head: FloatTensor<Self>,
        targets: Targets,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        head::forward(&hidden, &head::Floats::<Self>(&head), &targets)
    }

    fn cross_entropy(logits: FloatTensor<Self>, targets: Targets) -> (FloatTensor<Self>, FloatTensor<Self>) {
        cube::cross_entropy(logits, &targets)
    }

    fn matmul(a: FloatTensor<Self>, b: FloatTensor<Self>) -> FloatTensor<Self> {
        cube::matmul(a, b)
    }

    fn matmul_onto(y: FloatTensor<Self>, a: FloatTensor<Self>, b: FloatTensor<Self>, scale: f64) -> FloatTensor<Self> {
        cube::matmul_onto(y, a, b, scale)
    }

    fn scaled_matmul(a: FloatTensor<Self>, b: FloatTensor<Self>, scale: f64) -> FloatTensor<Self> {
        cube::scaled_matmul(a, b, scale)
    }

    fn cross_entropy_backward(
        logits: FloatTensor<Self>,
        targets: Targets,
        grad: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        cube::cross_entropy_backward(logits, &targets, grad)
    }
}

impl Products for CubeBackend {
    fn linear_one(x: FloatTensor<Self>, weight: FloatTensor<Self>) -> FloatTensor<Self> {
        let [out] = cube::linear(x, [weight]);
        out
    }

    fn linear_two(
        x: FloatTensor<Self>,
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        cube::linear(x, [a, b]).into()
    }

    fn linear_three(
        x: FloatTensor<Self>,
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        c: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        cube::linear(x, [a, b, c]).into()
    }

    fn linear_by_row(x: FloatTensor<Self>, table: FloatTensor<Self>) -> FloatTensor<Self> {
        cube::linear_by_row(x, table)
    }
}

impl Stores for CubeBackend {
    fn linear_stored(x: FloatTensor<Self>, weight: FrozenMatrix) -> FloatTensor<Self> {
        weight.on_device().product(x)
    }

    fn linear_stored_backward(grad: FloatTensor<Self>, weight: FrozenMatrix) -> FloatTensor<Self> {
        weight.on_device().back(grad)
    }

    fn head_loss_stored(
        hidden: FloatTensor<Self>,
        learnt: FloatTensor<Self>,
        stored: FrozenMatrix,
        targets: Targets,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        head::forward(&hidden, &head::MixedRows::<Self> { stored: &stored, learnt: &learnt }, &targets)
    }
}

impl Inference for CubeBackend {
    fn attend_masked(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        mask: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        cube::attend(q, k, v, Some(mask))
    }

    fn attend_all(q: FloatTensor<Self>, k: FloatTensor<Self>, v: FloatTensor<Self>) -> FloatTensor<Self> {
        cube::attend(q, k, v, None)
    }

    fn adamw(
        weight: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        moment_1: FloatTensor<Self>,
        moment_2: FloatTensor<Self>,
        step: AdamW,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        cube::adamw(weight, grad, [moment_1, moment_2], step)
    }

    fn sum_of_squares(x: FloatTensor<Self>) -> FloatTensor<Self> {
        cube::sum_of_squares(x)
    }
}

impl OnGpu for CubeBackend {
    fn append_heads(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        q_gain: FloatTensor<Self>,
        k_gain: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        at: usize,
        eps: Option<f64>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        cube::append_heads([q, k, v], [q_gain, k_gain], [cos, sin], [keys, values], at, eps)
    }

    fn add_rms_norm(
        x: FloatTensor<Self>,
        more: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        eps: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        cube::add_rms_norm(x, more, weight, eps)
    }

    fn first_of(x: FloatTensor<Self>, axis: usize, n: usize) -> FloatTensor<Self> {
        cube::first_of(x, axis, n)
    }
}
