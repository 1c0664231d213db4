//! RMSNorm (Zhang & Sennrich 2019).

use burn::tensor::Tensor;

use super::fused;

/// `sqrt(mean(x²) + eps)` over the last axis: `[.., D]` → `[.., 1]`. TransformerLens calls it `hook_scale`.
pub fn rms_scale<const R: usize>(x: Tensor<R>, eps: f64) -> Tensor<R> {
    x.square().mean_dim(R - 1).add_scalar(eps).sqrt()
}

/// `x / rms_scale(x) * weight`: `[.., D]`, `[D]` → `[.., D]`.
pub fn rms_norm<const R: usize>(x: Tensor<R>, weight: Tensor<1>, eps: f64) -> Tensor<R> {
    if fused::is_forward_fused(&x) && x.dtype() == weight.dtype() {
        return fused::rms_norm(x, weight, eps);
    }
    composed_rms_norm(x, weight, eps)
}

pub fn composed_rms_norm<const R: usize>(x: Tensor<R>, weight: Tensor<1>, eps: f64) -> Tensor<R> {
    let scale = rms_scale(x.clone(), eps);
    x / scale * weight.unsqueeze()
}
