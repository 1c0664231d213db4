//! Attention without storing scores: slices in, slices out.

use std::ops::Range;

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::product::{self, MatrixView};
use super::simd::{LANES, softmax, vectorised};
use crate::MASKED;
use crate::cpu::dispatch;

/// Matrices of every row and head within one slice; the values of a matrix's row are contiguous.
pub(super) struct Heads<'a> {
    pub values: &'a [f32],
    pub start: usize,
    /// Steps to the next row of the batch, the next head, the next row of the matrix.
    pub steps: [usize; 3],
}

impl<'a> Heads<'a> {
    pub fn matrix(&self, row: usize, head: usize) -> &'a [f32] {
        &self.values[self.start + row * self.steps[0] + head * self.steps[1]..]
    }
}

/// Sizes of one call: positions, query heads, key/value heads, slots, head width.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub positions: usize,
    pub heads: usize,
    pub groups: usize,
    pub slots: usize,
    pub width: usize,
}

/// Query positions per task: their scores fit into the cache.
pub(super) const TOGETHER: usize = 16;

/// Fewest query-key products for a second thread: one thread needs 30 µs for them, waking another a third of that.
const SHARED: usize = 1 << 17;

/// The same threshold for a backward pass.
pub(super) const PARALLEL: usize = 1 << 22;

/// Slots rounded up to whole vectors: keys have room for them.
pub(super) fn padded(slots: usize) -> usize {
    slots.next_multiple_of(LANES)
}

impl Sizes {
    /// Values of one position's queries.
    pub fn query_width(&self) -> usize {
        self.heads * self.width
    }

    /// Query heads that read one key/value head.
    pub fn share(&self) -> usize {
        self.heads / self.groups
    }

    pub fn scale(&self) -> f32 {
        1.0 / (self.width as f64).sqrt() as f32
    }

    /// Number of slots that a position with these masks sees, in whole vectors; all if some position sees none, whose attention is uniform.
    pub fn visible_slots(&self, mask: &[f32]) -> usize {
        let last = |mask: &[f32]| mask.iter().rposition(|&bias| bias > MASKED);
        let most = mask.chunks_exact(self.slots).try_fold(0, |most, mask| last(mask).map(|last| most.max(last + 1)));
        most.map_or(self.slots, |most| padded(most).min(self.slots))
    }
}

/// Softmax statistics of a query, from which the backward pass recomputes its pattern: the largest score m, and `1 / Σ exp(s − m)`.
pub(super) type Scale = [f32; 2];

/// `softmax(q kᵀ / √dh + mask) v`: q and `out` `[B, L, H, dh]`, keys as matrices `[dh, padded(T)]`, values `[T, dh]`, the
/// mask `[B, L, T]` or empty; `scales` `[B, L, H]` is written too.
pub(super) fn attend(
    q: &[f32],
    keys: &Heads,
    values: &Heads,
    mask: &[f32],
    sizes: Sizes,
    out: &mut [f32],
    scales: &mut [Scale],
) {
    let Sizes { positions, heads, groups, slots, .. } = sizes;
    let one = sizes.query_width();
    let units = positions.div_ceil(TOGETHER);
    let threads = if q.len() * slots < SHARED { 1 } else { rayon::current_num_threads() };
    // A single long sequence is one unit in decoding: its KV heads are dealt to threads.
    let together = if q.len() / (positions * one) * units < threads { 1 } else { groups };
    let share = sizes.share() * together;
    // Units do not extend over the end of a batch row.
    let outs = out.chunks_mut(positions * one).flat_map(|row| row.chunks_mut(TOGETHER * one));
    let scales = scales.chunks_mut(positions * heads).flat_map(|row| row.chunks_mut(TOGETHER * heads));
    let parts = outs.zip(scales).enumerate().flat_map(|(at, (out, scales))| {
        let outs = columns(out, one, share * sizes.width);
        let parts = outs.into_iter().zip(columns(scales, heads, share)).enumerate();
        parts.map(move |(i, (outs, scales))| AttentionTask {
            row: at / units,
            first: at % units * TOGETHER,
            groups: i * together..((i + 1) * together).min(groups),
            outs,
            scales,
        })
    });
    let work = |part: AttentionTask| {
        let (from, count) = (part.row * positions + part.first, part.outs.len());
        let q = &q[from * one..(from + count) * one];
        let mask = if mask.is_empty() { mask } else { &mask[from * slots..(from + count) * slots] };
        part.attend(q, keys, values, mask, sizes);
    };
    if threads == 1 {
        parts.for_each(work);
    } else {
        parts.collect::<Vec<_>>().into_par_iter().for_each(work);
    }
}

/// Rows of `one` values, cut into pieces of `width`: returns the pieces of each column of pieces.
fn columns<T>(rows: &mut [T], one: usize, width: usize) -> Vec<Vec<&mut [T]>> {
    let mut columns: Vec<Vec<_>> = (0..one / width).map(|_| Vec::with_capacity(rows.len() / one)).collect();
    for row in rows.chunks_exact_mut(one) {
        columns.iter_mut().zip(row.chunks_exact_mut(width)).for_each(|(column, piece)| column.push(piece));
    }
    columns
}

/// Some positions of a row of the batch, from `first` on, with some key/value heads.
struct AttentionTask<'o> {
    row: usize,
    first: usize,
    groups: Range<usize>,
    /// For each position, the outputs of these heads.
    outs: Vec<&'o mut [f32]>,
    scales: Vec<&'o mut [Scale]>,
}

impl AttentionTask<'_> {
    /// `q` and `mask`: those of its positions.
    fn attend(mut self, q: &[f32], keys: &Heads, values: &Heads, mask: &[f32], sizes: Sizes) {
        let Sizes { slots, width, .. } = sizes;
        let (one, share) = (sizes.query_width(), sizes.share());
        let scale = sizes.scale();
        let rows = self.outs.len() * share;
        let seen = if mask.is_empty() { slots } else { sizes.visible_slots(mask) };
        let room = padded(seen);
        let (mut queries, mut scores) = (vec![0.0; rows * width], vec![0.0; rows * room]);
        let mut own_scales: Vec<Scale> = vec![[0.0; 2]; rows];
        for (i, group) in self.groups.enumerate() {
            let own = group * share * width..(group + 1) * share * width;
            for (query, q) in queries.chunks_exact_mut(share * width).zip(q.chunks_exact(one)) {
                scaled(&q[own.clone()], scale, query);
            }
            scores.fill(0.0);
            let mut pieces: Vec<&mut [f32]> = scores.chunks_exact_mut(room).collect();
            let keys = MatrixView { values: keys.matrix(self.row, group), step: keys.steps[2] };
            product::times(MatrixView { values: &queries, step: width }, keys, width, &mut pieces);
            if !mask.is_empty() {
                add_mask(&mut scores, room, mask, [slots, seen, share]);
            }
            patterns(&mut scores, room, seen, &mut own_scales);
            let kept = self.scales.iter_mut().flat_map(|scales| &mut scales[i * share..(i + 1) * share]);
            kept.zip(&own_scales).for_each(|(kept, scale)| *kept = *scale);
            let pattern = scores.chunks_exact(room).map(|pattern| &pattern[..seen]);
            let held = i * share * width..(i + 1) * share * width;
            let outs = self.outs.iter_mut().flat_map(|out| out[held.clone()].chunks_exact_mut(width));
            let (v, step) = (values.matrix(self.row, group), values.steps[2]);
            dispatch(Mix { pattern, v, step, outs });
        }
    }
}

vectorised! {
    /// `x · scale`.
    fn scaled(x: &[f32], scale: f32, out: &mut [f32]) {
        for (out, x) in out.iter_mut().zip(x) {
            *out = x * scale;
        }
    }
}

vectorised! {
    /// Adds the mask `[L, T]` to the first `seen` of each row of `width` scores; one mask row applies to `share` rows of scores.
    fn add_mask(x: &mut [f32], width: usize, mask: &[f32], shape: [usize; 3]) {
        let [slots, seen, share] = shape;
        for (x, mask) in x.chunks_exact_mut(share * width).zip(mask.chunks_exact(slots)) {
            for x in x.chunks_exact_mut(width) {
                for (score, mask) in x.iter_mut().zip(&mask[..seen]) {
                    *score += mask;
                }
            }
        }
    }
}

vectorised! {
    /// Softmax of each row of `width` scores over its first `seen`, in place.
    fn patterns(x: &mut [f32], width: usize, seen: usize, scales: &mut [Scale]) {
        for (x, scale) in x.chunks_exact_mut(width).zip(scales) {
            x[seen..].fill(f32::NEG_INFINITY);
            *scale = softmax(x);
        }
    }
}

/// Σ pattern[t] · v[t] for each query.
struct Mix<'a, P, O> {
    pattern: P,
    v: &'a [f32],
    step: usize,
    outs: O,
}

impl<'p, 'o, P, O> WithSimd for Mix<'_, P, O>
where
    P: Iterator<Item = &'p [f32]>,
    O: Iterator<Item = &'o mut [f32]>,
{
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let mut queries = self.pattern.zip(self.outs);
        loop {
            // Queries that are processed together read v once. The sums of each do not depend on the others.
            let three = [queries.next(), queries.next(), queries.next()];
            match three {
                [Some((a, x)), Some((b, y)), Some((c, z))] => mix_all(simd, [a, b, c], self.v, self.step, [x, y, z]),
                three => {
                    for (pattern, out) in three.into_iter().flatten() {
                        mix_all(simd, [pattern], self.v, self.step, [out]);
                    }
                    return;
                }
            }
        }
    }
}

/// All columns of the mixtures of Q queries.
#[inline(always)]
fn mix_all<S: Simd, const Q: usize>(simd: S, pattern: [&[f32]; Q], v: &[f32], step: usize, out: [&mut [f32]; Q]) {
    let (mut at, lanes, width) = (0, S::F32_LANES, out.first().map_or(0, |out| out.len()));
    let mut out = out;
    while Q == 1 && at + 4 * lanes <= width {
        mix::<S, Q, 4>(simd, pattern, &v[at..], step, &mut out, at);
        at += 4 * lanes;
    }
    while S::REGISTER_COUNT >= 32 && at + 2 * lanes <= width {
        mix::<S, Q, 2>(simd, pattern, &v[at..], step, &mut out, at);
        at += 2 * lanes;
    }
    while at + lanes <= width {
        mix::<S, Q, 1>(simd, pattern, &v[at..], step, &mut out, at);
        at += lanes;
    }
    for (pattern, out) in pattern.into_iter().zip(out) {
        for (at, out) in out.iter_mut().enumerate().skip(at) {
            *out = pattern.iter().enumerate().fold(0.0, |sum, (t, p)| p.mul_add(v[t * step + at], sum));
        }
    }
}

/// V vectors of Q mixtures from column `from` on, each in four interleaved sums to hide latency.
#[inline(always)]
fn mix<S: Simd, const Q: usize, const V: usize>(
    simd: S,
    pattern: [&[f32]; Q],
    v: &[f32],
    step: usize,
    out: &mut [&mut [f32]; Q],
    from: usize,
) {
    let width = V * S::F32_LANES;
    let slots = pattern[0].len();
    assert!(slots == 0 || (slots - 1) * step + width <= v.len(), "a row of values for every slot");
    let row = |t: usize| {
        #[allow(unsafe_code)]
        // SAFETY: the last row is within bounds, as checked above.
        let row = unsafe { v.get_unchecked(t * step..t * step + width) };
        S::as_simd_f32s(row).0
    };
    let mut sums = [[[simd.splat_f32s(0.0); V]; 4]; Q];
    let split = pattern.map(|pattern| pattern.as_chunks::<4>());
    let fours = split[0].0.len();
    let pattern = split.map(|(pattern, _)| &pattern[..fours]);
    for t in 0..fours {
        let of = pattern.map(|pattern| pattern[t]);
        for i in 0..4 {
            let row = row(4 * t + i);
            for q in 0..Q {
                let p = simd.splat_f32s(of[q][i]);
                for j in 0..V {
                    sums[q][i][j] = simd.mul_add_f32s(p, row[j], sums[q][i][j]);
                }
            }
        }
    }
    for t in 0..split[0].1.len() {
        let row = row(4 * fours + t);
        for q in 0..Q {
            let p = simd.splat_f32s(split[q].1[t]);
            for j in 0..V {
                sums[q][0][j] = simd.mul_add_f32s(p, row[j], sums[q][0][j]);
            }
        }
    }
    for q in 0..Q {
        let (held, _) = S::as_mut_simd_f32s(&mut out[q][from..from + width]);
        for j in 0..V {
            let [a, b, c, d] = [sums[q][0][j], sums[q][1][j], sums[q][2][j], sums[q][3][j]];
            held[j] = simd.add_f32s(simd.add_f32s(a, b), simd.add_f32s(c, d));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::paths::drawn;
    use super::*;

    #[test]
    fn queries_that_share_keys_and_values_have_the_bits_they_have_alone() {
        for [heads, slots, width] in [[1, 1, 1], [2, 3, 33], [3, 40, 64], [4, 17, 70], [5, 70, 48], [8, 129, 128]] {
            let (q, v) = (drawn(heads * width, 3), drawn(slots * width, 5));
            let k = drawn(width * padded(slots), 7);
            let keys = Heads { values: &k, start: 0, steps: [0, 0, padded(slots)] };
            let values = Heads { values: &v, start: 0, steps: [0, 0, width] };
            let attended = |q: &[f32]| {
                let sizes = Sizes { positions: 1, heads: q.len() / width, groups: 1, slots, width };
                let (mut out, mut scales) = (vec![0.0; q.len()], vec![[0.0; 2]; q.len() / width]);
                attend(q, &keys, &values, &[], sizes, &mut out, &mut scales);
                (out, scales)
            };
            let (all, scales) = attended(&q);
            for (head, q) in q.chunks(width).enumerate() {
                let (alone, scale) = attended(q);
                assert_eq!(
                    alone,
                    all[head * width..][..width],
                    "{heads} heads, {slots} slots, width {width}: head {head}"
                );
                assert_eq!(scale, [scales[head]]);
            }
        }
    }

    #[test]
    fn heads_that_threads_share_have_the_bits_of_one_thread() {
        // One unit, fewer units than threads, and more.
        for [rows, positions, heads, groups, slots] in
            [[1, 1, 9, 3, 300], [1, 17, 6, 6, 90], [2, 1, 8, 2, 200], [7, 3, 4, 1, 80]]
        {
            let width = 64;
            let (q, v) = (drawn(rows * positions * heads * width, 3), drawn(rows * groups * slots * width, 5));
            let k = drawn(rows * groups * width * padded(slots), 7);
            let mut mask = vec![0.0; rows * positions * slots];
            mask.chunks_mut(slots).enumerate().for_each(|(i, mask)| mask[slots - i % positions - 1..].fill(MASKED));
            let matrices =
                |values, step: usize, one: usize| Heads { values, start: 0, steps: [groups * one, one, step] };
            let keys = matrices(&k, padded(slots), width * padded(slots));
            let values = matrices(&v, width, slots * width);
            let sizes = Sizes { positions, heads, groups, slots, width };
            assert!(q.len() * slots >= SHARED);
            let made = [1, 2, 5].map(|threads| {
                let (mut out, mut scales) = (vec![f32::NAN; q.len()], vec![[0.0; 2]; q.len() / width]);
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                pool.install(|| attend(&q, &keys, &values, &mask, sizes, &mut out, &mut scales));
                (out, scales)
            });
            assert!(made[0].0.iter().all(|value| value.is_finite()));
            assert!(made[1..].iter().all(|other| *other == made[0]), "{sizes:?}, {rows} rows");
        }
    }
}
