//! Gradients through a matrix in its file format: y `[M, N]` · W with W `[N, K]`, as in training, with one or a few rows for a latent step
//! and hundreds for a batch.
//!
//! A part of W is widened into the cache once and used for all rows of y. Every output is one chain of operations in the order of W's rows,
//! for any number of rows and threads.

use std::ops::Range;

use rayon::prelude::*;

use super::product::{MatrixView, soon, times};
use super::stored::LINE;
use super::stored_many::{rows_of, split_columns};
use crate::stored::{Part, StoredMatrix};

/// Columns of W go to threads in multiples of this: whole blocks of every format.
const GRAIN: usize = 256;

/// Maximum columns of W per tile: this much of a row is contiguous in memory.
const COLUMNS: usize = 2048;

/// Widened values of W at a time: they stay in a thread's cache.
const WIDE: usize = 1 << 17;

/// Prefetch distance, in rows: parts of rows are far apart, and no hardware prefetches the next.
const AHEAD: usize = 2;

/// y `[M, N]` · W → `[M, K]`; columns of the output are dealt to threads.
pub(super) fn rows_through_stored(y: &[f32], weight: &StoredMatrix) -> Vec<f32> {
    let (height, width) = (weight.rows(), weight.width());
    let mut out = vec![0.0; y.len() / height * width];
    let mut left = rows_of(&mut out, width);
    let share = width.div_ceil(rayon::current_num_threads()).next_multiple_of(GRAIN).min(COLUMNS);
    let blocks = (0..width).step_by(share).map(|from| from..(from + share).min(width));
    let blocks: Vec<_> = blocks.map(|columns| (split_columns(&mut left, columns.len()), columns)).collect();
    blocks.into_par_iter().for_each(|(mut out, columns)| {
        let together = (WIDE / columns.len()).clamp(1, height);
        let mut wide = vec![0.0; together * columns.len()];
        for (start, part) in weight.parts() {
            for from in (0..part.rows).step_by(together) {
                let rows = from..(from + together).min(part.rows);
                widen(part, rows.clone(), columns.clone(), &mut wide);
                let y = MatrixView { values: &y[start + rows.start..], step: height };
                times(y, MatrixView { values: &wide, step: columns.len() }, rows.len(), &mut out);
            }
        }
    });
    out
}

/// Widens some columns of some rows. Columns begin with a block.
fn widen(part: &Part, rows: Range<usize>, columns: Range<usize>, wide: &mut [f32]) {
    let at = |column: usize| column / part.format.block_len() * part.format.block_bytes();
    let bytes = at(columns.start)..at(columns.end);
    for (row, wide) in rows.zip(wide.chunks_exact_mut(columns.len())) {
        let held = &part.row(row)[bytes.clone()];
        for line in (0..held.len()).step_by(LINE) {
            soon(held, AHEAD * part.row_bytes + line);
        }
        part.format.widen(held, wide);
    }
}

#[cfg(test)]
mod tests {
    use super::super::paths::{assert_near, sizes};
    use super::super::product::rows_times;
    use super::*;
    use crate::stored::Format;

    #[test]
    fn the_product_is_that_of_the_widened_matrix_and_each_row_has_the_bits_it_has_alone() {
        for format in [Format::F32, Format::F16, Format::Bf16, Format::Q8_0, Format::Q4_1, Format::Q4_K, Format::Q6_K] {
            for [m, n, k] in [[1, 5, 256], [3, 300, 512], [40, 130, 768], [7, 513, 1024], [33, 9, 40], [2, 20, 7]] {
                if k % format.block_len() > 0 {
                    continue;
                }
                // Two parts: rows of the format, and floats after them.
                let more: Vec<f32> = (0..2 * k).map(|i| i as f32 / 9000.0 - 0.3).collect();
                let w = StoredMatrix::drawn(format, n, k).with_rows(&more).unwrap();
                let y: Vec<f32> = (0..m * (n + 2)).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
                let ours = rows_through_stored(&y, &w);
                let wide = w.widened_range(0..n + 2);
                let [expected] = rows_times(&y, [&wide], n + 2);
                let [scale] = rows_times(&sizes(&y), [&sizes(&wide)], n + 2);
                assert_near(&format!("{format:?}, {m}x{n}x{k}"), &ours, &expected, &scale);
                let alone = rows_through_stored(&y[(m - 1) * (n + 2)..], &w);
                assert_eq!(alone, ours[(m - 1) * k..], "{format:?}, {m}x{n}x{k}: the last row alone");
            }
        }
    }
}
