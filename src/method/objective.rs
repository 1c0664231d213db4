//! What a phase learns: a sum over response tokens, with gradient.

use anyhow::{Result, ensure};
use burn::tensor::Tensor;

use crate::corpus::Row;
use crate::latent::{Gradient, LatentSource, Sequence, Source, UnrolledStates, unroll};
use crate::model::heads::HeadSizes;
use crate::model::{Decoder, Hooks};
use crate::ops::Targets;

/// Sums over one shard of a batch.
pub struct LossSums {
    /// Σ cross-entropy (nats), in the graph.
    pub loss: Tensor<1>,
    /// How many targets there were than which no token was more probable, `[1]`: on the device, because reading it waits for the forward.
    pub correct: Tensor<1>,
}

/// A loss that is a sum over the response tokens of rows: shards of a batch add up, and the sum is divided by the batch's
/// targets before the backward pass.
pub trait Objective: Send + Sync {
    /// How many tokens of these rows are learnt: what the sum is divided by.
    fn tokens(&self, rows: &[Row], latent: u32) -> usize {
        targets(rows, latent).len()
    }

    /// The sum over one shard; `latent` is the id of `<latent>`.
    ///
    /// # Errors
    /// Rows without a target, and whatever the unroll returns.
    fn sums(&self, model: &Decoder, rows: &[Row], latent: u32) -> Result<LossSums>;

    /// The heads that a model of this width must have.
    fn heads(&self, _width: usize) -> HeadSizes {
        HeadSizes::default()
    }
}

/// Cross-entropy of the response tokens that are not `<latent>` (method §4).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossEntropy {
    pub source: Source,
    pub gradient: Gradient,
}

impl CrossEntropy {
    /// Of rows without latents.
    pub fn text() -> Self {
        Self { source: Source::HiddenState, gradient: Gradient::Through }
    }
}

impl Objective for CrossEntropy {
    fn sums(&self, model: &Decoder, rows: &[Row], latent: u32) -> Result<LossSums> {
        response_loss(model, rows, latent, &self.source, self.gradient)
    }
}

/// Response targets that are not latent: `(row, position that predicts, token)`.
pub fn targets(rows: &[Row], latent: u32) -> Vec<(usize, usize, u32)> {
    let mut out = vec![];
    for (b, row) in rows.iter().enumerate() {
        for position in row.prompt.max(1)..row.ids.len() {
            if row.ids[position] != latent {
                out.push((b, position - 1, row.ids[position]));
            }
        }
    }
    out
}

/// Σ −log p(target) over the response tokens that are not `<latent>`; `<swi>` and `</swi>` stay in (method §4).
///
/// # Errors
/// Rows without a target, and whatever the unroll returns.
pub fn response_loss(
    model: &Decoder,
    rows: &[Row],
    latent: u32,
    source: &dyn LatentSource,
    gradient: Gradient,
) -> Result<LossSums> {
    let learnt = response_losses(model, rows, latent, source, gradient, &mut Hooks::none())?;
    Ok(LossSums { loss: learnt.losses.sum(), correct: learnt.correct })
}

/// These rows as a rectangle, filled up with token 0 on the right.
pub(super) fn padded(ids: &[Vec<u32>]) -> Vec<Vec<u32>> {
    let width = ids.iter().map(Vec::len).max().unwrap_or(0);
    ids.iter().map(|ids| ids.iter().copied().chain(std::iter::repeat(0)).take(width).collect()).collect()
}

/// A token to be learnt: `(row, position that predicts, token)`.
pub(super) type Target = (usize, usize, u32);

/// Tokens of rows, each with its loss.
pub(super) struct Learnt {
    pub targets: Vec<Target>,
    /// −log p(target), in the order of `targets`.
    pub losses: Tensor<1>,
    pub correct: Tensor<1>,
    pub all: UnrolledStates,
}

/// [`response_loss`] before it is summed.
///
/// # Errors
/// As [`response_loss`], and whatever a hook returns.
pub(super) fn response_losses(
    model: &Decoder,
    rows: &[Row],
    latent: u32,
    source: &dyn LatentSource,
    gradient: Gradient,
    hooks: &mut Hooks,
) -> Result<Learnt> {
    losses_at(model, rows, Some(latent), source, gradient, targets(rows, latent), hooks)
}

/// The losses of these targets; without an id of latents every token is fed as itself, all of a row in one pass.
pub(super) fn losses_at(
    model: &Decoder,
    rows: &[Row],
    latent: Option<u32>,
    source: &dyn LatentSource,
    gradient: Gradient,
    targets: Vec<Target>,
    hooks: &mut Hooks,
) -> Result<Learnt> {
    let sequences: Result<Vec<_>> =
        rows.iter().enumerate().map(|(i, row)| Sequence::new(i, row.ids.clone(), row.prompt, latent)).collect();
    ensure!(!targets.is_empty(), "a batch of {} rows has no response token to learn", rows.len());
    let all = unroll(model, &sequences?, source, gradient, hooks)?;
    let places: Vec<_> = targets.iter().map(|&(b, p, _)| (b, p)).collect();
    let ids: Vec<u32> = targets.iter().map(|&(_, _, id)| id).collect();
    let (losses, hits) = model.token_losses(all.hidden_at(&places)?, Targets::new(ids))?;
    Ok(Learnt { targets, losses, correct: hits.sum(), all })
}
