//! QK-norm, RoPE and the cache write of few positions, as in decoding: one launch instead of six.

use burn::backend::TensorMetadata;
use burn_cubecl::cubecl;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::rows::sum_of_units;
use super::{addresses, cubes, dim, element, made_like, units};

/// This unit's value of the head that begins at `from`; if `normed`, after RMSNorm with the gain, rounded like the output of a separate
/// norm.
#[cube]
fn value<F: Float>(
    x: &Tensor<F>,
    from: usize,
    gain: &Tensor<F>,
    shared: &mut Shared<[f32]>,
    eps: f32,
    #[comptime] normed: bool,
) -> f32 {
    let unit = UNIT_POS as usize;
    let width = x.shape(3);
    let mut own = 0.0f32;
    if unit < width {
        own = f32::cast_from(x[from + unit * x.stride(3)]);
    }
    if normed {
        let mean = sum_of_units(own * own, shared) / f32::cast_from(width);
        let scale = 1.0 / (mean + eps).sqrt();
        if unit < width {
            let by = f32::cast_from(gain[unit * gain.stride(0)]);
            own = f32::cast_from(F::cast_from(own * scale * by));
        }
    }
    own
}

/// One cube per head: normalises and rotates queries and keys, and writes keys and values into their slots. q `[B, L, H, dh]`,
/// k and v `[B, L, Hkv, dh]`, tables `[B, L, 1, dh/2]`, keys `[B, Hkv, dh, capacity]`, values `[B, Hkv, capacity, dh]`.
#[cube(launch, address_type = "dynamic")]
fn append<F: Float>(
    q: &Tensor<F>,
    k: &Tensor<F>,
    v: &Tensor<F>,
    q_gain: &Tensor<F>,
    k_gain: &Tensor<F>,
    cos: &Tensor<F>,
    sin: &Tensor<F>,
    turned: &mut Tensor<F>,
    keys: &mut Tensor<F>,
    values: &mut Tensor<F>,
    positions: usize,
    at: usize,
    eps: f32,
    #[comptime] normed: bool,
    #[comptime] units: usize,
    #[define(F)] _element: ElemType,
) {
    let (heads, groups, width) = (q.shape(2), k.shape(2), q.shape(3));
    let across = heads + 2 * groups;
    let position = CUBE_POS / across;
    if position >= positions {
        terminate!();
    }
    let mut shared = Shared::<[f32]>::new_slice(units);
    let head = CUBE_POS % across;
    let l = position % q.shape(1);
    let b = position / q.shape(1);
    let unit = UNIT_POS as usize;
    let half = width / 2;

    if head >= heads + groups {
        let h = head - heads - groups;
        if unit < width {
            let from = b * v.stride(0) + l * v.stride(1) + h * v.stride(2) + unit * v.stride(3);
            let to =
                b * values.stride(0) + h * values.stride(1) + (at + l) * values.stride(2) + unit * values.stride(3);
            values[to] = v[from];
        }
    } else {
        let mut own = 0.0f32;
        if head < heads {
            own += value(q, b * q.stride(0) + l * q.stride(1) + head * q.stride(2), q_gain, &mut shared, eps, normed);
        } else {
            let from = b * k.stride(0) + l * k.stride(1) + (head - heads) * k.stride(2);
            own += value(k, from, k_gain, &mut shared, eps, normed);
        }
        shared[unit] = own;
        sync_cube();
        if unit < half {
            let (first, second) = (shared[unit], shared[unit + half]);
            let c = f32::cast_from(cos[b * cos.stride(0) + l * cos.stride(1) + unit * cos.stride(3)]);
            let s = f32::cast_from(sin[b * sin.stride(0) + l * sin.stride(1) + unit * sin.stride(3)]);
            let left = F::cast_from(first * c - second * s);
            let right = F::cast_from(second * c + first * s);
            if head < heads {
                let to = b * turned.stride(0) + l * turned.stride(1) + head * turned.stride(2);
                let step = turned.stride(3);
                turned[to + unit * step] = left;
                turned[to + (unit + half) * step] = right;
            } else {
                let to = b * keys.stride(0) + (head - heads) * keys.stride(1) + (at + l) * keys.stride(3);
                let step = keys.stride(2);
                keys[to + unit * step] = left;
                keys[to + (unit + half) * step] = right;
            }
        }
    }
}

/// The tensor, or a copy if its memory has another owner.
fn own(x: CubeTensor) -> CubeTensor {
    if x.can_mut() && x.is_nonoverlapping() { x } else { x.copy() }
}

/// Normalised and rotated queries, and the cache with keys and values from slot `at` on. Without `eps` nothing is normalised, and the gains
/// are not read. A head has at most [`super::widest_head`] values.
pub(crate) fn append_heads(
    [q, k, v]: [CubeTensor; 3],
    [q_gain, k_gain]: [CubeTensor; 2],
    [cos, sin]: [CubeTensor; 2],
    [keys, values]: [CubeTensor; 2],
    at: usize,
    eps: Option<f64>,
) -> (CubeTensor, CubeTensor, CubeTensor) {
    let (turned, keys, values) = (made_like(&q, q.shape()), own(keys), own(values));
    let [b, l, heads, width] = q.shape().dims();
    let across = heads + 2 * k.shape()[2];
    if b * l * width == 0 {
        return (turned, keys, values);
    }
    let (client, units, element) = (q.client.clone(), units(&q.client, width), element(&q));
    append::launch(
        &client,
        cubes(&client, b * l * across),
        dim(units),
        addresses(&[&q, &k, &v, &turned, &keys, &values]),
        q.into_tensor_arg(),
        k.into_tensor_arg(),
        v.into_tensor_arg(),
        q_gain.into_tensor_arg(),
        k_gain.into_tensor_arg(),
        cos.into_tensor_arg(),
        sin.into_tensor_arg(),
        turned.clone().into_tensor_arg(),
        keys.clone().into_tensor_arg(),
        values.clone().into_tensor_arg(),
        b * l,
        at,
        eps.unwrap_or_default() as f32,
        eps.is_some(),
        units,
        element,
    );
    (turned, keys, values)
}

/// A view of the first `n` entries of an axis.
pub(crate) fn first_of(mut x: CubeTensor, axis: usize, n: usize) -> CubeTensor {
    let mut shape = x.shape();
    shape[axis] = n;
    *x.meta = cubecl::zspace::metadata::Metadata::new(shape, x.meta.strides().clone());
    x
}
