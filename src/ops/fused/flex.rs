//! [`Fused`] on Burn's CPU backend: tensors to slices and back.

use std::ops::Range;
use std::sync::Arc;

use burn::backend::flex::FlexTensor;
use burn::backend::ops::{FloatTensorOps, ModuleOps};
use burn::backend::{Flex, TensorMetadata, tensor::FloatTensor};
use burn::tensor::{DType, Shape, Slice, TensorData};
use rayon::prelude::*;

use super::attend::{self, Heads, Sizes};
use super::attend_gradient::Attended;
use super::{AdamW, Fused, Inference, Targets, head, kernels, product, stored, stored_many};
use crate::ops::MASKED;
use crate::ops::stored::Stored;

/// A row-major view of a tensor: its own memory where it is laid out so, a copy otherwise.
struct Rows(FlexTensor);

impl Rows {
    fn new(x: FlexTensor) -> Self {
        if x.as_slice::<f32>().is_some() { Self(x) } else { Self(x.to_contiguous()) }
    }

    fn get(&self) -> &[f32] {
        // `to_contiguous` has made it so; an f64 tensor never comes here (`is_fused`).
        self.0.as_slice().unwrap_or_default()
    }
}

fn made(values: Vec<f32>, shape: Shape) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, shape))
}

/// Values that one thread works on at a time.
const PART: usize = 1 << 16;

fn last(shape: &Shape) -> usize {
    shape.iter().last().copied().unwrap_or(1)
}

/// The tensor's own memory, row-major, where nobody else holds it, or a copy.
fn owned(mut x: FlexTensor) -> FlexTensor {
    let shape = x.shape();
    let whole = x.is_contiguous() && x.layout().start_offset() == 0 && x.bytes().len() == shape.num_elements() * 4;
    if whole && x.try_storage_mut::<f32>().is_some() { x } else { made(Rows::new(x).get().to_vec(), shape) }
}

/// The values of a tensor that [`owned`] returned.
fn values(x: &mut FlexTensor) -> &mut [f32] {
    x.try_storage_mut().unwrap_or_default()
}

/// Runs `work` on a tensor's values in place, where nobody else holds them, or on a copy.
fn in_place(x: FlexTensor, work: impl FnOnce(&mut [f32])) -> FlexTensor {
    let mut x = owned(x);
    work(values(&mut x));
    x
}

/// Whether the loops for few rows take it: few rows, and weights that lie in rows.
fn is_few(x: &FlexTensor, weights: &[&FlexTensor]) -> bool {
    let (rows, _) = flat(x, 1);
    let lie_in_rows = weights.iter().all(|w| w.as_slice::<f32>().is_some_and(|values| !values.is_empty()));
    (1..=product::FEW).contains(&rows) && lie_in_rows
}

/// Products of one input with several weights `[K, N]`.
fn products<const P: usize>(x: FlexTensor, weights: [FlexTensor; P]) -> [FlexTensor; P] {
    let columns = weights.each_ref().map(|w| last(&w.shape()));
    if !is_few(&x, &weights.each_ref()) {
        return weights.map(|w| <Flex as ModuleOps<Flex>>::linear(x.clone(), w, None));
    }
    let shapes = columns.map(|columns| flat(&x, columns).1);
    let (depth, x, weights) = (last(&x.shape()), Rows::new(x), weights.map(Rows));
    let mut outs = product::rows_times(x.get(), weights.each_ref().map(Rows::get), depth).into_iter();
    shapes.map(|shape| made(outs.next().unwrap_or_default(), shape))
}

/// The same of weights `[N, K]` kept as stored.
fn stored_products<const P: usize>(x: FlexTensor, weights: [Arc<Stored>; P]) -> [FlexTensor; P] {
    let (rows, _) = flat(&x, 1);
    let shapes = weights.each_ref().map(|w| flat(&x, w.rows()).1);
    let (x, weights) = (Rows::new(x), weights.each_ref().map(Arc::as_ref));
    let outs = match rows <= product::FEW {
        true => stored::rows_times_stored(x.get(), weights),
        false => stored_many::many_rows_times_stored(x.get(), weights),
    };
    let mut outs = outs.into_iter();
    shapes.map(|shape| made(outs.next().unwrap_or_default(), shape))
}

/// Rows of a tensor, and its shape with another last axis.
fn flat(x: &FlexTensor, columns: usize) -> (usize, Shape) {
    let mut shape = x.shape();
    let rows = shape.num_elements() / last(&shape).max(1);
    let axis = shape.num_dims() - 1;
    shape[axis] = columns;
    (rows, shape)
}

/// Values of a stored matrix that are held as floats at once.
const WIDE: usize = 1 << 20;

/// The rows of a stored matrix in pieces that are widened at once.
fn pieces(weight: &Stored) -> Vec<Range<usize>> {
    let step = (WIDE / weight.width()).max(64);
    (0..weight.rows()).step_by(step).map(|from| from..(from + step).min(weight.rows())).collect()
}

/// A piece as floats, `[n, K]`.
fn widened(weight: &Stored, piece: Range<usize>) -> FlexTensor {
    let shape = Shape::new([piece.len(), weight.width()]);
    made(weight.widened_range(piece), shape)
}

impl Fused for Flex {
    fn rms_norm(x: FloatTensor<Self>, weight: FloatTensor<Self>, eps: f64) -> FloatTensor<Self> {
        let (shape, x, weight) = (x.shape(), Rows::new(x), Rows::new(weight));
        let mut out = vec![0.0; x.get().len()];
        kernels::rms_norm(x.get(), weight.get(), eps as f32, &mut out);
        made(out, shape)
    }

    fn rms_norm_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        eps: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (shape, weight_shape) = (x.shape(), weight.shape());
        let (x, weight, grad) = (Rows::new(x), Rows::new(weight), Rows::new(grad));
        let (mut dx, mut dw) = (vec![0.0; x.get().len()], vec![0.0; weight.get().len()]);
        kernels::rms_norm_backward(x.get(), weight.get(), grad.get(), eps as f32, &mut dx, &mut dw);
        (made(dx, shape), made(dw, weight_shape))
    }

    fn swiglu(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self> {
        let (shape, gate, up) = (gate.shape(), Rows::new(gate), Rows::new(up));
        let mut out = vec![0.0; gate.get().len()];
        kernels::swiglu(gate.get(), up.get(), &mut out);
        made(out, shape)
    }

    fn swiglu_backward(
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        grad: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let shape = gate.shape();
        let (gate, up, grad) = (Rows::new(gate), Rows::new(up), Rows::new(grad));
        let n = gate.get().len();
        let (mut dgate, mut dup) = (vec![0.0; n], vec![0.0; n]);
        kernels::swiglu_backward(gate.get(), up.get(), grad.get(), &mut dgate, &mut dup);
        (made(dgate, shape.clone()), made(dup, shape))
    }

    fn linear(x: FloatTensor<Self>, weight: FloatTensor<Self>) -> FloatTensor<Self> {
        let [out] = products(x, [weight]);
        out
    }

    fn linear_transposed(x: FloatTensor<Self>, table: FloatTensor<Self>) -> FloatTensor<Self> {
        if !is_few(&x, &[&table]) {
            return <Self as ModuleOps<Self>>::linear(x, Self::float_transpose(table), None);
        }
        let [columns, depth] = table.shape().dims();
        let (_, shape) = flat(&x, columns);
        made(product::rows_times_transposed(Rows::new(x).get(), Rows(table).get(), [depth, columns]), shape)
    }

    fn linear_stored(x: FloatTensor<Self>, weight: Arc<Stored>) -> FloatTensor<Self> {
        let [out] = stored_products(x, [weight]);
        out
    }

    fn linear_stored_backward(grad: FloatTensor<Self>, weight: Arc<Stored>) -> FloatTensor<Self> {
        let (rows, shape) = flat(&grad, weight.width());
        let grad = Self::float_reshape(grad, Shape::new([rows, weight.rows()]));
        let of = |part: Range<usize>| Self::float_slice(grad.clone(), &[Slice::full(), Slice::from(part)]);
        let mut sum = made(vec![0.0; shape.num_elements()], Shape::new([rows, weight.width()]));
        for part in pieces(&weight) {
            sum = Self::float_add(sum, Self::float_matmul(of(part.clone()), widened(&weight, part)));
        }
        Self::float_reshape(sum, shape)
    }

    fn rotate(x: FloatTensor<Self>, cos: FloatTensor<Self>, sin: FloatTensor<Self>, back: bool) -> FloatTensor<Self> {
        let shape = x.shape();
        let (heads, half) = (shape[2], shape[3] / 2);
        let (x, cos, sin) = (Rows::new(x), Rows::new(cos), Rows::new(sin));
        let mut out = vec![0.0; x.get().len()];
        let sign = if back { -1.0 } else { 1.0 };
        kernels::rotate(x.get(), cos.get(), sin.get(), [heads, half], sign, &mut out);
        made(out, shape)
    }

    fn attend(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        mask: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        Self::attend_for_backward(q, k, v, mask).0
    }

    fn attend_for_backward(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        mask: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        attended(q, k, v, Rows::new(mask).get())
    }

    fn attend_backward(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        mask: FloatTensor<Self>,
        out: FloatTensor<Self>,
        scales: FloatTensor<Self>,
        grad: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let (shape, sizes) = (q.shape(), sizes(&q, &k));
        let (q, k, v) = (Rows::new(q), side_by_side(k), side_by_side(v));
        let (mask, out, scales, grad) = (Rows::new(mask), Rows::new(out), Rows::new(scales), Rows::new(grad));
        let attended = Attended {
            q: q.get(),
            keys: matrices(&k),
            values: matrices(&v),
            mask: mask.get(),
            out: out.get(),
            scales: scales.get().as_chunks().0,
            grad: grad.get(),
            sizes,
        };
        let [b, groups, slots, width] = k.shape().dims();
        let kept = || vec![0.0; b * groups * slots * width];
        let (mut dq, mut dk, mut dv) = (vec![0.0; shape.num_elements()], kept(), kept());
        attended.backward(&mut dq, &mut dk, &mut dv);
        let kept = |x| Self::float_swap_dims(made(x, Shape::new([b, slots, groups, width])), 1, 2);
        (made(dq, shape), kept(dk), kept(dv))
    }

    fn masked_softmax(scores: FloatTensor<Self>, mask: FloatTensor<Self>) -> FloatTensor<Self> {
        let shape = scores.shape();
        let mask = Rows::new(mask);
        in_place(scores, |x| kernels::softmax(x, mask.get(), [shape[1], shape[2], shape[3]]))
    }

    fn row_softmax(scores: FloatTensor<Self>) -> FloatTensor<Self> {
        let width = last(&scores.shape());
        in_place(scores, |x| kernels::softmax(x, &[], [1, 1, width]))
    }

    fn softmax_backward(pattern: FloatTensor<Self>, grad: FloatTensor<Self>) -> FloatTensor<Self> {
        let width = last(&pattern.shape());
        let pattern = Rows::new(pattern);
        in_place(grad, |g| kernels::softmax_backward(pattern.get(), g, width))
    }

    fn head_loss(
        hidden: FloatTensor<Self>,
        head: FloatTensor<Self>,
        targets: Targets,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        head::forward::<Self>(&hidden, &head, &targets)
    }

    fn cross_entropy(logits: FloatTensor<Self>, targets: Targets) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let n = targets.ids.len();
        let (mut loss, mut hits) = (vec![0.0; n], vec![0.0; n]);
        in_place(logits, |x| {
            leave_out(x, &targets);
            kernels::cross_entropy(x, &targets.ids, &mut loss, &mut hits);
        });
        (made(loss, Shape::new([n])), made(hits, Shape::new([n])))
    }

    fn cross_entropy_backward(
        logits: FloatTensor<Self>,
        targets: Targets,
        grad: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        debug_assert_eq!(logits.dtype(), DType::F32);
        let grad = Rows::new(grad);
        in_place(logits, |x| {
            leave_out(x, &targets);
            kernels::cross_entropy_backward(x, &targets.ids, grad.get());
        })
    }
}

/// Takes the banned tokens out of each row of logits.
fn leave_out(logits: &mut [f32], targets: &Targets) {
    let width = logits.len() / targets.ids.len().max(1);
    for (row, logits) in logits.chunks_exact_mut(width.max(1)).enumerate() {
        targets.banned(row).iter().for_each(|&token| logits[token as usize] = MASKED);
    }
}

impl Inference for Flex {
    fn linear_two(
        x: FloatTensor<Self>,
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let [a, b] = products(x, [a, b]);
        (a, b)
    }

    fn linear_three(
        x: FloatTensor<Self>,
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        c: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let [a, b, c] = products(x, [a, b, c]);
        (a, b, c)
    }

    fn linear_stored_two(x: FloatTensor<Self>, weights: [Arc<Stored>; 2]) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let [a, b] = stored_products(x, weights);
        (a, b)
    }

    fn linear_stored_three(
        x: FloatTensor<Self>,
        weights: [Arc<Stored>; 3],
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let [a, b, c] = stored_products(x, weights);
        (a, b, c)
    }

    fn attend_all(q: FloatTensor<Self>, k: FloatTensor<Self>, v: FloatTensor<Self>) -> FloatTensor<Self> {
        attended(q, k, v, &[]).0
    }

    fn adamw(
        weight: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        moment_1: FloatTensor<Self>,
        moment_2: FloatTensor<Self>,
        step: AdamW,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let grad = Rows::new(grad);
        let (mut weight, mut moment_1, mut moment_2) = (owned(weight), owned(moment_1), owned(moment_2));
        let parts = values(&mut weight).par_chunks_mut(PART).zip(grad.get().par_chunks(PART));
        let parts = parts.zip(values(&mut moment_1).par_chunks_mut(PART));
        let parts = parts.zip(values(&mut moment_2).par_chunks_mut(PART));
        parts.for_each(|(((weight, grad), m), v)| kernels::adamw(weight, grad, m, v, step));
        (weight, moment_1, moment_2)
    }

    fn sum_of_squares(x: FloatTensor<Self>) -> FloatTensor<Self> {
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

fn sizes(q: &FlexTensor, k: &FlexTensor) -> Sizes {
    let [_, positions, heads, width] = q.shape().dims();
    let [_, groups, slots, _] = k.shape().dims();
    Sizes { positions, heads, groups, slots, width }
}

/// The output and its scales, `[B, L, H, 2]`.
fn attended(q: FlexTensor, k: FlexTensor, v: FlexTensor, mask: &[f32]) -> (FlexTensor, FlexTensor) {
    let (shape, sizes) = (q.shape(), sizes(&q, &k));
    // Scores are sums of whole rows where the slots of one head dimension lie side by side.
    let k = transposed_with_room(k, sizes.slots);
    let (q, v) = (Rows::new(q), side_by_side(v));
    let mut out = vec![0.0; shape.num_elements()];
    let mut scales = vec![[0.0; 2]; out.len() / sizes.width.max(1)];
    attend::attend(q.get(), &matrices(&k), &matrices(&v), mask, sizes, &mut out, &mut scales);
    let [b, positions, heads, _] = shape.dims();
    (made(out, shape), made(scales.into_flattened(), Shape::new([b, positions, heads, 2])))
}

/// Keys `[B, Hkv, T, dh]` as `[B, Hkv, dh, T]` with room for whole vectors of slots behind each row: a cache's own memory,
/// or a copy.
fn transposed_with_room(k: FlexTensor, slots: usize) -> FlexTensor {
    let k = Flex::float_swap_dims(k, 2, 3);
    let k = if k.layout().strides().iter().all(|&step| step >= 0) { k } else { k.to_contiguous() };
    let [b, groups, width, _] = k.shape().dims();
    let (room, start) = (attend::padded(slots), k.layout().start_offset());
    let steps: Vec<usize> = k.layout().strides().iter().map(|step| step.unsigned_abs()).collect();
    let row_of =
        |i: usize| start + i / (groups * width) * steps[0] + i / width % groups * steps[1] + i % width * steps[2];
    let (rows, values) = (b * groups * width, k.storage::<f32>());
    if steps[3] == 1 && steps[2] >= room && row_of(rows.saturating_sub(1)) + room <= values.len() {
        return k;
    }
    let mut out = vec![0.0; rows * room];
    for (i, out) in out.chunks_exact_mut(room).enumerate() {
        let row = values[row_of(i)..].iter().step_by(steps[3].max(1));
        out.iter_mut().zip(row).take(slots).for_each(|(out, value)| *out = *value);
    }
    made(out, Shape::new([b, groups, width, room]))
}

/// The tensor, or a copy where its last axis is not dense.
fn side_by_side(x: FlexTensor) -> FlexTensor {
    let strides = x.layout().strides();
    if strides[3] == 1 && strides.iter().all(|&step| step >= 0) { x } else { x.to_contiguous() }
}

fn matrices(x: &FlexTensor) -> Heads<'_> {
    let step = |axis: usize| x.layout().strides()[axis].unsigned_abs();
    Heads { values: x.storage(), start: x.layout().start_offset(), steps: [step(0), step(1), step(2)] }
}
