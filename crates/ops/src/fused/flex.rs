//! [`FusedOps`] on Burn's CPU backend: tensors to slices and back.

use burn::backend::flex::FlexTensor;
use burn::backend::ops::FloatTensorOps;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::{DType, Shape, TensorData};
use rayon::prelude::*;

use super::flex_products::attended;
use super::{AdamW, BackwardOps, FusedOps, Inference, Targets, flex_products, head, kernels};
use crate::MASKED;

/// A row-major view of a tensor: its own memory if it is row-major, else a copy.
pub(super) struct Rows(pub(super) FlexTensor);

impl Rows {
    pub fn new(x: FlexTensor) -> Self {
        if x.as_slice::<f32>().is_some() { Self(x) } else { Self(x.to_contiguous()) }
    }

    pub fn get(&self) -> &[f32] {
        // `to_contiguous` ensures it; an f64 tensor never gets here (`is_fused`).
        self.0.as_slice().unwrap_or_default()
    }
}

pub(super) fn made(values: Vec<f32>, shape: Shape) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, shape))
}

/// Values per thread and task.
const PART: usize = 1 << 16;

pub(super) fn last(shape: &Shape) -> usize {
    shape.iter().last().copied().unwrap_or(1)
}

/// The tensor's own memory, row-major, if it has no other owner, or a copy.
fn owned(mut x: FlexTensor) -> FlexTensor {
    let shape = x.shape();
    let whole = x.is_contiguous() && x.layout().start_offset() == 0 && x.bytes().len() == shape.num_elements() * 4;
    if whole && x.try_storage_mut::<f32>().is_some() { x } else { made(Rows::new(x).get().to_vec(), shape) }
}

/// The values of a tensor that [`owned`] returned.
fn values(x: &mut FlexTensor) -> &mut [f32] {
    x.try_storage_mut().unwrap_or_default()
}

/// Runs `work` on a tensor's values in place if they have no other owner, or on a copy.
fn in_place(x: FlexTensor, work: impl FnOnce(&mut [f32])) -> FlexTensor {
    let mut x = owned(x);
    work(values(&mut x));
    x
}

impl FusedOps for Flex {
    fn rms_norm(x: FlexTensor, weight: FlexTensor, eps: f64) -> FlexTensor {
        let (shape, x, weight) = (x.shape(), Rows::new(x), Rows::new(weight));
        let mut out = vec![0.0; x.get().len()];
        kernels::rms_norm(x.get(), weight.get(), eps as f32, &mut out);
        made(out, shape)
    }

    fn swiglu(gate: FlexTensor, up: FlexTensor) -> FlexTensor {
        let (shape, gate, up) = (gate.shape(), Rows::new(gate), Rows::new(up));
        let mut out = vec![0.0; gate.get().len()];
        kernels::swiglu(gate.get(), up.get(), &mut out);
        made(out, shape)
    }

    fn rotate(x: FlexTensor, cos: FlexTensor, sin: FlexTensor, back: bool) -> FlexTensor {
        let shape = x.shape();
        let (heads, half) = (shape[2], shape[3] / 2);
        let (x, cos, sin) = (Rows::new(x), Rows::new(cos), Rows::new(sin));
        let mut out = vec![0.0; x.get().len()];
        let sign = if back { -1.0 } else { 1.0 };
        kernels::rotate(x.get(), cos.get(), sin.get(), [heads, half], sign, &mut out);
        made(out, shape)
    }

    fn masked_softmax(scores: FlexTensor, mask: FlexTensor) -> FlexTensor {
        let shape = scores.shape();
        let mask = Rows::new(mask);
        in_place(scores, |x| kernels::softmax(x, mask.get(), [shape[1], shape[2], shape[3]]))
    }

    fn row_softmax(scores: FlexTensor) -> FlexTensor {
        let width = last(&scores.shape());
        in_place(scores, |x| kernels::softmax(x, &[], [1, 1, width]))
    }

    fn head_loss(hidden: FlexTensor, head: FlexTensor, targets: Targets) -> (FlexTensor, FlexTensor) {
        head::forward(&hidden, &head::Floats::<Self>(&head), &targets)
    }

    fn matmul(a: FlexTensor, b: FlexTensor) -> FlexTensor {
        if flex_products::is_own(&a, &b) { flex_products::matmul(a, b) } else { Self::float_matmul(a, b) }
    }
}

impl BackwardOps for Flex {
    fn rms_norm_backward(x: FlexTensor, weight: FlexTensor, grad: FlexTensor, eps: f64) -> (FlexTensor, FlexTensor) {
        let (shape, weight_shape) = (x.shape(), weight.shape());
        let (x, weight, grad) = (Rows::new(x), Rows::new(weight), Rows::new(grad));
        let (mut dx, mut dw) = (vec![0.0; x.get().len()], vec![0.0; weight.get().len()]);
        kernels::rms_norm_backward(x.get(), weight.get(), grad.get(), eps as f32, &mut dx, &mut dw);
        (made(dx, shape), made(dw, weight_shape))
    }

    fn swiglu_backward(gate: FlexTensor, up: FlexTensor, grad: FlexTensor) -> (FlexTensor, FlexTensor) {
        let shape = gate.shape();
        let (gate, up, grad) = (Rows::new(gate), Rows::new(up), Rows::new(grad));
        let n = gate.get().len();
        let (mut dgate, mut dup) = (vec![0.0; n], vec![0.0; n]);
        kernels::swiglu_backward(gate.get(), up.get(), grad.get(), &mut dgate, &mut dup);
        (made(dgate, shape.clone()), made(dup, shape))
    }

    fn softmax_backward(pattern: FlexTensor, grad: FlexTensor) -> FlexTensor {
        let width = last(&pattern.shape());
        let pattern = Rows::new(pattern);
        in_place(grad, |g| kernels::softmax_backward(pattern.get(), g, width))
    }

    fn cross_entropy(logits: FlexTensor, targets: Targets) -> (FlexTensor, FlexTensor) {
        let n = targets.ids.len();
        let (mut loss, mut hits) = (vec![0.0; n], vec![0.0; n]);
        in_place(logits, |x| {
            mask_banned(x, &targets);
            kernels::cross_entropy(x, &targets.ids, &mut loss, &mut hits);
        });
        (made(loss, Shape::new([n])), made(hits, Shape::new([n])))
    }

    fn cross_entropy_backward(logits: FlexTensor, targets: Targets, grad: FlexTensor) -> FlexTensor {
        debug_assert_eq!(logits.dtype(), DType::F32);
        let grad = Rows::new(grad);
        in_place(logits, |x| {
            mask_banned(x, &targets);
            kernels::cross_entropy_backward(x, &targets.ids, grad.get());
        })
    }
}

fn mask_banned(logits: &mut [f32], targets: &Targets) {
    let width = logits.len() / targets.ids.len().max(1);
    for (row, logits) in logits.chunks_exact_mut(width.max(1)).enumerate() {
        targets.banned(row).iter().for_each(|&token| logits[token as usize] = MASKED);
    }
}

impl Inference for Flex {
    fn attend_all(q: FlexTensor, k: FlexTensor, v: FlexTensor) -> FlexTensor {
        attended(q, k, v, &[]).0
    }

    fn attend_masked(q: FlexTensor, k: FlexTensor, v: FlexTensor, mask: FlexTensor) -> FlexTensor {
        attended(q, k, v, Rows::new(mask).get()).0
    }

    fn adamw(
        weight: FlexTensor,
        grad: FlexTensor,
        moment_1: FlexTensor,
        moment_2: FlexTensor,
        step: AdamW,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        let grad = Rows::new(grad);
        let (mut weight, mut moment_1, mut moment_2) = (owned(weight), owned(moment_1), owned(moment_2));
        let parts = values(&mut weight).par_chunks_mut(PART).zip(grad.get().par_chunks(PART));
        let parts = parts.zip(values(&mut moment_1).par_chunks_mut(PART));
        let parts = parts.zip(values(&mut moment_2).par_chunks_mut(PART));
        parts.for_each(|(((weight, grad), m), v)| kernels::adamw(weight, grad, m, v, step));
        (weight, moment_1, moment_2)
    }

    fn sum_of_squares(x: FlexTensor) -> FlexTensor {
        let x = Rows::new(x);
        let sum_of = |part: &[f32]| {
            let mut sum = 0.0;
            kernels::sum_of_squares(part, &mut sum);
            f64::from(sum)
        };
        // Collected, so that the order of the sum does not depend on threads.
        let sums: Vec<f64> = x.get().par_chunks(PART).map(sum_of).collect();
        made(vec![sums.iter().sum::<f64>() as f32], Shape::new([1]))
    }
}
