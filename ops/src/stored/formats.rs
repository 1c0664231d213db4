//! How the values of a row are stored, and how they become floats.
//!
//! Block formats are ggml's (`ggml-quants.c`): 32 values share a 16-bit scale, and in `Q4_1` and `Q5_1` an offset. In the
//! `K` formats 256 values share a 16-bit scale of scales: each 32 (in `Q6_K` 16) have a small integer scale of their own, and
//! in `Q4_K` and `Q5_K` an offset. Widening is exact: a bf16 or f16 is a float, and the product of a 16-bit scale and the
//! integers has no more digits than a float holds (11 + 8 + 5 bits in `Q6_K`). Only subtracting or adding an offset rounds, once.

use std::marker::PhantomData;

use pulp::{Simd, WithSimd};

use crate::cpu::dispatch_halves;
#[cfg(target_arch = "x86_64")]
use crate::cpu::has_f16c;

/// Values that are widened together: a block of ggml's, or an eighth of one in the `K` formats. Formats without blocks are
/// read in pieces of as many.
pub(crate) const PIECE: usize = 32;

/// Pieces in a block of the `K` formats.
const EIGHT: usize = 8;

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

/// A format known to the compiler: what loops over blocks are compiled for.
pub(crate) trait Layout {
    const PIECES: usize = 1;
    const BYTES: usize;
    /// The values of a piece of a block of [`Self::BYTES`] bytes.
    fn widen<S: Simd>(block: &[u8], piece: usize) -> [f32; PIECE];
    /// A row whose bytes are floats already, where they lie as the processor reads floats.
    fn floats(_row: &[u8]) -> Option<&[f32]> {
        None
    }
}

/// Runs an expression with `$layout` standing for the [`Layout`] of a [`Format`].
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
pub(crate) struct Q4K;
pub(crate) struct Q5K;
pub(crate) struct Q6K;

/// A block as an array: of a slice, whatever its length, loops over the values are not vectorised (six times as slow). Nor are most
/// closures that make an array, which are compiled apart from the loop around them: integers first, in a loop, then floats.
#[inline(always)]
fn whole<const N: usize>(block: &[u8]) -> &[u8; N] {
    block.first_chunk().unwrap_or(const { &[0; N] })
}

/// The 16 bits at byte `2 i`.
#[inline(always)]
fn bits(block: &[u8], i: usize) -> u16 {
    u16::from_le_bytes([block[2 * i], block[2 * i + 1]])
}

/// The exponent of an f16 is 112 below the one that the same bits mean in a float.
const UP: f32 = f32::from_bits((127 + 112) << 23);

/// The sign of an f16, and the exponent of an infinity or a NaN, where they stand in a float.
#[inline(always)]
fn special(h: u32) -> u32 {
    let exponent = if h & 0x7fff >= 0x7c00 { 0x7f80_0000 } else { 0 };
    exponent | (h & 0x8000) << 16
}

/// An f16 as a float, exactly.
#[inline(always)]
fn half<S: Simd>(h: u16) -> f32 {
    #[cfg(target_arch = "x86_64")]
    if has_f16c::<S>() {
        use std::arch::x86_64::{_mm_cvtph_ps, _mm_cvtsi32_si128, _mm_cvtss_f32};
        let mut wide = i32::from(h);
        // Hides that the upper half is zero: rustc would put the half into a register that held the scale before, and so wait for the
        // last block's product with it. A block took twice as long.
        #[allow(unsafe_code)]
        // SAFETY: no instruction at all.
        unsafe {
            std::arch::asm!("/* {0:e} */", inout(reg) wide, options(pure, nomem, nostack, preserves_flags));
        }
        #[allow(unsafe_code)]
        // SAFETY: the processor has the instruction.
        return unsafe { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(wide))) };
    }
    let h = u32::from(h);
    f32::from_bits((f32::from_bits((h & 0x7fff) << 13) * UP).to_bits() | special(h))
}

/// The 32 halves of 16 bytes: low halves first.
#[inline(always)]
fn halves(packed: &[u8]) -> [u8; PIECE] {
    let packed = whole::<{ PIECE / 2 }>(packed);
    let mut out = [0; PIECE];
    let (low, high) = out.split_at_mut(PIECE / 2);
    low.iter_mut().zip(packed).for_each(|(out, byte)| *out = byte & 15);
    high.iter_mut().zip(packed).for_each(|(out, byte)| *out = byte >> 4);
    out
}

impl Layout for F32 {
    const BYTES: usize = 4 * PIECE;

    #[inline(always)]
    fn widen<S: Simd>(block: &[u8], _: usize) -> [f32; PIECE] {
        let block = whole::<{ F32::BYTES }>(block);
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

    /// In three passes over the block: as one expression a value, it is not vectorised and takes four times as long.
    #[inline(always)]
    fn widen<S: Simd>(block: &[u8], _: usize) -> [f32; PIECE] {
        let block = whole::<{ F16::BYTES }>(block);
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

    #[inline(always)]
    fn widen<S: Simd>(block: &[u8], _: usize) -> [f32; PIECE] {
        let block = whole::<{ Bf16::BYTES }>(block);
        std::array::from_fn(|i| f32::from_bits(u32::from(bits(block, i)) << 16))
    }
}

impl Layout for Q8 {
    const BYTES: usize = 2 + PIECE;

    #[inline(always)]
    fn widen<S: Simd>(block: &[u8], _: usize) -> [f32; PIECE] {
        let block = whole::<{ Q8::BYTES }>(block);
        let scale = half::<S>(bits(block, 0));
        let mut out = [0.0; PIECE];
        for (out, quant) in out.iter_mut().zip(&block[2..]) {
            *out = f32::from(*quant as i8) * scale;
        }
        out
    }
}

impl Layout for Q4 {
    const BYTES: usize = 2 + PIECE / 2;

    #[inline(always)]
    fn widen<S: Simd>(block: &[u8], _: usize) -> [f32; PIECE] {
        let block = whole::<{ Q4::BYTES }>(block);
        let scale = half::<S>(bits(block, 0));
        let mut out = [0.0; PIECE];
        for (out, quant) in out.iter_mut().zip(halves(&block[2..])) {
            *out = f32::from(quant as i8 - 8) * scale;
        }
        out
    }
}

impl Layout for Q4Offset {
    const BYTES: usize = 4 + PIECE / 2;

    #[inline(always)]
    fn widen<S: Simd>(block: &[u8], _: usize) -> [f32; PIECE] {
        let block = whole::<{ Q4Offset::BYTES }>(block);
        let (scale, offset) = (half::<S>(bits(block, 0)), half::<S>(bits(block, 1)));
        let mut out = [0.0; PIECE];
        for (out, quant) in out.iter_mut().zip(halves(&block[4..])) {
            *out = f32::from(quant) * scale + offset;
        }
        out
    }
}

/// 32 values whose low four bits are packed as [`halves`] says, and whose fifth is bit `i` of the four bytes before them.
#[inline(always)]
fn five_bits(packed: &[u8]) -> [u8; PIECE] {
    let high = whole::<{ PIECE / 8 }>(packed);
    let mut out = halves(&packed[PIECE / 8..]);
    let spread: [u8; PIECE] = std::array::from_fn(|i| high[i / 8]);
    let bit: [u8; PIECE] = std::array::from_fn(|i| 1 << (i % 8));
    for i in 0..PIECE {
        out[i] |= if spread[i] & bit[i] == 0 { 0 } else { 16 };
    }
    out
}

impl Layout for Q5 {
    const BYTES: usize = 6 + PIECE / 2;

    #[inline(always)]
    fn widen<S: Simd>(block: &[u8], _: usize) -> [f32; PIECE] {
        let block = whole::<{ Q5::BYTES }>(block);
        let scale = half::<S>(bits(block, 0));
        let mut out = [0.0; PIECE];
        for (out, quant) in out.iter_mut().zip(five_bits(&block[2..])) {
            *out = f32::from(quant as i8 - 16) * scale;
        }
        out
    }
}

impl Layout for Q5Offset {
    const BYTES: usize = 8 + PIECE / 2;

    #[inline(always)]
    fn widen<S: Simd>(block: &[u8], _: usize) -> [f32; PIECE] {
        let block = whole::<{ Q5Offset::BYTES }>(block);
        let (scale, offset) = (half::<S>(bits(block, 0)), half::<S>(bits(block, 1)));
        let mut out = [0.0; PIECE];
        for (out, quant) in out.iter_mut().zip(five_bits(&block[4..])) {
            *out = f32::from(quant) * scale + offset;
        }
        out
    }
}

/// What all of a piece of `Q4_K` and `Q5_K` share: `[scale, offset]`. A block begins with the 16-bit scales of the two, then
/// come eight scales and eight offsets of 6 bits in 12 bytes: whole for the first four pieces, for the others four bits of
/// both in the last four bytes and two above those of the first four.
#[inline(always)]
fn scale_and_offset<S: Simd>(block: &[u8], piece: usize) -> [f32; 2] {
    let packed = whole::<12>(&block[4..]);
    let [scale, offset] = match piece {
        0..4 => [packed[piece] & 63, packed[piece + 4] & 63],
        4..EIGHT => {
            let low = packed[piece + 4];
            [low & 15 | packed[piece - 4] >> 6 << 4, low >> 4 | packed[piece] >> 6 << 4]
        }
        _ => [0; 2],
    };
    [half::<S>(bits(block, 0)) * f32::from(scale), half::<S>(bits(block, 1)) * f32::from(offset)]
}

/// The four bits of each value of a piece: two pieces share 32 bytes, the first has the low halves.
#[inline(always)]
fn nibbles(packed: &[u8], piece: usize) -> [u8; PIECE] {
    let packed = whole::<PIECE>(&packed[piece / 2 * PIECE..]);
    let mut out = [0; PIECE];
    match piece % 2 {
        0 => out.iter_mut().zip(packed).for_each(|(out, byte)| *out = byte & 15),
        _ => out.iter_mut().zip(packed).for_each(|(out, byte)| *out = byte >> 4),
    }
    out
}

#[inline(always)]
fn scaled(quants: &[u8; PIECE], [scale, offset]: [f32; 2]) -> [f32; PIECE] {
    let mut out = [0.0; PIECE];
    for (out, quant) in out.iter_mut().zip(quants) {
        *out = f32::from(*quant) * scale - offset;
    }
    out
}

impl Layout for Q4K {
    const PIECES: usize = EIGHT;
    const BYTES: usize = 16 + EIGHT * PIECE / 2;

    #[inline(always)]
    fn widen<S: Simd>(block: &[u8], piece: usize) -> [f32; PIECE] {
        let block = whole::<{ Q4K::BYTES }>(block);
        scaled(&nibbles(&block[16..], piece), scale_and_offset::<S>(block, piece))
    }
}

impl Layout for Q5K {
    const PIECES: usize = EIGHT;
    const BYTES: usize = 16 + PIECE + EIGHT * PIECE / 2;

    /// Bit `piece` of byte i is the fifth bit of value i.
    #[inline(always)]
    fn widen<S: Simd>(block: &[u8], piece: usize) -> [f32; PIECE] {
        let block = whole::<{ Q5K::BYTES }>(block);
        let mut quants = nibbles(&block[16 + PIECE..], piece);
        let bit = 1 << piece;
        for (quant, high) in quants.iter_mut().zip(whole::<PIECE>(&block[16..])) {
            *quant |= if high & bit == 0 { 0 } else { 16 };
        }
        scaled(&quants, scale_and_offset::<S>(block, piece))
    }
}

impl Layout for Q6K {
    const PIECES: usize = EIGHT;
    const BYTES: usize = 2 + EIGHT * 2 + EIGHT * PIECE * 3 / 4;

    /// Four pieces share 64 bytes of low halves (two the low four bits, two the high) and 32 bytes of upper pairs of bits;
    /// behind those of all pieces stand 16 signed scales, one for 16 values, and the 16-bit scale of them.
    #[inline(always)]
    fn widen<S: Simd>(block: &[u8], piece: usize) -> [f32; PIECE] {
        let block = whole::<{ Q6K::BYTES }>(block);
        let (quarter, at) = (piece % 4, piece / 4 * PIECE);
        let low = whole::<PIECE>(&block[2 * at + quarter % 2 * PIECE..]);
        let high = whole::<PIECE>(&block[EIGHT * PIECE / 2 + at..]);
        let scales = &block[EIGHT * PIECE * 3 / 4..];
        let mut quants = [0; PIECE];
        match quarter / 2 {
            0 => quants.iter_mut().zip(low).for_each(|(quant, low)| *quant = low & 15),
            _ => quants.iter_mut().zip(low).for_each(|(quant, low)| *quant = low >> 4),
        }
        let upper = |shift: fn(u8) -> u8, quants: &mut [u8; PIECE]| {
            quants.iter_mut().zip(high).for_each(|(quant, high)| *quant |= shift(*high));
        };
        match quarter {
            0 => upper(|high| (high & 3) << 4, &mut quants),
            1 => upper(|high| (high & 12) << 2, &mut quants),
            2 => upper(|high| high & 48, &mut quants),
            _ => upper(|high| (high & 192) >> 2, &mut quants),
        }
        let mut out = [0.0; PIECE];
        for part in 0..2 {
            let scale = half::<S>(bits(scales, EIGHT)) * f32::from(scales[2 * piece + part] as i8);
            for (out, quant) in out[16 * part..][..16].iter_mut().zip(&quants[16 * part..]) {
                *out = f32::from(*quant as i8 - 32) * scale;
            }
        }
        out
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

    /// Bytes of a row; `None` where `width` is not whole blocks.
    pub fn row_bytes(self, width: usize) -> Option<usize> {
        (width.is_multiple_of(self.block_len()))
            .then(|| width / self.block_len())
            .and_then(|blocks| blocks.checked_mul(self.block_bytes()))
    }

    /// A row to floats. What `bytes` does not reach is left as it is.
    pub fn widen(self, bytes: &[u8], out: &mut [f32]) {
        with_layout!(self, L => dispatch_halves(Widen::<L> { bytes, out, layout: PhantomData }));
    }
}

/// Compiled for the vectors that the processor has: in a batch of a hundred rows widening is as much work as the product.
struct Widen<'a, L> {
    bytes: &'a [u8],
    out: &'a mut [f32],
    layout: PhantomData<L>,
}

impl<L: Layout> WithSimd for Widen<'_, L> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        widen::<S, L>(self.bytes, self.out);
    }
}

/// Piece by piece; the last one may be cut short in formats without blocks.
#[inline(always)]
fn widen<S: Simd, L: Layout>(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks(L::BYTES).zip(out.chunks_mut(L::PIECES * PIECE)) {
        for (piece, out) in out.chunks_mut(PIECE).enumerate() {
            match <&mut [f32; PIECE]>::try_from(&mut *out) {
                Ok(out) if block.len() == L::BYTES => *out = L::widen::<S>(block, piece),
                _ if L::PIECES == 1 => {
                    let held = (block.len() * PIECE / L::BYTES).min(out.len());
                    out[..held].copy_from_slice(&cut_short::<S, L>(block)[..held]);
                }
                _ => {}
            }
        }
    }
}

/// The values of a piece that is cut short, and zeros behind them. For formats whose blocks are one piece.
#[inline(always)]
pub(crate) fn cut_short<S: Simd, L: Layout>(block: &[u8]) -> [f32; PIECE] {
    let mut whole = [0; 4 * PIECE];
    whole[..block.len()].copy_from_slice(block);
    L::widen::<S>(&whole, 0)
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
        fn with_simd<S: Simd>(self, _simd: S) -> Vec<[f32; 2]> {
            let mut out = vec![];
            for h in 0..=u16::MAX {
                out.push([half::<S>(h), F16::widen::<S>(&h.to_le_bytes().repeat(PIECE), 0)[usize::from(h) % PIECE]]);
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
