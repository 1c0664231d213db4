//! Weight matrices in their file format ([`formats`]). Products read them directly (`fused::stored`); nothing here knows a tensor.

pub(crate) mod formats;
mod integers;

use std::ops::Range;

use anyhow::{Result, ensure};
use rayon::prelude::*;

pub use formats::Format;
use formats::{Layout, with_layout};

/// Contiguous rows of one format.
#[derive(Clone)]
pub struct Part {
    pub format: Format,
    pub rows: usize,
    pub row_bytes: usize,
    pub bytes: Vec<u8>,
}

impl Part {
    pub fn row(&self, row: usize) -> &[u8] {
        self.bytes(row..row + 1)
    }

    /// Consecutive rows in their stored form.
    pub fn bytes(&self, rows: Range<usize>) -> &[u8] {
        &self.bytes[rows.start * self.row_bytes..rows.end * self.row_bytes]
    }

    /// Consecutive rows of `width` values as floats in `held`, a reusable buffer.
    pub fn widened<'h>(&self, rows: Range<usize>, width: usize, held: &'h mut Vec<f32>) -> &'h [f32] {
        held.resize(rows.len() * width, 0.0);
        for (row, out) in rows.zip(held.chunks_exact_mut(width)) {
            self.format.widen(self.row(row), out);
        }
        held
    }
}

/// How the other factor of a product is rounded first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Inputs {
    #[default]
    Exact,
    Bf16,
    /// To 8 bits per 32 values, with a scale: products of few rows with integers are computed in integers.
    Q8,
}

/// A frozen matrix `[rows, width]` as its file stores it. Rows that were added later are floats.
#[derive(Clone)]
pub struct StoredMatrix {
    width: usize,
    parts: Vec<Part>,
    inputs: Inputs,
}

impl std::fmt::Debug for StoredMatrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let formats: Vec<Format> = self.parts.iter().map(|part| part.format).collect();
        f.debug_struct("Stored").field("shape", &[self.rows(), self.width]).field("formats", &formats).finish()
    }
}

/// Values that a thread widens at a time.
const SHARE: usize = 1 << 16;

impl StoredMatrix {
    /// # Errors
    /// Bytes that do not fill the shape; a value that is not finite, which would make every product meaningless.
    pub fn new(format: Format, [rows, width]: [usize; 2], bytes: Vec<u8>) -> Result<Self> {
        ensure!(rows > 0 && width > 0, "a matrix of shape {:?} is empty", [rows, width]);
        let row_bytes = format.row_bytes(width);
        let fits = row_bytes.and_then(|one| one.checked_mul(rows)) == Some(bytes.len());
        ensure!(fits, "{} bytes are not a matrix of shape {:?} in {format:?}", bytes.len(), [rows, width]);
        let part = Part { format, rows, row_bytes: bytes.len() / rows, bytes };
        let stored = Self { width, parts: vec![part], inputs: Inputs::Exact };
        if let Some(row) = stored.not_finite() {
            anyhow::bail!("row {row} has a value that is not finite (NaN or infinity)");
        }
        Ok(stored)
    }

    /// Pseudo-random bytes with finite values of ordinary size, for tests. The width must be whole blocks.
    #[must_use]
    pub fn drawn(format: Format, rows: usize, width: usize) -> Self {
        let row_bytes = format.row_bytes(width).unwrap_or_default();
        let mut bytes: Vec<u8> = (0..rows * row_bytes).map(|i| (i * 7919 + i / 97) as u8).collect();
        for block in bytes.chunks_mut(format.block_bytes()) {
            // The upper bytes of floats and scales: exponents are small.
            let high: &[usize] = match format {
                Format::F32 => &[3],
                Format::Q4_1 | Format::Q5_1 | Format::Q4_K | Format::Q5_K => &[1, 3],
                Format::Q6_K => &[209],
                _ => &[1],
            };
            high.iter().for_each(|&at| block[at] = block[at] & 0x83 | 0x38);
        }
        Self { width, parts: vec![Part { format, rows, row_bytes, bytes }], inputs: Inputs::Exact }
    }

    /// The same matrix, with inputs rounded before the product.
    #[must_use]
    pub fn with_inputs(self, inputs: Inputs) -> Self {
        Self { inputs, ..self }
    }

    pub fn inputs(&self) -> Inputs {
        self.inputs
    }

    /// Whether it has rows of integers with scales.
    pub fn has_integers(&self) -> bool {
        self.parts.iter().any(|part| with_layout!(part.format, L => L::INTEGERS.is_some()))
    }

    /// Whether it has rows of this format.
    pub fn has(&self, format: Format) -> bool {
        self.parts.iter().any(|part| part.format == format)
    }

    pub fn rows(&self) -> usize {
        self.parts.iter().map(|part| part.rows).sum()
    }

    pub fn width(&self) -> usize {
        self.width
    }

    pub fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.bytes.len()).sum()
    }

    /// Parts of one format each, with their first row in the matrix.
    pub fn parts(&self) -> impl Iterator<Item = (usize, &Part)> {
        let starts = self.parts.iter().scan(0, |at, part| {
            *at += part.rows;
            Some(*at - part.rows)
        });
        starts.zip(&self.parts)
    }

    #[cfg(all(feature = "gpu", not(feature = "fusion")))]
    pub(crate) fn into_parts(self) -> Vec<Part> {
        self.parts
    }

    /// The named rows as contiguous floats.
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
    pub fn widened_range(&self, rows: Range<usize>) -> Vec<f32> {
        let mut out = vec![0.0; rows.len() * self.width];
        let share = (SHARE / self.width).max(1);
        out.par_chunks_mut(share * self.width).enumerate().for_each(|(i, out)| {
            for (row, out) in (rows.start + i * share..).zip(out.chunks_exact_mut(self.width)) {
                self.widen(row, out);
            }
        });
        out
    }

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
    fn values_that_are_not_finite_are_refused_by_row() {
        let f16 =
            |values: &[f32]| values.iter().flat_map(|&x| half::f16::from_f32(x).to_le_bytes()).collect::<Vec<_>>();
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = vec![1.0; 3 * 40];
            values[2 * 40 + 39] = bad;
            let said = StoredMatrix::new(Format::F16, [3, 40], f16(&values)).unwrap_err().to_string();
            assert!(said.contains("row 2") && said.contains("not finite"), "{said}");
            // A block whose scale is not a number.
            let mut block = f16(&[bad]);
            block.extend([1; 32]);
            assert!(StoredMatrix::new(Format::Q8_0, [1, 32], block).is_err());
        }
        assert!(StoredMatrix::new(Format::F16, [3, 40], f16(&[1.0; 120])).is_ok());
        assert!(StoredMatrix::new(Format::Bf16, [3, 40], vec![0; 239]).is_err(), "a byte is missing");
        assert!(StoredMatrix::new(Format::Q8_0, [1, 40], vec![0; 34]).is_err(), "not whole blocks");
    }

    #[test]
    fn rows_are_cut_and_added() {
        let bytes: Vec<u8> =
            (0..5).flat_map(|row| [0_u8, 0x3f].repeat(3).into_iter().map(move |b| b + row % 2)).collect();
        let stored =
            StoredMatrix::new(Format::Bf16, [5, 3], bytes).unwrap().cut(4).with_rows(&[7.0, 8.0, 9.0]).unwrap();
        assert_eq!(stored.rows(), 5);
        assert_eq!(stored.widened(&[4, 0]).unwrap(), [7.0, 8.0, 9.0, 0.5, 0.5, 0.5]);
        let all = stored.widened_range(0..5);
        assert_eq!(all[9..], stored.widened(&[3, 4]).unwrap());
        assert!(stored.widened(&[5]).is_err());
        assert!(stored.with_rows(&[1.0]).is_err());
    }
}
