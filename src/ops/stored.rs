//! Weight matrices kept in memory as files store them, and how a block of their values becomes floats. Products read them
//! as they lie (`fused::stored`); nothing here knows a tensor.
//!
//! Block formats are ggml's (`ggml-quants.c`): 32 values share a 16-bit scale, and an offset in `Q4_1`. Widening is exact: a
//! bf16 or f16 is a float, and a scale of 11 bits times an integer of 8 has no more digits than a float holds.

use std::ops::Range;

use anyhow::{Result, ensure};
use rayon::prelude::*;

/// Values in a block. Formats without blocks are read in pieces of as many.
pub(crate) const BLOCK: usize = 32;

/// How the values of a row are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    F32,
    F16,
    Bf16,
    Q8_0,
    Q4_0,
    Q4_1,
}

/// A format known to the compiler: what loops over blocks are compiled for.
pub(crate) trait Layout {
    /// Bytes of [`BLOCK`] values.
    const BYTES: usize;
    /// The values of a block of [`Self::BYTES`] bytes.
    fn widen(block: &[u8]) -> [f32; BLOCK];
}

/// Runs an expression with `$layout` standing for the [`Layout`] of a [`Format`].
macro_rules! with_layout {
    ($format:expr, $layout:ident => $work:expr) => {
        match $format {
            $crate::ops::stored::Format::F32 => {
                type $layout = $crate::ops::stored::F32;
                $work
            }
            $crate::ops::stored::Format::F16 => {
                type $layout = $crate::ops::stored::F16;
                $work
            }
            $crate::ops::stored::Format::Bf16 => {
                type $layout = $crate::ops::stored::Bf16;
                $work
            }
            $crate::ops::stored::Format::Q8_0 => {
                type $layout = $crate::ops::stored::Q8;
                $work
            }
            $crate::ops::stored::Format::Q4_0 => {
                type $layout = $crate::ops::stored::Q4;
                $work
            }
            $crate::ops::stored::Format::Q4_1 => {
                type $layout = $crate::ops::stored::Q4Offset;
                $work
            }
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

/// A block as an array: of a slice, whatever its length, loops over the values are not vectorised (six times as slow).
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
fn half(h: u16) -> f32 {
    let h = u32::from(h);
    f32::from_bits((f32::from_bits((h & 0x7fff) << 13) * UP).to_bits() | special(h))
}

/// Value `i` of the 32 halves of bytes: low halves first.
#[inline(always)]
fn nibble(packed: &[u8], i: usize) -> f32 {
    let byte = packed[i % 16];
    f32::from(if i < 16 { byte & 15 } else { byte >> 4 })
}

impl Layout for F32 {
    const BYTES: usize = 4 * BLOCK;

    #[inline(always)]
    fn widen(block: &[u8]) -> [f32; BLOCK] {
        let block = whole::<{ F32::BYTES }>(block);
        std::array::from_fn(|i| {
            f32::from_le_bytes([block[4 * i], block[4 * i + 1], block[4 * i + 2], block[4 * i + 3]])
        })
    }
}

impl Layout for F16 {
    const BYTES: usize = 2 * BLOCK;

    /// In three passes over the block: as one expression a value, it is not vectorised and takes four times as long.
    #[inline(always)]
    fn widen(block: &[u8]) -> [f32; BLOCK] {
        let block = whole::<{ F16::BYTES }>(block);
        let wide: [u32; BLOCK] = std::array::from_fn(|i| u32::from(bits(block, i)));
        let mut out = [0.0; BLOCK];
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
    const BYTES: usize = 2 * BLOCK;

    #[inline(always)]
    fn widen(block: &[u8]) -> [f32; BLOCK] {
        let block = whole::<{ Bf16::BYTES }>(block);
        std::array::from_fn(|i| f32::from_bits(u32::from(bits(block, i)) << 16))
    }
}

impl Layout for Q8 {
    const BYTES: usize = 2 + BLOCK;

    #[inline(always)]
    fn widen(block: &[u8]) -> [f32; BLOCK] {
        let block = whole::<{ Q8::BYTES }>(block);
        let scale = half(bits(block, 0));
        let mut out = [0.0; BLOCK];
        for (out, quant) in out.iter_mut().zip(&block[2..]) {
            *out = f32::from(*quant as i8) * scale;
        }
        out
    }
}

impl Layout for Q4 {
    const BYTES: usize = 2 + BLOCK / 2;

    #[inline(always)]
    fn widen(block: &[u8]) -> [f32; BLOCK] {
        let block = whole::<{ Q4::BYTES }>(block);
        let scale = half(bits(block, 0));
        std::array::from_fn(|i| (nibble(&block[2..], i) - 8.0) * scale)
    }
}

impl Layout for Q4Offset {
    const BYTES: usize = 4 + BLOCK / 2;

    #[inline(always)]
    fn widen(block: &[u8]) -> [f32; BLOCK] {
        let block = whole::<{ Q4Offset::BYTES }>(block);
        let (scale, offset) = (half(bits(block, 0)), half(bits(block, 1)));
        std::array::from_fn(|i| nibble(&block[4..], i) * scale + offset)
    }
}

impl Format {
    /// Values that are stored together.
    pub fn block_len(self) -> usize {
        match self {
            Format::F32 | Format::F16 | Format::Bf16 => 1,
            Format::Q8_0 | Format::Q4_0 | Format::Q4_1 => BLOCK,
        }
    }

    /// Bytes of [`Self::block_len`] values.
    pub fn block_bytes(self) -> usize {
        with_layout!(self, L => L::BYTES) * self.block_len() / BLOCK
    }

    /// Bytes of a row; `None` where `width` is not whole blocks.
    pub fn row_bytes(self, width: usize) -> Option<usize> {
        (width.is_multiple_of(self.block_len()))
            .then(|| width / self.block_len())
            .and_then(|blocks| blocks.checked_mul(self.block_bytes()))
    }

    /// A row to floats. What `bytes` does not reach is left as it is.
    pub fn widen(self, bytes: &[u8], out: &mut [f32]) {
        with_layout!(self, L => widen::<L>(bytes, out));
    }
}

/// Block by block; the last one may be cut short in formats without blocks.
#[inline(always)]
fn widen<L: Layout>(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks(L::BYTES).zip(out.chunks_mut(BLOCK)) {
        match <&mut [f32; BLOCK]>::try_from(&mut *out) {
            Ok(out) if block.len() == L::BYTES => *out = L::widen(block),
            _ => {
                let held = (block.len() * BLOCK / L::BYTES).min(out.len());
                out[..held].copy_from_slice(&cut_short::<L>(block)[..held]);
            }
        }
    }
}

/// The values of a block that is cut short, and zeros behind them.
#[inline(always)]
pub(crate) fn cut_short<L: Layout>(block: &[u8]) -> [f32; BLOCK] {
    let mut whole = [0; 4 * BLOCK];
    whole[..block.len()].copy_from_slice(block);
    L::widen(&whole)
}

/// Rows of one format, one behind the other.
#[derive(Clone)]
pub(crate) struct Part {
    pub format: Format,
    pub rows: usize,
    pub row_bytes: usize,
    pub bytes: Vec<u8>,
}

impl Part {
    pub fn row(&self, row: usize) -> &[u8] {
        &self.bytes[row * self.row_bytes..][..self.row_bytes]
    }
}

/// A frozen matrix `[rows, width]` as its file stores it. Rows that were added later are floats.
#[derive(Clone)]
pub struct Stored {
    width: usize,
    parts: Vec<Part>,
}

impl std::fmt::Debug for Stored {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let formats: Vec<Format> = self.parts.iter().map(|part| part.format).collect();
        f.debug_struct("Stored").field("shape", &[self.rows(), self.width]).field("formats", &formats).finish()
    }
}

/// Values that one thread widens at a time.
const SHARE: usize = 1 << 16;

impl Stored {
    /// # Errors
    /// Bytes that do not fill the shape, and a value that is not finite: every product with it would be noise.
    pub fn new(format: Format, [rows, width]: [usize; 2], bytes: Vec<u8>) -> Result<Self> {
        ensure!(rows > 0 && width > 0, "a matrix of shape {:?} holds nothing", [rows, width]);
        let row_bytes = format.row_bytes(width);
        let fits = row_bytes.and_then(|one| one.checked_mul(rows)) == Some(bytes.len());
        ensure!(fits, "{} bytes are not a matrix of shape {:?} in {format:?}", bytes.len(), [rows, width]);
        let part = Part { format, rows, row_bytes: bytes.len() / rows, bytes };
        let stored = Self { width, parts: vec![part] };
        if let Some(row) = stored.not_finite() {
            anyhow::bail!("row {row} holds a value that is not finite (NaN or infinity)");
        }
        Ok(stored)
    }

    pub fn rows(&self) -> usize {
        self.parts.iter().map(|part| part.rows).sum()
    }

    pub fn width(&self) -> usize {
        self.width
    }

    /// Bytes that it holds.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.bytes.len()).sum()
    }

    /// Parts of one format each, and the row of the matrix that each begins at.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (usize, &Part)> {
        let starts = self.parts.iter().scan(0, |at, part| {
            *at += part.rows;
            Some(*at - part.rows)
        });
        starts.zip(&self.parts)
    }

    /// The rows named, as floats, one behind the other.
    ///
    /// # Errors
    /// A row that the matrix does not have.
    pub fn widened(&self, rows: &[usize]) -> Result<Vec<f32>> {
        let mut out = vec![0.0; rows.len() * self.width];
        for (&row, out) in rows.iter().zip(out.chunks_exact_mut(self.width)) {
            ensure!(row < self.rows(), "row {row} of a matrix of {} rows", self.rows());
            self.widen(row, out);
        }
        Ok(out)
    }

    fn widen(&self, row: usize, out: &mut [f32]) {
        let holds = |(start, part): &(usize, &Part)| (*start..start + part.rows).contains(&row);
        if let Some((start, part)) = self.parts().find(holds) {
            part.format.widen(part.row(row - start), out);
        }
    }

    /// Consecutive rows as floats; threaded.
    pub(crate) fn widened_range(&self, rows: Range<usize>) -> Vec<f32> {
        let mut out = vec![0.0; rows.len() * self.width];
        let share = (SHARE / self.width).max(1);
        out.par_chunks_mut(share * self.width).enumerate().for_each(|(i, out)| {
            for (row, out) in (rows.start + i * share..).zip(out.chunks_exact_mut(self.width)) {
                self.widen(row, out);
            }
        });
        out
    }

    /// Its first rows only.
    #[must_use]
    pub fn cut(mut self, rows: usize) -> Self {
        let mut left = rows;
        for part in &mut self.parts {
            part.rows = part.rows.min(left);
            part.bytes.truncate(part.rows * part.row_bytes);
            left -= part.rows;
        }
        self.parts.retain(|part| part.rows > 0);
        self
    }

    /// With more rows, kept as floats.
    ///
    /// # Errors
    /// Values that are not whole rows.
    pub fn with_rows(mut self, more: &[f32]) -> Result<Self> {
        ensure!(more.len().is_multiple_of(self.width), "{} values are not rows of {}", more.len(), self.width);
        if !more.is_empty() {
            let bytes = more.iter().flat_map(|x| x.to_le_bytes()).collect();
            let (rows, row_bytes) = (more.len() / self.width, 4 * self.width);
            self.parts.push(Part { format: Format::F32, rows, row_bytes, bytes });
        }
        Ok(self)
    }

    /// The first row with a value that is not finite.
    fn not_finite(&self) -> Option<usize> {
        let share = (SHARE / self.width).max(1);
        let starts: Vec<usize> = (0..self.rows()).step_by(share).collect();
        starts.into_par_iter().find_map_first(|from| {
            let mut out = vec![0.0; self.width];
            (from..(from + share).min(self.rows())).find(|&row| {
                self.widen(row, &mut out);
                !out.iter().fold(true, |finite, x| finite & x.is_finite())
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_is_the_float_of_the_crate() {
        for h in 0..=u16::MAX {
            let (ours, theirs) = (half(h), half::f16::from_bits(h).to_f32());
            assert!(ours == theirs || (ours.is_nan() && theirs.is_nan()), "{h:#x}: {ours} is not {theirs}");
            let block = F16::widen(&h.to_le_bytes().repeat(BLOCK));
            assert!(block.iter().all(|x| x.to_bits() == ours.to_bits()), "{h:#x} in a block");
        }
    }

    #[test]
    fn values_that_are_not_finite_are_refused_by_row() {
        let f16 =
            |values: &[f32]| values.iter().flat_map(|&x| half::f16::from_f32(x).to_le_bytes()).collect::<Vec<_>>();
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = vec![1.0; 3 * 40];
            values[2 * 40 + 39] = bad;
            let said = Stored::new(Format::F16, [3, 40], f16(&values)).unwrap_err().to_string();
            assert!(said.contains("row 2") && said.contains("not finite"), "{said}");
            // A block whose scale is no number.
            let mut block = f16(&[bad]);
            block.extend([1; 32]);
            assert!(Stored::new(Format::Q8_0, [1, 32], block).is_err());
        }
        assert!(Stored::new(Format::F16, [3, 40], f16(&[1.0; 120])).is_ok());
        assert!(Stored::new(Format::Bf16, [3, 40], vec![0; 239]).is_err(), "a byte is missing");
        assert!(Stored::new(Format::Q8_0, [1, 40], vec![0; 34]).is_err(), "not whole blocks");
    }

    #[test]
    fn rows_are_cut_and_added() {
        let bytes: Vec<u8> =
            (0..5).flat_map(|row| [0_u8, 0x3f].repeat(3).into_iter().map(move |b| b + row % 2)).collect();
        let stored = Stored::new(Format::Bf16, [5, 3], bytes).unwrap().cut(4).with_rows(&[7.0, 8.0, 9.0]).unwrap();
        assert_eq!(stored.rows(), 5);
        assert_eq!(stored.widened(&[4, 0]).unwrap(), [7.0, 8.0, 9.0, 0.5, 0.5, 0.5]);
        let all = stored.widened_range(0..5);
        assert_eq!(all[9..], stored.widened(&[3, 4]).unwrap());
        assert!(stored.widened(&[5]).is_err());
        assert!(stored.with_rows(&[1.0]).is_err());
    }
}
