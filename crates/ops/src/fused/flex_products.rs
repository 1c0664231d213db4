//! [`CpuFusedOps`] and [`Stores`] on Burn's CPU backend: products with weights, and attention with its gradients.

use burn::backend::flex::FlexTensor;
use burn::backend::ops::{FloatTensorOps, ModuleOps};
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::{DType, Shape};
use rayon::prelude::*;

use super::attend::{self, Heads, Sizes};
use super::attend_gradient::AttentionPass;
use super::flex::{Rows, last, made};
use super::{
    CpuBackwardOps, CpuFusedOps, CpuInference, Products, Stores, Targets, head, many, product, stored, stored_back,
    stored_many,
};
use crate::frozen::FrozenMatrix;

/// Whether the loops for few rows support it: few rows, and weights with contiguous rows.
fn is_few(x: &FlexTensor, weights: &[&FlexTensor]) -> bool {
    let (rows, _) = flat(x, 1);
    let lie_in_rows = weights.iter().all(|w| w.as_slice::<f32>().is_some_and(|values| !values.is_empty()));
    (1..=product::FEW).contains(&rows) && lie_in_rows
}

/// Products of one input with several weights `[K, N]`.
fn products<const P: usize>(x: FlexTensor, weights: [FlexTensor; P]) -> [FlexTensor; P] {
    let columns = weights.each_ref().map(|w| last(&w.shape()));
    if !is_few(&x, &weights.each_ref()) {
        return weights.map(|w| linear_of_many(x.clone(), w));
    }
    let shapes = columns.map(|columns| flat(&x, columns).1);
    let (depth, x, weights) = (last(&x.shape()), Rows::new(x), weights.map(Rows));
    let mut outs = product::rows_times(x.get(), weights.each_ref().map(Rows::get), depth).into_iter();
    shapes.map(|shape| made(outs.next().unwrap_or_default(), shape))
}

/// `[.., K]` · `[K, N]`.
fn linear_of_many(x: FlexTensor, weight: FlexTensor) -> FlexTensor {
    if !many::is_used() {
        return <Flex as ModuleOps<Flex>>::linear(x, weight, None);
    }
    let ((rows, shape), depth) = (flat(&x, weight.shape()[1]), last(&x.shape()));
    Flex::float_reshape(matmul(Flex::float_reshape(x, Shape::new([rows, depth])), weight), shape)
}

/// Whether [`matmul`] supports them.
pub(super) fn is_own(a: &FlexTensor, b: &FlexTensor) -> bool {
    many::is_used() && a.dtype() == DType::F32 && a.shape().num_dims() == b.shape().num_dims()
}

/// `[.., M, K]` · `[.., K, N]`, whose other axes are equal or 1, in f32.
pub(super) fn matmul(a: FlexTensor, b: FlexTensor) -> FlexTensor {
    let rank = a.shape().num_dims();
    let (a, b) = (dense(a), dense(b));
    let mut shape = a.shape();
    let (m, k, n) = (shape[rank - 2], shape[rank - 1], b.shape()[rank - 1]);
    shape[rank - 1] = n;
    (0..rank - 2).for_each(|axis| shape[axis] = shape[axis].max(b.shape()[axis]));
    let mut out = vec![0.0; shape.num_elements()];
    let each =
        |(at, out): (usize, &mut [f32])| many::product(side(&a, &shape, at), side(&b, &shape, at), [m, k, n], out);
    match (m * n).max(1) {
        one if one < out.len() => out.par_chunks_mut(one).enumerate().for_each(each),
        one => out.chunks_mut(one).enumerate().for_each(each),
    }
    made(out, shape)
}

/// The tensor, or a copy if neither rows nor columns of its matrices are contiguous.
fn dense(x: FlexTensor) -> FlexTensor {
    let (shape, strides) = (x.shape(), x.layout().strides());
    let [row, column] = [strides.len() - 2, strides.len() - 1].map(|axis| strides[axis]);
    let wide = shape[strides.len() - 1] as isize;
    let tall = shape[strides.len() - 2] as isize;
    let fits = column == 1 && row >= wide || row == 1 && column >= tall;
    if fits && strides.iter().all(|&step| step >= 0) { x } else { x.to_contiguous() }
}

/// Matrix `at` of a product of this shape, in row-major order of the other axes.
fn side<'a>(x: &'a FlexTensor, product: &Shape, mut at: usize) -> many::Side<'a> {
    let (own, rank) = (x.shape(), product.num_dims());
    let step = |axis: usize| x.layout().strides()[axis].unsigned_abs();
    let mut start = x.layout().start_offset();
    for axis in (0..rank - 2).rev() {
        start += if own[axis] > 1 { at % product[axis] * step(axis) } else { 0 };
        at /= product[axis];
    }
    let columns = step(rank - 1) != 1 || step(rank - 2) < own[rank - 1];
    let step = if columns { step(rank - 1) } else { step(rank - 2) };
    many::Side { values: &x.storage()[start..], step, columns }
}

/// Products with weights `[N, K]` in their stored type.
fn stored_products<const P: usize>(x: FlexTensor, weights: [FrozenMatrix; P]) -> [FlexTensor; P] {
    let (rows, _) = flat(&x, 1);
    let shapes = weights.each_ref().map(|w| flat(&x, w.rows()).1);
    let (x, weights) = (Rows::new(x), weights.each_ref().map(FrozenMatrix::host));
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

impl Stores for Flex {
    fn linear_stored(x: FlexTensor, weight: FrozenMatrix) -> FlexTensor {
        let [out] = stored_products(x, [weight]);
        out
    }

    fn linear_stored_backward(grad: FlexTensor, weight: FrozenMatrix) -> FlexTensor {
        let (_, shape) = flat(&grad, weight.width());
        made(stored_back::rows_through_stored(Rows::new(grad).get(), weight.host()), shape)
    }

    fn head_loss_stored(
        hidden: FlexTensor,
        learnt: FlexTensor,
        stored: FrozenMatrix,
        targets: Targets,
    ) -> (FlexTensor, FlexTensor) {
        head::forward(&hidden, &head::MixedRows::<Self> { stored: &stored, learnt: &learnt }, &targets)
    }
}

impl CpuFusedOps for Flex {
    fn linear(x: FlexTensor, weight: FlexTensor) -> FlexTensor {
        let [out] = products(x, [weight]);
        out
    }

    fn linear_transposed(x: FlexTensor, table: FlexTensor) -> FlexTensor {
        if !is_few(&x, &[&table]) {
            return linear_of_many(x, Self::float_transpose(table));
        }
        let [columns, depth] = table.shape().dims();
        let (_, shape) = flat(&x, columns);
        made(product::rows_times_transposed(Rows::new(x).get(), Rows(table).get(), [depth, columns]), shape)
    }

    fn attend(q: FlexTensor, k: FlexTensor, v: FlexTensor, mask: FlexTensor) -> FlexTensor {
        Self::attend_for_backward(q, k, v, mask).0
    }
}

impl CpuBackwardOps for Flex {
    fn attend_for_backward(q: FlexTensor, k: FlexTensor, v: FlexTensor, mask: FlexTensor) -> (FlexTensor, FlexTensor) {
        attended(q, k, v, Rows::new(mask).get())
    }

    fn attend_backward(
        q: FlexTensor,
        k: FlexTensor,
        v: FlexTensor,
        mask: FlexTensor,
        out: FlexTensor,
        scales: FlexTensor,
        grad: FlexTensor,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        let (shape, sizes) = (q.shape(), sizes(&q, &k));
        let (q, k, v) = (Rows::new(q), side_by_side(k), side_by_side(v));
        let (mask, out, scales, grad) = (Rows::new(mask), Rows::new(out), Rows::new(scales), Rows::new(grad));
        let attended = AttentionPass {
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
}

impl Products for Flex {
    fn linear_one(x: FlexTensor, weight: FlexTensor) -> FlexTensor {
        <Self as CpuFusedOps>::linear(x, weight)
    }

    fn linear_by_row(x: FlexTensor, table: FlexTensor) -> FlexTensor {
        <Self as CpuFusedOps>::linear_transposed(x, table)
    }

    fn linear_two(x: FlexTensor, a: FlexTensor, b: FlexTensor) -> (FlexTensor, FlexTensor) {
        products(x, [a, b]).into()
    }

    fn linear_three(
        x: FlexTensor,
        a: FlexTensor,
        b: FlexTensor,
        c: FlexTensor,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        products(x, [a, b, c]).into()
    }
}

impl CpuInference for Flex {
    fn linear_stored_each(x: FlexTensor, weights: Vec<FrozenMatrix>) -> Vec<FlexTensor> {
        let weights = match <[FrozenMatrix; 2]>::try_from(weights) {
            Ok(two) => return stored_products(x, two).into(),
            Err(weights) => weights,
        };
        match <[FrozenMatrix; 3]>::try_from(weights) {
            Ok(three) => stored_products(x, three).into(),
            Err(weights) => weights.into_iter().map(|weight| Self::linear_stored(x.clone(), weight)).collect(),
        }
    }
}

fn sizes(q: &FlexTensor, k: &FlexTensor) -> Sizes {
    let [_, positions, heads, width] = q.shape().dims();
    let [_, groups, slots, _] = k.shape().dims();
    Sizes { positions, heads, groups, slots, width }
}

/// The output and its scales, `[B, L, H, 2]`.
pub(super) fn attended(q: FlexTensor, k: FlexTensor, v: FlexTensor, mask: &[f32]) -> (FlexTensor, FlexTensor) {
    let (shape, sizes) = (q.shape(), sizes(&q, &k));
    // Scores are sums of whole rows if the slots of one head dimension are contiguous.
    let k = transposed_with_room(k, sizes.slots);
    let (q, v) = (Rows::new(q), side_by_side(v));
    let mut out = vec![0.0; shape.num_elements()];
    let mut scales = vec![[0.0; 2]; out.len() / sizes.width.max(1)];
    attend::attend(q.get(), &matrices(&k), &matrices(&v), mask, sizes, &mut out, &mut scales);
    let [b, positions, heads, _] = shape.dims();
    (made(out, shape), made(scales.into_flattened(), Shape::new([b, positions, heads, 2])))
}

/// Keys `[B, Hkv, T, dh]` as `[B, Hkv, dh, T]` with room for whole vectors of slots after each row: a cache's own memory, or a copy.
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

/// The tensor, or a copy if its last axis is not contiguous.
fn side_by_side(x: FlexTensor) -> FlexTensor {
    let strides = x.layout().strides();
    if strides[3] == 1 && strides.iter().all(|&step| step >= 0) { x } else { x.to_contiguous() }
}

fn matrices(x: &FlexTensor) -> Heads<'_> {
    let step = |axis: usize| x.layout().strides()[axis].unsigned_abs();
    Heads { values: x.storage(), start: x.layout().start_offset(), steps: [step(0), step(1), step(2)] }
}
