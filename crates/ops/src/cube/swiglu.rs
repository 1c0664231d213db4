//! SwiGLU. One thread per element.

use burn::backend::TensorMetadata;
use burn_cubecl::cubecl;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::{LinearView, LinearViewMut};

use super::{UNITS, addresses, cubes, dim, element, made_like, units};

/// `1 / (1 + exp(−x))`. Beyond 88 the exponential overflows f32.
#[cube]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + min(-x, 88.0f32).exp())
}

/// `out = gate · sigmoid(gate) · up`.
#[cube(launch, address_type = "dynamic")]
fn forward<F: Float>(
    gate: LinearView<'_, F>,
    up: LinearView<'_, F>,
    mut out: LinearViewMut<'_, F>,
    #[define(F)] _element: ElemType,
) {
    if !out.is_in_bounds(ABSOLUTE_POS) {
        terminate!();
    }
    let g = f32::cast_from(gate.read(ABSOLUTE_POS));
    out.write(ABSOLUTE_POS, F::cast_from(g * sigmoid(g) * f32::cast_from(up.read(ABSOLUTE_POS))));
}

/// With `s = sigmoid(gate)`: `dup = g · gate · s`, `dgate = g · up · s · (1 + gate · (1 − s))`.
#[cube(launch, address_type = "dynamic")]
fn backward<F: Float>(
    gate: LinearView<'_, F>,
    up: LinearView<'_, F>,
    grad: LinearView<'_, F>,
    mut dgate: LinearViewMut<'_, F>,
    mut dup: LinearViewMut<'_, F>,
    #[define(F)] _element: ElemType,
) {
    if !dgate.is_in_bounds(ABSOLUTE_POS) {
        terminate!();
    }
    let x = f32::cast_from(gate.read(ABSOLUTE_POS));
    let own = f32::cast_from(grad.read(ABSOLUTE_POS));
    let s = sigmoid(x);
    let other = f32::cast_from(up.read(ABSOLUTE_POS));
    dup.write(ABSOLUTE_POS, F::cast_from(own * x * s));
    dgate.write(ABSOLUTE_POS, F::cast_from(own * other * s * (1.0 + x * (1.0 - s))));
}

/// `silu(gate) · up`, any shape.
pub(crate) fn swiglu(gate: CubeTensor, up: CubeTensor) -> CubeTensor {
    let (out, n) = (made_like(&gate, gate.shape()), gate.shape().num_elements());
    if n == 0 {
        return out;
    }
    let (client, element) = (gate.client.clone(), element(&gate));
    let units = units(&client, UNITS);
    forward::launch(
        &client,
        cubes(&client, n.div_ceil(units)),
        dim(units),
        addresses(&[&gate, &up, &out]),
        gate.into_linear_view_like(&out),
        up.into_linear_view_like(&out),
        out.clone().into_linear_view(),
        element,
    );
    out
}

pub(crate) fn swiglu_backward(gate: CubeTensor, up: CubeTensor, grad: CubeTensor) -> (CubeTensor, CubeTensor) {
    let (dgate, dup) = (made_like(&gate, gate.shape()), made_like(&gate, gate.shape()));
    let n = gate.shape().num_elements();
    if n == 0 {
        return (dgate, dup);
    }
    let (client, element) = (gate.client.clone(), element(&gate));
    let units = units(&client, UNITS);
    backward::launch(
        &client,
        cubes(&client, n.div_ceil(units)),
        dim(units),
        addresses(&[&gate, &up, &grad, &dgate]),
        gate.into_linear_view_like(&dgate),
        up.into_linear_view_like(&dgate),
        grad.into_linear_view_like(&dgate),
        dgate.clone().into_linear_view(),
        dup.clone().into_linear_view(),
        element,
    );
    (dgate, dup)
}
