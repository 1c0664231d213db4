//! The loss from hidden states and the head, with the logits of a few rows in memory at a time. The backward pass recomputes them.

use std::ops::Range;

use burn::backend::tensor::FloatTensor as Float;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::Slice;

use super::{BackwardOps, FusedOps, Stores, Targets};
use crate::frozen::FrozenMatrix;

/// Maximum logits in memory, if that is at least [`ROWS`] rows.
const HELD: usize = 1 << 20;

/// Minimum rows per product: each product reads the whole head.
const ROWS: usize = 256;

/// Ranges of rows whose logits are in memory together, for a vocabulary of `vocab` tokens.
fn parts(rows: usize, vocab: usize) -> impl Iterator<Item = Range<usize>> {
    let step = (HELD / vocab.max(1)).max(ROWS);
    (0..rows).step_by(step).map(move |from| from..(from + step).min(rows))
}

fn some_rows<B: Backend>(x: &Float<B>, rows: &Range<usize>) -> Float<B> {
    let rest = (1..x.shape().num_dims()).map(|_| Slice::full());
    let slices: Vec<Slice> = std::iter::once(Slice::from(rows.clone())).chain(rest).collect();
    B::float_slice(x.clone(), &slices)
}

/// A head as an operation on some rows.
pub(super) trait Head<B: Backend> {
    fn vocab(&self) -> usize;
    /// `[n, D]` → `[n, V]`.
    fn logits(&self, hidden: Float<B>) -> Float<B>;
    /// Gradient of the hidden states from that of the logits.
    fn back(&self, grad: Float<B>) -> Float<B>;
    /// Gradient of its float weights, in their layout, from the hidden states and the gradient of the logits.
    fn own(&self, hidden: Float<B>, grad: Float<B>) -> Float<B>;
}

/// Floats `[D, V]`.
pub(super) struct Floats<'a, B: Backend>(pub &'a Float<B>);

impl<B: FusedOps> Head<B> for Floats<'_, B> {
    fn vocab(&self) -> usize {
        self.0.shape()[1]
    }

    fn logits(&self, hidden: Float<B>) -> Float<B> {
        B::matmul(hidden, self.0.clone())
    }

    fn back(&self, grad: Float<B>) -> Float<B> {
        B::matmul(grad, B::float_transpose(self.0.clone()))
    }

    fn own(&self, hidden: Float<B>, grad: Float<B>) -> Float<B> {
        B::matmul(B::float_transpose(hidden), grad)
    }
}

/// A head whose first rows are in their file format and whose last are floats `[n, D]`, the trained ones.
pub(super) struct MixedRows<'a, B: Backend> {
    pub stored: &'a FrozenMatrix,
    pub learnt: &'a Float<B>,
}

impl<B: Backend> MixedRows<'_, B> {
    /// Columns of logits that belong to the floats.
    fn of_learnt(&self, grad: Float<B>) -> Float<B> {
        B::float_slice(
            grad,
            &[Slice::full(), Slice::from(self.stored.rows()..self.stored.rows() + self.learnt.shape()[0])],
        )
    }
}

impl<B: Stores> Head<B> for MixedRows<'_, B> {
    fn vocab(&self) -> usize {
        self.stored.rows() + self.learnt.shape()[0]
    }

    fn logits(&self, hidden: Float<B>) -> Float<B> {
        let last = B::matmul(hidden.clone(), B::float_transpose(self.learnt.clone()));
        B::float_cat(vec![B::linear_stored(hidden, self.stored.clone()), last], 1)
    }

    fn back(&self, grad: Float<B>) -> Float<B> {
        let first = B::float_slice(grad.clone(), &[Slice::full(), Slice::from(0..self.stored.rows())]);
        let last = B::matmul(self.of_learnt(grad), self.learnt.clone());
        B::float_add(B::linear_stored_backward(first, self.stored.clone()), last)
    }

    fn own(&self, hidden: Float<B>, grad: Float<B>) -> Float<B> {
        B::matmul(B::float_transpose(self.of_learnt(grad)), hidden)
    }
}

/// Losses and hits, `[N]` each.
pub(super) fn forward<B: BackwardOps>(
    hidden: &Float<B>,
    head: &impl Head<B>,
    targets: &Targets,
) -> (Float<B>, Float<B>) {
    let done = parts(targets.ids.len(), head.vocab())
        .map(|rows| B::cross_entropy(head.logits(some_rows::<B>(hidden, &rows)), targets.part(rows)));
    let (loss, hits): (Vec<_>, Vec<_>) = done.unzip();
    (B::float_cat(loss, 0), B::float_cat(hits, 0))
}

/// Gradients of the hidden states and of the head's floats, if needed.
pub(super) fn backward<B: BackwardOps>(
    hidden: &Float<B>,
    head: &impl Head<B>,
    targets: &Targets,
    grad: &Float<B>,
    wanted: [bool; 2],
) -> [Option<Float<B>>; 2] {
    let (mut of_hidden, mut of_head) = (vec![], None);
    for rows in parts(targets.ids.len(), head.vocab()) {
        let some = some_rows::<B>(hidden, &rows);
        let logits = head.logits(some.clone());
        let grad = B::cross_entropy_backward(logits, targets.part(rows.clone()), some_rows::<B>(grad, &rows));
        if wanted[0] {
            of_hidden.push(head.back(grad.clone()));
        }
        if wanted[1] {
            let more = head.own(some, grad);
            of_head = Some(match of_head {
                Some(sum) => B::float_add(sum, more),
                None => more,
            });
        }
    }
    [wanted[0].then(|| B::float_cat(of_hidden, 0)), of_head]
}
