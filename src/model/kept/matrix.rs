//! A weight matrix in its file format, and the LoRA factors and rows that are trained with it.

use anyhow::{Result, anyhow, bail, ensure};
use burn::module::{LoraAdapter, Module, Param, ParamId};
use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::model::adapter::{factors, has_learnt};
use crate::model::checkpoint::HostTensor;
use crate::model::checkpoint::peft::Factors;
use crate::ops::stored::StoredMatrix;
use crate::ops::{FrozenMatrix, linear, linear_stored, linear_stored_back, linear_transposed, matmul};

/// A frozen matrix `[d_out, d_in]` in its stored type, with the additions of adapters.
#[derive(Module, Debug)]
pub struct AdaptedMatrix {
    #[module(skip)]
    pub(in crate::model) matrix: FrozenMatrix,
    /// A `[d_in, r]` and B `[r, d_out]`, the scale in B: of adapters that are not trained further.
    #[module(skip)]
    factors: Option<(Tensor<2>, Tensor<2>)>,
    /// Factors that are trained.
    lora: Option<LoraAdapter>,
    /// For a table of tokens: trained rows after those of the matrix, `[n, d_in]`.
    learnt: Option<Param<Tensor<2>>>,
}

impl AdaptedMatrix {
    /// `factors` in PEFT's layout, and their scale. Zero ones are dropped.
    pub(in crate::model) fn new(
        matrix: StoredMatrix,
        factors: Option<(Factors, f64)>,
        device: &Device,
    ) -> Result<Self> {
        let turned = |x: HostTensor| {
            Tensor::<2>::from_data(TensorData::new(x.data, x.shape), &device.clone().inner()).transpose()
        };
        let factors = factors.filter(|(f, _)| f.b.data.iter().any(|x| *x != 0.0));
        let factors = factors.map(|(f, scale)| (turned(f.a), turned(f.b).mul_scalar(scale)));
        Ok(Self { matrix: FrozenMatrix::new(matrix, device)?, factors, lora: None, learnt: None })
    }

    /// Its first rows, and more that are floats.
    pub(in crate::model) fn with_rows(self, keep: usize, added: &[f32]) -> Result<Self> {
        ensure!(self.factors.is_none(), "rows cannot be added to a matrix with LoRA factors");
        Ok(Self { matrix: self.matrix.cut(keep).with_rows(added)?, ..self })
    }

    /// Adds trained factors on top of the existing ones.
    pub(in crate::model) fn with_lora(self, lora: LoraAdapter) -> Self {
        Self { lora: Some(lora), ..self }
    }

    /// Converts its last rows, from `first` on, to trained floats; the others stay stored.
    pub(in crate::model) fn learning_from(self, first: usize, id: ParamId, device: &Device) -> Result<Self> {
        let all = self.matrix.rows();
        ensure!((1..all).contains(&first), "rows from {first} on of a table of {all} cannot be trained alone");
        let rows = self.matrix.range(first..all, device);
        Ok(Self { matrix: self.matrix.cut(first), learnt: Some(Param::initialized(id, rows)), ..self })
    }

    /// Whether some of its rows are trained.
    pub(in crate::model) fn learns_rows(&self) -> bool {
        self.learnt.is_some()
    }

    /// Stored rows and trained rows, if there are no factors.
    pub(in crate::model) fn rows_apart(&self) -> Option<(&FrozenMatrix, Tensor<2>)> {
        let alone = self.factors.is_none() && self.lora.is_none();
        self.learnt.as_ref().filter(|_| alone).map(|learnt| (&self.matrix, learnt.val()))
    }

    /// Merges trained factors into the fixed ones, so that a product uses one pair. Outside autodiff.
    pub(in crate::model) fn folded(mut self) -> Self {
        if let Some(trained) = self.lora.take() {
            let (a, b) = (trained.a.val(), trained.b.val().mul_scalar(trained.scale));
            self.factors = Some(match self.factors {
                Some((held_a, held_b)) => (Tensor::cat(vec![held_a, a], 1), Tensor::cat(vec![held_b, b], 0)),
                None => (a, b),
            });
        }
        self
    }

    /// All factors in PEFT's layout, with the scale in B, without untrained ones. Outside autodiff.
    pub(in crate::model) fn all_factors(&self) -> Result<Option<Factors>> {
        let learnt = Self { lora: self.lora.clone().filter(has_learnt), ..self.clone() };
        learnt.folded().factors.map(|(a, b)| factors([a, b])).transpose()
    }

    /// Fixed and trained factors, A `[d_in, r]` and B `[r, d_out]`, the scale in B.
    fn pairs(&self) -> impl Iterator<Item = (Tensor<2>, Tensor<2>)> {
        let trained = self.lora.as_ref().map(|lora| (lora.a.val(), lora.b.val().mul_scalar(lora.scale)));
        self.factors.iter().cloned().chain(trained)
    }

    /// Rows that it has: outputs of the map, or tokens of a table.
    fn height(&self) -> usize {
        self.matrix.rows() + self.learnt.as_ref().map_or(0, |learnt| learnt.val().dims()[0])
    }

    /// `[B, L, d_in]` → `[B, L, d_out]`.
    pub(in crate::model) fn product(&self, x: Tensor<3>) -> Tensor<3> {
        self.completed(linear_stored(x.clone(), &self.matrix), x)
    }

    /// Adds factors and trained rows to the stored matrix's product y with x.
    pub(in crate::model) fn completed(&self, y: Tensor<3>, x: Tensor<3>) -> Tensor<3> {
        let y = match &self.learnt {
            Some(learnt) => Tensor::cat(vec![y, linear_transposed(x.clone(), learnt.val())], 2),
            None => y,
        };
        let y = match &self.factors {
            Some((a, b)) => y + linear(linear(x.clone(), a.clone()), b.clone()),
            None => y,
        };
        match &self.lora {
            Some(lora) => y + linear(linear(x, lora.a.val()).mul_scalar(lora.scale), lora.b.val()),
            None => y,
        }
    }

    /// `y W` with all its rows and factors, `[B, L, d_out]` → `[B, L, d_in]`: the backward pass of [`Self::product`].
    pub(in crate::model) fn back(&self, y: Tensor<3>) -> Tensor<3> {
        let held = self.matrix.rows();
        let x = match &self.learnt {
            Some(learnt) => {
                let more = y.dims()[2] - held;
                let of_stored = linear_stored_back(y.clone().narrow(2, 0, held), &self.matrix);
                of_stored + linear(y.clone().narrow(2, held, more), learnt.val())
            }
            None => linear_stored_back(y.clone(), &self.matrix),
        };
        self.pairs().fold(x, |x, (a, b)| x + linear(linear(y.clone(), b.transpose()), a.transpose()))
    }

    /// Rows of the matrix as floats, `[n, d_in]`; `None`: all.
    pub(in crate::model) fn rows(&self, rows: Option<&[usize]>, device: &Device) -> Result<Tensor<2>> {
        let (held, all) = (self.matrix.rows(), self.height());
        let values = match (rows, &self.learnt) {
            (None, None) => self.matrix.range(0..held, device),
            (None, Some(learnt)) => Tensor::cat(vec![self.matrix.range(0..held, device), learnt.val()], 0),
            (Some(rows), _) => {
                if let Some(row) = rows.iter().find(|row| **row >= all) {
                    bail!("row {row} of a matrix of {all} rows");
                }
                let stored: Vec<usize> = rows.iter().map(|&row| row.min(held - 1)).collect();
                let values = self.matrix.select(&stored, device)?;
                match rows.iter().any(|&row| row >= held) {
                    true => self.with_learnt(values, index(rows, device)),
                    false => values,
                }
            }
        };
        Ok(self.with_factors(values, || rows.map(|rows| index(rows, device))))
    }

    /// The rows of these numbers, `[n]`, that are on the device, all below the number of rows: `[n, d_in]`.
    pub(in crate::model) fn rows_on_device(&self, rows: Tensor<1, Int>) -> Result<Tensor<2>> {
        let values = match self.learnt {
            Some(_) => {
                let stored = rows.clone().clamp_max(self.matrix.rows() as i64 - 1);
                self.with_learnt(self.matrix.select_on_device(stored)?, rows.clone())
            }
            None => self.matrix.select_on_device(rows.clone())?,
        };
        Ok(self.with_factors(values, || Some(rows)))
    }

    /// Replaces values of trained rows.
    fn with_learnt(&self, values: Tensor<2>, rows: Tensor<1, Int>) -> Tensor<2> {
        let Some(learnt) = &self.learnt else { return values };
        let held = self.matrix.rows() as i64;
        let is_learnt = rows.clone().greater_equal_elem(held).unsqueeze_dim::<2>(1).expand(values.dims());
        values.mask_where(is_learnt, learnt.val().select(0, (rows - held).clamp_min(0)))
    }

    /// Adds the factors' contribution to values of rows; `None`: all rows. Tables of tokens rarely have factors, and are read for every token.
    fn with_factors(&self, mut values: Tensor<2>, rows: impl FnOnce() -> Option<Tensor<1, Int>>) -> Tensor<2> {
        if self.factors.is_none() && self.lora.is_none() {
            return values;
        }
        let rows = rows();
        for (a, b) in self.pairs() {
            let b = match &rows {
                Some(rows) => b.select(1, rows.clone()),
                None => b,
            };
            values = values + matmul(a, b).transpose();
        }
        values
    }
}

/// A matrix on the host.
pub(in crate::model) fn host(x: Tensor<2>) -> Result<HostTensor> {
    let shape = x.dims().to_vec();
    HostTensor::new(shape, x.try_into_vec_as::<f32>().map_err(|e| anyhow!("reading a matrix: {e:?}"))?)
}

/// Numbers of rows on a device.
pub(in crate::model) fn index(rows: &[usize], device: &Device) -> Tensor<1, Int> {
    let rows: Vec<i64> = rows.iter().map(|&row| row as i64).collect();
    let n = rows.len();
    Tensor::from_data(TensorData::new(rows, [n]), device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::stored::Format;

    /// A table of tokens whose last rows are trained, with factors, maps back as its floats do.
    #[test]
    fn the_backward_pass_has_trained_rows_and_factors() {
        let (device, [rows, width, rank]): (Device, _) = (Default::default(), [40, 8, 2]);
        let drawn = |n: usize, by: usize| (0..n).map(|i| ((i * by) % 101) as f32 / 50.0 - 1.0).collect::<Vec<_>>();
        let host = |shape: [usize; 2], by| HostTensor::new(shape.to_vec(), drawn(shape[0] * shape[1], by)).unwrap();
        let bytes = drawn(rows * width, 37).iter().flat_map(|x| x.to_le_bytes()).collect();
        let stored = StoredMatrix::new(Format::F32, [rows, width], bytes).unwrap();
        let factors = || (Factors { a: host([rank, width], 29), b: host([rows, rank], 31) }, 0.5);
        for (with_factors, learnt) in [(false, 0), (false, 3), (true, 0), (true, 3)] {
            let table = AdaptedMatrix::new(stored.clone(), with_factors.then(factors), &device).unwrap();
            let table = match learnt {
                0 => table,
                n => table.learning_from(rows - n, ParamId::from(7_u64), &device).unwrap(),
            };
            // Several positions: each has a value for every row.
            let y = Tensor::<3>::from_data(TensorData::new(drawn(5 * rows, 41), [1, 5, rows]), &device);
            let expected = matmul(y.clone(), table.rows(None, &device).unwrap().unsqueeze());
            let off = (table.back(y) - expected).abs().max().into_scalar::<f32>();
            assert!(off < 1e-4, "factors {with_factors}, {learnt} trained rows: off by {off}");
        }
    }
}
