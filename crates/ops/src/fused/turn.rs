//! Transposes, sixteen rows by sixteen columns at a time.

#[cfg(target_arch = "x86_64")]
use crate::cpu::{Cpu, cpu};

/// Rows and columns that are turned together: a vector of AVX-512.
const SIDE: usize = 16;

/// Transposes the first columns of x `[R, width]` into rows of at least R values. In x's last row values after those columns may be missing.
pub(super) fn turn(x: &[f32], width: usize, out: &mut [&mut [f32]]) {
    #[cfg(target_arch = "x86_64")]
    match cpu() {
        #[allow(unsafe_code)]
        // SAFETY: the processor has AVX-512.
        Cpu::Avx512 => return unsafe { avx512::turn(x, width, out) },
        #[allow(unsafe_code)]
        // SAFETY: the processor has AVX2.
        Cpu::Avx2 => return unsafe { avx2::turn(x, width, out) },
        _ => {}
    }
    turn_by(x, width, out, plainly);
}

/// Transposes blocks with `block`, and the edges value by value. `block` gets the rows of x from its first one on, and the rows of `out`, each
/// from its first column on.
#[inline(always)]
fn turn_by(x: &[f32], width: usize, out: &mut [&mut [f32]], block: impl Fn(&[f32], usize, &mut [&mut [f32]], usize)) {
    let rows = x.len().div_ceil(width);
    // A few rows of x at a time, from end to end: the next read is adjacent to the last.
    for from in (0..rows).step_by(SIDE) {
        let to = (from + SIDE).min(rows);
        for (at, out) in out.chunks_mut(SIDE).enumerate() {
            let column = at * SIDE;
            if out.len() == SIDE && to - from == SIDE {
                block(&x[from * width + column..], width, out, from);
                continue;
            }
            for (column, out) in (column..).zip(out) {
                for (row, out) in (from..to).zip(&mut out[from..to]) {
                    *out = x[row * width + column];
                }
            }
        }
    }
}

fn plainly(x: &[f32], width: usize, out: &mut [&mut [f32]], from: usize) {
    for (column, out) in out.iter_mut().enumerate() {
        for (row, out) in out[from..][..SIDE].iter_mut().enumerate() {
            *out = x[row * width + column];
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        __m256, _mm256_castpd_ps, _mm256_castps_pd, _mm256_permute2f128_ps, _mm256_setzero_ps, _mm256_unpackhi_pd,
        _mm256_unpackhi_ps, _mm256_unpacklo_pd, _mm256_unpacklo_ps,
    };
    use std::mem::transmute;

    use super::SIDE;

    const HALF: usize = SIDE / 2;

    #[target_feature(enable = "avx2")]
    pub(super) fn turn(x: &[f32], width: usize, out: &mut [&mut [f32]]) {
        super::turn_by(x, width, out, |x, width, out, from| {
            for (column, out) in out.chunks_exact_mut(HALF).enumerate() {
                for row in [0, HALF] {
                    quarter(&x[row * width + column * HALF..], width, out, from + row);
                }
            }
        });
    }

    /// Transposes within halves of 128 bits, then exchanges halves between vectors.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn quarter(x: &[f32], width: usize, out: &mut [&mut [f32]], from: usize) {
        let mut r = [_mm256_setzero_ps(); HALF];
        for i in 0..HALF {
            r[i] = vector(&x[i * width..][..HALF]);
        }
        // In half q, of rows 2i and 2i + 1: columns 4q and 4q + 1 in vector 2i, 4q + 2 and 4q + 3 in the one after it.
        let mut pairs = r;
        for i in 0..HALF / 2 {
            pairs[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
            pairs[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
        }
        // Of rows 4i .. 4i + 4: column 4q + c in half q of vector 4i + c.
        let mut fours = r;
        for i in 0..HALF / 4 {
            for p in 0..2 {
                let (a, b) = (_mm256_castps_pd(pairs[4 * i + p]), _mm256_castps_pd(pairs[4 * i + p + 2]));
                fours[4 * i + 2 * p] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, b));
                fours[4 * i + 2 * p + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, b));
            }
        }
        let (low, high) = out.split_at_mut(HALF / 2);
        for (c, (low, high)) in low.iter_mut().zip(high).enumerate() {
            let (first, second) = (fours[c], fours[4 + c]);
            low[from..][..HALF].copy_from_slice(&floats(_mm256_permute2f128_ps::<0x20>(first, second)));
            high[from..][..HALF].copy_from_slice(&floats(_mm256_permute2f128_ps::<0x31>(first, second)));
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn vector(values: &[f32]) -> __m256 {
        let mut held = [0.0; HALF];
        held.copy_from_slice(values);
        #[allow(unsafe_code)]
        // SAFETY: both are 256 bits, and any are valid.
        unsafe {
            transmute(held)
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn floats(x: __m256) -> [f32; HALF] {
        #[allow(unsafe_code)]
        // SAFETY: both are 256 bits, and any are valid.
        unsafe {
            transmute(x)
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::{
        __m512, _mm512_castpd_ps, _mm512_castps_pd, _mm512_setzero_ps, _mm512_shuffle_f32x4, _mm512_unpackhi_pd,
        _mm512_unpackhi_ps, _mm512_unpacklo_pd, _mm512_unpacklo_ps,
    };
    use std::mem::transmute;

    use super::SIDE;

    #[target_feature(enable = "avx512f")]
    pub(super) fn turn(x: &[f32], width: usize, out: &mut [&mut [f32]]) {
        super::turn_by(x, width, out, |x, width, out, from| block(x, width, out, from));
    }

    /// Transposes within quarters of 128 bits, then exchanges quarters between vectors.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn block(x: &[f32], width: usize, out: &mut [&mut [f32]], from: usize) {
        let mut r = [_mm512_setzero_ps(); SIDE];
        for i in 0..SIDE {
            r[i] = vector(&x[i * width..][..SIDE]);
        }
        // In quarter q, of rows 2i and 2i + 1: columns 4q and 4q + 1 in vector 2i, 4q + 2 and 4q + 3 in the one after it.
        let mut pairs = r;
        for i in 0..SIDE / 2 {
            pairs[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
            pairs[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
        }
        // Of rows 4i .. 4i + 4: column 4q + c in quarter q of vector 4i + c.
        let mut fours = r;
        for i in 0..SIDE / 4 {
            for p in 0..2 {
                let (a, b) = (_mm512_castps_pd(pairs[4 * i + p]), _mm512_castps_pd(pairs[4 * i + p + 2]));
                fours[4 * i + 2 * p] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
                fours[4 * i + 2 * p + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
            }
        }
        let mut turned = r;
        for c in 0..SIDE / 4 {
            // Quarters 0 and 2, and 1 and 3, of two vectors.
            let (first, second) = (fours[c], fours[4 + c]);
            let (third, fourth) = (fours[8 + c], fours[12 + c]);
            let (even, odd) =
                (_mm512_shuffle_f32x4::<0x88>(first, second), _mm512_shuffle_f32x4::<0xdd>(first, second));
            let (even_behind, odd_behind) =
                (_mm512_shuffle_f32x4::<0x88>(third, fourth), _mm512_shuffle_f32x4::<0xdd>(third, fourth));
            turned[c] = _mm512_shuffle_f32x4::<0x88>(even, even_behind);
            turned[8 + c] = _mm512_shuffle_f32x4::<0xdd>(even, even_behind);
            turned[4 + c] = _mm512_shuffle_f32x4::<0x88>(odd, odd_behind);
            turned[12 + c] = _mm512_shuffle_f32x4::<0xdd>(odd, odd_behind);
        }
        for (out, turned) in out.iter_mut().zip(turned) {
            out[from..][..SIDE].copy_from_slice(&floats(turned));
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn vector(values: &[f32]) -> __m512 {
        let mut held = [0.0; SIDE];
        held.copy_from_slice(values);
        #[allow(unsafe_code)]
        // SAFETY: both are 512 bits, and any are valid.
        unsafe {
            transmute(held)
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn floats(x: __m512) -> [f32; SIDE] {
        #[allow(unsafe_code)]
        // SAFETY: both are 512 bits, and any are valid.
        unsafe {
            transmute(x)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::tests::with_each;

    #[test]
    fn every_value_of_the_first_columns_is_where_it_belongs_and_nothing_else_is_written() {
        for [rows, width, columns] in
            [[1, 1, 1], [16, 16, 16], [64, 576, 576], [33, 64, 50], [40, 48, 17], [15, 64, 64]]
        {
            let x: Vec<f32> = (0..rows * width).map(|i| i as f32).collect();
            let turned = with_each(|| {
                let mut across = vec![-1.0; columns * (rows + 3)];
                let mut out: Vec<&mut [f32]> = across.chunks_exact_mut(rows + 3).collect();
                turn(&x[..x.len() - width + columns], width, &mut out);
                across
            });
            for (cpu, across) in turned {
                for (i, value) in across.into_iter().enumerate() {
                    let (column, row) = (i / (rows + 3), i % (rows + 3));
                    let expected = if row < rows { x[row * width + column] } else { -1.0 };
                    assert_eq!(value, expected, "{cpu:?}, {rows}x{width}: row {row}, column {column} of {columns}");
                }
            }
        }
    }
}
