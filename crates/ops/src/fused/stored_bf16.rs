//! Products of many rows with a bf16 matrix and inputs rounded to bf16: two products at once per lane, with the instruction of AVX-512 BF16.
//! Products of two bf16 are exact in f32, and sums are f32.
//!
//! Values come in pairs, of inputs 2i and 2i + 1, as in a bf16 matrix: the first in the lower half of 32 bits.

use half::bf16;

use super::simd::vectorised;
#[cfg(target_arch = "x86_64")]
use super::stored_many::VECTOR;
#[cfg(target_arch = "x86_64")]
use crate::cpu::{Cpu, cpu};

const PAIR: usize = 4;

/// The upper 16 bits of the nearest bf16, ties to even.
#[inline(always)]
fn bits(x: f32) -> u32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    // The carry would turn a NaN into a number.
    if x.is_nan() { bits >> 16 | 0x40 } else { rounded }
}

vectorised! {
    /// Rounds each value to bf16.
    fn round(x: &mut [f32]) {
        for x in x {
            *x = f32::from_bits(bits(*x) << 16);
        }
    }
}

vectorised! {
    /// Pairs of the values of two rows.
    fn pair(first: &[f32], second: &[f32], out: &mut [u32]) {
        for ((out, &first), &second) in out.iter_mut().zip(first).zip(second) {
            *out = bits(first) | bits(second) << 16;
        }
    }
}

/// `[K, step]` → rows 2i and 2i + 1 as a row of pairs, `[ceil(K / 2), step]`; an odd last row is paired with zeros.
pub(super) fn pairs(x: &[f32], step: usize) -> Vec<u32> {
    let mut out = vec![0; (x.len() / step).div_ceil(2) * step];
    let zeros = vec![0.0; step];
    for (out, two) in out.chunks_exact_mut(step).zip(x.chunks(2 * step)) {
        let (first, second) = two.split_at(step);
        pair(first, if second.is_empty() { &zeros } else { second }, out);
    }
    out
}

/// Whether the instruction exists, and may be used.
pub(super) fn is_there() -> bool {
    #[cfg(target_arch = "x86_64")]
    return cpu() == Cpu::Avx512 && std::arch::is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Whether it is faster than widening to f32: a prompt took 0.75 of the time with it on AMD's Zen 5, 1.6 times as long on an Intel Xeon
/// (docs/speed.md, benches/PROFILE.md).
pub(super) fn is_fast() -> bool {
    is_there() && !is_intel()
}

/// Whether the processor's vendor is Intel.
fn is_intel() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        let name = std::arch::x86_64::__cpuid(0);
        [name.ebx, name.edx, name.ecx].map(u32::to_le_bytes).as_flattened() == b"GenuineIntel"
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Adds the products of `rows`, each of `row_bytes` bytes of bf16, with a panel of pairs `[ceil(K / 2), step]` to `out` `[n, step]`. Fast if
/// the instruction [`is_there`].
pub(super) fn add(rows: &[u8], row_bytes: usize, panel: &[u32], out: &mut [f32]) {
    let step = panel.len() / row_bytes.div_ceil(PAIR);
    #[cfg(target_arch = "x86_64")]
    if is_there() {
        #[allow(unsafe_code)]
        // SAFETY: the processor has the instructions.
        return unsafe {
            match step / VECTOR {
                4 => x86::add::<4, 64>(rows, row_bytes, panel, out),
                3 => x86::add::<3, 48>(rows, row_bytes, panel, out),
                2 => x86::add::<2, 32>(rows, row_bytes, panel, out),
                _ => x86::add::<1, 16>(rows, row_bytes, panel, out),
            }
        };
    }
    plainly(rows, row_bytes, panel, step, out);
}

/// Adds the products without the instruction.
fn plainly(rows: &[u8], row_bytes: usize, panel: &[u32], step: usize, out: &mut [f32]) {
    for (row, out) in rows.chunks_exact(row_bytes).zip(out.chunks_exact_mut(step)) {
        for (pair, panel) in row.chunks(PAIR).zip(panel.chunks_exact(step)) {
            let weight = |at: usize| pair.get(at..at + 2).map_or(0.0, |w| bf16::from_le_bytes([w[0], w[1]]).to_f32());
            let (first, second) = (weight(0), weight(2));
            for (out, x) in out.iter_mut().zip(panel) {
                *out += first * f32::from_bits(x << 16) + second * f32::from_bits(x & 0xffff_0000);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{__m512, __m512bh, _mm512_dpbf16_ps, _mm512_setzero_ps};
    use std::mem::transmute;

    use std::array::from_fn;

    use super::{PAIR, VECTOR};
    use crate::fused::many::ROWS;

    /// Pairs per slab, which passes all outputs of a piece before the next one: their part of a panel stays in the first-level cache.
    const SLAB: usize = 96;

    #[target_feature(enable = "avx512f,avx512bf16")]
    pub(super) fn add<const T: usize, const STEP: usize>(
        rows: &[u8],
        row_bytes: usize,
        panel: &[u32],
        out: &mut [f32],
    ) {
        let (panel, _) = panel.as_chunks::<STEP>();
        for start in (0..panel.len()).step_by(SLAB) {
            let end = (start + SLAB).min(panel.len());
            let panel = &panel[start..end];
            for (rows, out) in rows.chunks(ROWS * row_bytes).zip(out.chunks_mut(ROWS * STEP)) {
                let (out, _) = out.as_chunks_mut::<STEP>();
                let row = |r: usize| &rows[r * row_bytes..][start * PAIR..(end * PAIR).min(row_bytes)];
                match out {
                    [a, b, c, d, e, f] => tile::<6, T, STEP>(from_fn(row), panel, [a, b, c, d, e, f]),
                    out => {
                        for (r, out) in out.iter_mut().enumerate() {
                            tile::<1, T, STEP>([row(r)], panel, [out]);
                        }
                    }
                }
            }
        }
    }

    /// R rows by T vectors, in registers over all rows of the panel.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bf16")]
    fn tile<const R: usize, const T: usize, const STEP: usize>(
        rows: [&[u8]; R],
        panel: &[[u32; STEP]],
        out: [&mut [f32; STEP]; R],
    ) {
        let mut acc = [[_mm512_setzero_ps(); T]; R];
        let split = rows.map(|row| row.as_chunks::<PAIR>());
        let whole = split[0].0.len().min(panel.len());
        let pairs = split.map(|(pairs, _)| &pairs[..whole]);
        for (k, panel) in panel[..whole].iter().enumerate() {
            step(from_fn(|r| u32::from_le_bytes(pairs[r][k])), panel, &mut acc);
        }
        if let Some(panel) = panel.get(whole) {
            step(split.map(|(_, rest)| u32::from(u16::from_le_bytes([rest[0], rest[1]]))), panel, &mut acc);
        }
        for r in 0..R {
            for t in 0..T {
                let out = &mut out[r][t * VECTOR..][..VECTOR];
                for (out, sum) in out.iter_mut().zip(floats(acc[r][t])) {
                    *out += sum;
                }
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bf16")]
    fn step<const R: usize, const T: usize, const STEP: usize>(
        pairs: [u32; R],
        panel: &[u32; STEP],
        acc: &mut [[__m512; T]; R],
    ) {
        let (x, _) = panel.as_chunks::<VECTOR>();
        for r in 0..R {
            let w = vector([pairs[r]; VECTOR]);
            for t in 0..T {
                acc[r][t] = _mm512_dpbf16_ps(acc[r][t], w, vector(x[t]));
            }
        }
    }

    #[inline(always)]
    fn vector(pairs: [u32; VECTOR]) -> __m512bh {
        #[allow(unsafe_code)]
        // SAFETY: both are 512 bits, and any are valid.
        unsafe {
            transmute(pairs)
        }
    }

    #[inline(always)]
    fn floats(x: __m512) -> [f32; VECTOR] {
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

    #[test]
    fn the_instruction_adds_what_is_added_without_it() {
        for [rows, depth, step] in [[1, 1, 16], [7, 41, 32], [13, 389, 48], [6, 256, 64]] {
            let stored = |i: usize| bf16::from_f32((i * 37 % 101) as f32 / 50.0 - 1.0).to_le_bytes();
            let weights: Vec<u8> = (0..rows * depth).flat_map(stored).collect();
            let x: Vec<f32> = (0..depth * step).map(|i| (i * 61 % 211) as f32 / 100.0 - 1.0).collect();
            let panel = pairs(&x, step);
            let mut sums = [vec![0.5; rows * step], vec![0.5; rows * step]];
            add(&weights, 2 * depth, &panel, &mut sums[0]);
            plainly(&weights, 2 * depth, &panel, step, &mut sums[1]);
            for (ours, plain) in sums[0].iter().zip(&sums[1]) {
                assert!((ours - plain).abs() <= 1e-6 * depth as f32, "{rows}x{depth}x{step}: {ours} is not {plain}");
            }
            assert!(sums[0].iter().any(|sum| *sum != 0.5));
        }
    }

    #[test]
    fn values_are_rounded_as_the_crate_half_does() {
        let some =
            [0, 1, 0x7fff, 0x8000, 0x8001, 0x1_8000, 0x7f7f_8000, 0x7f7f_ffff, 0x7f80_0000, 0x7f80_0001, 0x7fff_ffff];
        let spread = (0..200_000_u32).map(|i| i.wrapping_mul(2_654_435_761));
        for x in some.into_iter().chain(spread).flat_map(|bits| [bits, bits | 1 << 31]).map(f32::from_bits) {
            let theirs = bf16::from_f32(x);
            assert_eq!(bits(x), u32::from(theirs.to_bits()), "{x:e}");
            let mut ours = [x; 3];
            round(&mut ours);
            assert_eq!(ours[2].to_bits(), theirs.to_f32().to_bits(), "{x:e}");
        }
    }
}
