//! Storage formats of rows, and their conversion to floats.
//!
//! Block formats are ggml's (`ggml-quants.c`): 32 values share a 16-bit scale, and in `Q4_1` and `Q5_1` an offset. In the
//! `K` formats 256 values share a 16-bit scale of scales: each 32 (in `Q6_K` 16) have their own small integer scale, and
//! in `Q4_K` and `Q5_K` an offset. Widening is exact: a bf16 or f16 is a float, and the product of a 16-bit scale and the
//! integers has no more bits than a float (11 + 8 + 5 in `Q6_K`). Only subtracting or adding an offset rounds, once.

use std::marker::PhantomData;

use pulp::{Simd, WithSimd};

use super::integers::{
    UP, as_block, bits, eight, five_bits, floats, fours, half, halves, signed, special, splat_half, to_fourth,
    with_upper,
};
use crate::cpu::dispatch_halves;
#[cfg(target_arch = "x86_64")]
use crate::cpu::has_f16c;

/// Values that are widened together: a block of ggml's, or an eighth of one in the `K` formats. Formats without blocks are read in pieces of
/// this length.
pub(crate) const PIECE: usize = 32;

/// Pieces in a block of the `K` formats.
pub(super) const EIGHT: usize = 8;

/// How the values of a row are stored. The names of block formats are ggml's.
#[allow(non_camel_case_types)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    F32,
    F16,
    Bf16,
    Q8_0,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q4_K,
    Q5_K,
    Q6_K,
}

/// A format as a type: loops over blocks are compiled for it.
pub(crate) trait Layout {
    const PIECES: usize = 1;
    const BYTES: usize;
    /// Scale and offset of integers.
    type Scales<S: Simd>;
    /// Scales of a block of [`Self::BYTES`] bytes.
    fn scales<S: Simd>(simd: S, block: &[u8]) -> Self::Scales<S>;
    /// The values of a piece of the block.
    fn widen<S: Simd>(simd: S, block: &[u8], scales: &Self::Scales<S>, piece: usize) -> [f32; PIECE];
    /// How blocks of integers are multiplied by integers, for formats that have them: a value is
    /// `(integer − 2^below) · scale + offset`.
    const INTEGERS: Option<IntegerLayout> = None;
    /// Scales of the values of a block, one per piece or per half of one, and offsets of its pieces. By default a block begins with one
    /// 16-bit scale and, if it has offsets, one 16-bit offset.
    #[inline(always)]
    fn factors<S: Simd>(block: &[u8]) -> ([f32; 2 * EIGHT], [f32; EIGHT]) {
        let offset = match Self::INTEGERS {
            Some(IntegerLayout { offsets: true, .. }) => half::<S>(bits(block, 1)),
            _ => 0.0,
        };
        ([half::<S>(bits(block, 0)); 2 * EIGHT], [offset; EIGHT])
    }
    /// The integers of a piece.
    fn integers<S: Simd>(_block: &[u8], _piece: usize) -> [u8; PIECE] {
        [0; PIECE]
    }
    /// A row of floats, in the processor's byte order.
    fn floats(_row: &[u8]) -> Option<&[f32]> {
        None
    }
}

/// See [`Layout::INTEGERS`].
#[derive(Clone, Copy)]
pub(crate) struct IntegerLayout {
    /// Logarithm to base 2 of what is subtracted from integers, if anything is.
    pub below: Option<i32>,
    /// Each half of a piece has its own scale.
    pub halves: bool,
    pub offsets: bool,
}

/// Evaluates an expression with `$layout` as the [`Layout`] of a [`Format`].
macro_rules! with_layout {
    ($format:expr, $layout:ident => $work:expr) => {
        with_layout!($format, $layout => $work, F32 F32, F16 F16, Bf16 Bf16, Q8_0 Q8, Q4_0 Q4, Q4_1 Q4Offset, Q5_0 Q5,
            Q5_1 Q5Offset, Q4_K Q4K, Q5_K Q5K, Q6_K Q6K)
    };
    ($format:expr, $layout:ident => $work:expr, $($name:ident $of:ident),*) => {
        match $format {
            $($crate::stored::formats::Format::$name => {
                type $layout = $crate::stored::formats::$of;
                $work
            })*
        }
    };
}
pub(crate) use with_layout;

pub(crate) struct F32;
pub(crate) struct F16;
pub(crate) struct Bf16;
pub(crate) struct Q8;
pub(crate) struct Q4;
pub(crate) struct Q4Offset;
pub(crate) struct Q5;
pub(crate) struct Q5Offset;
/// A `K` format with offsets, by the bytes of a block.
pub(crate) struct OffsetK<const BLOCK: usize>;
pub(crate) type Q4K = OffsetK<OF_Q4K>;
pub(crate) type Q5K = OffsetK<{ OF_Q4K + PIECE }>;
pub(crate) struct Q6K;

/// Bytes of a block of `Q4_K`. One of `Q5_K` has 32 bytes of fifth bits before the lower four.
const OF_Q4K: usize = 16 + EIGHT * PIECE / 2;

/// Scale and offset of a block of one piece.
type Affine<S> = [<S as Simd>::f32s; 2];

/// `integer · scale + offset`, rounded once.
#[inline(always)]
fn affine<S: Simd>(simd: S, mut integers: [f32; PIECE], [scale, offset]: Affine<S>) -> [f32; PIECE] {
    let (values, _) = S::as_mut_simd_f32s(&mut integers);
    for value in values {
        *value = simd.mul_add_f32s(*value, scale, offset);
    }
    integers
}

/// `integer · scale`, each half of the piece with its own scale. The offsets of `Q4_0`, `Q5_0` and `Q6_K` are integers: they are subtracted
/// before, so that zeros have the same sign as in ggml.
#[inline(always)]
fn scaled<S: Simd>(simd: S, mut integers: [f32; PIECE], scales: [S::f32s; 2]) -> [f32; PIECE] {
    let (values, _) = S::as_mut_simd_f32s(&mut integers);
    for (i, value) in values.iter_mut().enumerate() {
        *value = simd.mul_f32s(*value, scales[i * S::F32_LANES / (PIECE / 2)]);
    }
    integers
}

impl Layout for F32 {
    const BYTES: usize = 4 * PIECE;

    type Scales<S: Simd> = ();

    #[inline(always)]
    fn scales<S: Simd>(_: S, _: &[u8]) {}

    #[inline(always)]
    fn widen<S: Simd>(_: S, block: &[u8], _: &(), _: usize) -> [f32; PIECE] {
        let block = as_block::<{ F32::BYTES }>(block);
        std::array::from_fn(|i| {
            f32::from_le_bytes([block[4 * i], block[4 * i + 1], block[4 * i + 2], block[4 * i + 3]])
        })
    }

    fn floats(row: &[u8]) -> Option<&[f32]> {
        if cfg!(target_endian = "little") { bytemuck::try_cast_slice(row).ok() } else { None }
    }
}

impl Layout for F16 {
    const BYTES: usize = 2 * PIECE;

    type Scales<S: Simd> = ();

    #[inline(always)]
    fn scales<S: Simd>(_: S, _: &[u8]) {}

    /// Three passes over the block: a single expression per value is not vectorised and is four times slower.
    #[inline(always)]
    fn widen<S: Simd>(_: S, block: &[u8], _: &(), _: usize) -> [f32; PIECE] {
        let block = as_block::<{ F16::BYTES }>(block);
        #[cfg(target_arch = "x86_64")]
        if has_f16c::<S>() {
            use std::arch::x86_64::{__m128i, __m256, _mm256_cvtph_ps, _mm256_setzero_ps};
            use std::mem::transmute;
            let (eights, _) = block.as_chunks::<16>();
            #[allow(unsafe_code)]
            // SAFETY: the processor has the instruction; sixteen bytes are eight halves, and four vectors of eight are a piece.
            return unsafe {
                let mut out = [_mm256_setzero_ps(); PIECE / 8];
                for (out, eight) in out.iter_mut().zip(eights) {
                    *out = _mm256_cvtph_ps(transmute::<[u8; 16], __m128i>(*eight));
                }
                transmute::<[__m256; PIECE / 8], [f32; PIECE]>(out)
            };
        }
        let wide: [u32; PIECE] = std::array::from_fn(|i| u32::from(bits(block, i)));
        let mut out = [0.0; PIECE];
        for (out, wide) in out.iter_mut().zip(&wide) {
            *out = f32::from_bits((wide & 0x7fff) << 13) * UP;
        }
        for (out, wide) in out.iter_mut().zip(&wide) {
            *out = f32::from_bits(out.to_bits() | special(*wide));
        }
        out
    }
}

impl Layout for Bf16 {
    const BYTES: usize = 2 * PIECE;

    type Scales<S: Simd> = ();

    #[inline(always)]
    fn scales<S: Simd>(_: S, _: &[u8]) {}

    #[inline(always)]
    fn widen<S: Simd>(_: S, block: &[u8], _: &(), _: usize) -> [f32; PIECE] {
        let block = as_block::<{ Bf16::BYTES }>(block);
        std::array::from_fn(|i| f32::from_bits(u32::from(bits(block, i)) << 16))
    }
}

impl Layout for Q8 {
    const BYTES: usize = 2 + PIECE;
    type Scales<S: Simd> = S::f32s;

    #[inline(always)]
    fn scales<S: Simd>(simd: S, block: &[u8]) -> S::f32s {
        splat_half(simd, bits(block, 0))
    }

    #[inline(always)]
    fn widen<S: Simd>(simd: S, block: &[u8], scale: &S::f32s, _: usize) -> [f32; PIECE] {
        let block = as_block::<{ Q8::BYTES }>(block);
        scaled(simd, signed(as_block(&block[2..]), 0), [*scale; 2])
    }

    const INTEGERS: Option<IntegerLayout> = Some(IntegerLayout { below: Some(7), halves: false, offsets: false });

    #[inline(always)]
    fn integers<S: Simd>(block: &[u8], _: usize) -> [u8; PIECE] {
        let mut integers = *as_block::<PIECE>(&block[2..]);
        integers.iter_mut().for_each(|integer| *integer ^= 1 << 7);
        integers
    }
}

impl Layout for Q4 {
    const BYTES: usize = 2 + PIECE / 2;
    type Scales<S: Simd> = S::f32s;

    #[inline(always)]
    fn scales<S: Simd>(simd: S, block: &[u8]) -> S::f32s {
        splat_half(simd, bits(block, 0))
    }

    #[inline(always)]
    fn widen<S: Simd>(simd: S, block: &[u8], scale: &S::f32s, _: usize) -> [f32; PIECE] {
        let block = as_block::<{ Q4::BYTES }>(block);
        scaled(simd, fours::<S>(&block[2..], 8), [*scale; 2])
    }

    const INTEGERS: Option<IntegerLayout> = Some(IntegerLayout { below: Some(3), halves: false, offsets: false });

    #[inline(always)]
    fn integers<S: Simd>(block: &[u8], _: usize) -> [u8; PIECE] {
        halves::<S>(&block[2..])
    }
}

impl Layout for Q4Offset {
    const BYTES: usize = 4 + PIECE / 2;
    type Scales<S: Simd> = Affine<S>;

    #[inline(always)]
    fn scales<S: Simd>(simd: S, block: &[u8]) -> Affine<S> {
        let scale = splat_half(simd, bits(block, 0));
        [scale, splat_half(simd, bits(block, 1))]
    }

    #[inline(always)]
    fn widen<S: Simd>(simd: S, block: &[u8], scales: &Affine<S>, _: usize) -> [f32; PIECE] {
        let block = as_block::<{ Q4Offset::BYTES }>(block);
        affine(simd, fours::<S>(&block[4..], 0), *scales)
    }

    const INTEGERS: Option<IntegerLayout> = Some(IntegerLayout { below: None, halves: false, offsets: true });

    #[inline(always)]
    fn integers<S: Simd>(block: &[u8], _: usize) -> [u8; PIECE] {
        halves::<S>(&block[4..])
    }
}

impl Layout for Q5 {
    const BYTES: usize = 6 + PIECE / 2;
    type Scales<S: Simd> = S::f32s;

    #[inline(always)]
    fn scales<S: Simd>(simd: S, block: &[u8]) -> S::f32s {
        splat_half(simd, bits(block, 0))
    }

    #[inline(always)]
    fn widen<S: Simd>(simd: S, block: &[u8], scale: &S::f32s, _: usize) -> [f32; PIECE] {
        let block = as_block::<{ Q5::BYTES }>(block);
        scaled(simd, signed(&five_bits::<S>(&block[2..]), 16), [*scale; 2])
    }

    const INTEGERS: Option<IntegerLayout> = Some(IntegerLayout { below: Some(4), halves: false, offsets: false });

    #[inline(always)]
    fn integers<S: Simd>(block: &[u8], _: usize) -> [u8; PIECE] {
        five_bits::<S>(&block[2..])
    }
}

impl Layout for Q5Offset {
    const BYTES: usize = 8 + PIECE / 2;
    type Scales<S: Simd> = Affine<S>;

    #[inline(always)]
    fn scales<S: Simd>(simd: S, block: &[u8]) -> Affine<S> {
        let scale = splat_half(simd, bits(block, 0));
        [scale, splat_half(simd, bits(block, 1))]
    }

    #[inline(always)]
    fn widen<S: Simd>(simd: S, block: &[u8], scales: &Affine<S>, _: usize) -> [f32; PIECE] {
        let block = as_block::<{ Q5Offset::BYTES }>(block);
        affine(simd, floats::<S>(&five_bits::<S>(&block[4..])), *scales)
    }

    const INTEGERS: Option<IntegerLayout> = Some(IntegerLayout { below: None, halves: false, offsets: true });

    #[inline(always)]
    fn integers<S: Simd>(block: &[u8], _: usize) -> [u8; PIECE] {
        five_bits::<S>(&block[4..])
    }
}

/// `[scale, offset]` of each piece of `Q4_K` and `Q5_K`. A block begins with the 16-bit scales of the two, then come eight scales and eight
/// offsets of 6 bits in 12 bytes: whole for the first four pieces; for the others four bits of both in the last four bytes and two above
/// those of the first four. Offsets are subtracted.
#[inline(always)]
fn scales_and_offsets<S: Simd>(block: &[u8]) -> [[f32; EIGHT]; 2] {
    let packed = as_block::<12>(&block[4..]);
    let four = |i: usize| u32::from_le_bytes([packed[4 * i], packed[4 * i + 1], packed[4 * i + 2], packed[4 * i + 3]]);
    let (scales, offsets, low) = (four(0), four(1), four(2));
    let upper = |six: u32| six >> 2 & 0x3030_3030;
    let joined = |first: u32, second: u32| u64::from(second) << 32 | u64::from(first);
    [
        eight::<S>(joined(scales & 0x3f3f_3f3f, low & 0x0f0f_0f0f | upper(scales)), half::<S>(bits(block, 0))),
        eight::<S>(joined(offsets & 0x3f3f_3f3f, low >> 4 & 0x0f0f_0f0f | upper(offsets)), -half::<S>(bits(block, 1))),
    ]
}

impl<const BLOCK: usize> Layout for OffsetK<BLOCK> {
    const PIECES: usize = EIGHT;
    const BYTES: usize = BLOCK;
    type Scales<S: Simd> = [[f32; EIGHT]; 2];

    #[inline(always)]
    fn scales<S: Simd>(_: S, block: &[u8]) -> Self::Scales<S> {
        scales_and_offsets::<S>(block)
    }

    #[inline(always)]
    fn widen<S: Simd>(simd: S, block: &[u8], scales: &Self::Scales<S>, piece: usize) -> [f32; PIECE] {
        let block = as_block::<BLOCK>(block);
        affine(
            simd,
            floats::<S>(&Self::integers::<S>(block, piece)),
            [simd.splat_f32s(scales[0][piece]), simd.splat_f32s(scales[1][piece])],
        )
    }

    const INTEGERS: Option<IntegerLayout> = Some(IntegerLayout { below: None, halves: false, offsets: true });

    #[inline(always)]
    fn factors<S: Simd>(block: &[u8]) -> ([f32; 2 * EIGHT], [f32; EIGHT]) {
        let [scales, offsets] = scales_and_offsets::<S>(block);
        let mut both = [0.0; 2 * EIGHT];
        both[..EIGHT].copy_from_slice(&scales);
        (both, offsets)
    }

    /// Two pieces share 32 bytes, the first has the low halves. In `Q5_K` bit `piece` of byte i of the fifth bits is that of value i.
    #[inline(always)]
    fn integers<S: Simd>(block: &[u8], piece: usize) -> [u8; PIECE] {
        if BLOCK == OF_Q4K {
            return with_upper::<S>(&block[16 + piece / 2 * PIECE..], piece % 2 * 4, &[0; PIECE], [0; 2], 0);
        }
        let low = &block[16 + PIECE + piece / 2 * PIECE..];
        with_upper::<S>(low, piece % 2 * 4, &block[16..], to_fourth(piece), 16)
    }
}

impl Layout for Q6K {
    const PIECES: usize = EIGHT;
    const BYTES: usize = 2 + EIGHT * 2 + EIGHT * PIECE * 3 / 4;
    type Scales<S: Simd> = [f32; 2 * EIGHT];

    /// The integers of all pieces are followed by 16 signed scales, one per 16 values, and their 16-bit scale.
    #[inline(always)]
    fn scales<S: Simd>(_: S, block: &[u8]) -> Self::Scales<S> {
        Self::factors::<S>(block).0
    }

    /// Four pieces share 64 bytes of low halves (two the low four bits, two the high) and 32 bytes of upper pairs of bits.
    #[inline(always)]
    fn widen<S: Simd>(simd: S, block: &[u8], scales: &Self::Scales<S>, piece: usize) -> [f32; PIECE] {
        scaled(
            simd,
            signed(&Self::integers::<S>(block, piece), 32),
            [simd.splat_f32s(scales[2 * piece]), simd.splat_f32s(scales[2 * piece + 1])],
        )
    }

    const INTEGERS: Option<IntegerLayout> = Some(IntegerLayout { below: Some(5), halves: true, offsets: false });

    #[inline(always)]
    fn factors<S: Simd>(block: &[u8]) -> ([f32; 2 * EIGHT], [f32; EIGHT]) {
        let scales = as_block::<{ 2 * EIGHT + 2 }>(&block[EIGHT * PIECE * 3 / 4..]);
        let by = half::<S>(bits(scales, EIGHT));
        let mut out = [0.0; 2 * EIGHT];
        for (scale, integer) in out.iter_mut().zip(scales) {
            *scale = by * f32::from(*integer as i8);
        }
        (out, [0.0; EIGHT])
    }

    #[inline(always)]
    fn integers<S: Simd>(block: &[u8], piece: usize) -> [u8; PIECE] {
        let (quarter, at) = (piece % 4, piece / 4 * PIECE);
        let (low, high) = (&block[2 * at + quarter % 2 * PIECE..], &block[EIGHT * PIECE / 2 + at..]);
        with_upper::<S>(low, quarter / 2 * 4, high, to_fourth(2 * quarter), 48)
    }
}

impl Format {
    pub const ALL: [Self; 11] = {
        use Format::*;
        [F32, F16, Bf16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K]
    };

    /// Values that are stored together.
    pub fn block_len(self) -> usize {
        match self {
            Format::F32 | Format::F16 | Format::Bf16 => 1,
            _ => with_layout!(self, L => L::PIECES) * PIECE,
        }
    }

    /// Bytes of [`Self::block_len`] values.
    pub fn block_bytes(self) -> usize {
        with_layout!(self, L => L::BYTES * self.block_len() / (L::PIECES * PIECE))
    }

    /// Bytes of a row; `None` if `width` is not a whole number of blocks.
    pub fn row_bytes(self, width: usize) -> Option<usize> {
        (width.is_multiple_of(self.block_len()))
            .then(|| width / self.block_len())
            .and_then(|blocks| blocks.checked_mul(self.block_bytes()))
    }

    /// Widens a row. Outputs beyond `bytes` are unchanged.
    pub fn widen(self, bytes: &[u8], out: &mut [f32]) {
        with_layout!(self, L => dispatch_halves(Widen::<L> { bytes, out, layout: PhantomData }));
    }
}

/// Compiled for the processor's vectors: in a batch of a hundred rows widening is as much work as the product.
struct Widen<'a, L> {
    bytes: &'a [u8],
    out: &'a mut [f32],
    layout: PhantomData<L>,
}

impl<L: Layout> WithSimd for Widen<'_, L> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        widen::<S, L>(simd, self.bytes, self.out);
    }
}

/// Piece by piece; the last one may be shorter in formats without blocks.
#[inline(always)]
fn widen<S: Simd, L: Layout>(simd: S, bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks(L::BYTES).zip(out.chunks_mut(L::PIECES * PIECE)) {
        let (pieces, rest) = if block.len() == L::BYTES { out.as_chunks_mut::<PIECE>() } else { (&mut [][..], out) };
        if !pieces.is_empty() {
            let scales = L::scales(simd, block);
            for (piece, out) in pieces.iter_mut().enumerate() {
                *out = L::widen(simd, block, &scales, piece);
            }
        }
        if L::PIECES == 1 && !rest.is_empty() {
            let held = (block.len() * PIECE / L::BYTES).min(rest.len());
            rest[..held].copy_from_slice(&cut_short::<S, L>(simd, block)[..held]);
        }
    }
}

/// The values of a shortened piece, padded with zeros. For formats whose blocks are one piece.
#[inline(always)]
pub(crate) fn cut_short<S: Simd, L: Layout>(simd: S, block: &[u8]) -> [f32; PIECE] {
    let mut whole = [0; 4 * PIECE];
    whole[..block.len()].copy_from_slice(block);
    L::widen(simd, &whole, &L::scales(simd, &whole), 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::tests::with_each;

    /// Every half alone, and as the values of a matrix.
    struct EveryHalf;

    impl WithSimd for EveryHalf {
        type Output = Vec<[f32; 2]>;

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) -> Vec<[f32; 2]> {
            let mut out = vec![];
            for h in 0..=u16::MAX {
                out.push([
                    half::<S>(h),
                    F16::widen(simd, &h.to_le_bytes().repeat(PIECE), &(), 0)[usize::from(h) % PIECE],
                ]);
            }
            out
        }
    }

    #[test]
    fn every_half_is_the_float_of_the_crate() {
        for (cpu, found) in with_each(|| dispatch_halves(EveryHalf)) {
            for (h, found) in (0..=u16::MAX).zip(found) {
                let theirs = half::f16::from_bits(h).to_f32();
                let is_theirs = |ours: f32| ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan());
                assert!(found.into_iter().all(is_theirs), "{h:#x} with {cpu:?}: {found:?} is not {theirs}");
            }
        }
    }
}
