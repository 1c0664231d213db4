//! Products of many rows with a matrix in its file format, as in prefill and training.
//!
//! A general matrix product packs both sides; with a matrix in pieces it packs each piece, and x again for each. For a hundred rows that took
//! as long as the product (benches/PROFILE.md). Here:
//! 1. x is transposed once into panels;
//! 2. each thread widens pieces of the matrix and multiplies them with all panels, without packing;
//! 3. every output is one chain of operations in the order of the inputs, for any number of rows.

use std::array::from_fn;
use std::cmp::Reverse;
use std::ops::Range;

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::many::ROWS;
use super::stored_bf16;
use super::stored_q8::RoundedInputs;
use super::turn::turn;
use crate::cpu::dispatch;
use crate::stored::{Format, Inputs, Part, StoredMatrix};

/// Widened values of the matrix per thread: they stay in its cache.
const WIDE: usize = 1 << 18;

/// Rows of x in a panel: those that the inner loop has in registers. The last panel is padded to whole vectors.
const PANEL: usize = 64;
pub(super) const VECTOR: usize = 16;

/// Inputs per slab, which passes all outputs of a piece before the next one: their part of a panel stays in the first-level cache.
const SLAB: usize = 96;

/// Inputs that are processed without a bounds check.
const EIGHT: usize = 8;

/// x `[M, K]` · each wᵀ with w `[N, K]` → its output `[M, N]`; dealt to threads together.
pub(super) fn many_rows_times_stored<const P: usize>(x: &[f32], weights: [&StoredMatrix; P]) -> [Vec<f32>; P] {
    let depth = weights.first().map_or(1, |w| w.width());
    let mut outs = weights.map(|w| vec![0.0; x.len() / depth * w.rows()]);
    let mut pieces = vec![];
    for (out, weight) in outs.iter_mut().zip(weights) {
        pieces.extend(cut(out, weight));
    }
    let panels = Panels::new(x, depth, &pieces);
    // A thread starts the next piece when it has finished one, large ones first: pieces of q, k and v differ in size.
    pieces.sort_by_key(|piece| Reverse(piece.rows.len()));
    pieces.into_iter().par_bridge().for_each_init(Scratch::default, |held, piece| piece.fill(&panels, held));
    outs
}

/// x in panels, in the forms that pieces need.
struct Panels {
    /// Each matrix has its own rounding.
    floats: Vec<(Inputs, Vec<Vec<f32>>)>,
    pairs: Vec<Vec<u32>>,
}

impl Panels {
    fn new(x: &[f32], depth: usize, pieces: &[StoredPiece]) -> Self {
        let floats = |inputs: Inputs| {
            let panel = |x: &[f32]| {
                if inputs == Inputs::Q8 {
                    return turned(&RoundedInputs::new(x, depth).values(), depth);
                }
                let mut panel = turned(x, depth);
                if inputs == Inputs::Bf16 {
                    stored_bf16::round(&mut panel);
                }
                panel
            };
            let panels: Vec<Vec<f32>> = x.par_chunks(PANEL * depth).map(panel).collect();
            (inputs, panels)
        };
        let pairs = |x: &[f32]| {
            let panel = turned(x, depth);
            stored_bf16::pairs(&panel, panel.len() / depth)
        };
        let is_needed = |inputs: &Inputs| pieces.iter().any(|piece| !piece.in_pairs && piece.inputs == *inputs);
        let paired: &[f32] = if pieces.iter().any(|piece| piece.in_pairs) { x } else { &[] };
        Self {
            floats: [Inputs::Exact, Inputs::Bf16, Inputs::Q8].into_iter().filter(is_needed).map(floats).collect(),
            pairs: paired.par_chunks(PANEL * depth).map(pairs).collect(),
        }
    }

    /// Panels of floats with this rounding.
    fn floats(&self, inputs: Inputs) -> &[Vec<f32>] {
        self.floats.iter().find(|(of, _)| *of == inputs).map(|(_, panels)| panels.as_slice()).unwrap_or_default()
    }
}

/// Some rows of a matrix, and their columns in each row of the output.
struct StoredPiece<'a, 'o> {
    part: &'a Part,
    depth: usize,
    rows: Range<usize>,
    inputs: Inputs,
    in_pairs: bool,
    out: Vec<&'o mut [f32]>,
}

/// A thread's buffers for a piece.
#[derive(Default)]
struct Scratch {
    /// Rows of the matrix as floats.
    wide: Vec<f32>,
    /// Their products with a panel.
    out: Vec<f32>,
}

impl StoredPiece<'_, '_> {
    fn fill(self, panels: &Panels, held: &mut Scratch) {
        let Self { part, depth, rows, inputs, in_pairs, mut out } = self;
        let floats = panels.floats(inputs);
        let wide = if in_pairs { &[] } else { part.widened(rows.clone(), depth, &mut held.wide) };
        held.out.resize(rows.len() * PANEL, 0.0);
        for (i, out) in out.chunks_mut(PANEL).enumerate() {
            let step = out.len().next_multiple_of(VECTOR);
            let held = &mut held.out[..rows.len() * step];
            if in_pairs {
                held.fill(0.0);
                stored_bf16::add(part.bytes(rows.clone()), part.row_bytes, &panels.pairs[i], held);
            } else {
                dispatch(StoredProduct { wide, panel: &floats[i], depth, out: held });
            }
            turn(held, step, out);
        }
    }
}

/// Cuts a matrix and its output `[M, N]` into at least as many pieces as there are threads.
fn cut<'a, 'o>(out: &'o mut [f32], weight: &'a StoredMatrix) -> Vec<StoredPiece<'a, 'o>> {
    let (depth, inputs) = (weight.width(), weight.inputs());
    let share = weight.rows().div_ceil(rayon::current_num_threads());
    let most = (WIDE / depth).min(share).max(1);
    let mut left = rows_of(out, weight.rows());
    let mut pieces = vec![];
    for (_, part) in weight.parts() {
        let in_pairs = inputs == Inputs::Bf16 && part.format == Format::Bf16 && stored_bf16::is_fast();
        let size = part.rows.div_ceil(part.rows.div_ceil(most).max(1)).max(1).next_multiple_of(ROWS);
        for from in (0..part.rows).step_by(size) {
            let rows = from..(from + size).min(part.rows);
            let out = split_columns(&mut left, rows.len());
            pieces.push(StoredPiece { part, depth, rows, inputs, in_pairs, out });
        }
    }
    pieces
}

pub(super) fn rows_of<T>(values: &mut [T], width: usize) -> Vec<&mut [T]> {
    values.chunks_exact_mut(width).collect()
}

/// The first columns of some rows, which lose them.
pub(super) fn split_columns<'o, T>(rows: &mut [&'o mut [T]], columns: usize) -> Vec<&'o mut [T]> {
    let first = rows.iter_mut().map(|row| {
        let (first, rest) = std::mem::take(row).split_at_mut(columns);
        *row = rest;
        first
    });
    first.collect()
}

/// x `[M, K]` → its transpose, with zeros after the M values of each row: K rows of a multiple of [`VECTOR`].
fn turned(x: &[f32], depth: usize) -> Vec<f32> {
    let step = (x.len() / depth).next_multiple_of(VECTOR);
    let mut across = vec![0.0; depth * step];
    turn(x, depth, &mut rows_of(&mut across, step));
    across
}

/// Writes wide `[n, K]` · panel `[K, step]` to `out` `[n, step]`.
struct StoredProduct<'a, 'o> {
    wide: &'a [f32],
    panel: &'a [f32],
    depth: usize,
    out: &'o mut [f32],
}

impl WithSimd for StoredProduct<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // With 32 registers a whole row of the panel fits; with 16 two vectors of it.
        match (self.panel.len() / self.depth / VECTOR, S::REGISTER_COUNT >= 32) {
            (4, true) => self.write::<S, 4, 64>(simd),
            (3, true) => self.write::<S, 3, 48>(simd),
            (2, true) => self.write::<S, 2, 32>(simd),
            (1, true) => self.write::<S, 1, 16>(simd),
            (4, false) => self.write::<S, 2, 64>(simd),
            (3, false) => self.write::<S, 2, 48>(simd),
            (2, false) => self.write::<S, 2, 32>(simd),
            _ => self.write::<S, 2, 16>(simd),
        }
    }
}

impl StoredProduct<'_, '_> {
    #[inline(always)]
    fn write<S: Simd, const T: usize, const STEP: usize>(self, simd: S) {
        let Self { wide, panel, depth, out } = self;
        let (panel, _) = panel.as_chunks::<STEP>();
        for start in (0..depth).step_by(SLAB) {
            let end = (start + SLAB).min(depth);
            let (panel, first) = (&panel[start..end], start == 0);
            for (wide, out) in wide.chunks(ROWS * depth).zip(out.chunks_mut(ROWS * STEP)) {
                let (out, _) = out.as_chunks_mut::<STEP>();
                let row = |r: usize| &wide[r * depth + start..r * depth + end];
                match out {
                    [a, b, c, d, e, f] => tiles::<S, 6, T, STEP>(simd, from_fn(row), panel, [a, b, c, d, e, f], first),
                    out => out.iter_mut().enumerate().for_each(|(r, out)| {
                        tiles::<S, 1, T, STEP>(simd, [row(r)], panel, [out], first);
                    }),
                }
            }
        }
    }
}

/// Adds the products of R rows with a slab of the panel to their outputs, T vectors of a row at a time. The outputs are uninitialised before
/// the first slab.
#[inline(always)]
fn tiles<S: Simd, const R: usize, const T: usize, const STEP: usize>(
    simd: S,
    rows: [&[f32]; R],
    panel: &[[f32; STEP]],
    out: [&mut [f32; STEP]; R],
    first: bool,
) {
    let (eights, rest) = (rows.map(|row| row.as_chunks::<EIGHT>().0), rows.map(|row| row.as_chunks::<EIGHT>().1));
    let (panels, left) = panel.as_chunks::<EIGHT>();
    let out = out.map(|out| S::as_mut_simd_f32s(out).0);
    for at in (0..STEP / S::F32_LANES).step_by(T) {
        let mut acc: [[S::f32s; T]; R] = from_fn(|_| [simd.splat_f32s(0.0); T]);
        if !first {
            acc = from_fn(|r| from_fn(|t| out[r][at + t]));
        }
        for (i, panel) in panels.iter().enumerate() {
            let x: [&[f32; EIGHT]; R] = from_fn(|r| &eights[r][i]);
            for k in 0..EIGHT {
                let (w, _) = S::as_simd_f32s(&panel[k]);
                for r in 0..R {
                    let x = simd.splat_f32s(x[r][k]);
                    for t in 0..T {
                        acc[r][t] = simd.mul_add_f32s(x, w[at + t], acc[r][t]);
                    }
                }
            }
        }
        for (k, panel) in left.iter().enumerate() {
            let (w, _) = S::as_simd_f32s(panel);
            for r in 0..R {
                let x = simd.splat_f32s(rest[r][k]);
                for t in 0..T {
                    acc[r][t] = simd.mul_add_f32s(x, w[at + t], acc[r][t]);
                }
            }
        }
        for r in 0..R {
            out[r][at..at + T].copy_from_slice(&acc[r]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::paths::{assert_near, sizes};
    use super::super::product::rows_times_transposed;
    use super::*;
    use crate::stored::{Format, Inputs};

    #[test]
    fn rounded_inputs_have_the_products_of_bf16_on_both_sides() {
        use super::super::stored::rows_times_stored;
        for [m, k, n] in
            [[1, 256, 1], [33, 41, 5], [64, 512, 130], [100, 768, 67], [37, 1025, 600], [70, 1, 20], [20, 389, 13]]
        {
            let more: Vec<f32> = (0..2 * k).map(|i| i as f32 / 9000.0 - 0.3).collect();
            let plain = StoredMatrix::drawn(Format::Bf16, n, k).with_rows(&more).unwrap();
            let w = plain.clone().with_inputs(Inputs::Bf16);
            let mut x: Vec<f32> = (0..m * k).map(|i| ((i * 37) % 10_007) as f32 / 5000.0 - 1.0).collect();
            let [[ours], [few]] = [many_rows_times_stored(&x, [&w]), rows_times_stored(&x, [&w])];
            stored_bf16::round(&mut x);
            let [expected] = rows_times_stored(&x, [&plain]);
            assert_eq!(few, expected, "{m}x{k}x{n}: few rows");
            let scale = rows_times_transposed(&sizes(&x), &sizes(&w.widened_range(0..n + 2)), [k, n + 2]);
            assert_near(&format!("{m}x{k}x{n}"), &ours, &expected, &scale);
            let [alone] = many_rows_times_stored(&x[(m - 1) * k..], [&w]);
            assert_eq!(alone, ours[(m - 1) * (n + 2)..], "{m}x{k}x{n}: the last row alone");
        }
    }

    #[test]
    fn many_rows_have_the_products_of_the_widened_matrix_each_as_alone() {
        for format in [Format::F32, Format::Bf16, Format::Q8_0, Format::Q6_K] {
            for [m, k, n] in
                [[1, 256, 1], [33, 256, 5], [64, 512, 130], [100, 768, 67], [37, 1024, 600], [50, 40, 9], [70, 7, 20]]
            {
                if k % format.block_len() > 0 {
                    continue;
                }
                let more: Vec<f32> = (0..2 * k).map(|i| i as f32 / 9000.0 - 0.3).collect();
                let w = StoredMatrix::drawn(format, n, k).with_rows(&more).unwrap();
                let x: Vec<f32> = (0..m * k).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
                let [ours, beside] = many_rows_times_stored(&x, [&w, &StoredMatrix::drawn(Format::F16, 9, k)]);
                let wide = w.widened_range(0..n + 2);
                let expected = rows_times_transposed(&x, &wide, [k, n + 2]);
                let scale = rows_times_transposed(&sizes(&x), &sizes(&wide), [k, n + 2]);
                assert_near(&format!("{format:?}, {m}x{k}x{n}"), &ours, &expected, &scale);
                assert_eq!(beside.len(), m * 9);
                let last = &x[(m - 1) * k..];
                let [alone] = many_rows_times_stored(last, [&w]);
                assert_eq!(alone, ours[(m - 1) * (n + 2)..], "{format:?}, {m}x{k}x{n}: the last row alone");
            }
        }
    }
}
