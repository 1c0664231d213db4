//! A tensor on the host, and the number formats it is read from and written to. No device, no Burn type.

use anyhow::{Result, ensure};
use half::{bf16, f16};
use rayon::prelude::*;

use switchyard_ops::stored::Format;

/// Row-major 32-bit floats. A weight matrix is `[out, in]`, as in PyTorch.
#[derive(Clone, Debug, PartialEq)]
pub struct HostTensor {
    pub shape: Vec<usize>,
    pub data: Vec<f32>,
}

impl HostTensor {
    /// Fails when `data` does not fill `shape`.
    pub fn new(shape: Vec<usize>, data: Vec<f32>) -> Result<Self> {
        let wanted = count(&shape);
        ensure!(wanted == Some(data.len()), "a tensor of shape {shape:?} cannot have {} values", data.len());
        Ok(Self { shape, data })
    }

    /// Length of the last axis: the width of a row.
    pub fn width(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Rows of a matrix `[rows, width]` (1 for a vector).
    pub fn rows(&self) -> usize {
        self.data.len() / self.width().max(1)
    }

    /// A matrix with its rows as columns, `[width, rows]`.
    #[must_use]
    pub fn transposed(self) -> Self {
        let (rows, width) = (self.rows(), self.width());
        let mut data = vec![0.0; self.data.len()];
        // A square of both sides stays in the first cache.
        data.par_chunks_mut(SQUARE * rows.max(1)).enumerate().for_each(|(band, out)| {
            let columns = out.len() / rows.max(1);
            for from in (0..rows).step_by(SQUARE) {
                for row in from..rows.min(from + SQUARE) {
                    let read = &self.data[row * width + band * SQUARE..][..columns];
                    read.iter().enumerate().for_each(|(column, value)| out[column * rows + row] = *value);
                }
            }
        });
        Self { shape: vec![width, rows], data }
    }
}

/// Side of the tiles in which a matrix is transposed.
const SQUARE: usize = 32;

/// Product of the axes; `None` on overflow.
pub(super) fn count(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d))
}

/// Number formats of stored weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    F32,
    F16,
    BF16,
}

/// Values handled by one task; large enough that a small tensor stays on one thread.
const CHUNK: usize = 1 << 16;

impl Dtype {
    /// As in a safetensors header.
    pub fn tag(self) -> &'static str {
        match self {
            Dtype::F32 => "F32",
            Dtype::F16 => "F16",
            Dtype::BF16 => "BF16",
        }
    }

    pub fn from_tag(tag: &str) -> Option<Self> {
        [Dtype::F32, Dtype::F16, Dtype::BF16].into_iter().find(|d| d.tag() == tag)
    }

    /// As in `config.json`.
    pub fn torch_name(self) -> &'static str {
        match self {
            Dtype::F32 => "float32",
            Dtype::F16 => "float16",
            Dtype::BF16 => "bfloat16",
        }
    }

    /// Bytes of one value.
    pub fn size(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::F16 | Dtype::BF16 => 2,
        }
    }

    pub(super) fn format(self) -> Format {
        match self {
            Dtype::F32 => Format::F32,
            Dtype::F16 => Format::F16,
            Dtype::BF16 => Format::Bf16,
        }
    }

    /// Little-endian bytes to floats; exact. A tail shorter than one value is dropped, so callers check lengths.
    pub fn decode(self, bytes: &[u8]) -> Vec<f32> {
        let mut out = vec![0.0f32; bytes.len() / self.size()];
        out.par_chunks_mut(CHUNK)
            .zip(bytes.par_chunks(CHUNK * self.size()))
            .for_each(|(o, b)| self.format().widen(b, o));
        out
    }

    /// Floats to little-endian bytes, rounded to nearest even.
    pub fn encode(self, data: &[f32]) -> Vec<u8> {
        let mut out = vec![0u8; data.len() * self.size()];
        out.par_chunks_mut(CHUNK * self.size()).zip(data.par_chunks(CHUNK)).for_each(|(o, d)| match self {
            Dtype::F32 => spill(o, d, f32::to_le_bytes),
            Dtype::F16 => spill(o, d, |v| f16::from_f32(v).to_le_bytes()),
            Dtype::BF16 => spill(o, d, |v| bf16::from_f32(v).to_le_bytes()),
        });
        out
    }
}

fn spill<const N: usize>(out: &mut [u8], data: &[f32], write: impl Fn(f32) -> [u8; N]) {
    for (o, v) in out.chunks_exact_mut(N).zip(data) {
        o.copy_from_slice(&write(*v));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_round_trip_what_they_can_hold() {
        let data: Vec<f32> = (0..300).map(|i| (i as f32 - 150.0) / 16.0).collect();
        for dtype in [Dtype::F32, Dtype::F16] {
            assert_eq!(dtype.decode(&dtype.encode(&data)), data);
        }
        let coarse: Vec<f32> = (0..128).map(|i| i as f32).collect();
        assert_eq!(Dtype::BF16.decode(&Dtype::BF16.encode(&coarse)), coarse);
    }

    #[test]
    fn a_shape_must_fit_its_data() {
        assert!(HostTensor::new(vec![2, 3], vec![0.0; 5]).is_err());
        assert!(HostTensor::new(vec![usize::MAX, 2], vec![]).is_err());
    }
}
