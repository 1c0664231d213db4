//! Log-probabilities of tokens from logits.

use burn::tensor::{DType, FloatDType, Int, Tensor, TensorData, activation::log_softmax};

use super::fused;

/// Log-probability of each target: logits `[B, L, V]`, targets `[B, L]` → `[B, L]` (nats).
pub fn token_log_probs(logits: Tensor<3>, targets: Tensor<2, Int>) -> Tensor<2> {
    log_probs_of(log_softmax(logits, 2), targets)
}

/// `−log softmax(logits)[target]` of each row (nats): logits `[N, V]`, N targets below V → `[N]`.
pub fn cross_entropy(logits: Tensor<2>, targets: Vec<u32>) -> Tensor<1> {
    if fused::is_fused(&logits) {
        return fused::cross_entropy(logits, targets);
    }
    composed_cross_entropy(logits, targets)
}

/// The same in Burn's operations.
pub fn composed_cross_entropy(logits: Tensor<2>, targets: Vec<u32>) -> Tensor<1> {
    let n = targets.len();
    let ids: Vec<i64> = targets.into_iter().map(i64::from).collect();
    let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [n, 1]), &logits.device());
    log_softmax(logits, 1).gather(1, ids).reshape([n]).neg()
}

/// Picks each target's entry: log-probabilities `[B, L, V]`, targets `[B, L]` → `[B, L]`.
pub fn log_probs_of(log_probs: Tensor<3>, targets: Tensor<2, Int>) -> Tensor<2> {
    log_probs.gather(2, targets.unsqueeze_dim(2)).squeeze_dim(2)
}

/// Logits in f32 where the model computes in fewer bits: a softmax over a vocabulary needs the digits.
pub fn at_least_f32<const R: usize>(logits: Tensor<R>) -> Tensor<R> {
    if matches!(logits.dtype(), DType::F16 | DType::BF16) { logits.cast(FloatDType::F32) } else { logits }
}

/// Shannon entropy of `softmax(logits)`: `[B, L, V]` → `[B, L]` (nats).
pub fn entropy(logits: Tensor<3>) -> Tensor<2> {
    let log_probs = log_softmax(at_least_f32(logits), 2);
    (log_probs.clone().exp() * log_probs).sum_dim(2).neg().squeeze_dim(2)
}
