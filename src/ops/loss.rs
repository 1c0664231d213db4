//! Log-probabilities of tokens from logits.

use burn::tensor::{DType, FloatDType, Int, Tensor, activation::log_softmax};

/// Log-probability of each target: logits `[B, L, V]`, targets `[B, L]` → `[B, L]` (nats).
pub fn token_log_probs(logits: Tensor<3>, targets: Tensor<2, Int>) -> Tensor<2> {
    log_probs_of(log_softmax(logits, 2), targets)
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
