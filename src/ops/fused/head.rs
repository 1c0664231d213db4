//! The loss from hidden states and the head, a few rows' logits at a time. The backward pass makes them again.

use std::ops::Range;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::Slice;

use super::{Fused, Targets};

/// Logits that are held at once, unless that is fewer than [`ROWS`] rows: every product reads the whole head.
const HELD: usize = 1 << 20;

/// Rows that are worth reading the head for.
const ROWS: usize = 256;

/// Ranges of rows whose logits are held together, for a vocabulary of `vocab` tokens.
fn parts(rows: usize, vocab: usize) -> impl Iterator<Item = Range<usize>> {
    let step = (HELD / vocab.max(1)).max(ROWS);
    (0..rows).step_by(step).map(move |from| from..(from + step).min(rows))
}

fn some_rows<B: Backend>(x: &FloatTensor<B>, rows: &Range<usize>) -> FloatTensor<B> {
    let rest = (1..x.shape().num_dims()).map(|_| Slice::full());
    let slices: Vec<Slice> = std::iter::once(Slice::from(rows.clone())).chain(rest).collect();
    B::float_slice(x.clone(), &slices)
}

/// Losses and hits, `[N]` each.
pub(super) fn forward<B: Fused>(
    hidden: &FloatTensor<B>,
    head: &FloatTensor<B>,
    targets: &Targets,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let [n, vocab] = [targets.ids.len(), head.shape()[1]];
    let done = parts(n, vocab).map(|rows| {
        let logits = B::float_matmul(some_rows::<B>(hidden, &rows), head.clone());
        B::cross_entropy(logits, targets.part(rows))
    });
    let (loss, hits): (Vec<_>, Vec<_>) = done.unzip();
    (B::float_cat(loss, 0), B::float_cat(hits, 0))
}

/// Gradients of the hidden states and the head, as far as they are wanted.
pub(super) fn backward<B: Fused>(
    hidden: &FloatTensor<B>,
    head: &FloatTensor<B>,
    targets: &Targets,
    grad: &FloatTensor<B>,
    wanted: [bool; 2],
) -> [Option<FloatTensor<B>>; 2] {
    let [n, vocab] = [targets.ids.len(), head.shape()[1]];
    let (mut of_hidden, mut of_head) = (vec![], None);
    for rows in parts(n, vocab) {
        let some = some_rows::<B>(hidden, &rows);
        let logits = B::float_matmul(some.clone(), head.clone());
        let grad = B::cross_entropy_backward(logits, targets.part(rows.clone()), some_rows::<B>(grad, &rows));
        if wanted[0] {
            of_hidden.push(B::float_matmul(grad.clone(), B::float_transpose(head.clone())));
        }
        if wanted[1] {
            let more = B::float_matmul(B::float_transpose(some), grad);
            of_head = Some(match of_head {
                Some(sum) => B::float_add(sum, more),
                None => more,
            });
        }
    }
    [wanted[0].then(|| B::float_cat(of_hidden, 0)), of_head]
}
