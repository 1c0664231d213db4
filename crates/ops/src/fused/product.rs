//! Products of a few rows with a weight matrix, as in decoding.
//!
//! A general matrix product first copies the weights into its own order. With a handful of rows that copy costs more
//! than the product; these loops read the weights once, as stored. Every output is one chain of operations in an order
//! that does not depend on the number of rows: decoding sixteen rows gives each of them the bits it would get alone.

use std::array::from_fn;
use std::ops::Range;

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use crate::cpu::dispatch;

/// Rows up to which these loops are used: beyond, the copy pays.
pub(super) const FEW: usize = 32;

/// Weights per thread: with up to four rows, ten times the time of waking a thread.
const PARALLEL: usize = 1 << 18;

/// Columns are dealt to threads in multiples of this.
const GRAIN: usize = 32;

/// Weight rows per slab, which passes all outputs before the next one is read: they stay in the cache.
const SLAB: usize = 64;

/// x `[M, K]` · each w `[K, N]` → its output `[M, N]`. Several products of one input share the threads: larger parts per thread, and fewer
/// synchronisations.
pub(super) fn rows_times<const P: usize>(x: &[f32], weights: [&[f32]; P], depth: usize) -> [Vec<f32>; P] {
    let rows = x.len() / depth;
    let columns = weights.map(|w| w.len() / depth);
    let mut outs = columns.map(|columns| vec![0.0; rows * columns]);
    let x = MatrixView { values: x, step: depth };
    deal(&mut outs, columns, [rows, depth], |which, from, out| {
        times(x, MatrixView { values: &weights[which][from..], step: columns[which] }, depth, out);
    });
    outs
}

/// Rows that begin `step` values apart.
#[derive(Clone, Copy)]
pub(super) struct MatrixView<'a> {
    pub values: &'a [f32],
    pub step: usize,
}

/// A matrix that is used as its transpose.
#[derive(Clone, Copy)]
pub(super) struct Transpose<'a>(pub MatrixView<'a>);

/// Adds x `[M, K]` · w `[K, N]` to the M pieces of `out`, which are N values long.
pub(super) fn times(x: impl Left, w: MatrixView, depth: usize, out: &mut [&mut [f32]]) {
    dispatch(Times { x, w, depth, out });
}

/// The left side of a product, `[M, K]`.
pub(super) trait Left: Copy {
    /// R rows from `first` on, of the columns in `part`.
    fn rows<const R: usize>(self, first: usize, part: Range<usize>) -> impl Rows<R>;
    /// The first row, if its values are contiguous.
    fn row(&self, depth: usize) -> Option<&[f32]>;
}

/// R rows of a left side.
pub(super) trait Rows<const R: usize> {
    fn depth(&self) -> usize;
    /// Each row's value in column `k`.
    fn column(&self, k: usize) -> [f32; R];
}

impl Left for MatrixView<'_> {
    #[inline(always)]
    fn rows<const R: usize>(self, first: usize, part: Range<usize>) -> impl Rows<R> {
        let depth = part.len();
        from_fn::<_, R, _>(|r| &self.values[(first + r) * self.step + part.start..][..depth])
    }

    #[inline(always)]
    fn row(&self, depth: usize) -> Option<&[f32]> {
        Some(&self.values[..depth])
    }
}

impl Left for Transpose<'_> {
    #[inline(always)]
    fn rows<const R: usize>(self, first: usize, part: Range<usize>) -> impl Rows<R> {
        let MatrixView { values, step } = self.0;
        (MatrixView { values: &values[part.start * step + first..], step }, part.len())
    }

    #[inline(always)]
    fn row(&self, _depth: usize) -> Option<&[f32]> {
        None
    }
}

impl<const R: usize> Rows<R> for [&[f32]; R] {
    #[inline(always)]
    fn depth(&self) -> usize {
        self[0].len()
    }

    #[inline(always)]
    fn column(&self, k: usize) -> [f32; R] {
        from_fn(|r| self[r][k])
    }
}

impl<const R: usize> Rows<R> for (MatrixView<'_>, usize) {
    #[inline(always)]
    fn depth(&self) -> usize {
        self.1
    }

    #[inline(always)]
    fn column(&self, k: usize) -> [f32; R] {
        let values = &self.0.values[k * self.0.step..][..R];
        from_fn(|r| values[r])
    }
}

/// x `[M, K]` · tableᵀ with table `[N, K]` → `[M, N]`.
pub(super) fn rows_times_transposed(x: &[f32], table: &[f32], [depth, columns]: [usize; 2]) -> Vec<f32> {
    let rows = x.len() / depth;
    let mut outs = [vec![0.0; rows * columns]];
    deal(&mut outs, [columns], [rows, depth], |_, from, out| {
        dispatch(RowDots { x, table, depth, from, out });
    });
    let [out] = outs;
    out
}

/// Whether several threads share a product of this many weights with this many rows.
pub(crate) fn is_shared(weights: usize, rows: usize) -> bool {
    rows <= FEW && weights * rows.div_ceil(4) >= PARALLEL && rayon::current_num_threads() > 1
}

/// Columns `from ..` of one output: a piece of each of its rows.
struct OutputPiece<'o> {
    output: usize,
    from: usize,
    rows: Vec<&'o mut [f32]>,
}

/// Gives each thread a share of the outputs' columns, counted over all outputs. `work` gets an output, the first column of the piece, and the
/// piece's rows.
pub(super) fn deal<const P: usize>(
    outs: &mut [Vec<f32>; P],
    columns: [usize; P],
    [rows, depth]: [usize; 2],
    work: impl Fn(usize, usize, &mut [&mut [f32]]) + Sync,
) {
    let all: usize = columns.iter().sum();
    let threads = if is_shared(depth * all, rows) { rayon::current_num_threads() } else { 1 };
    let share = all.div_ceil(threads.max(1)).next_multiple_of(GRAIN);
    let mut parts: Vec<Vec<OutputPiece>> = (0..all.div_ceil(share)).map(|_| vec![]).collect();
    let mut before = 0;
    for (output, (out, columns)) in outs.iter_mut().zip(columns).enumerate() {
        let mut left: Vec<&mut [f32]> = out.chunks_exact_mut(columns).collect();
        let mut from = 0;
        while from < columns {
            let part = (before + from) / share;
            let to = ((part + 1) * share - before).min(columns);
            let mut rows = vec![];
            for row in &mut left {
                let (piece, rest) = std::mem::take(row).split_at_mut(to - from);
                rows.push(piece);
                *row = rest;
            }
            parts[part].push(OutputPiece { output, from, rows });
            from = to;
        }
        before += columns;
    }
    let work = |part: &mut Vec<OutputPiece>| part.iter_mut().for_each(|p| work(p.output, p.from, &mut p.rows));
    match &mut parts[..] {
        [only] => work(only),
        parts => parts.par_iter_mut().for_each(work),
    }
}

struct Times<'a, 'o, 'p, X> {
    x: X,
    w: MatrixView<'a>,
    depth: usize,
    out: &'o mut [&'p mut [f32]],
}

impl<X: Left> WithSimd for Times<'_, '_, '_, X> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { x, w: MatrixView { values: w, step }, depth, out } = self;
        if let ([out], Some(x)) = (&mut *out, x.row(depth)) {
            return stream(simd, x, w, step, out);
        }
        let width = out.first().map_or(0, |out| out.len());
        for start in (0..depth).step_by(SLAB) {
            let (w, end) = (&w[start * step..], (start + SLAB).min(depth));
            WeightPanel { w, step, width }.add_all(simd, x, start..end, out);
        }
    }
}

/// Rows of the output per tile of registers.
const ROWS: usize = 6;

/// Values per cache line.
const LINE: usize = 16;

/// Some rows of the weights.
struct WeightPanel<'a> {
    w: &'a [f32],
    step: usize,
    width: usize,
}

impl WeightPanel<'_> {
    /// Adds the products of columns `part` of x with the panel to the outputs.
    #[inline(always)]
    fn add_all<S: Simd>(&self, simd: S, x: impl Left, part: Range<usize>, out: &mut [&mut [f32]]) {
        let mut first = 0;
        while first < out.len() {
            let rows = (out.len() - first).min(ROWS);
            let (part, out) = (part.clone(), &mut out[first..first + rows]);
            match rows {
                6 => self.add::<S, 6>(simd, x.rows(first, part), out),
                5 => self.add::<S, 5>(simd, x.rows(first, part), out),
                4 => self.add::<S, 4>(simd, x.rows(first, part), out),
                3 => self.add::<S, 3>(simd, x.rows(first, part), out),
                2 => self.add::<S, 2>(simd, x.rows(first, part), out),
                _ => self.add::<S, 1>(simd, x.rows(first, part), out),
            }
            first += rows;
        }
    }

    /// Adds R rows' products with the panel to their outputs.
    #[inline(always)]
    fn add<S: Simd, const R: usize>(&self, simd: S, x: impl Rows<R>, out: &mut [&mut [f32]]) {
        let mut at = 0;
        while S::REGISTER_COUNT >= 32 && at + 4 * S::F32_LANES <= self.width {
            self.tile::<S, R, 4>(simd, &x, at, out);
            at += 4 * S::F32_LANES;
        }
        while at + 2 * S::F32_LANES <= self.width {
            self.tile::<S, R, 2>(simd, &x, at, out);
            at += 2 * S::F32_LANES;
        }
        while at + S::F32_LANES <= self.width {
            self.tile::<S, R, 1>(simd, &x, at, out);
            at += S::F32_LANES;
        }
        for at in at..self.width {
            for k in 0..x.depth() {
                let w = self.w[k * self.step + at];
                for (x, out) in x.column(k).iter().zip(out.iter_mut()) {
                    out[at] = x.mul_add(w, out[at]);
                }
            }
        }
    }

    /// R rows by T vectors, in registers over all rows of the panel.
    #[inline(always)]
    fn tile<S: Simd, const R: usize, const T: usize>(
        &self,
        simd: S,
        x: &impl Rows<R>,
        at: usize,
        out: &mut [&mut [f32]],
    ) {
        let width = T * S::F32_LANES;
        let held = at..at + width;
        let depth = x.depth();
        assert!(depth == 0 || (depth - 1) * self.step + held.end <= self.w.len(), "a row of weights for every input");
        let mut acc: [[S::f32s; T]; R] = from_fn(|r| {
            let (held, _) = S::as_simd_f32s(&out[r][held.clone()]);
            from_fn(|t| held[t])
        });
        for k in 0..depth {
            #[allow(unsafe_code)]
            // SAFETY: the last row ends inside the slice, as was just checked.
            let w = unsafe { self.w.get_unchecked(k * self.step + at..k * self.step + held.end) };
            // The next tile's part of this row is far from its neighbours: no hardware prefetches it.
            for line in (0..width).step_by(LINE) {
                soon(w, width + line);
            }
            let (w, _) = S::as_simd_f32s(w);
            let w: [S::f32s; T] = from_fn(|t| w[t]);
            let x = x.column(k);
            for r in 0..R {
                let x = simd.splat_f32s(x[r]);
                for t in 0..T {
                    acc[r][t] = simd.mul_add_f32s(x, w[t], acc[r][t]);
                }
            }
        }
        for r in 0..R {
            let (held, _) = S::as_mut_simd_f32s(&mut out[r][held.clone()]);
            held[..T].copy_from_slice(&acc[r]);
        }
    }
}

/// Weight rows per pass of a single row.
const EIGHT: usize = 8;

/// Prefetch distance, in groups. A thread's part of a row is short, and the next one is elsewhere in memory: without prefetch every part
/// waited for memory (a third of the time, benches/PROFILE.md).
const AHEAD: usize = 2;

/// One row: eight weight rows at a time, each read from end to end.
#[inline(always)]
fn stream<S: Simd>(simd: S, x: &[f32], w: &[f32], step: usize, out: &mut [f32]) {
    let width = out.len();
    let (eights, rest) = x.as_chunks::<EIGHT>();
    for (at, x) in eights.iter().enumerate() {
        let rows: [&[f32]; EIGHT] = from_fn(|i| &w[(at * EIGHT + i) * step..][..width]);
        add_scaled::<S, EIGHT>(simd, *x, rows, AHEAD * EIGHT * step, out);
    }
    for (x, k) in rest.iter().zip(eights.len() * EIGHT..) {
        add_scaled::<S, 1>(simd, [*x], [&w[k * step..][..width]], 0, out);
    }
}

/// `out += Σ x[i] · rows[i]`, in the order of i. Prefetches `ahead` values ahead.
#[inline(always)]
fn add_scaled<S: Simd, const N: usize>(simd: S, x: [f32; N], rows: [&[f32]; N], ahead: usize, out: &mut [f32]) {
    let (held, rest) = S::as_mut_simd_f32s(out);
    let split = rows.map(|row| S::as_simd_f32s(row));
    let vectors = split.map(|(vectors, _)| &vectors[..held.len()]);
    let mut splat = [simd.splat_f32s(0.0); N];
    for i in 0..N {
        splat[i] = simd.splat_f32s(x[i]);
    }
    for (at, held) in held.iter_mut().enumerate() {
        let mut sum = *held;
        for i in 0..N {
            soon(rows[i], at * S::F32_LANES + ahead);
            sum = simd.mul_add_f32s(splat[i], vectors[i][at], sum);
        }
        *held = sum;
    }
    for (at, out) in rest.iter_mut().enumerate() {
        *out = (0..N).fold(*out, |sum, i| x[i].mul_add(split[i].1[at], sum));
    }
}

struct RowDots<'a, 'o, 'p> {
    x: &'a [f32],
    table: &'a [f32],
    depth: usize,
    from: usize,
    out: &'o mut [&'p mut [f32]],
}

impl WithSimd for RowDots<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { x, table, depth, from, out } = self;
        let width = out[0].len();
        let table = &table[from * depth..(from + width) * depth];
        let row = |at: usize| &table[at * depth..][..depth];
        let (fours, rest) = streams::<4>(width);
        for at in fours {
            products::<S, 4>(simd, x, [row(at[0]), row(at[1]), row(at[2]), row(at[3])], at, out);
        }
        for at in rest {
            products::<S, 1>(simd, x, [row(at)], [at], out);
        }
    }
}

/// Rows that are processed together, T at a time, and the remaining ones. They are far apart, so that memory is read as T long streams, which
/// the hardware prefetches: streams of adjacent rows end with their row, and reached half of the memory bandwidth (benches/PROFILE.md).
pub(super) fn streams<const T: usize>(rows: usize) -> (impl Iterator<Item = [usize; T]>, Range<usize>) {
    let each = rows / T;
    ((0..each).map(move |at| from_fn(|t| t * each + at)), T * each..rows)
}

/// Prefetch distance in such a stream, in bytes.
pub(super) const STREAM_AHEAD: usize = 1 << 10;

/// Dot products of all rows of x with T entries of a table, into columns `at` of the outputs.
#[inline(always)]
pub(super) fn products<S: Simd, const T: usize>(
    simd: S,
    x: &[f32],
    table: [&[f32]; T],
    at: [usize; T],
    out: &mut [&mut [f32]],
) {
    let depth = table.first().map_or(0, |row| row.len());
    // If a row is used for several rows of x, there is time to prefetch the next row of its stream.
    let ahead = if out.len() > 1 { depth } else { STREAM_AHEAD / size_of::<f32>() };
    let mut first = 0;
    while first < out.len() {
        let x = |r: usize| &x[(first + r) * depth..][..depth];
        let rows = (out.len() - first).min(if S::REGISTER_COUNT >= 32 { 4 } else { 2 });
        let out = &mut out[first..first + rows];
        match rows {
            4 => dots::<S, 4, T>(simd, from_fn(x), (table, ahead), at, out),
            3 => dots::<S, 3, T>(simd, from_fn(x), (table, ahead), at, out),
            2 => dots::<S, 2, T>(simd, from_fn(x), (table, ahead), at, out),
            _ => dots::<S, 1, T>(simd, from_fn(x), (table, ahead), at, out),
        }
        first += rows;
    }
}

/// Dot products of R rows with T entries of the table; prefetches this many values ahead.
#[inline(always)]
fn dots<S: Simd, const R: usize, const T: usize>(
    simd: S,
    x: [&[f32]; R],
    (rows, ahead): ([&[f32]; T], usize),
    at: [usize; T],
    out: &mut [&mut [f32]],
) {
    let (x, table) = (x.map(S::as_simd_f32s), rows.map(S::as_simd_f32s));
    let vectors = x[0].0.len();
    let (whole, entries) = (x.map(|(whole, _)| &whole[..vectors]), table.map(|(whole, _)| &whole[..vectors]));
    let mut acc = [[simd.splat_f32s(0.0); T]; R];
    for i in 0..vectors {
        let entries: [S::f32s; T] = from_fn(|t| entries[t][i]);
        if i.is_multiple_of((LINE / S::F32_LANES).max(1)) {
            for row in rows {
                soon(row, i * S::F32_LANES + ahead);
            }
        }
        for r in 0..R {
            let x = whole[r][i];
            for t in 0..T {
                acc[r][t] = simd.mul_add_f32s(x, entries[t], acc[r][t]);
            }
        }
    }
    if !x[0].1.is_empty() {
        for r in 0..R {
            let x = simd.partial_load_f32s(x[r].1);
            for t in 0..T {
                acc[r][t] = simd.mul_add_f32s(x, simd.partial_load_f32s(table[t].1), acc[r][t]);
            }
        }
    }
    for r in 0..R {
        for t in 0..T {
            out[r][at[t]] = simd.reduce_sum_f32s(acc[r][t]);
        }
    }
}

/// Prefetches the cache line of `values[at]`, which may be past the end of the slice.
#[inline(always)]
pub(super) fn soon<T>(values: &[T], at: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        #[allow(unsafe_code)]
        // SAFETY: a prefetch has no visible effect, and an unmapped address is ignored.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(values.as_ptr().wrapping_add(at).cast())
        };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (values, at);
}

#[cfg(test)]
mod tests {
    use super::super::paths::drawn as values;
    use super::*;

    fn turned(x: &[f32], columns: usize) -> Vec<f32> {
        (0..columns).flat_map(|c| x.iter().skip(c).step_by(columns)).copied().collect()
    }

    fn naive(x: &[f32], w: impl Fn(usize, usize) -> f32, [m, k, n]: [usize; 3]) -> Vec<f64> {
        let dot = |i: usize| (0..k).map(|j| f64::from(x[i / n * k + j]) * f64::from(w(j, i % n))).sum();
        (0..m * n).map(dot).collect()
    }

    #[test]
    fn products_of_odd_shapes_and_each_row_alone() {
        for [m, k, n] in [[1, 1, 1], [2, 3, 5], [7, 64, 33], [16, 65, 130], [13, 200, 67], [3, 17, 4100], [1, 700, 900]]
        {
            let (x, w) = (values(m * k, 1), values(k * n, 2));
            let close = |found: &[f32], expected: Vec<f64>| {
                for (found, expected) in found.iter().zip(expected) {
                    assert!((f64::from(*found) - expected).abs() < 1e-4, "{m}x{k}x{n}: {found} is not {expected}");
                }
            };
            let [plain] = rows_times(&x, [&w], k);
            close(&plain, naive(&x, |j, c| w[j * n + c], [m, k, n]));
            let (across, mut again) = (turned(&x, k), vec![0.0; m * n]);
            let mut pieces: Vec<&mut [f32]> = again.chunks_exact_mut(n).collect();
            let across = Transpose(MatrixView { values: &across, step: m });
            times(across, MatrixView { values: &w, step: n }, k, &mut pieces);
            close(&again, naive(&x, |j, c| w[j * n + c], [m, k, n]));
            let transposed = rows_times_transposed(&x, &w, [k, n]);
            close(&transposed, naive(&x, |j, c| w[c * k + j], [m, k, n]));
            // Next to other products, whose boundaries in a thread's share are arbitrary, the result has the same bits.
            let (narrow, wide) = (values(k * 3, 3), values(k * 200, 4));
            let [_, among, _] = rows_times(&x, [&narrow, &w, &wide], k);
            assert_eq!(among, plain, "{m}x{k}x{n} among others");
            for row in 0..m {
                let x = &x[row * k..(row + 1) * k];
                let [one] = rows_times(x, [&w], k);
                assert_eq!(one, plain[row * n..(row + 1) * n], "row {row} of {m}x{k}x{n}");
                let one = rows_times_transposed(x, &w, [k, n]);
                assert_eq!(one, transposed[row * n..(row + 1) * n], "row {row} of {m}x{k}x{n}, transposed");
            }
        }
    }
}
