//! Rotary position embedding. One thread per pair of values.

use burn::backend::TensorMetadata;
use burn_cubecl::cubecl;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::{UNITS, addresses, cubes, dim, element, made_like, units};

/// `(x1, x2) → (x1 cos − x2 sin, x2 cos + x1 sin)` on the two halves of each head: x `[B, L, H, dh]`, tables `[B, L, 1, dh/2]`.
#[cube(launch, address_type = "dynamic")]
fn turn<F: Float>(
    x: &Tensor<F>,
    cos: &Tensor<F>,
    sin: &Tensor<F>,
    out: &mut Tensor<F>,
    pairs: usize,
    sign: f32,
    #[define(F)] _element: ElemType,
) {
    if ABSOLUTE_POS >= pairs {
        terminate!();
    }
    let half = x.shape(3) / 2;
    let i = ABSOLUTE_POS % half;
    let head = ABSOLUTE_POS / half;
    let h = head % x.shape(2);
    let position = head / x.shape(2);
    let l = position % x.shape(1);
    let b = position / x.shape(1);

    let from = b * x.stride(0) + l * x.stride(1) + h * x.stride(2);
    let to = b * out.stride(0) + l * out.stride(1) + h * out.stride(2);
    let first = f32::cast_from(x[from + i * x.stride(3)]);
    let second = f32::cast_from(x[from + (i + half) * x.stride(3)]);
    let c = f32::cast_from(cos[b * cos.stride(0) + l * cos.stride(1) + i * cos.stride(3)]);
    let s = f32::cast_from(sin[b * sin.stride(0) + l * sin.stride(1) + i * sin.stride(3)]) * sign;
    let to_step = out.stride(3);
    out[to + i * to_step] = F::cast_from(first * c - second * s);
    out[to + (i + half) * to_step] = F::cast_from(second * c + first * s);
}

/// RoPE on `[B, L, H, dh]` with tables `[B, L, 1, dh/2]`; by `−angle` if `back`.
pub(crate) fn rotate(x: CubeTensor, cos: CubeTensor, sin: CubeTensor, back: bool) -> CubeTensor {
    let (out, pairs) = (made_like(&x, x.shape()), x.shape().num_elements() / 2);
    if pairs == 0 {
        return out;
    }
    let (client, element) = (x.client.clone(), element(&x));
    let units = units(&client, UNITS);
    turn::launch(
        &client,
        cubes(&client, pairs.div_ceil(units)),
        dim(units),
        addresses(&[&x, &cos, &sin, &out]),
        x.into_tensor_arg(),
        cos.into_tensor_arg(),
        sin.into_tensor_arg(),
        out.clone().into_tensor_arg(),
        pairs,
        if back { -1.0 } else { 1.0 },
        element,
    );
    out
}
