//! f32 products of many rows, used if a narrower instruction set is requested than the processor has: Burn's crate `gemm` always uses the
//! widest. Every output is one chain of operations in the order of the inputs, for any number of rows, threads and lanes.
//!
//! 1. Pack the right side into panels of a few vectors' width.
//! 2. Take a few rows of the left side at a time, in place, or packed if its columns are contiguous.
//! 3. Add their products with all panels to the outputs, in tiles of registers.

use std::array::from_fn;
use std::ops::Range;

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::product::soon;
use super::stored_many::{rows_of, split_columns};
use super::turn::turn;
use crate::cpu::{Cpu, cpu, dispatch};

/// Rows per tile of registers.
pub(super) const ROWS: usize = 6;

/// Rows of the left side per block, which passes all panels before the next one: they stay in the second-level cache of 256 KiB.
const BLOCK: usize = 120;

/// Maximum inputs per slab, which passes all outputs before the next one.
const SLAB: usize = 256;

/// Values per panel: they fit into the first-level cache.
const PANEL: usize = 1 << 13;

/// Operations that are worth a second thread.
const PARALLEL: usize = 1 << 22;

/// Factor by which the narrower side must be smaller to become the left one.
const NARROW: usize = 2;

/// Whether f32 products use this module.
pub(super) fn is_used() -> bool {
    cpu() != Cpu::best()
}

/// A matrix whose rows, or whose columns, begin `step` values apart.
#[derive(Clone, Copy)]
pub(super) struct Side<'a> {
    pub values: &'a [f32],
    pub step: usize,
    pub columns: bool,
}

impl<'a> Side<'a> {
    fn transposed(self) -> Self {
        Self { columns: !self.columns, ..self }
    }

    fn from(self, row: usize, column: usize) -> &'a [f32] {
        let (far, near) = if self.columns { (column, row) } else { (row, column) };
        &self.values[far * self.step + near..]
    }

    fn without_rows(self, rows: usize) -> Self {
        Self { values: self.from(rows, 0), ..self }
    }

    fn without_columns(self, columns: usize) -> Self {
        Self { values: self.from(0, columns), ..self }
    }
}

/// a `[M, K]` · b `[K, N]` → `out` `[M, N]`.
pub(super) fn product(a: Side, b: Side, [m, k, n]: [usize; 3], out: &mut [f32]) {
    if m == 0 || n == 0 {
        return;
    }
    // If both must be packed, the narrower one becomes the left side, whose packing costs more.
    if a.columns && !b.columns && n * NARROW <= m {
        let mut across = vec![0.0; m * n];
        product(b.transposed(), a.transposed(), [n, k, m], &mut across);
        return turn(&across, m, &mut rows_of(out, n));
    }
    let threads = if m * k * n < PARALLEL { 1 } else { rayon::current_num_threads() };
    let mut out = rows_of(out, n);
    if threads == 1 {
        return dispatch(PackedProduct { a, b, depth: k, out: &mut out });
    }
    if m >= n {
        let share = m.div_ceil(threads).next_multiple_of(ROWS);
        out.par_chunks_mut(share).enumerate().for_each(|(i, out)| {
            dispatch(PackedProduct { a: a.without_rows(i * share), b, depth: k, out });
        });
    } else {
        let share = n.div_ceil(threads).next_multiple_of(64);
        let parts = (0..n).step_by(share).map(|from| (from, split_columns(&mut out, share.min(n - from))));
        let parts: Vec<_> = parts.collect();
        parts.into_par_iter().for_each(|(from, mut out)| {
            dispatch(PackedProduct { a, b: b.without_columns(from), depth: k, out: &mut out });
        });
    }
}

struct PackedProduct<'a, 'o, 'p> {
    a: Side<'a>,
    b: Side<'a>,
    depth: usize,
    out: &'p mut [&'o mut [f32]],
}

impl WithSimd for PackedProduct<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match S::F32_LANES {
            16 => self.write::<S, 4, 64>(simd),
            8 => self.write::<S, 2, 16>(simd),
            4 => self.write::<S, 4, 16>(simd),
            _ => self.write::<S, 2, 2>(simd),
        }
    }
}

impl PackedProduct<'_, '_, '_> {
    #[inline(always)]
    fn write<S: Simd, const T: usize, const STEP: usize>(self, simd: S) {
        let Self { a, b, depth, out } = self;
        let slab = depth.div_ceil(depth.div_ceil(SLAB.min(PANEL / STEP)).max(1)).max(1);
        let mut panels = vec![[0.0; STEP]; out[0].len().div_ceil(STEP) * slab];
        let mut left = vec![[0.0; ROWS]; BLOCK / ROWS * slab];
        for start in (0..depth).step_by(slab) {
            let inputs = start..(start + slab).min(depth);
            for (i, panel) in panels.chunks_exact_mut(inputs.len()).take(out[0].len().div_ceil(STEP)).enumerate() {
                let columns = i * STEP..out[0].len().min((i + 1) * STEP);
                fill(b, inputs.clone(), columns, panel);
            }
            for (i, out) in out.chunks_mut(BLOCK).enumerate() {
                let block = RowBlock { a: a.without_rows(i * BLOCK), inputs: inputs.clone() };
                block.add::<S, T, STEP>(simd, &panels, &mut left, out);
            }
        }
    }
}

/// Packs some columns of the right side into a panel. Values in its padding are ignored.
#[inline(always)]
fn fill<const STEP: usize>(b: Side, inputs: Range<usize>, columns: Range<usize>, panel: &mut [[f32; STEP]]) {
    if b.columns {
        let held = b.from(inputs.start, columns.start);
        let held = &held[..(columns.len() - 1) * b.step + inputs.len()];
        let mut panel: Vec<&mut [f32]> = panel.iter_mut().map(|row| &mut row[..]).collect();
        return turn(held, b.step, &mut panel);
    }
    for (k, panel) in inputs.zip(panel) {
        let held = b.from(k, columns.start);
        match held.first_chunk::<STEP>() {
            Some(held) if columns.len() == STEP => *panel = *held,
            _ => panel[..columns.len()].copy_from_slice(&held[..columns.len()]),
        }
    }
}

/// Some rows of the left side, and some inputs.
struct RowBlock<'a> {
    a: Side<'a>,
    inputs: Range<usize>,
}

impl RowBlock<'_> {
    /// Adds its products with all panels to the outputs, which are uninitialised before the first slab.
    #[inline(always)]
    fn add<S: Simd, const T: usize, const STEP: usize>(
        &self,
        simd: S,
        panels: &[[f32; STEP]],
        left: &mut [[f32; ROWS]],
        out: &mut [&mut [f32]],
    ) {
        let depth = self.inputs.len();
        self.together(out.len(), left);
        let first = self.inputs.start == 0;
        for (i, panel) in panels.chunks_exact(depth).take(out[0].len().div_ceil(STEP)).enumerate() {
            for (r, (out, left)) in out.chunks_mut(ROWS).zip(left.chunks_exact(depth)).enumerate() {
                let rows = match out.len() {
                    ROWS if !self.a.columns => StridedRows::new(self.a.from(r * ROWS, self.inputs.start), self.a.step),
                    _ => StridedRows::together(left),
                };
                let own = i * STEP..out[0].len().min((i + 1) * STEP);
                let whole = own.len() == STEP && out.len() == ROWS;
                if whole {
                    let mut pieces = out.iter_mut().map(|out| &mut out[own.clone()]);
                    let pieces: [&mut [f32]; ROWS] = from_fn(|_| pieces.next().unwrap_or_default());
                    tile::<S, T, STEP>(simd, rows, panel, pieces, first);
                    continue;
                }
                let mut beside = [[0.0; STEP]; ROWS];
                for (beside, out) in beside.iter_mut().zip(&*out) {
                    beside[..own.len()].copy_from_slice(&out[own.clone()]);
                }
                tile::<S, T, STEP>(simd, rows, panel, beside.each_mut().map(|row| &mut row[..]), first);
                for (beside, out) in beside.iter().zip(out) {
                    out[own.clone()].copy_from_slice(&beside[..own.len()]);
                }
            }
        }
    }

    /// Packs each input's values of [`ROWS`] rows, unless they are used in place.
    #[inline(always)]
    fn together(&self, rows: usize, left: &mut [[f32; ROWS]]) {
        let (depth, whole) = (self.inputs.len(), rows / ROWS * ROWS);
        if !self.a.columns {
            for (r, row) in (whole..rows).enumerate() {
                for (left, value) in left[whole / ROWS * depth..].iter_mut().zip(self.a.from(row, self.inputs.start)) {
                    left[r] = *value;
                }
            }
            return;
        }
        for (at, k) in self.inputs.clone().enumerate() {
            let (sixes, rest) = self.a.from(0, k)[..rows].as_chunks::<ROWS>();
            for (i, six) in sixes.iter().enumerate() {
                left[i * depth + at] = *six;
            }
            if !rest.is_empty() {
                left[whole / ROWS * depth + at][..rest.len()].copy_from_slice(rest);
            }
        }
    }
}

/// Rows of a left side: input k of row r is at `k · near + r · far`.
#[derive(Clone, Copy)]
struct StridedRows<'a> {
    values: &'a [f32],
    near: usize,
    far: usize,
}

impl<'a> StridedRows<'a> {
    /// Rows that begin `far` values apart.
    fn new(values: &'a [f32], far: usize) -> Self {
        Self { values, near: 1, far }
    }

    fn together(values: &'a [[f32; ROWS]]) -> Self {
        Self { values: values.as_flattened(), near: ROWS, far: 1 }
    }
}

/// Adds the products of six rows with a panel to six pieces of the output, or writes them. All sums are in registers: raw access to rows
/// matters for speed, because with slices and indices the compiler put sums into memory.
#[inline(always)]
fn tile<S: Simd, const T: usize, const STEP: usize>(
    simd: S,
    rows: StridedRows,
    panel: &[[f32; STEP]],
    out: [&mut [f32]; ROWS],
    first: bool,
) {
    let StridedRows { values, near, far } = rows;
    assert!(
        panel.is_empty() || (panel.len() - 1) * near + (ROWS - 1) * far < values.len(),
        "rows end within their values"
    );
    let mut acc: [[S::f32s; T]; ROWS] = [[simd.splat_f32s(0.0); T]; ROWS];
    for out in &out {
        soon(out, 0);
    }
    let out = out.map(|out| &mut S::as_mut_simd_f32s(out).0[..T]);
    if !first {
        acc = from_fn(|r| from_fn(|t| out[r][t]));
    }
    let mut at = 0;
    for w in panel {
        let w = S::as_simd_f32s(w).0;
        let w: [S::f32s; T] = from_fn(|t| w[t]);
        for (r, acc) in acc.iter_mut().enumerate() {
            #[allow(unsafe_code)]
            // SAFETY: the last element is within bounds, as checked above.
            let x = simd.splat_f32s(unsafe { *values.get_unchecked(at + r * far) });
            for t in 0..T {
                acc[t] = simd.mul_add_f32s(x, w[t], acc[t]);
            }
        }
        at += near;
    }
    for (out, acc) in out.into_iter().zip(acc) {
        out.copy_from_slice(&acc);
    }
}

#[cfg(test)]
mod tests {
    use super::super::paths::drawn as values;
    use super::*;
    use crate::cpu::tests::with_each;

    /// A matrix of these values in either layout, with room after each row or column.
    fn laid(x: &[f32], [rows, columns]: [usize; 2], turned: bool) -> (Vec<f32>, usize) {
        let (far, near) = if turned { (columns, rows) } else { (rows, columns) };
        let step = near + 3;
        let mut out = vec![f32::NAN; far * step];
        for (i, value) in x.iter().enumerate() {
            let (row, column) = (i / columns, i % columns);
            let (far, near) = if turned { (column, row) } else { (row, column) };
            out[far * step + near] = *value;
        }
        out.truncate(far * step - 3);
        (out, step)
    }

    #[test]
    fn all_layouts_and_instructions_have_the_bits_of_one_chain_a_value() {
        for [m, k, n] in
            [[1, 1, 1], [6, 8, 16], [7, 300, 33], [130, 129, 65], [121, 513, 130], [256, 70, 16], [40, 257, 700]]
        {
            let (x, w) = (values(m * k, 1), values(k * n, 2));
            let chain =
                |i: usize| (0..k).fold(0.0_f32, |sum, j| x[i / n * k + j].mul_add(w[j * n + i % n], sum)).to_bits();
            let expected: Vec<u32> = (0..m * n).map(chain).collect();
            for [a_columns, b_columns] in [[false, false], [false, true], [true, false], [true, true]] {
                let ((a, a_step), (b, b_step)) = (laid(&x, [m, k], a_columns), laid(&w, [k, n], b_columns));
                let made = with_each(|| {
                    let mut out = vec![f32::NAN; m * n];
                    let a = Side { values: &a, step: a_step, columns: a_columns };
                    let b = Side { values: &b, step: b_step, columns: b_columns };
                    product(a, b, [m, k, n], &mut out);
                    out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
                });
                for (cpu, made) in made {
                    assert_eq!(made, expected, "{cpu:?}, {m}x{k}x{n}, columns {a_columns} and {b_columns}");
                }
            }
        }
    }
}
