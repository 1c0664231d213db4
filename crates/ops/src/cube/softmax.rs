//! Softmax over the last axis: one cube per row.

use burn::backend::TensorMetadata;
use burn_cubecl::cubecl;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::rows::{LOWEST, largest_of_units, place, sum_of_units};
use super::{addresses, cubes, dim, element, room_for, rows_of, units};

/// A value of a row of scores plus its mask, if there is one.
#[cube]
fn score<F: Float>(
    x: &Tensor<F>,
    mask: &Tensor<F>,
    starts: (usize, usize),
    i: usize,
    #[comptime] last: usize,
    #[comptime] masked: bool,
) -> f32 {
    let own = f32::cast_from(x[starts.0 + i * x.stride(last)]);
    if masked { own + f32::cast_from(mask[starts.1 + i * mask.stride(last)]) } else { own }
}

/// `out = softmax(x + mask)` of each row. With a mask `[B, 1, L, T]` the rows are those of `[B, H, L, T]`; without one, `mask` is never
/// read. `out` may be x itself: a unit reads and writes the same values.
#[cube(launch, address_type = "dynamic")]
fn forward<F: Float>(
    x: &Tensor<F>,
    mask: &Tensor<F>,
    out: &mut Tensor<F>,
    rows: usize,
    #[comptime] rank: usize,
    #[comptime] masked: bool,
    #[comptime] units: usize,
    #[define(F)] _element: ElemType,
) {
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let mut shared = Shared::<[f32]>::new_slice(units);
    let last = rank - 1;
    let width = x.shape(last);
    let to = place(&*out, row, last);
    let to_step = out.stride(last);
    let mut bias = 0;
    if masked {
        let positions = x.shape(2);
        let batch = row / positions / x.shape(1);
        bias = batch * mask.stride(0) + row % positions * mask.stride(2);
    }
    let starts = (place(x, row, last), bias);

    let mut most = LOWEST.runtime();
    let mut i = UNIT_POS as usize;
    while i < width {
        most = max(most, score(x, mask, starts, i, last, masked));
        i += units;
    }
    let most = largest_of_units(most, &mut shared);

    let mut sum = 0.0f32;
    let mut i = UNIT_POS as usize;
    while i < width {
        sum += (score(x, mask, starts, i, last, masked) - most).exp();
        i += units;
    }
    let over = 1.0 / sum_of_units(sum, &mut shared);

    let mut i = UNIT_POS as usize;
    while i < width {
        out[to + i * to_step] = F::cast_from((score(x, mask, starts, i, last, masked) - most).exp() * over);
        i += units;
    }
}

/// `ds = p · (g − Σ g·p)` of each row. `out` may be g itself.
#[cube(launch, address_type = "dynamic")]
fn backward<F: Float>(
    pattern: &Tensor<F>,
    grad: &Tensor<F>,
    out: &mut Tensor<F>,
    rows: usize,
    #[comptime] rank: usize,
    #[comptime] units: usize,
    #[define(F)] _element: ElemType,
) {
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let mut shared = Shared::<[f32]>::new_slice(units);
    let last = rank - 1;
    let width = pattern.shape(last);
    let own = place(pattern, row, last);
    let grads = place(grad, row, last);
    let to = place(&*out, row, last);
    let to_step = out.stride(last);

    let mut sum = 0.0f32;
    let mut i = UNIT_POS as usize;
    while i < width {
        sum += f32::cast_from(pattern[own + i * pattern.stride(last)])
            * f32::cast_from(grad[grads + i * grad.stride(last)]);
        i += units;
    }
    let along = sum_of_units(sum, &mut shared);

    let mut i = UNIT_POS as usize;
    while i < width {
        let off = f32::cast_from(grad[grads + i * grad.stride(last)]) - along;
        out[to + i * to_step] = F::cast_from(f32::cast_from(pattern[own + i * pattern.stride(last)]) * off);
        i += units;
    }
}

/// Softmax over the last axis, after adding a mask `[B, 1, L, T]` to scores `[B, H, L, T]` if there is one.
pub(crate) fn softmax(scores: CubeTensor, mask: Option<CubeTensor>) -> CubeTensor {
    let (out, in_place) = room_for(&scores);
    let ([rows, width], rank) = (rows_of(&scores.shape()), scores.rank());
    if rows * width == 0 {
        return out;
    }
    let (client, element) = (scores.client.clone(), element(&scores));
    let (units, masked) = (units(&client, width), mask.is_some());
    // A kernel needs all its arguments: without a mask the scores are passed instead, and not read.
    let mask = mask.unwrap_or_else(|| scores.clone());
    forward::launch(
        &client,
        cubes(&client, rows),
        dim(units),
        addresses(&[&scores, &mask, &out]),
        scores.into_tensor_arg(),
        mask.into_tensor_arg(),
        if in_place { out.as_tensor_alias(0) } else { out.clone().into_tensor_arg() },
        rows,
        rank,
        masked,
        units,
        element,
    );
    out
}

/// Gradient of the scores from the softmax's output and its gradient.
pub(crate) fn softmax_backward(pattern: CubeTensor, grad: CubeTensor) -> CubeTensor {
    let (out, in_place) = room_for(&grad);
    let ([rows, width], rank) = (rows_of(&pattern.shape()), pattern.rank());
    if rows * width == 0 {
        return out;
    }
    let (client, element) = (pattern.client.clone(), element(&pattern));
    let units = units(&client, width);
    backward::launch(
        &client,
        cubes(&client, rows),
        dim(units),
        addresses(&[&pattern, &grad, &out]),
        pattern.into_tensor_arg(),
        grad.into_tensor_arg(),
        if in_place { out.as_tensor_alias(1) } else { out.clone().into_tensor_arg() },
        rows,
        rank,
        units,
        element,
    );
    out
}
