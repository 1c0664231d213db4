//! RMSNorm: one cube per row.

use burn::backend::TensorMetadata;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::Shape;
use burn_cubecl::cubecl;
use burn_cubecl::{CubeBackend, tensor::CubeTensor};
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::rows::{place, sum_of_units};
use super::{addresses, cubes, dim, element, made_like, rows_of, sums_like, units};

/// `out = x / sqrt(mean(x²) + eps) · weight` of each row; if `added`, of `x + more`, which is first written to `sum`. Otherwise both
/// arguments are placeholders.
#[cube(launch, address_type = "dynamic")]
fn forward<F: Float>(
    x: &Tensor<F>,
    more: &Tensor<F>,
    weight: &Tensor<F>,
    sum: &mut Tensor<F>,
    out: &mut Tensor<F>,
    rows: usize,
    eps: f32,
    #[comptime] added: bool,
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
    let (width, step) = (x.shape(last), x.stride(last));
    let from = place(x, row, last);
    let to = place(&*out, row, last);
    let to_step = out.stride(last);
    let between = place(&*sum, row, last);
    let sum_step = sum.stride(last);

    let mut squares = 0.0f32;
    let mut i = UNIT_POS as usize;
    while i < width {
        let mut value = f32::cast_from(x[from + i * step]);
        if added {
            let own = F::cast_from(value + f32::cast_from(more[place(more, row, last) + i * more.stride(last)]));
            sum[between + i * sum_step] = own;
            value = f32::cast_from(own);
        }
        squares += value * value;
        i += units;
    }
    let mean = sum_of_units(squares, &mut shared) / f32::cast_from(width);
    let scale = 1.0 / (mean + eps).sqrt();

    let mut i = UNIT_POS as usize;
    while i < width {
        let mut value = f32::cast_from(x[from + i * step]);
        if added {
            // A unit reads only what it wrote itself.
            value = f32::cast_from(sum[between + i * sum_step]);
        }
        out[to + i * to_step] = F::cast_from(value * scale * f32::cast_from(weight[i * weight.stride(0)]));
        i += units;
    }
}

/// With `r = 1 / sqrt(mean(x²) + eps)`: `dx = r · (g·w − x · r² · mean(g·w·x))`. Stores r, one per row.
#[cube(launch, address_type = "dynamic")]
fn backward<F: Float>(
    x: &Tensor<F>,
    weight: &Tensor<F>,
    grad: &Tensor<F>,
    dx: &mut Tensor<F>,
    scales: &mut Tensor<f32>,
    rows: usize,
    eps: f32,
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
    let (width, step) = (x.shape(last), x.stride(last));
    let from = place(x, row, last);
    let grads = place(grad, row, last);
    let to = place(&*dx, row, last);
    let to_step = dx.stride(last);

    let mut squares = 0.0f32;
    let mut products = 0.0f32;
    let mut i = UNIT_POS as usize;
    while i < width {
        let value = f32::cast_from(x[from + i * step]);
        squares += value * value;
        products +=
            value * f32::cast_from(grad[grads + i * grad.stride(last)]) * f32::cast_from(weight[i * weight.stride(0)]);
        i += units;
    }
    let mean = sum_of_units(squares, &mut shared) / f32::cast_from(width);
    let scale = 1.0 / (mean + eps).sqrt();
    let along = sum_of_units(products, &mut shared) * scale * scale / f32::cast_from(width);

    let mut i = UNIT_POS as usize;
    while i < width {
        let own = f32::cast_from(grad[grads + i * grad.stride(last)]) * f32::cast_from(weight[i * weight.stride(0)]);
        dx[to + i * to_step] = F::cast_from(scale * (own - f32::cast_from(x[from + i * step]) * along));
        i += units;
    }
    if UNIT_POS == 0 {
        scales[row] = scale;
    }
}

/// Sums of `g · x · r` over chunks of rows: `[parts, D]`. One unit per column, one row of cubes per part.
#[cube(launch, address_type = "dynamic")]
fn weight_parts<F: Float>(
    x: &Tensor<F>,
    grad: &Tensor<F>,
    scales: &Tensor<f32>,
    parts: &mut Tensor<f32>,
    rows: usize,
    of_part: usize,
    #[comptime] rank: usize,
    #[comptime] units: usize,
    #[define(F)] _element: ElemType,
) {
    let last = rank - 1;
    let width = x.shape(last);
    let across = width.div_ceil(units);
    let part = CUBE_POS / across;
    let column = CUBE_POS % across * units + UNIT_POS as usize;
    if part >= parts.shape(0) || column >= width {
        terminate!();
    }
    let mut row = part * of_part;
    let end = min(row + of_part, rows);
    let mut sum = 0.0f32;
    while row < end {
        let value = f32::cast_from(x[place(x, row, last) + column * x.stride(last)]);
        let own = f32::cast_from(grad[place(grad, row, last) + column * grad.stride(last)]);
        sum += own * value * scales[row];
        row += 1;
    }
    let to = part * parts.stride(0) + column * parts.stride(1);
    parts[to] = sum;
}

/// Rows per unit in the sum of the weight's gradient.
const OF_PART: usize = 64;

/// `x / sqrt(mean(x²) + eps) · weight` over the last axis: `[.., D]`, `[D]` → `[.., D]`.
pub(crate) fn rms_norm(x: CubeTensor, weight: CubeTensor, eps: f64) -> CubeTensor {
    let out = made_like(&x, x.shape());
    launch(x.clone(), x, weight, (out.clone(), out.clone()), eps, false);
    out
}

/// `x + more`, and its [`rms_norm`]: tensors of one shape.
pub(crate) fn add_rms_norm(x: CubeTensor, more: CubeTensor, weight: CubeTensor, eps: f64) -> (CubeTensor, CubeTensor) {
    let (sum, out) = (made_like(&x, x.shape()), made_like(&x, x.shape()));
    launch(x, more, weight, (sum.clone(), out.clone()), eps, true);
    (sum, out)
}

fn launch(
    x: CubeTensor,
    more: CubeTensor,
    weight: CubeTensor,
    (sum, out): (CubeTensor, CubeTensor),
    eps: f64,
    added: bool,
) {
    let ([rows, width], rank) = (rows_of(&x.shape()), x.rank());
    if rows * width == 0 {
        return;
    }
    let (client, units, element) = (x.client.clone(), units(&x.client, width), element(&x));
    forward::launch(
        &client,
        cubes(&client, rows),
        dim(units),
        addresses(&[&x, &more, &sum, &out]),
        x.into_tensor_arg(),
        more.into_tensor_arg(),
        weight.into_tensor_arg(),
        sum.into_tensor_arg(),
        out.into_tensor_arg(),
        rows,
        eps as f32,
        added,
        rank,
        units,
        element,
    );
}

pub(crate) fn rms_norm_backward(
    x: CubeTensor,
    weight: CubeTensor,
    grad: CubeTensor,
    eps: f64,
) -> (CubeTensor, CubeTensor) {
    let (dx, rank) = (made_like(&x, x.shape()), x.rank());
    let [rows, width] = rows_of(&x.shape());
    let parts = sums_like(&x, Shape::new([rows.div_ceil(OF_PART).max(1), width]));
    if rows * width == 0 {
        return (dx, CubeBackend::float_zeros(weight.shape(), &weight.device, weight.dtype.into()));
    }
    let scales = sums_like(&x, Shape::new([rows]));
    let (client, element) = (x.client.clone(), element(&x));
    let of_row = units(&client, width);
    let address = addresses(&[&x, &grad, &dx]);
    backward::launch(
        &client,
        cubes(&client, rows),
        dim(of_row),
        address,
        x.clone().into_tensor_arg(),
        weight.clone().into_tensor_arg(),
        grad.clone().into_tensor_arg(),
        dx.clone().into_tensor_arg(),
        scales.clone().into_tensor_arg(),
        rows,
        eps as f32,
        rank,
        of_row,
        element,
    );
    weight_parts::launch(
        &client,
        cubes(&client, width.div_ceil(of_row) * rows.div_ceil(OF_PART)),
        dim(of_row),
        address,
        x.into_tensor_arg(),
        grad.into_tensor_arg(),
        scales.into_tensor_arg(),
        parts.clone().into_tensor_arg(),
        rows,
        OF_PART,
        rank,
        of_row,
        element,
    );
    let dw = CubeBackend::float_sum_dim(parts, 0);
    let dw = if weight.dtype == dw.dtype { dw } else { CubeBackend::float_cast(dw, weight.dtype.into()) };
    (dx, CubeBackend::float_reshape(dw, weight.shape()))
}
