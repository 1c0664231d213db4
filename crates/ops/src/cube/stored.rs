//! Matrices in their file format on a GPU, and products with them. Few rows, as in decoding, are multiplied with the quantised
//! blocks; for more rows the matrix is widened to floats, some rows at a time, for the library's matrix product.

use std::ops::Range;

use anyhow::{Result, anyhow, bail, ensure};
use burn::backend::ops::FloatTensorOps;
use burn::backend::{DispatchDevice, TensorMetadata};
use burn::tensor::{DType, Device, FloatDType, Int, IntDType, Shape, Slice, Tensor, TensorData};
use burn_cubecl::{CubeBackend, tensor::CubeTensor};

use super::blocks::{self, FOUR, LANES, SPARE, widen};
use super::few::{flat, together, with_last};
use super::matmul::matmul;
use super::{UNITS, addresses, cubes, dim, largest_buffer, sums_like, units};
use crate::like_parts;
use crate::stored::{Format, Part, StoredMatrix};

/// Most rows of x that are multiplied with the quantised blocks.
const FEW: usize = 32;

/// Maximum bytes of a piece: kernels count bytes in 32 bits.
const PIECE: u64 = 1 << 31;

/// Floats that a matrix is widened to at a time.
const WIDE: usize = 1 << 26;

/// `[rows, width]`, in segments of one format each.
#[derive(Clone)]
pub struct DeviceMatrix {
    device: Device,
    width: usize,
    parts: Vec<Words>,
}

/// Contiguous rows of one format.
#[derive(Clone)]
struct Words {
    format: Format,
    rows: usize,
    row_bytes: usize,
    /// The rows' bytes, then [`SPARE`] words of padding.
    words: CubeTensor,
}

impl std::fmt::Debug for DeviceMatrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let formats: Vec<Format> = self.parts.iter().map(|part| part.format).collect();
        f.debug_struct("Packed").field("shape", &[self.rows(), self.width]).field("formats", &formats).finish()
    }
}

impl Words {
    fn new(format: Format, row_bytes: usize, mut bytes: Vec<u8>, device: &Device) -> Result<Self> {
        let rows = bytes.len() / row_bytes.max(1);
        bytes.resize((bytes.len().div_ceil(4) + SPARE) * 4, 0);
        let n = bytes.len() / 4;
        let words = TensorData::from_bytes_vec(bytes, [n], DType::U32);
        let words = Tensor::<1, Int>::from_data(words, (device, DType::U32));
        let words = words.try_into_primitive::<CubeBackend>().map_err(|e| anyhow!("{device:?}: {e:?}"))?;
        Ok(Self { format, rows, row_bytes, words })
    }

    /// Copies the part to the device, in pieces of at most `most` bytes.
    fn in_pieces(part: Part, device: &Device, most: u64) -> Result<Vec<Self>> {
        let Part { format, rows, row_bytes, bytes } = part;
        let most = usize::try_from(most.min(PIECE)).unwrap_or(usize::MAX).saturating_sub(8 * SPARE);
        let of_piece = (most / row_bytes.max(1)).max(1);
        if rows <= of_piece {
            return Ok(vec![Self::new(format, row_bytes, bytes, device)?]);
        }
        bytes.chunks(of_piece * row_bytes).map(|bytes| Self::new(format, row_bytes, bytes.to_vec(), device)).collect()
    }
}

impl DeviceMatrix {
    /// Copies a matrix to a GPU.
    ///
    /// # Errors
    /// Another device.
    pub fn new(stored: StoredMatrix, device: &Device) -> Result<Self> {
        let device = device.clone().inner();
        let DispatchDevice::Cube(place) = device.as_dispatch() else {
            bail!("{device:?} is not a GPU that CubeCL supports");
        };
        let (width, most) = (stored.width(), largest_buffer(place));
        let mut parts = vec![];
        for part in stored.into_parts() {
            parts.extend(Words::in_pieces(part, &device, most)?);
        }
        Ok(Self { device, width, parts })
    }

    pub fn rows(&self) -> usize {
        self.parts.iter().map(|part| part.rows).sum()
    }

    pub fn width(&self) -> usize {
        self.width
    }

    /// Truncates it to its first rows. Frees pieces without remaining rows.
    #[must_use]
    pub fn cut(mut self, rows: usize) -> Self {
        let mut left = rows;
        for part in &mut self.parts {
            part.rows = part.rows.min(left);
            left -= part.rows;
        }
        self.parts.retain(|part| part.rows > 0);
        self
    }

    /// Appends rows of floats.
    ///
    /// # Errors
    /// Values that are not whole rows.
    pub fn with_rows(mut self, more: &[f32]) -> Result<Self> {
        ensure!(more.len().is_multiple_of(self.width), "{} values are not rows of {}", more.len(), self.width);
        if !more.is_empty() {
            let bytes = more.iter().flat_map(|x| x.to_le_bytes()).collect();
            let more = StoredMatrix::new(Format::F32, [more.len() / self.width, self.width], bytes)?;
            self.parts.extend(Self::new(more, &self.device)?.parts);
        }
        Ok(self)
    }

    /// Parts of one format each, with their first row in the matrix.
    fn parts(&self) -> impl Iterator<Item = (usize, &Words)> {
        let starts = self.parts.iter().scan(0, |at, part| {
            *at += part.rows;
            Some(*at - part.rows)
        });
        starts.zip(&self.parts)
    }

    /// Rows of a part whose floats fit into memory together, with their first row in the matrix.
    fn shares(&self) -> impl Iterator<Item = (usize, &Words, Range<usize>)> {
        self.parts().flat_map(|(start, part)| {
            let most = usize::try_from(largest_buffer(&part.words.device) / 8).unwrap_or(usize::MAX);
            let most = (WIDE.min(most) / self.width).max(1);
            like_parts(part.rows, most).map(move |rows| (start + rows.start, part, rows))
        })
    }

    /// Consecutive rows as floats, `[n, width]`.
    pub fn range(&self, rows: Range<usize>) -> Tensor<2> {
        let mut out = vec![];
        for (start, part) in self.parts() {
            let held = rows.start.max(start)..rows.end.min(start + part.rows);
            if !held.is_empty() {
                out.push(self.widened(part, held.start - start..held.end - start));
            }
        }
        Tensor::from_primitive::<CubeBackend>(joined(out, 0))
    }

    /// The rows of these indices, `[n]`, as floats, `[n, width]`. An index out of range gives undefined values.
    ///
    /// # Errors
    /// Indices on another device.
    pub fn select(&self, ids: Tensor<1, Int>) -> Result<Tensor<2>> {
        let ids = ids.without_autodiff().cast(IntDType::U32).try_into_primitive::<CubeBackend>();
        let ids = ids.map_err(|e| anyhow!("rows by number: {e:?}"))?;
        let n = ids.shape().num_elements();
        let out = sums_like(&ids, Shape::new([n, self.width]));
        for (start, part) in self.parts() {
            self.launch_widen(part, Some(ids.clone()), start, &out);
        }
        Ok(Tensor::from_primitive::<CubeBackend>(out))
    }

    fn widened(&self, part: &Words, rows: Range<usize>) -> CubeTensor {
        let out = sums_like(&part.words, Shape::new([rows.len(), self.width]));
        self.launch_widen(part, None, rows.start, &out);
        out
    }

    /// Widens a part into `out`: its rows from `first` on or, with `ids`, the rows of the matrix in `ids` that it has; `first` is then the
    /// number of its first row in the matrix.
    fn launch_widen(&self, part: &Words, ids: Option<CubeTensor>, first: usize, out: &CubeTensor) {
        let rows = out.shape()[0];
        if rows == 0 {
            return;
        }
        let client = part.words.client.clone();
        let (units, named) = (units(&client, UNITS), ids.is_some());
        // A kernel needs all its arguments: without ids the words are passed instead, and not read.
        let ids = ids.unwrap_or_else(|| part.words.clone());
        widen::launch(
            &client,
            cubes(&client, (rows * self.width.div_ceil(FOUR)).div_ceil(units)),
            dim(units),
            addresses(&[&part.words, out]),
            part.words.clone().into_tensor_arg(),
            ids.into_tensor_arg(),
            out.clone().into_tensor_arg(),
            rows,
            first,
            part.rows,
            self.width,
            part.row_bytes,
            named,
            part.format,
        );
    }

    /// `x Wᵀ`: `[.., K]` → `[.., N]`.
    pub(crate) fn product(&self, x: CubeTensor) -> CubeTensor {
        let (shape, flat) = (with_last(x.shape(), self.rows()), flat(x));
        let m = flat.shape()[0];
        let out = if m <= FEW && self.width.is_multiple_of(FOUR) {
            let out = sums_like(&flat, Shape::new([m, self.rows()]));
            for (start, part) in self.parts() {
                self.launch_few(part, &flat, start, &out);
            }
            out
        } else {
            let share = |(_, part, rows): (usize, &Words, Range<usize>)| {
                matmul(flat.clone(), CubeBackend::float_transpose(self.widened(part, rows)))
            };
            joined(self.shares().map(share).collect(), 1)
        };
        CubeBackend::float_reshape(out, shape)
    }

    /// `y W`: `[.., N]` → `[.., K]`.
    pub(crate) fn back(&self, y: CubeTensor) -> CubeTensor {
        let (shape, flat) = (with_last(y.shape(), self.width), flat(y));
        let share = |(start, part, rows): (usize, &Words, Range<usize>)| {
            let columns = start..start + rows.len();
            let slices = [Slice::full(), Slice::from(columns)];
            matmul(CubeBackend::float_slice(flat.clone(), &slices), self.widened(part, rows))
        };
        let sum = self.shares().map(share).reduce(CubeBackend::float_add);
        let none =
            || CubeBackend::float_zeros(Shape::new([flat.shape()[0], self.width]), &flat.device, FloatDType::F32);
        let sum = sum.unwrap_or_else(none);
        CubeBackend::float_reshape(sum, shape)
    }

    fn launch_few(&self, part: &Words, x: &CubeTensor, start: usize, out: &CubeTensor) {
        let (m, client) = (x.shape()[0], x.client.clone());
        if m == 0 {
            return;
        }
        let units = units(&client, UNITS).max(LANES);
        let of = together(m);
        blocks::few::launch(
            &client,
            cubes(&client, part.rows.div_ceil(units / LANES) * m.div_ceil(of)),
            dim(units),
            addresses(&[&part.words, x, out]),
            x.clone().into_tensor_arg(),
            part.words.clone().into_tensor_arg(),
            out.clone().into_tensor_arg(),
            m,
            part.rows,
            start,
            self.width,
            part.row_bytes,
            of,
            units,
            part.format,
        );
    }
}

fn joined(mut parts: Vec<CubeTensor>, axis: usize) -> CubeTensor {
    match parts.len() {
        1 => parts.remove(0),
        _ => CubeBackend::float_cat(parts, axis),
    }
}
