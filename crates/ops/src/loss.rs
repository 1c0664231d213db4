//! Log-probabilities of tokens, from logits or from hidden states and the head.

use std::ops::Range;

use burn::tensor::{Bool, DType, FloatDType, Int, Tensor, TensorData};

use super::{MASKED, fused, like_parts, matmul, wide};

/// Log-probability of each target: logits `[B, L, V]`, targets `[B, L]` → `[B, L]` (nats).
pub fn token_log_probs(logits: Tensor<3>, targets: Tensor<2, Int>) -> Tensor<2> {
    let [b, l, vocab] = logits.dims();
    wide::log_softmax(logits.reshape([b * l, vocab])).gather(1, targets.reshape([b * l, 1])).reshape([b, l])
}

/// Targets of N rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Targets {
    /// `[N]`, below the vocabulary's size.
    pub ids: Vec<u32>,
    /// Tokens that the softmax excludes.
    pub banned: Vec<u32>,
    /// `[N]`, if tokens are banned: rows whose softmax is over all tokens.
    pub unrestricted: Vec<bool>,
}

impl Targets {
    /// Targets under the full softmax.
    pub fn new(ids: Vec<u32>) -> Self {
        Self { ids, ..Self::default() }
    }

    /// Banned tokens of a row.
    pub(super) fn banned(&self, row: usize) -> &[u32] {
        if self.unrestricted.get(row).is_some_and(|&all| all) { &[] } else { &self.banned }
    }

    /// The targets of some rows.
    pub(super) fn part(&self, rows: Range<usize>) -> Self {
        let unrestricted = self.unrestricted.get(rows.clone()).unwrap_or_default().to_vec();
        Self { ids: self.ids[rows].to_vec(), banned: self.banned.clone(), unrestricted }
    }
}

/// `−log softmax(h W)[target]` of each row (nats), and 1 if no token was more probable than the target, else 0: h `[N, D]`, the head W
/// `[D, V]` → `[N]`, `[N]`. The fused pass has the logits of only a few rows in memory at a time.
pub fn head_loss(hidden: Tensor<2>, head: Tensor<2>, targets: Targets) -> (Tensor<1>, Tensor<1>) {
    if fused::is_fused(&hidden) && fused::is_fused(&head) {
        return fused::head_loss(hidden, head, targets);
    }
    loss_of_logits(matmul(hidden, head), targets)
}

/// Losses from logits `[N, V]`, in Burn's operations.
pub fn loss_of_logits(logits: Tensor<2>, targets: Targets) -> (Tensor<1>, Tensor<1>) {
    let [n, vocab] = logits.dims();
    let device = logits.device();
    let mut logits = at_least_f32(logits);
    if !targets.banned.is_empty() {
        let mut mask = vec![false; n * vocab];
        for row in 0..n {
            targets.banned(row).iter().for_each(|&token| mask[row * vocab + token as usize] = true);
        }
        logits = logits.mask_fill(Tensor::<2, Bool>::from_data(TensorData::new(mask, [n, vocab]), &device), MASKED);
    }
    let ids: Vec<i64> = targets.ids.into_iter().map(i64::from).collect();
    let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [n, 1]), &device);
    let plain = logits.clone().without_autodiff();
    let hits = plain.clone().gather(1, ids.clone()).greater_equal(wide::largest(plain)).float().reshape([n]);
    (wide::log_softmax(logits).gather(1, ids).reshape([n]).neg(), hits)
}

/// Rows whose logits are in memory at once.
const ROWS: usize = 128;

/// Losses with a head given as a function, `[n, D]` → `[n, V]`, in chunks of at least one row. Under autodiff all logits are stored.
pub fn loss_in_parts(
    hidden: Tensor<2>,
    unembed: impl Fn(Tensor<2>) -> Tensor<2>,
    targets: Targets,
) -> (Tensor<1>, Tensor<1>) {
    let part = |rows: Range<usize>| {
        let hidden = hidden.clone().narrow(0, rows.start, rows.len());
        loss_of_logits(unembed(hidden), targets.part(rows))
    };
    let (losses, hits) = like_parts(hidden.dims()[0], ROWS).map(part).unzip();
    (Tensor::cat(losses, 0), Tensor::cat(hits, 0))
}

/// Logits in f32 if the model computes in fewer bits: a softmax over a vocabulary needs the precision.
fn at_least_f32<const R: usize>(logits: Tensor<R>) -> Tensor<R> {
    if matches!(logits.dtype(), DType::F16 | DType::BF16) { logits.cast(FloatDType::F32) } else { logits }
}

/// Shannon entropy of `softmax(logits)`: `[B, L, V]` → `[B, L]` (nats).
pub fn entropy(logits: Tensor<3>) -> Tensor<2> {
    let [b, l, vocab] = logits.dims();
    let log_probs = wide::log_softmax(at_least_f32(logits).reshape([b * l, vocab]));
    wide::sum(log_probs.clone().exp() * log_probs).neg().reshape([b, l])
}
