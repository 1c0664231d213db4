//! Gradients of attention from its inputs and outputs: patterns are recomputed, a few positions at a time.
//!
//! With P a pattern, dP = dO Vᵀ and D = Σ dO · O of each query: dS = P · (dP − D), dV = Pᵀ dO, dK = dSᵀ Q, dQ = dS K
//! (FlashAttention-2, algorithm 2).

use std::ops::Range;

use rayon::prelude::*;

use super::attend::{Heads, PARALLEL, Scale, Sizes, TOGETHER, add_mask, padded};
use super::product::{self, MatrixView, Transpose};
use super::simd::{exp, sum, vectorised};
use super::stored_many::rows_of;

/// Inputs and outputs of the forward pass, and the gradient of `out`: q, out and grad `[B, L, H, dh]`, keys and values as matrices
/// `[T, dh]`, the mask `[B, L, T]`, scales `[B, L, H]`.
pub(super) struct AttentionPass<'a> {
    pub q: &'a [f32],
    pub keys: Heads<'a>,
    pub values: Heads<'a>,
    pub mask: &'a [f32],
    pub out: &'a [f32],
    pub scales: &'a [Scale],
    pub grad: &'a [f32],
    pub sizes: Sizes,
}

impl AttentionPass<'_> {
    /// Adds to dq `[B, L, H, dh]`, dk and dv `[B, T, Hkv, dh]`.
    pub fn backward(&self, dq: &mut [f32], dk: &mut [f32], dv: &mut [f32]) {
        let Sizes { positions, groups, slots, width, .. } = self.sizes;
        let (queries, kept) = (positions * self.sizes.query_width(), slots * groups * width);
        if self.q.len() * slots < PARALLEL {
            let rows = dq.chunks_mut(queries).zip(dk.chunks_mut(kept)).zip(dv.chunks_mut(kept));
            rows.enumerate().for_each(|(row, ((dq, dk), dv))| self.row(row, dq, dk, dv));
        } else {
            let rows = dq.par_chunks_mut(queries).zip(dk.par_chunks_mut(kept)).zip(dv.par_chunks_mut(kept));
            rows.enumerate().for_each(|(row, ((dq, dk), dv))| self.row(row, dq, dk, dv));
        }
    }

    fn row(&self, row: usize, dq: &mut [f32], dk: &mut [f32], dv: &mut [f32]) {
        let Sizes { positions, groups, slots, width, .. } = self.sizes;
        let (one, share, room) = (self.sizes.query_width(), self.sizes.share(), padded(slots));
        let (mut keys_across, mut values_across) = (vec![0.0; width * room], vec![0.0; width * room]);
        let mut queries = Queries::default();
        let (mut patterns, mut dscores) = (vec![], vec![]);
        for group in 0..groups {
            let keys = MatrixView { values: self.keys.matrix(row, group), step: self.keys.steps[2] };
            let values = MatrixView { values: self.values.matrix(row, group), step: self.values.steps[2] };
            transpose(keys, [slots, width], &mut keys_across, room);
            transpose(values, [slots, width], &mut values_across, room);
            let (keys_across, values_across) = (dense(&keys_across, room), dense(&values_across, room));
            for first in (0..positions).step_by(TOGETHER) {
                let at = row * positions + first;
                let together = (positions - first).min(TOGETHER);
                let mask = &self.mask[at * slots..(at + together) * slots];
                let seen = self.sizes.visible_slots(mask);
                let wide = padded(seen);
                queries.read(self, at..at + together, group);
                let (q, grad) = (dense(&queries.q, width), dense(&queries.grad, width));
                for scores in [&mut patterns, &mut dscores] {
                    scores.clear();
                    scores.resize(together * share * wide, 0.0);
                }
                product::times(q, keys_across, width, &mut rows_of(&mut patterns, wide));
                product::times(grad, values_across, width, &mut rows_of(&mut dscores, wide));
                add_mask(&mut patterns, wide, mask, [slots, seen, share]);
                scores_backward(&mut patterns, &mut dscores, &queries.scales, &queries.along);

                let own = group * width..(group + 1) * width;
                let (patterns, dscores) = (dense(&patterns, wide), dense(&dscores, wide));
                let (dk, dv) = (&mut dk[..seen * groups * width], &mut dv[..seen * groups * width]);
                product::times(Transpose(patterns), grad, together * share, &mut parts(dv, groups * width, &own));
                product::times(Transpose(dscores), q, together * share, &mut parts(dk, groups * width, &own));
                let dq = dq.chunks_exact_mut(one).skip(first).take(together);
                let own = group * share * width..(group + 1) * share * width;
                let mut dq: Vec<_> = dq.flat_map(|dq| dq[own.clone()].chunks_exact_mut(width)).collect();
                product::times(dscores, keys, seen, &mut dq);
                let scale = self.sizes.scale();
                dq.into_iter().for_each(|dq| scale_all(dq, scale));
            }
        }
    }
}

/// The queries of some positions, for one key/value head.
#[derive(Default)]
struct Queries {
    /// Scaled queries, and the gradients of their outputs: `[M, dh]`.
    q: Vec<f32>,
    grad: Vec<f32>,
    scales: Vec<Scale>,
    /// D of each query.
    along: Vec<f32>,
}

impl Queries {
    fn read(&mut self, from: &AttentionPass, at: Range<usize>, group: usize) {
        let Sizes { heads, width, .. } = from.sizes;
        let (one, share, scale) = (from.sizes.query_width(), from.sizes.share(), from.sizes.scale());
        self.q.clear();
        self.grad.clear();
        self.scales.clear();
        self.along.clear();
        self.along.resize(at.len() * share, 0.0);
        for (at, along) in at.zip(self.along.chunks_exact_mut(share)) {
            let own = at * one + group * share * width..at * one + (group + 1) * share * width;
            let (grad, out) = (&from.grad[own.clone()], &from.out[own.clone()]);
            self.q.extend(from.q[own].iter().map(|q| q * scale));
            self.grad.extend_from_slice(grad);
            self.scales.extend_from_slice(&from.scales[at * heads + group * share..][..share]);
            row_products(grad, out, width, along);
        }
    }
}

vectorised! {
    /// Turns scores into patterns, and gradients of patterns into gradients of scores, both in place: one row per query.
    fn scores_backward(scores: &mut [f32], grad: &mut [f32], scales: &[Scale], along: &[f32]) {
        let width = scores.len() / along.len().max(1);
        let rows = scores.chunks_exact_mut(width.max(1)).zip(grad.chunks_exact_mut(width.max(1)));
        for ((scores, grad), ([most, over], along)) in rows.zip(scales.iter().zip(along)) {
            for (score, grad) in scores.iter_mut().zip(grad) {
                let pattern = exp(*score - most) * over;
                *score = pattern;
                *grad = pattern * (*grad - along);
            }
        }
    }
}

vectorised! {
    fn row_products(a: &[f32], b: &[f32], width: usize, out: &mut [f32]) {
        for ((a, b), out) in a.chunks_exact(width).zip(b.chunks_exact(width)).zip(out) {
            *out = sum([a, b], |[a, b]| a * b);
        }
    }
}

vectorised! {
    fn scale_all(x: &mut [f32], scale: f32) {
        for x in x {
            *x *= scale;
        }
    }
}

/// Writes `[N, M]` as `[M, N]` into rows that begin `step` values apart.
fn transpose(from: MatrixView, [n, m]: [usize; 2], out: &mut [f32], step: usize) {
    for (i, row) in from.values.chunks(from.step.max(m)).take(n).enumerate() {
        out[i..].iter_mut().step_by(step).zip(&row[..m]).for_each(|(out, value)| *out = *value);
    }
}

fn dense(values: &[f32], step: usize) -> MatrixView<'_> {
    MatrixView { values, step }
}

/// The columns `range` of each row.
fn parts<'a>(values: &'a mut [f32], width: usize, range: &Range<usize>) -> Vec<&'a mut [f32]> {
    values.chunks_exact_mut(width).map(|row| &mut row[range.clone()]).collect()
}
