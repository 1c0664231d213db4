//! Attention of few queries, as in decoding. One cube per query and head computes scores, softmax and the weighted sum of values;
//! the pattern is never stored.

use burn::backend::TensorMetadata;
use burn_cubecl::cubecl;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::rows::{LOWEST, largest_of_units, sum_of_units};
use super::{UNITS, addresses, cubes, dim, element, made_like, units};

/// Decode attention `softmax(q·k / √dh + mask) v`: q `[B, L, H, dh]`, k and v `[B, Hkv, T, dh]`, the mask `[B, 1, L, T]` →
/// `[B, L, H, dh]`.
///
/// For each tile of `units` slots:
/// 1. each unit computes the score of one slot;
/// 2. if a score is a new maximum, the sums so far are scaled down (Milakov and Gimelshein 2018, arXiv:1805.02867);
/// 3. each unit then has one value of the output and sums every `parts`-th slot, with as many parts as there are units.
///
/// Without a mask, `mask` is never read.
#[cube(launch, address_type = "dynamic")]
fn one_query<F: Float>(
    q: &Tensor<F>,
    k: &Tensor<F>,
    v: &Tensor<F>,
    mask: &Tensor<F>,
    out: &mut Tensor<F>,
    queries: usize,
    scale: f32,
    #[comptime] masked: bool,
    #[comptime] width: usize,
    #[comptime] units: usize,
    #[define(F)] _element: ElemType,
) {
    if CUBE_POS >= queries {
        terminate!();
    }
    let mut query = Shared::<[f32]>::new_slice(width);
    let mut weights = Shared::<[f32]>::new_slice(units);
    let mut shared = Shared::<[f32]>::new_slice(units);
    let unit = UNIT_POS as usize;

    let heads = q.shape(2);
    let slots = k.shape(2);
    let h = CUBE_POS % heads;
    let l = CUBE_POS / heads % q.shape(1);
    let b = CUBE_POS / heads / q.shape(1);
    let group = h / (heads / k.shape(1));
    let of_query = b * q.stride(0) + l * q.stride(1) + h * q.stride(2);
    let of_keys = b * k.stride(0) + group * k.stride(1);
    let of_values = b * v.stride(0) + group * v.stride(1);

    if unit < width {
        query[unit] = f32::cast_from(q[of_query + unit * q.stride(3)]) * scale;
    }
    sync_cube();

    let parts = comptime!(units / width);
    let column = unit % width;
    let part = unit / width;
    let mut most = LOWEST.runtime();
    let mut sum = 0.0f32;
    let mut own = 0.0f32;
    let mut first = 0;
    while first < slots {
        let slot = first + unit;
        let mut score = LOWEST.runtime();
        if slot < slots {
            score = 0.0f32;
            let key = of_keys + slot * k.stride(2);
            for i in 0..width {
                score += query[i] * f32::cast_from(k[key + i * k.stride(3)]);
            }
            if masked {
                score += f32::cast_from(mask[b * mask.stride(0) + l * mask.stride(2) + slot * mask.stride(3)]);
            }
        }
        let larger = max(most, largest_of_units(score, &mut shared));
        let less = (most - larger).exp();
        let mut weight = 0.0f32;
        if slot < slots {
            weight = (score - larger).exp();
        }
        weights[unit] = weight;
        // Synchronises all units, so that the weights are complete too.
        sum = sum * less + sum_of_units(weight, &mut shared);
        most = larger;

        own *= less;
        if part < parts {
            let held = min(units, slots - first);
            let mut i = part;
            while i < held {
                let value = v[of_values + (first + i) * v.stride(2) + column * v.stride(3)];
                own += weights[i] * f32::cast_from(value);
                i += parts;
            }
        }
        // The next tile's weights overwrite these.
        sync_cube();
        first += units;
    }

    weights[unit] = own;
    sync_cube();
    if unit < width {
        let mut total = 0.0f32;
        #[unroll]
        for i in 0..parts {
            total += weights[i * width + unit];
        }
        let to = b * out.stride(0) + l * out.stride(1) + h * out.stride(2) + unit * out.stride(3);
        out[to] = F::cast_from(total / sum);
    }
}

/// Grouped attention of few queries: q `[B, L, H, dh]` with dh at most [`super::widest_head`], k and v `[B, Hkv, T, dh]` in any
/// layout, a mask `[B, 1, L, T]` → `[B, L, H, dh]`.
pub(crate) fn attend(q: CubeTensor, k: CubeTensor, v: CubeTensor, mask: Option<CubeTensor>) -> CubeTensor {
    let out = made_like(&q, q.shape());
    let [b, l, h, width] = q.shape().dims();
    let queries = b * l * h;
    if queries * width == 0 {
        return out;
    }
    let (client, element) = (q.client.clone(), element(&q));
    let units = units(&client, UNITS);
    let masked = mask.is_some();
    // A kernel needs all its arguments: without a mask the queries are passed instead, and not read.
    let mask = mask.unwrap_or_else(|| q.clone());
    one_query::launch(
        &client,
        cubes(&client, queries),
        dim(units),
        addresses(&[&q, &k, &v, &mask]),
        q.into_tensor_arg(),
        k.into_tensor_arg(),
        v.into_tensor_arg(),
        mask.into_tensor_arg(),
        out.clone().into_tensor_arg(),
        queries,
        1.0 / (width as f64).sqrt() as f32,
        masked,
        width,
        units,
        element,
    );
    out
}
