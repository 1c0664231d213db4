//! The block formats of ggml that we read, and how a row of blocks becomes floats. Arithmetic follows
//! `ggml-quants.c`: one 16-bit scale (and offset) per block of 32 values, products in 32-bit floats.

use anyhow::{Result, bail};
use half::f16;
use rayon::prelude::*;

use super::super::host::Dtype;

/// A ggml tensor type, by its number in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GgmlType {
    Plain(Dtype),
    Q4_0,
    Q4_1,
    Q8_0,
}

/// Names of the types that exist, so that one we do not read is refused by its name.
const NAMES: [(u32, &str); 31] = [
    (0, "F32"),
    (1, "F16"),
    (2, "Q4_0"),
    (3, "Q4_1"),
    (6, "Q5_0"),
    (7, "Q5_1"),
    (8, "Q8_0"),
    (9, "Q8_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (12, "Q4_K"),
    (13, "Q5_K"),
    (14, "Q6_K"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (30, "BF16"),
    (34, "TQ1_0"),
    (39, "MXFP4"),
];

impl GgmlType {
    pub(crate) fn from_number(number: u32) -> Result<Self> {
        Ok(match number {
            0 => GgmlType::Plain(Dtype::F32),
            1 => GgmlType::Plain(Dtype::F16),
            2 => GgmlType::Q4_0,
            3 => GgmlType::Q4_1,
            8 => GgmlType::Q8_0,
            30 => GgmlType::Plain(Dtype::BF16),
            _ => {
                let name = NAMES.iter().find(|(n, _)| *n == number).map_or("unknown", |(_, name)| name);
                bail!(
                    "quantisation {name} (type {number}) is not supported: expected F32, F16, BF16, Q8_0, Q4_0 or Q4_1 \
                     (llama-quantize can rewrite the file)"
                )
            }
        })
    }

    /// Values in a block.
    pub(crate) fn block_len(self) -> usize {
        match self {
            GgmlType::Plain(_) => 1,
            _ => 32,
        }
    }

    /// Bytes of a block.
    pub(crate) fn block_bytes(self) -> usize {
        match self {
            GgmlType::Plain(dtype) => dtype.size(),
            GgmlType::Q4_0 => 18,
            GgmlType::Q4_1 => 20,
            GgmlType::Q8_0 => 34,
        }
    }

    /// Bytes of a row of `width` values, which must be whole blocks.
    pub(crate) fn row_bytes(self, width: usize) -> Option<usize> {
        (width.is_multiple_of(self.block_len()))
            .then(|| width / self.block_len())
            .and_then(|n| n.checked_mul(self.block_bytes()))
    }

    /// One row of blocks to floats. A partial block at the end is left at its old value; the parser rules it out.
    fn row(self, bytes: &[u8], out: &mut [f32]) {
        match self {
            GgmlType::Plain(dtype) => dtype.decode_into(bytes, out),
            GgmlType::Q4_0 => blocks::<18>(bytes, out, |b, o| {
                let d = scale(b, 0);
                nibbles(&b[2..], o, |q| (f32::from(q) - 8.0) * d);
            }),
            GgmlType::Q4_1 => blocks::<20>(bytes, out, |b, o| {
                let (d, m) = (scale(b, 0), scale(b, 2));
                nibbles(&b[4..], o, |q| f32::from(q) * d + m);
            }),
            GgmlType::Q8_0 => blocks::<34>(bytes, out, |b, o| {
                let d = scale(b, 0);
                for (v, q) in o.iter_mut().zip(&b[2..]) {
                    *v = f32::from(*q as i8) * d;
                }
            }),
        }
    }

    /// A matrix `[rows, width]` to floats, row `r` of the result from row `source(r)` of the file. Threaded.
    pub(crate) fn dequantise(self, bytes: &[u8], width: usize, source: impl Fn(usize) -> usize + Sync) -> Vec<f32> {
        let row_bytes = self.row_bytes(width).unwrap_or(0);
        if width == 0 || row_bytes == 0 {
            return vec![];
        }
        let rows = bytes.len() / row_bytes;
        // A task converts about 64 k values, so that a norm's single row is not scheduled at all.
        let per_task = (65_536 / width).max(1);
        let mut out = vec![0.0f32; rows * width];
        out.par_chunks_mut(width * per_task).enumerate().for_each(|(task, chunk)| {
            for (i, row) in chunk.chunks_exact_mut(width).enumerate() {
                let start = source(task * per_task + i) * row_bytes;
                self.row(&bytes[start..start + row_bytes], row);
            }
        });
        out
    }
}

fn blocks<const N: usize>(bytes: &[u8], out: &mut [f32], decode: impl Fn(&[u8; N], &mut [f32])) {
    let (blocks, _) = bytes.as_chunks::<N>();
    for (block, values) in blocks.iter().zip(out.chunks_exact_mut(32)) {
        decode(block, values);
    }
}

fn scale(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Sixteen bytes hold 32 values: the low halves are values 0–15, the high halves 16–31.
fn nibbles(packed: &[u8], out: &mut [f32], value: impl Fn(u8) -> f32) {
    let (low, high) = out.split_at_mut(16);
    for ((l, h), byte) in low.iter_mut().zip(high).zip(packed) {
        *l = value(byte & 15);
        *h = value(byte >> 4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One block: scale 0.5, offset 2 where there is one, value i or its complement packed in byte i.
    #[test]
    fn a_block_of_each_format() {
        let half = f16::from_f32(0.5).to_le_bytes();
        let two = f16::from_f32(2.0).to_le_bytes();
        let packed: Vec<u8> = (0..16u8).map(|i| i | ((15 - i) << 4)).collect();
        let q = |i: usize| if i < 16 { i as f32 } else { (31 - i) as f32 };

        let bytes = [&half[..], &packed].concat();
        let wanted: Vec<f32> = (0..32).map(|i| (q(i) - 8.0) * 0.5).collect();
        assert_eq!(GgmlType::Q4_0.dequantise(&bytes, 32, |r| r), wanted);

        let bytes = [&half[..], &two, &packed].concat();
        let wanted: Vec<f32> = (0..32).map(|i| q(i) * 0.5 + 2.0).collect();
        assert_eq!(GgmlType::Q4_1.dequantise(&bytes, 32, |r| r), wanted);

        let signed: Vec<u8> = (0..32i8).map(|i| (i - 16) as u8).collect();
        let bytes = [&half[..], &signed].concat();
        let wanted: Vec<f32> = (0..32).map(|i| (i as f32 - 16.0) * 0.5).collect();
        assert_eq!(GgmlType::Q8_0.dequantise(&bytes, 32, |r| r), wanted);
    }

    #[test]
    fn rows_come_from_where_they_are_said_to() {
        let bytes = Dtype::F32.encode(&[1.0, 2.0, 3.0, 4.0]);
        assert_eq!(GgmlType::Plain(Dtype::F32).dequantise(&bytes, 2, |r| 1 - r), [3.0, 4.0, 1.0, 2.0]);
    }
}
