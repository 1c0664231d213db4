//! Products of few rows with matrices of integers, in integers: inputs are rounded to 8 bits per block of 32 values, as in llama.cpp
//! (`ggml-quants.c`, `quantize_row_q8_0`; for the `K` formats it rounds blocks of 256), here with a scale in f32.
//!
//! 1. Each block of x becomes 32 integers and a scale, its largest absolute value over 127.
//! 2. Eight lanes sum the products of four integers each: exact, so that all instruction sets agree.
//! 3. Each lane is multiplied by both scales and added to its sum over the blocks of the row, in f32. Offsets of the matrix are multiplied by
//!    the sum of the block of x, and added to other lanes.

use std::marker::PhantomData;
use std::ops::Range;

use super::product::streams;
use super::simd::vectorised;
#[cfg(target_arch = "x86_64")]
use crate::cpu::{Cpu, cpu};
use crate::stored::Part;
use crate::stored::formats::{IntegerLayout, Layout, PIECE};

const LANES: usize = 8;

/// Rows of the matrix, or of x, per loop.
const TOGETHER: usize = 4;

/// Rows of inputs, rounded. The width is whole blocks.
pub(super) struct RoundedInputs {
    blocks: Vec<Block>,
    /// Of the blocks, once more: eight are read at a time.
    scales: Vec<f32>,
    /// Sums of the rounded values of a block.
    sums: Vec<f32>,
    /// Blocks per row.
    width: usize,
}

#[derive(Clone, Default)]
pub(super) struct Block {
    integers: [i8; PIECE],
    /// Sums of four integers each, negative.
    less: [i32; LANES],
    scale: f32,
}

/// A row of them.
#[derive(Clone, Copy)]
struct RoundedRow<'a> {
    blocks: &'a [Block],
    scales: &'a [f32],
    sums: &'a [f32],
}

impl RoundedInputs {
    pub(super) fn new(x: &[f32], depth: usize) -> Self {
        let (values, _) = x.as_chunks::<PIECE>();
        let mut blocks = vec![Block::default(); values.len()];
        round_blocks(values, &mut blocks);
        let sum = |block: &Block| -block.scale * block.less.iter().sum::<i32>() as f32;
        let (scales, sums) = (blocks.iter().map(|block| block.scale).collect(), blocks.iter().map(sum).collect());
        Self { blocks, scales, sums, width: depth / PIECE }
    }

    fn row(&self, row: usize) -> RoundedRow<'_> {
        let range = row * self.width..(row + 1) * self.width;
        RoundedRow { blocks: &self.blocks[range.clone()], scales: &self.scales[range.clone()], sums: &self.sums[range] }
    }

    /// The rounded values.
    pub(super) fn values(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.blocks.len() * PIECE];
        for (block, out) in self.blocks.iter().zip(out.as_chunks_mut::<PIECE>().0) {
            for (out, integer) in out.iter_mut().zip(block.integers) {
                *out = f32::from(integer) * block.scale;
            }
        }
        out
    }
}

vectorised! {
    /// Rounds blocks. A value that is not finite makes its block NaN.
    fn round_blocks(values: &[[f32; PIECE]], blocks: &mut [Block]) {
        for (values, block) in values.iter().zip(blocks) {
            let most = values.iter().fold(0.0_f32, |most, x| if x.abs() > most { x.abs() } else { most });
            let finite = values.iter().fold(true, |finite, x| finite & x.is_finite());
            // Of the smallest numbers the reciprocal is infinite: they round to 0.
            let per_unit = 127.0 / most;
            let per_unit = if finite & per_unit.is_finite() { per_unit } else { 0.0 };
            for (integer, x) in block.integers.iter_mut().zip(values) {
                *integer = (if finite { x * per_unit } else { 0.0 }).round_ties_even() as i8;
            }
            let (fours, _) = block.integers.as_chunks::<{ PIECE / LANES }>();
            for (lane, four) in block.less.iter_mut().zip(fours) {
                *lane = -four.iter().map(|&integer| i32::from(integer)).sum::<i32>();
            }
            block.scale = if finite { most / 127.0 } else { f32::NAN };
        }
    }
}

/// Dot products of all rows of x with `rows` of a part, into columns `at ..` of the outputs.
pub(super) struct IntegerDots<'a, 'o, 'p, L> {
    pub x: &'a RoundedInputs,
    pub part: &'a Part,
    pub rows: Range<usize>,
    pub at: usize,
    pub out: &'o mut [&'p mut [f32]],
    pub layout: PhantomData<L>,
}

impl<L: Layout> IntegerDots<'_, '_, '_, L> {
    /// Computes the products, if the format is of integers.
    pub(super) fn compute(self) {
        if L::INTEGERS.is_none() {
            return;
        }
        #[cfg(target_arch = "x86_64")]
        match cpu() {
            #[allow(unsafe_code)]
            // SAFETY: the processor has the instructions.
            Cpu::Avx512 if std::arch::is_x86_feature_detected!("avx512vnni") => {
                return unsafe { x86::with_vnni(self) };
            }
            #[allow(unsafe_code)]
            // SAFETY: AVX2 and its kin are part of both sets.
            Cpu::Avx512 | Cpu::Avx2 => return unsafe { x86::with_avx2(self) },
            _ => {}
        }
        self.run::<Plain>();
    }

    #[inline(always)]
    fn run<D: Dot>(self) {
        let Self { x, part, rows, at, out, .. } = self;
        let row = |i: usize| part.row(rows.start + i);
        if let [out] = out {
            let (fours, rest) = streams::<TOGETHER>(rows.len());
            for i in fours {
                let held = [row(i[0]), row(i[1]), row(i[2]), row(i[3])];
                let sums = D::dots::<L, TOGETHER, 1>(held, [x.row(0)]);
                i.into_iter().zip(sums).for_each(|(i, [sum])| out[at + i] = sum);
            }
            for i in rest {
                let [[sum]] = D::dots::<L, 1, 1>([row(i)], [x.row(0)]);
                out[at + i] = sum;
            }
            return;
        }
        for i in 0..rows.len() {
            for (first, outs) in (0..).step_by(TOGETHER).zip(out.chunks_mut(TOGETHER)) {
                if let [a, b, c, d] = outs {
                    let held = [x.row(first), x.row(first + 1), x.row(first + 2), x.row(first + 3)];
                    let [sums] = D::dots::<L, 1, TOGETHER>([row(i)], held);
                    [a, b, c, d].into_iter().zip(sums).for_each(|(out, sum)| out[at + i] = sum);
                    continue;
                }
                for (m, out) in outs.iter_mut().enumerate() {
                    let [[sum]] = D::dots::<L, 1, 1>([row(i)], [x.row(first + m)]);
                    out[at + i] = sum;
                }
            }
        }
    }
}

/// How the integers of a format that has them are multiplied.
const fn layout<L: Layout>() -> IntegerLayout {
    match L::INTEGERS {
        Some(layout) => layout,
        None => IntegerLayout { below: None, halves: false, offsets: false },
    }
}

/// Dot products of R rows of the matrix with C rows of x, by one set of instructions. All give the same bits.
trait Dot {
    fn dots<L: Layout, const R: usize, const C: usize>(rows: [&[u8]; R], x: [RoundedRow; C]) -> [[f32; C]; R];
}

/// The order of the last sum.
#[inline(always)]
fn total(lanes: [f32; LANES], offsets: [f32; LANES]) -> f32 {
    let sum = |x: [f32; LANES]| ((x[0] + x[4]) + (x[1] + x[5])) + ((x[2] + x[6]) + (x[3] + x[7]));
    sum(lanes) + sum(offsets)
}

struct Plain;

impl Dot for Plain {
    fn dots<L: Layout, const R: usize, const C: usize>(rows: [&[u8]; R], x: [RoundedRow; C]) -> [[f32; C]; R] {
        let layout = const { layout::<L>() };
        rows.map(|row| {
            x.map(|x| {
                let (mut sums, mut offset_sums) = ([0.0_f32; LANES], [0.0_f32; LANES]);
                for (block, bytes) in row.chunks_exact(L::BYTES).enumerate() {
                    let (scales, offsets) = L::factors::<pulp::Scalar>(bytes);
                    for piece in 0..L::PIECES {
                        let at = block * L::PIECES + piece;
                        let integers = L::integers::<pulp::Scalar>(bytes, piece);
                        for lane in 0..LANES {
                            let product = |i: usize| i32::from(integers[i]) * i32::from(x.blocks[at].integers[i]);
                            let products = (4 * lane..4 * lane + 4).map(product).sum::<i32>();
                            let less = layout.below.map_or(0, |below| x.blocks[at].less[lane] << below);
                            let scale = scales[if layout.halves { 2 * piece + lane / 4 } else { piece }];
                            sums[lane] = ((products + less) as f32).mul_add(scale * x.scales[at], sums[lane]);
                        }
                        if layout.offsets {
                            offset_sums[piece] = offsets[piece].mul_add(x.sums[at], offset_sums[piece]);
                        }
                    }
                }
                total(sums, offset_sums)
            })
        })
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::mem::transmute;

    use super::super::product::{STREAM_AHEAD, soon};
    use super::{Block, Dot, IntegerDots, LANES, Layout, PIECE, RoundedRow, layout, total};
    use pulp::x86::V3;

    #[target_feature(enable = "avx2,bmi1,bmi2,f16c,fma,lzcnt,popcnt,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    pub(super) fn with_vnni<L: Layout>(work: IntegerDots<L>) {
        work.run::<Vectors<true>>();
    }

    #[target_feature(enable = "avx2,bmi1,bmi2,f16c,fma,lzcnt,popcnt")]
    pub(super) fn with_avx2<L: Layout>(work: IntegerDots<L>) {
        work.run::<Vectors<false>>();
    }

    /// With AVX2, or also AVX-512 VNNI. For the two functions above alone.
    struct Vectors<const VNNI: bool>;

    impl<const VNNI: bool> Dot for Vectors<VNNI> {
        #[inline(always)]
        fn dots<L: Layout, const R: usize, const C: usize>(rows: [&[u8]; R], x: [RoundedRow; C]) -> [[f32; C]; R] {
            #[allow(unsafe_code)]
            // SAFETY: the callers are compiled for these instructions, and this is inlined into them.
            unsafe {
                // A constant: as an argument it was tested at every block.
                let layout = const { layout::<L>() };
                let zero = _mm256_setzero_ps();
                let eight = |x: [f32; LANES]| transmute::<[f32; LANES], __m256>(x);
                let (mut sums, mut offset_sums, mut first_offsets) = ([[zero; C]; R], [[zero; C]; R], [[0.0; C]; R]);
                for block in 0..x[0].blocks.len() / L::PIECES {
                    let first = block * L::PIECES;
                    for r in 0..R {
                        let from = block * L::BYTES;
                        for line in (0..L::BYTES).step_by(64) {
                            soon(rows[r], from + line + STREAM_AHEAD);
                        }
                        let bytes = &rows[r][from..from + L::BYTES];
                        let (scales, offsets) = L::factors::<V3>(bytes);
                        // Scales of eight pieces times those of x; two per piece are multiplied below.
                        let mut both = [zero; C];
                        for c in 0..C {
                            if L::PIECES == LANES && !layout.halves {
                                both[c] = _mm256_mul_ps(eight(of(&scales, 0)), eight(of(x[c].scales, first)));
                            }
                            if layout.offsets && L::PIECES == LANES {
                                let by = eight(of(x[c].sums, first));
                                offset_sums[r][c] = _mm256_fmadd_ps(eight(offsets), by, offset_sums[r][c]);
                            } else if layout.offsets {
                                first_offsets[r][c] = offsets[0].mul_add(x[c].sums[first], first_offsets[r][c]);
                            }
                        }
                        let held = x.map(|x| &x.blocks[first..first + L::PIECES]);
                        for piece in 0..L::PIECES {
                            let integers = transmute::<[u8; PIECE], __m256i>(L::integers::<V3>(bytes, piece));
                            for c in 0..C {
                                let x = &held[c][piece];
                                let scale = if layout.halves {
                                    let half = |at: usize| _mm_set1_ps(scales[2 * piece + at] * x.scale);
                                    _mm256_set_m128(half(1), half(0))
                                } else if L::PIECES == LANES {
                                    _mm256_permutevar8x32_ps(both[c], _mm256_set1_epi32(piece as i32))
                                } else {
                                    _mm256_set1_ps(scales[0] * x.scale)
                                };
                                let lanes = products::<VNNI>(integers, x, layout.below);
                                let sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(lanes), scale, sums[r][c]);
                                // Rows of x gain by vectors of 512 bits, and so do formats whose integers are laborious.
                                sums[r][c] = if R > 1 && L::PIECES == 1 { apart(sum) } else { sum };
                            }
                        }
                    }
                }
                let floats = |x: __m256| transmute::<__m256, [f32; LANES]>(x);
                let offsets = |r: usize, c: usize| {
                    let first = |offset| [offset, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
                    if L::PIECES == LANES { floats(offset_sums[r][c]) } else { first(first_offsets[r][c]) }
                };
                std::array::from_fn(|r| std::array::from_fn(|c| total(floats(sums[r][c]), offsets(r, c))))
            }
        }
    }

    /// Eight values from `first` on.
    #[inline(always)]
    fn of(x: &[f32], first: usize) -> [f32; LANES] {
        x[first..].first_chunk().copied().unwrap_or_default()
    }

    /// The same sums, for the compiler unknown ones: it would join those of two rows in a vector of 512 bits and move their parts about.
    #[inline]
    #[target_feature(enable = "avx")]
    fn apart(mut sums: __m256) -> __m256 {
        #[allow(unsafe_code)]
        // SAFETY: no instruction at all.
        unsafe {
            std::arch::asm!("/* {0} */", inout(ymm_reg) sums, options(pure, nomem, nostack, preserves_flags));
        }
        sums
    }

    /// Sums of four products each of `integers − 2^below` and the block's.
    ///
    /// # Safety
    /// As of [`Vectors`].
    #[allow(unsafe_code)]
    #[inline(always)]
    unsafe fn products<const VNNI: bool>(integers: __m256i, x: &Block, below: Option<i32>) -> __m256i {
        // SAFETY: the instructions as above; both sides of the transmutes have the same size.
        unsafe {
            let Block { integers: x, less, .. } = x;
            let x = transmute::<[i8; PIECE], __m256i>(*x);
            // Pairs of products with all 8 bits do not fit 16 bits; those of absolute values below 129 do.
            if !VNNI && below == Some(7) {
                let integers = _mm256_xor_si256(integers, _mm256_set1_epi8(-128));
                let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(integers), _mm256_sign_epi8(x, integers));
                return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
            }
            let less = match below {
                Some(below) => _mm256_sll_epi32(transmute::<[i32; LANES], __m256i>(*less), _mm_cvtsi32_si128(below)),
                None => _mm256_setzero_si256(),
            };
            if VNNI {
                return _mm256_dpbusd_epi32(less, integers, x);
            }
            let pairs = _mm256_maddubs_epi16(integers, x);
            _mm256_add_epi32(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)), less)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::paths::sizes;
    use super::super::product::rows_times_transposed;
    use super::super::stored::rows_times_stored;
    use super::super::stored_many::many_rows_times_stored;
    use super::*;
    use crate::cpu::tests::with_each;
    use crate::stored::formats::with_layout;
    use crate::stored::{Format, Inputs, StoredMatrix};

    #[test]
    fn products_are_those_of_rounded_inputs_with_all_instructions_and_any_number_of_rows() {
        for format in Format::ALL {
            for [m, k, n] in [[1, 32, 1], [1, 512, 67], [2, 96, 5], [6, 256, 9], [9, 1536, 130], [33, 512, 20]] {
                if k % format.block_len() > 0 {
                    continue;
                }
                // Rows added later are floats.
                let more: Vec<f32> = (0..2 * k).map(|i| i as f32 / 9000.0 - 0.3).collect();
                let exact = StoredMatrix::drawn(format, n, k).with_rows(&more).unwrap();
                let w = exact.clone().with_inputs(Inputs::Q8);
                let x: Vec<f32> = (0..m * k).map(|i| ((i * 37) % 10_007) as f32 / 5000.0 - 1.0).collect();
                let made = with_each(|| rows_times_stored(&x, [&w]).concat());
                let (_, ours) = &made[0];
                let is_integers = with_layout!(format, L => L::INTEGERS.is_some());
                if is_integers {
                    let bits =
                        |x: &[f32]| x.chunks(n + 2).flat_map(|x| &x[..n]).map(|x| x.to_bits()).collect::<Vec<_>>();
                    assert!(made.iter().all(|(_, made)| bits(made) == bits(ours)), "{format:?}, {m}x{k}x{n}");
                }
                let [alone] = rows_times_stored(&x[(m - 1) * k..], [&w]);
                assert_eq!(alone, ours[(m - 1) * (n + 2)..], "{format:?}, {m}x{k}x{n}: the last row alone");
                let rounded = RoundedInputs::new(&x, k).values();
                let furthest = x.iter().zip(&rounded).map(|(x, rounded)| (x - rounded).abs()).fold(0.0, f32::max);
                assert!(furthest > 0.0 && furthest <= 1.01 / 254.0, "{furthest}");
                let wide = exact.widened_range(0..n + 2);
                let expected = rows_times_transposed(&rounded, &wide, [k, n + 2]);
                let scale = rows_times_transposed(&sizes(&rounded), &sizes(&wide), [k, n + 2]);
                let [many] = many_rows_times_stored(&x, [&w]);
                for (i, size) in scale.into_iter().enumerate() {
                    for ours in [ours[i], many[i]] {
                        // An offset is as large as the integers that it shifts: their difference can be far smaller.
                        assert!(
                            (ours - expected[i]).abs() <= 1e-5 * size.max(0.1),
                            "{format:?}, {m}x{k}x{n}: {ours} is not {}",
                            expected[i]
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn matrices_of_one_input_are_each_rounded_as_alone() {
        let k = 256;
        let drawn = |format, inputs| StoredMatrix::drawn(format, 9, k).with_inputs(inputs);
        let integers = drawn(Format::Q4_K, Inputs::Q8);
        let [floats, halves] = [drawn(Format::F16, Inputs::Exact), drawn(Format::Bf16, Inputs::Bf16)];
        for m in [1, 3, 40] {
            let x: Vec<f32> = (0..m * k).map(|i| ((i * 37) % 10_007) as f32 / 5000.0 - 1.0).collect();
            let all = [&integers, &floats, &halves];
            assert_eq!(rows_times_stored(&x, all), all.map(|w| rows_times_stored(&x, [w]).concat()), "{m} rows");
            assert_eq!(many_rows_times_stored(&x, all), all.map(|w| many_rows_times_stored(&x, [w]).concat()));
        }
    }

    #[test]
    fn blocks_of_zeros_tiny_and_unbounded_values() {
        let rounded = |x: f32| RoundedInputs::new(&[x; PIECE], PIECE).values()[0];
        assert_eq!(rounded(0.0), 0.0);
        assert_eq!(rounded(-2.0), -2.0);
        assert_eq!(rounded(1e-45), 0.0);
        assert!((rounded(1e38) / 1e38 - 1.0).abs() < 1e-6);
        assert!([f32::NAN, f32::INFINITY].into_iter().all(|x| rounded(x).is_nan()));
    }
}
