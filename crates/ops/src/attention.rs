//! Grouped-query attention in explicit steps, so that scores and pattern can be observed.
//!
//! The `rep = H / Hkv` query heads of a group are folded into rows, so that keys and values are never copied. Query head `h` reads group
//! `h / rep`, as in Hugging Face's `repeat_kv`.

use burn::tensor::{DType, Device, Int, Tensor, TensorData, activation::softmax};

use super::{MASKED, fused, matmul};

/// Most query positions for which a GPU computes attention without a pattern in memory.
const FEW: usize = 8;

/// Largest pattern, in bytes, that a GPU stores whole for the backward pass. Larger ones are computed in chunks, and recomputed there.
const WHOLE: usize = 1 << 24;

/// Bytes of scores per part: about the size of a large GPU's cache.
const HELD: usize = 1 << 26;

/// Grouped attention without hooks on scores or pattern: q `[B, L, H, dh]`, k and v `[B, Hkv, T, dh]`, a mask `[B, 1, L, T]` → z
/// `[B, L, H, dh]`. With a mask, query l must see no slot after its own, `T − L + l`: slots are in temporal order, and later ones are not
/// always read.
pub fn attend(q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, mask: Option<Tensor<4>>) -> Tensor<4> {
    let tracked = q.is_autodiff() || k.is_autodiff() || v.is_autodiff();
    let all = |usable: fn(&Tensor<4>) -> bool| [&q, &k, &v].into_iter().chain(&mask).all(usable);
    if tracked && all(fused::is_cpu_fused) {
        let nothing = || Tensor::zeros([q.dims()[0], 1, q.dims()[1], k.dims()[2]], &q.device());
        let mask = mask.unwrap_or_else(nothing);
        return fused::attend_tracked(q, k, v, mask);
    }
    let [_, l, _, dh] = q.dims();
    // On a GPU many queries are faster as matrix products, which read the keys once for all of them.
    let fits = fused::widest_head(&q).is_none_or(|widest| dh <= widest && l <= FEW);
    let of_one_type = [&k, &v].into_iter().chain(&mask).all(|x| x.dtype() == q.dtype());
    if !tracked && fits && of_one_type && fused::is_forward_fused(&q) {
        return fused::attend(q, k, v, mask);
    }
    if let Some(mask) = &mask
        && of_one_type
        && fused::widest_head(&q).is_some()
        && fused::is_forward_fused(&q)
        && mask.dims()[0] * mask.dims()[2] * mask.dims()[3] * q.dims()[2] * q.dtype().size() > WHOLE
    {
        return fused::attend_in_parts(q, k, v, mask.clone(), HELD);
    }
    let pattern = grouped_pattern(grouped_scores(q, k), mask);
    grouped_values(pattern, v)
}

pub fn composed_attend(q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, mask: Option<Tensor<4>>) -> Tensor<4> {
    grouped_values(composed_pattern(grouped_scores(q, k), mask), v)
}

/// Scores `q·k / sqrt(dh)`: q `[B, L, H, dh]`, k `[B, Hkv, T, dh]` → `[B, H, L, T]`, before the mask.
pub fn grouped_scores(q: Tensor<4>, k: Tensor<4>) -> Tensor<4> {
    let [b, l, h, dh] = q.dims();
    let [_, groups, t, _] = k.dims();
    // Scaling q costs L·dh instead of L·T products.
    let q = q.swap_dims(1, 2).mul_scalar(1.0 / (dh as f64).sqrt());
    let q = q.reshape([b, groups, (h / groups) * l, dh]);
    matmul(q, k.swap_dims(2, 3)).reshape([b, h, l, t])
}

/// Scores `[B, H, L, T]` plus the mask `[B, 1, L, T]`, as hooks see them.
pub fn masked(scores: Tensor<4>, mask: Option<Tensor<4>>) -> Tensor<4> {
    match mask {
        Some(mask) => scores + mask,
        None => scores,
    }
}

/// Softmax over keys: scores `[B, H, L, T]` plus mask `[B, 1, L, T]` → `[B, H, L, T]`.
pub fn grouped_pattern(scores: Tensor<4>, mask: Option<Tensor<4>>) -> Tensor<4> {
    if fused::is_forward_fused(&scores) && mask.as_ref().is_none_or(|mask| mask.dtype() == scores.dtype()) {
        return fused::softmax(scores, mask);
    }
    composed_pattern(scores, mask)
}

pub fn composed_pattern(scores: Tensor<4>, mask: Option<Tensor<4>>) -> Tensor<4> {
    softmax(masked(scores, mask), 3)
}

/// Mixes values by the pattern: `[B, H, L, T]`, v `[B, Hkv, T, dh]` → z `[B, L, H, dh]`.
pub fn grouped_values(pattern: Tensor<4>, v: Tensor<4>) -> Tensor<4> {
    let [b, h, l, t] = pattern.dims();
    let [_, groups, _, dh] = v.dims();
    let z = matmul(pattern.reshape([b, groups, (h / groups) * l, t]), v);
    z.reshape([b, h, l, dh]).swap_dims(1, 2)
}

/// [`MASKED`] in a float type: finite, and small enough in f16 (which ends at 65,504) that a score can be added.
pub fn mask_value(dtype: DType) -> f32 {
    if dtype == DType::F16 { -32_768.0 } else { MASKED }
}

/// Additive mask `[B, 1, L, T]` from `visible[b][l][t]` flattened in that order.
pub fn additive_mask(visible: &[bool], [b, l, t]: [usize; 3], dtype: DType, device: &Device) -> Tensor<4> {
    let masked = mask_value(dtype);
    let bias: Vec<f32> = visible.iter().map(|&seen| if seen { 0.0 } else { masked }).collect();
    Tensor::from_data(TensorData::new(bias, [b, 1, l, t]).convert_dtype(dtype), (device, dtype))
}

/// Causal mask for queries of the last `l` of `t` slots: each sees its own slot and earlier ones, but no hole. Computed on the device from
/// the flattened `held[b][t]`, so that no L × T values are copied from the host.
pub fn causal_mask(held: &[bool], [b, l, t]: [usize; 3], dtype: DType, device: &Device) -> Tensor<4> {
    let count = |range: std::ops::Range<usize>, shape: [usize; 4]| {
        Tensor::<1, Int>::arange(range.start as i64..range.end as i64, device).reshape(shape)
    };
    let later =
        count(0..t, [1, 1, 1, t]).expand([1, 1, l, t]).greater(count(t - l..t, [1, 1, l, 1]).expand([1, 1, l, t]));
    let masked = mask_value(dtype);
    if held.iter().all(|&held| held) {
        return Tensor::zeros([1, 1, l, t], (device, dtype)).mask_fill(later, masked).expand([b, 1, l, t]);
    }
    let holes = additive_mask(held, [b, 1, t], dtype, device);
    holes.expand([b, 1, l, t]).mask_fill(later.expand([b, 1, l, t]), masked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_masked_score_is_finite_in_every_float_type() {
        let device = Device::flex();
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            // The first slot is a hole: the first query sees nothing.
            let shown = additive_mask(&[false, false, false, true], [1, 2, 2], dtype, &device);
            let held = causal_mask(&[false, true], [1, 2, 2], dtype, &device);
            for mask in [shown, held] {
                let scores = mask.try_into_vec_as::<f32>().expect("values");
                assert!(scores.iter().all(|x| x.is_finite()), "{dtype:?}: {scores:?}");
                assert_eq!(scores.iter().map(|x| *x < -1e4).collect::<Vec<_>>(), [true, true, true, false]);
            }
        }
    }
}
