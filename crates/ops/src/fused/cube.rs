//! [`FusedOps`], [`Stores`], [`Inference`] and [`Products`] on Burn's GPU backend: the kernels of `ops::cube`.

use burn::backend::tensor::FloatTensor;
use burn_cubecl::CubeBackend;

use super::on_gpu::OnGpu;
use super::{AdamW, FusedOps, Inference, Products, Stores, Targets, head};
use crate::cube;
use crate::frozen::FrozenMatrix;

type CubeFloat = FloatTensor<CubeBackend>;

impl FusedOps for CubeBackend {
    fn rms_norm(x: CubeFloat, weight: CubeFloat, eps: f64) -> CubeFloat {
        cube::rms_norm(x, weight, eps)
    }

    fn rms_norm_backward(x: CubeFloat, weight: CubeFloat, grad: CubeFloat, eps: f64) -> (CubeFloat, CubeFloat) {
        cube::rms_norm_backward(x, weight, grad, eps)
    }

    fn swiglu(gate: CubeFloat, up: CubeFloat) -> CubeFloat {
        cube::swiglu(gate, up)
    }

    fn swiglu_backward(gate: CubeFloat, up: CubeFloat, grad: CubeFloat) -> (CubeFloat, CubeFloat) {
        cube::swiglu_backward(gate, up, grad)
    }

    fn rotate(x: CubeFloat, cos: CubeFloat, sin: CubeFloat, back: bool) -> CubeFloat {
        cube::rotate(x, cos, sin, back)
    }

    fn masked_softmax(scores: CubeFloat, mask: CubeFloat) -> CubeFloat {
        cube::softmax(scores, Some(mask))
    }

    fn row_softmax(scores: CubeFloat) -> CubeFloat {
        cube::softmax(scores, None)
    }

    fn softmax_backward(pattern: CubeFloat, grad: CubeFloat) -> CubeFloat {
        cube::softmax_backward(pattern, grad)
    }

    fn head_loss(hidden: CubeFloat, head: CubeFloat, targets: Targets) -> (CubeFloat, CubeFloat) {
        head::forward(&hidden, &head::Floats::<Self>(&head), &targets)
    }

    fn cross_entropy(logits: CubeFloat, targets: Targets) -> (CubeFloat, CubeFloat) {
        cube::cross_entropy(logits, &targets)
    }

    fn matmul(a: CubeFloat, b: CubeFloat) -> CubeFloat {
        cube::matmul(a, b)
    }

    fn matmul_onto(y: CubeFloat, a: CubeFloat, b: CubeFloat, scale: f64) -> CubeFloat {
        cube::matmul_onto(y, a, b, scale)
    }

    fn scaled_matmul(a: CubeFloat, b: CubeFloat, scale: f64) -> CubeFloat {
        cube::scaled_matmul(a, b, scale)
    }

    fn cross_entropy_backward(logits: CubeFloat, targets: Targets, grad: CubeFloat) -> CubeFloat {
        cube::cross_entropy_backward(logits, &targets, grad)
    }
}

impl Products for CubeBackend {
    fn linear_one(x: CubeFloat, weight: CubeFloat) -> CubeFloat {
        let [out] = cube::linear(x, [weight]);
        out
    }

    fn linear_two(x: CubeFloat, a: CubeFloat, b: CubeFloat) -> (CubeFloat, CubeFloat) {
        cube::linear(x, [a, b]).into()
    }

    fn linear_three(x: CubeFloat, a: CubeFloat, b: CubeFloat, c: CubeFloat) -> (CubeFloat, CubeFloat, CubeFloat) {
        cube::linear(x, [a, b, c]).into()
    }

    fn linear_by_row(x: CubeFloat, table: CubeFloat) -> CubeFloat {
        cube::linear_by_row(x, table)
    }
}

impl Stores for CubeBackend {
    fn linear_stored(x: CubeFloat, weight: FrozenMatrix) -> CubeFloat {
        weight.on_device().product(x)
    }

    fn linear_stored_backward(grad: CubeFloat, weight: FrozenMatrix) -> CubeFloat {
        weight.on_device().back(grad)
    }

    fn head_loss_stored(
        hidden: CubeFloat,
        learnt: CubeFloat,
        stored: FrozenMatrix,
        targets: Targets,
    ) -> (CubeFloat, CubeFloat) {
        head::forward(&hidden, &head::MixedRows::<Self> { stored: &stored, learnt: &learnt }, &targets)
    }
}

impl Inference for CubeBackend {
    fn attend_masked(q: CubeFloat, k: CubeFloat, v: CubeFloat, mask: CubeFloat) -> CubeFloat {
        cube::attend(q, k, v, Some(mask))
    }

    fn attend_all(q: CubeFloat, k: CubeFloat, v: CubeFloat) -> CubeFloat {
        cube::attend(q, k, v, None)
    }

    fn adamw(
        weight: CubeFloat,
        grad: CubeFloat,
        moment_1: CubeFloat,
        moment_2: CubeFloat,
        step: AdamW,
    ) -> (CubeFloat, CubeFloat, CubeFloat) {
        cube::adamw(weight, grad, [moment_1, moment_2], step)
    }

    fn sum_of_squares(x: CubeFloat) -> CubeFloat {
        cube::sum_of_squares(x)
    }
}

impl OnGpu for CubeBackend {
    fn append_heads(
        q: CubeFloat,
        k: CubeFloat,
        v: CubeFloat,
        q_gain: CubeFloat,
        k_gain: CubeFloat,
        cos: CubeFloat,
        sin: CubeFloat,
        keys: CubeFloat,
        values: CubeFloat,
        at: usize,
        eps: Option<f64>,
    ) -> (CubeFloat, CubeFloat, CubeFloat) {
        cube::append_heads([q, k, v], [q_gain, k_gain], [cos, sin], [keys, values], at, eps)
    }

    fn add_rms_norm(x: CubeFloat, more: CubeFloat, weight: CubeFloat, eps: f64) -> (CubeFloat, CubeFloat) {
        cube::add_rms_norm(x, more, weight, eps)
    }

    fn first_of(x: CubeFloat, axis: usize, n: usize) -> CubeFloat {
        cube::first_of(x, axis, n)
    }
}
