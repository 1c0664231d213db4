//! The tensor types of ggml that we read, by their numbers in a file, and the conversion of a matrix to floats.

use anyhow::{Result, bail};
use rayon::prelude::*;

use switchyard_ops::stored::Format;

/// Names of all types, so that an unsupported one is refused by its name.
const NAMES: [(u32, &str); 32] = [
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
    (35, "TQ2_0"),
    (39, "MXFP4"),
];

/// The format of a tensor type.
///
/// # Errors
/// An unsupported type, by name.
pub fn format(number: u32) -> Result<Format> {
    Ok(match number {
        0 => Format::F32,
        1 => Format::F16,
        2 => Format::Q4_0,
        3 => Format::Q4_1,
        6 => Format::Q5_0,
        7 => Format::Q5_1,
        8 => Format::Q8_0,
        12 => Format::Q4_K,
        13 => Format::Q5_K,
        14 => Format::Q6_K,
        30 => Format::Bf16,
        _ => {
            let name = NAMES.iter().find(|(n, _)| *n == number).map_or("unknown", |(_, name)| name);
            bail!(
                "quantisation {name} (type {number}) is not supported: expected F32, F16, BF16, Q8_0, Q6_K, Q5_K, Q5_0, \
                 Q5_1, Q4_K, Q4_0 or Q4_1 (llama-quantize can rewrite the file)"
            )
        }
    })
}

/// A matrix `[rows, width]` to floats, row `r` of the result from row `source(r)` of the file. Threaded.
pub fn dequantise(format: Format, bytes: &[u8], width: usize, source: impl Fn(usize) -> usize + Sync) -> Vec<f32> {
    let row_bytes = format.row_bytes(width).unwrap_or(0);
    if width == 0 || row_bytes == 0 {
        return vec![];
    }
    let rows = bytes.len() / row_bytes;
    // A task converts about 64 k values, so that a norm's single row is not scheduled.
    let per_task = (65_536 / width).max(1);
    let mut out = vec![0.0f32; rows * width];
    out.par_chunks_mut(width * per_task).enumerate().for_each(|(task, chunk)| {
        for (i, row) in chunk.chunks_exact_mut(width).enumerate() {
            let start = source(task * per_task + i) * row_bytes;
            format.widen(&bytes[start..start + row_bytes], row);
        }
    });
    out
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::super::super::host::Dtype;
    use super::*;

    /// One block: scale 0.5, offset 2 if the format has one, value i or its complement packed in byte i.
    #[test]
    fn a_block_of_each_format() {
        let half = f16::from_f32(0.5).to_le_bytes();
        let two = f16::from_f32(2.0).to_le_bytes();
        let packed: Vec<u8> = (0..16u8).map(|i| i | ((15 - i) << 4)).collect();
        let q = |i: usize| if i < 16 { i as f32 } else { (31 - i) as f32 };

        let bytes = [&half[..], &packed].concat();
        let wanted: Vec<f32> = (0..32).map(|i| (q(i) - 8.0) * 0.5).collect();
        assert_eq!(dequantise(Format::Q4_0, &bytes, 32, |r| r), wanted);

        let bytes = [&half[..], &two, &packed].concat();
        let wanted: Vec<f32> = (0..32).map(|i| q(i) * 0.5 + 2.0).collect();
        assert_eq!(dequantise(Format::Q4_1, &bytes, 32, |r| r), wanted);

        let signed: Vec<u8> = (0..32i8).map(|i| (i - 16) as u8).collect();
        let bytes = [&half[..], &signed].concat();
        let wanted: Vec<f32> = (0..32).map(|i| (i as f32 - 16.0) * 0.5).collect();
        assert_eq!(dequantise(Format::Q8_0, &bytes, 32, |r| r), wanted);
    }

    #[test]
    fn rows_come_from_where_they_are_said_to() {
        let bytes = Dtype::F32.encode(&[1.0, 2.0, 3.0, 4.0]);
        assert_eq!(dequantise(Format::F32, &bytes, 2, |r| 1 - r), [3.0, 4.0, 1.0, 2.0]);
    }
}
