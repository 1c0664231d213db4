//! Products with a matrix in its file format: blocks are widened to floats in registers or, for several rows, once into the cache. Values and
//! order of operations are those of the widened matrix ([`product`]), bit for bit, and do not depend on the number of rows.

use std::marker::PhantomData;
use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::product::{STREAM_AHEAD, deal, products, soon, streams};
use super::stored_bf16;
use super::stored_q8::{IntegerDots, RoundedInputs};
use crate::cpu::dispatch_halves;
use crate::stored::formats::{Layout, PIECE, cut_short, with_layout};
use crate::stored::{Inputs, Part, StoredMatrix};

/// Rows of the matrix per loop.
const TOGETHER: usize = 4;

/// Bytes per cache line.
pub(super) const LINE: usize = 64;

/// x `[M, K]` · each wᵀ with w `[N, K]` → its output `[M, N]`; dealt to threads together.
pub(super) fn rows_times_stored<const P: usize>(x: &[f32], weights: [&StoredMatrix; P]) -> [Vec<f32>; P] {
    let depth = weights.first().map_or(1, |w| w.width());
    let (rows, columns) = (x.len() / depth, weights.map(StoredMatrix::rows));
    let mut outs = columns.map(|columns| vec![0.0; rows * columns]);
    // Each matrix has its own rounding: a file may store q as integers and v as floats.
    let rounds = |inputs| weights.iter().any(|w| w.inputs() == inputs);
    let integers = rounds(Inputs::Q8).then(|| RoundedInputs::new(x, depth));
    let of_integers = integers.as_ref().map(RoundedInputs::values).unwrap_or_default();
    let mut of_bf16 = vec![];
    if rounds(Inputs::Bf16) {
        of_bf16.extend_from_slice(x);
        stored_bf16::round(&mut of_bf16);
    }
    deal(&mut outs, columns, [rows, depth], |which, from, out| {
        let (x, integers) = match weights[which].inputs() {
            Inputs::Exact => (x, None),
            Inputs::Bf16 => (&of_bf16[..], None),
            Inputs::Q8 => (&of_integers[..], integers.as_ref()),
        };
        let to = from + out.first().map_or(0, |out| out.len());
        for (start, part) in weights[which].parts() {
            let rows = from.max(start)..to.min(start + part.rows);
            if !rows.is_empty() {
                let at = rows.start - from;
                let rows = rows.start - start..rows.end - start;
                with_layout!(part.format, L => {
                    if let Some(x) = integers.filter(|_| L::INTEGERS.is_some()) {
                        IntegerDots::<L> { x, part, rows, at, out: &mut *out, layout: PhantomData }.compute();
                        continue;
                    }
                    dispatch_halves(StoredDots::<L> { x, depth, part, rows, at, out: &mut *out, layout: PhantomData });
                });
            }
        }
    });
    outs
}

/// Dot products of all rows of x with `rows` of a part, into columns `at ..` of the outputs.
struct StoredDots<'a, 'o, 'p, L> {
    x: &'a [f32],
    depth: usize,
    part: &'a Part,
    rows: Range<usize>,
    at: usize,
    out: &'o mut [&'p mut [f32]],
    layout: PhantomData<L>,
}

impl<L: Layout> WithSimd for StoredDots<'_, '_, '_, L> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { x, depth, part, rows, at, out, .. } = self;
        let mut wide = vec![0.0; if out.len() > 1 { TOGETHER * depth } else { 0 }];
        let (fours, rest) = streams::<TOGETHER>(rows.len());
        let row = |i: usize| part.row(rows.start + i);
        for i in fours {
            let held = [row(i[0]), row(i[1]), row(i[2]), row(i[3])];
            group::<S, L, TOGETHER>(simd, x, depth, held, i.map(|i| at + i), out, &mut wide);
        }
        for i in rest {
            group::<S, L, 1>(simd, x, depth, [row(i)], [at + i], out, &mut wide);
        }
    }
}

#[inline(always)]
fn group<S: Simd, L: Layout, const T: usize>(
    simd: S,
    x: &[f32],
    depth: usize,
    rows: [&[u8]; T],
    at: [usize; T],
    out: &mut [&mut [f32]],
    wide: &mut [f32],
) {
    if let [out] = out {
        let sums = dots::<S, L, T>(simd, x, rows);
        return at.into_iter().zip(sums).for_each(|(at, sum)| out[at] = sum);
    }
    // Floats are used in place.
    let mut floats = [&[][..]; T];
    if rows.iter().zip(&mut floats).all(|(row, held)| L::floats(row).map(|row| *held = row).is_some()) {
        return products::<S, T>(simd, x, floats, at, out);
    }
    for (row, wide) in rows.into_iter().zip(wide.chunks_exact_mut(depth)) {
        let (pieces, rest) = wide.as_chunks_mut::<PIECE>();
        for (i, (block, wide)) in row.chunks(L::BYTES).zip(pieces.chunks_mut(L::PIECES)).enumerate() {
            ask::<L>(row, i);
            let scales = L::scales(simd, block);
            for (piece, wide) in wide.iter_mut().enumerate() {
                *wide = L::widen(simd, block, &scales, piece);
            }
        }
        if !rest.is_empty() {
            let values = cut_short::<S, L>(simd, &row[pieces.len() * L::BYTES..]);
            rest.copy_from_slice(&values[..rest.len()]);
        }
    }
    products::<S, T>(simd, x, std::array::from_fn(|t| &wide[t * depth..][..depth]), at, out);
}

/// Prefetches the data some time after block i.
#[inline(always)]
fn ask<L: Layout>(row: &[u8], i: usize) {
    for line in (0..L::BYTES).step_by(LINE) {
        soon(row, i * L::BYTES + line + STREAM_AHEAD);
    }
}

/// Dot products of one row with T rows of the matrix.
#[inline(always)]
fn dots<S: Simd, L: Layout, const T: usize>(simd: S, x: &[f32], rows: [&[u8]; T]) -> [f32; T] {
    let (pieces, rest) = x.as_chunks::<PIECE>();
    let mut acc = [simd.splat_f32s(0.0); T];
    for (i, x) in pieces.chunks(L::PIECES).enumerate() {
        let mut blocks = [&[][..]; T];
        for t in 0..T {
            ask::<L>(rows[t], i);
            blocks[t] = &rows[t][i * L::BYTES..(i + 1) * L::BYTES];
        }
        // Row after row is written out: as a loop it is compiled with sums in memory, as closures without the vector instructions.
        let [b, c, d] = [1, 2, 3].map(|t| blocks[t % T]);
        let scales = [L::scales(simd, blocks[0]), L::scales(simd, b), L::scales(simd, c), L::scales(simd, d)];
        for (piece, x) in x.iter().enumerate() {
            let (x, _) = S::as_simd_f32s(x);
            acc[0] = add::<S>(simd, x, &L::widen(simd, blocks[0], &scales[0], piece), acc[0]);
            if T == TOGETHER {
                acc[1] = add::<S>(simd, x, &L::widen(simd, b, &scales[1], piece), acc[1]);
                acc[2] = add::<S>(simd, x, &L::widen(simd, c, &scales[2], piece), acc[2]);
                acc[3] = add::<S>(simd, x, &L::widen(simd, d, &scales[3], piece), acc[3]);
            }
        }
    }
    if !rest.is_empty() {
        let mut padded = [0.0; PIECE];
        padded[..rest.len()].copy_from_slice(rest);
        let (x, _) = S::as_simd_f32s(&padded);
        for t in 0..T {
            acc[t] = add::<S>(simd, x, &cut_short::<S, L>(simd, &rows[t][pieces.len() * L::BYTES..]), acc[t]);
        }
    }
    // A loop: the closure of a `map` is compiled without the vector instructions, and every sum became five calls.
    let mut sums = [0.0; T];
    for t in 0..T {
        sums[t] = simd.reduce_sum_f32s(acc[t]);
    }
    sums
}

/// `acc + Σ x · w`, vector by vector in order.
#[inline(always)]
fn add<S: Simd>(simd: S, x: &[S::f32s], w: &[f32; PIECE], acc: S::f32s) -> S::f32s {
    let (w, _) = S::as_simd_f32s(w);
    x.iter().zip(w).fold(acc, |acc, (x, w)| simd.mul_add_f32s(*x, *w, acc))
}

#[cfg(test)]
mod tests {
    use super::super::product::rows_times_transposed;
    use super::*;
    use crate::stored::Format;

    #[test]
    fn products_are_those_of_the_widened_matrix_bit_for_bit() {
        for format in Format::ALL {
            let shapes = [[1, 32, 1], [2, 96, 5], [1, 576, 130], [16, 64, 67], [7, 4096, 70], [1, 40, 9], [3, 7, 66]];
            for [m, k, n] in shapes.into_iter().chain([[1, 256, 5], [1, 1536, 130], [3, 512, 67]]) {
                if k % format.block_len() > 0 {
                    continue;
                }
                // Rows added later are floats: two formats in one product.
                let more: Vec<f32> = (0..2 * k).map(|i| i as f32 / 9.0 - 3.0).collect();
                let w = StoredMatrix::drawn(format, n, k).with_rows(&more).unwrap();
                let x: Vec<f32> = (0..m * k).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
                let [ours] = rows_times_stored(&x, [&w]);
                let wide = rows_times_transposed(&x, &w.widened_range(0..n + 2), [k, n + 2]);
                assert_eq!(ours, wide, "{format:?}, {m}x{k}x{n}");
                let beside = StoredMatrix::drawn(Format::F32, 3, k);
                let [_, among] = rows_times_stored(&x, [&beside, &w]);
                assert_eq!(among, wide, "{format:?}, {m}x{k}x{n}, beside another matrix");
            }
        }
    }
}
