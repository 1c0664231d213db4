//! The tensor types of ggml that we read, by their numbers in a file, and the conversion of a matrix to floats.

use anyhow::{Result, bail};
use rayon::prelude::*;

use switchyard_ops::stored::Format;

/// Every tensor type with its name, and the format of those that are read: an unsupported one is refused by its name.
const TYPES: [(u32, &str, Option<Format>); 32] = [
    (0, "F32", Some(Format::F32)),
    (1, "F16", Some(Format::F16)),
    (2, "Q4_0", Some(Format::Q4_0)),
    (3, "Q4_1", Some(Format::Q4_1)),
    (6, "Q5_0", Some(Format::Q5_0)),
    (7, "Q5_1", Some(Format::Q5_1)),
    (8, "Q8_0", Some(Format::Q8_0)),
    (9, "Q8_1", None),
    (10, "Q2_K", None),
    (11, "Q3_K", None),
    (12, "Q4_K", Some(Format::Q4_K)),
    (13, "Q5_K", Some(Format::Q5_K)),
    (14, "Q6_K", Some(Format::Q6_K)),
    (15, "Q8_K", None),
    (16, "IQ2_XXS", None),
    (17, "IQ2_XS", None),
    (18, "IQ3_XXS", None),
    (19, "IQ1_S", None),
    (20, "IQ4_NL", None),
    (21, "IQ3_S", None),
    (22, "IQ2_S", None),
    (23, "IQ4_XS", None),
    (24, "I8", None),
    (25, "I16", None),
    (26, "I32", None),
    (27, "I64", None),
    (28, "F64", None),
    (29, "IQ1_M", None),
    (30, "BF16", Some(Format::Bf16)),
    (34, "TQ1_0", None),
    (35, "TQ2_0", None),
    (39, "MXFP4", None),
];

/// The format of a tensor type.
pub fn format(number: u32) -> Result<Format> {
    let found = TYPES.iter().find(|(known, ..)| *known == number);
    if let Some((.., Some(format))) = found {
        return Ok(*format);
    }
    bail!(
        "quantisation {} (type {number}) is not supported: expected F32, F16, BF16, Q8_0, Q6_K, Q5_K, Q5_0, Q5_1, Q4_K, Q4_0 or Q4_1 \
         (llama-quantize can rewrite the file)",
        found.map_or("unknown", |(_, name, _)| name)
    )
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
    use super::super::super::host::Dtype;
    use super::*;

    #[test]
    fn rows_are_read_in_the_given_order() {
        let bytes = Dtype::F32.encode(&[1.0, 2.0, 3.0, 4.0]);
        assert_eq!(dequantise(Format::F32, &bytes, 2, |r| 1 - r), [3.0, 4.0, 1.0, 2.0]);
    }
}
