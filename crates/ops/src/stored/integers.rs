//! 16-bit scales and packed integers as floats. Loops that are compiled for the processor's vectors, and hand-written ones for AVX2 (and, if
//! useful, AVX-512), because compilers vectorise less of them: the same values, bit for bit.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
#[cfg(target_arch = "x86_64")]
use std::mem::{transmute, transmute_copy};

use pulp::Simd;

use super::formats::{EIGHT, PIECE};
#[cfg(target_arch = "x86_64")]
use crate::cpu::has_f16c;

/// A block as an array: loops over the values of a slice are not vectorised (six times slower). Neither are most closures that return an
/// array, which are compiled separately from the surrounding loop: integers first, in a loop, then floats.
#[inline(always)]
pub(super) fn as_block<const N: usize>(block: &[u8]) -> &[u8; N] {
    block.first_chunk().unwrap_or(const { &[0; N] })
}

/// The 16 bits at byte `2 i`.
#[inline(always)]
pub(super) fn bits(block: &[u8], i: usize) -> u16 {
    u16::from_le_bytes([block[2 * i], block[2 * i + 1]])
}

/// The exponent of an f16 is 112 below that of the same bits as a float.
pub(super) const UP: f32 = f32::from_bits((127 + 112) << 23);

/// The sign of an f16, and the exponent of an infinity or a NaN, at their position in a float.
#[inline(always)]
pub(super) fn special(h: u32) -> u32 {
    let exponent = if h & 0x7fff >= 0x7c00 { 0x7f80_0000 } else { 0 };
    exponent | (h & 0x8000) << 16
}

/// An f16 as a float, exactly.
#[inline(always)]
pub(super) fn half<S: Simd>(h: u16) -> f32 {
    #[cfg(target_arch = "x86_64")]
    if has_f16c::<S>() {
        let mut wide = i32::from(h);
        // Hides that the upper half is zero: rustc would put the half into the register of the previous scale, and so wait for the previous
        // block's product. That doubled the time of a block.
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

/// An f16 as a float in every lane, exactly.
#[inline(always)]
pub(super) fn splat_half<S: Simd>(simd: S, h: u16) -> S::f32s {
    #[cfg(target_arch = "x86_64")]
    if has_f16c::<S>() && S::F32_LANES == 8 {
        #[allow(unsafe_code)]
        // SAFETY: the processor has the instructions, and S's vectors are of eight lanes.
        return unsafe { transmute_copy(&_mm256_cvtph_ps(_mm_set1_epi16(h as i16))) };
    }
    simd.splat_f32s(half::<S>(h))
}

/// Eight bytes as floats, times a scale.
#[inline(always)]
pub(super) fn eight<S: Simd>(bytes: u64, scale: f32) -> [f32; EIGHT] {
    #[cfg(target_arch = "x86_64")]
    if has_f16c::<S>() {
        #[allow(unsafe_code)]
        // SAFETY: the processor has AVX2; a vector of eight floats has the layout of an array of eight.
        return unsafe {
            let integers = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes as i64));
            transmute::<__m256, [f32; EIGHT]>(_mm256_mul_ps(_mm256_cvtepi32_ps(integers), _mm256_set1_ps(scale)))
        };
    }
    bytes.to_le_bytes().map(|integer| f32::from(integer) * scale)
}

/// Bytes as floats.
#[inline(always)]
pub(super) fn floats<S: Simd>(integers: &[u8; PIECE]) -> [f32; PIECE] {
    #[cfg(target_arch = "x86_64")]
    if has_f16c::<S>() && S::F32_LANES == 8 {
        #[allow(unsafe_code)]
        // SAFETY: the processor has AVX2; both sides of the transmute have the same size.
        return unsafe {
            let bytes = transmute::<[u8; PIECE], __m256i>(*integers);
            let both =
                [_mm256_permute4x64_epi64::<0b01_00_01_00>(bytes), _mm256_permute4x64_epi64::<0b11_10_11_10>(bytes)];
            let lanes = |from: i32| {
                let lane = |i: i32| (from + i) | !0xff;
                _mm256_setr_epi32(lane(0), lane(1), lane(2), lane(3), lane(4), lane(5), lane(6), lane(7))
            };
            let (first, second) = (lanes(0), lanes(8));
            transmute::<[__m256; PIECE / 8], [f32; PIECE]>([
                _mm256_cvtepi32_ps(_mm256_shuffle_epi8(both[0], first)),
                _mm256_cvtepi32_ps(_mm256_shuffle_epi8(both[0], second)),
                _mm256_cvtepi32_ps(_mm256_shuffle_epi8(both[1], first)),
                _mm256_cvtepi32_ps(_mm256_shuffle_epi8(both[1], second)),
            ])
        };
    }
    let mut out = [0.0; PIECE];
    for (out, integer) in out.iter_mut().zip(integers) {
        *out = f32::from(*integer);
    }
    out
}

/// Bytes minus `below` (the difference fits a signed byte) as floats.
#[inline(always)]
pub(super) fn signed(integers: &[u8; PIECE], below: u8) -> [f32; PIECE] {
    let mut out = [0.0; PIECE];
    for (out, integer) in out.iter_mut().zip(integers) {
        *out = f32::from(integer.wrapping_sub(below) as i8);
    }
    out
}

/// The integers of 4 bits in 16 bytes, lower halves first, less `below`, as floats.
#[inline(always)]
pub(super) fn fours<S: Simd>(packed: &[u8], below: u8) -> [f32; PIECE] {
    let packed = as_block::<{ PIECE / 2 }>(packed);
    #[cfg(target_arch = "x86_64")]
    if has_f16c::<S>() && S::F32_LANES == 8 {
        #[allow(unsafe_code)]
        // SAFETY: the processor has AVX2; both loads are of eight of sixteen bytes.
        return unsafe {
            let eight = |from: usize| _mm256_cvtepu8_epi32(_mm_loadl_epi64(packed.as_ptr().add(from).cast()));
            let (first, second) = (eight(0), eight(8));
            let (low, below) = (_mm256_set1_epi32(15), _mm256_set1_epi32(i32::from(below)));
            transmute::<[__m256; PIECE / 8], [f32; PIECE]>([
                _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_and_si256(first, low), below)),
                _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_and_si256(second, low), below)),
                _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_srli_epi32::<4>(first), below)),
                _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_srli_epi32::<4>(second), below)),
            ])
        };
    }
    signed(&halves::<S>(packed), below)
}

/// The 32 halves of 16 bytes: low halves first.
#[inline(always)]
pub(super) fn halves<S: Simd>(packed: &[u8]) -> [u8; PIECE] {
    let packed = as_block::<{ PIECE / 2 }>(packed);
    #[cfg(target_arch = "x86_64")]
    if has_f16c::<S>() {
        #[allow(unsafe_code)]
        // SAFETY: the processor has AVX2; both sides of the transmutes have the same size.
        return unsafe {
            transmute::<__m256i, [u8; PIECE]>(both_halves(transmute::<[u8; PIECE / 2], __m128i>(*packed)))
        };
    }
    let mut out = [0; PIECE];
    let (low, high) = out.split_at_mut(PIECE / 2);
    low.iter_mut().zip(packed).for_each(|(out, byte)| *out = byte & 15);
    high.iter_mut().zip(packed).for_each(|(out, byte)| *out = byte >> 4);
    out
}

/// The low halves of 16 bytes, then the high ones.
///
/// # Safety
/// The processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
#[inline(always)]
unsafe fn both_halves(packed: __m128i) -> __m256i {
    // SAFETY: as above.
    unsafe {
        let both = _mm256_srlv_epi32(_mm256_broadcastsi128_si256(packed), _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4));
        _mm256_and_si256(both, _mm256_set1_epi8(15))
    }
}

/// Integers of 5 bits: the lower four of each are packed as in [`fours`], the fifth is bit `i` of the four bytes before them.
#[inline(always)]
pub(super) fn five_bits<S: Simd>(packed: &[u8]) -> [u8; PIECE] {
    let (high, low) = (as_block::<{ PIECE / 8 }>(packed), as_block::<{ PIECE / 2 }>(&packed[PIECE / 8..]));
    #[cfg(target_arch = "x86_64")]
    if has_f16c::<S>() {
        #[allow(unsafe_code)]
        // SAFETY: the processor has AVX2; both sides of the transmute have the same size.
        return unsafe {
            let low = both_halves(transmute::<[u8; PIECE / 2], __m128i>(*low));
            let byte = |i: i64| i * 0x0101_0101_0101_0101;
            let bytes = _mm256_setr_epi64x(byte(0), byte(1), byte(2), byte(3));
            let high = _mm256_shuffle_epi8(_mm256_set1_epi32(i32::from_le_bytes(*high)), bytes);
            let bit = _mm256_set1_epi64x(i64::from_le_bytes([1, 2, 4, 8, 16, 32, 64, 128]));
            let is_set = _mm256_cmpeq_epi8(_mm256_and_si256(high, bit), bit);
            let fifth = _mm256_and_si256(is_set, _mm256_set1_epi8(16));
            transmute::<__m256i, [u8; PIECE]>(_mm256_or_si256(low, fifth))
        };
    }
    let mut out = halves::<S>(low);
    for (i, out) in out.iter_mut().enumerate() {
        *out |= (high[i / 8] >> (i % 8) & 1) << 4;
    }
    out
}

/// The four bits from bit `from` of each byte of `low`, and of `high` the bits that `mask` names, moved up, then down.
#[inline(always)]
pub(super) fn with_upper<S: Simd>(
    low: &[u8],
    from: usize,
    high: &[u8],
    [up, down]: [usize; 2],
    mask: u8,
) -> [u8; PIECE] {
    let (low, high) = (as_block::<PIECE>(low), as_block::<PIECE>(high));
    #[cfg(target_arch = "x86_64")]
    if has_f16c::<S>() {
        #[allow(unsafe_code)]
        // SAFETY: the processor has AVX2; both sides of the transmute have the same size.
        return unsafe {
            let count = |by: usize| _mm_cvtsi32_si128(by as i32);
            let low = _mm256_srl_epi16(transmute::<[u8; PIECE], __m256i>(*low), count(from));
            let high = _mm256_sll_epi16(transmute::<[u8; PIECE], __m256i>(*high), count(up));
            let high = _mm256_and_si256(_mm256_srl_epi16(high, count(down)), _mm256_set1_epi8(mask as i8));
            transmute::<__m256i, [u8; PIECE]>(_mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi8(15)), high))
        };
    }
    let mut out = [0; PIECE];
    for (i, out) in out.iter_mut().enumerate() {
        *out = low[i] >> from & 15 | high[i] << up >> down & mask;
    }
    out
}

/// Left and right shift by which [`with_upper`] moves bit `from` of a byte to bit 4, above the four of `low`.
#[inline(always)]
pub(super) fn to_fourth(from: usize) -> [usize; 2] {
    [4_usize.saturating_sub(from), from.saturating_sub(4)]
}
