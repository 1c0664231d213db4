//! A decoder whose matrices stay in their file format (f32, bf16, f16, blocks of 8 or 4 bits), on the CPU or a GPU: for inspection,
//! and for training LoRA factors over it. It computes in f32: its logits are those of the widened model up to rounding.

pub(super) mod matrix;
mod train;

use anyhow::{Context, Result, ensure};
use burn::tensor::{Device, FloatDType, Tensor, TensorData};

use super::checkpoint::{ModelFiles, expected_parameters};
use super::decoder::Decoder;
use super::linear::{Linear, Matrix};
use crate::ops::stored::{Format, StoredMatrix};
pub use matrix::AdaptedMatrix;

/// Weights from which on f32 matrices stay in their file format too. Their rows are then contiguous, which is a tenth
/// faster if memory is the limit; a smaller model fits the cache, where parameters are faster.
const LARGE: usize = 1 << 24;

fn is_large(checkpoint: &ModelFiles) -> bool {
    let weights = |(_, shape): (String, Vec<usize>)| shape.iter().product::<usize>();
    expected_parameters(&checkpoint.config).into_iter().map(weights).sum::<usize>() >= LARGE
}

impl Decoder {
    /// Reads an opened checkpoint, matrix by matrix: no more than one is held twice. Norms, and matrices of small models that are stored
    /// as f32, become parameters as in [`Self::load`]; the factors of an adapter stay apart from matrices that are stored.
    ///
    /// # Errors
    /// A tensor that cannot be read, or a kept one with a value that is not finite.
    pub fn load_kept(checkpoint: &ModelFiles, device: &Device) -> Result<Self> {
        Self::kept(checkpoint, is_large(checkpoint), device, |matrix| matrix)
    }

    /// Loads a model to train LoRA factors over: matrices of small models in f32 are stored too, so that factors of an adapter stay apart from
    /// every one.
    ///
    /// # Errors
    /// As [`Self::load_kept`].
    pub fn load_kept_to_train(checkpoint: &ModelFiles, device: &Device) -> Result<Self> {
        Self::kept(checkpoint, true, device, |matrix| matrix)
    }

    /// Loads a kept model with inputs of every kept matrix rounded to bf16 before they are multiplied with it, as a model in bf16 has them: where the
    /// processor multiplies in bf16, many rows take half the time. Sums are f32.
    ///
    /// # Errors
    /// As [`Self::load_kept`]; and a checkpoint that stores no matrix in bf16, of which nothing would be faster.
    pub fn load_kept_in_bf16(checkpoint: &ModelFiles, device: &Device) -> Result<Self> {
        let mut found = false;
        let decoder = Self::kept(checkpoint, is_large(checkpoint), device, |matrix| {
            found |= matrix.has(Format::Bf16);
            matrix.rounding_inputs()
        })?;
        ensure!(
            found,
            "{}: no matrix is stored in bf16, so that --dtype stored-bf16 would lose digits for nothing; use stored",
            checkpoint.path.display()
        );
        Ok(decoder)
    }

    /// `floats`: keep f32 matrices in their file format too.
    fn kept(
        checkpoint: &ModelFiles,
        floats: bool,
        device: &Device,
        mut form: impl FnMut(StoredMatrix) -> StoredMatrix,
    ) -> Result<Self> {
        let make = &mut |name: &str, [d_out, d_in]: [usize; 2]| {
            let Some(matrix) = checkpoint.stored(name, floats)? else { return Ok(Matrix::unset(device)) };
            ensure!(
                [matrix.rows(), matrix.width()] == [d_out, d_in],
                "`{name}` has shape {:?}, expected {:?}",
                [matrix.rows(), matrix.width()],
                [d_out, d_in]
            );
            Ok(Matrix::Kept(AdaptedMatrix::new(form(matrix), checkpoint.factors(name)?, device)?))
        };
        let decoder = Self::new(&checkpoint.config, device, make)?;
        let get = |name: &str| {
            checkpoint.tensor(name).with_context(|| format!("{}: reading `{name}`", checkpoint.path.display()))
        };
        decoder.filled(FloatDType::F32, device, get)?.with_heads_of(&checkpoint.path)
    }

    /// Keeps the first `keep` token rows of embedding and head, and adds those that `more` makes of the row `seed`, one
    /// after the other. Other rows are not touched, so that kept ones stay as they are stored.
    ///
    /// # Errors
    /// A seed without a row, and what `more` returns.
    pub(crate) fn with_token_rows(
        mut self,
        keep: usize,
        seed: usize,
        mut more: impl FnMut(&[f32]) -> Result<Vec<f32>>,
    ) -> Result<Self> {
        let device = self.device();
        let width = self.config.hidden_size;
        let host = |rows: Tensor<2>| rows.try_into_vec_as::<f32>().map_err(|e| anyhow::anyhow!("reading a row: {e:?}"));
        let added = more(&host(self.embed_tokens.embedding(&[seed], &device)?)?)?;
        self.config.vocab_size = keep + added.len() / width;
        self.embed_tokens = extended(self.embed_tokens, keep, added, 0, &device)?;
        if let Some(head) = self.lm_head.take() {
            let added = more(&host(head.outputs(&[seed], &device)?)?)?;
            self.lm_head = Some(Linear { weight: extended(head.weight, keep, added, 1, &device)?, bias: head.bias });
        }
        Ok(self)
    }
}

/// A matrix with other token rows after the first `keep`; floats hold tokens along `axis`.
fn extended(matrix: Matrix, keep: usize, added: Vec<f32>, axis: usize, device: &Device) -> Result<Matrix> {
    Ok(match matrix {
        Matrix::Kept(kept) => Matrix::Kept(kept.with_rows(keep, &added)?),
        Matrix::Dense(param) => {
            let table = param.val();
            let width = table.dims()[1 - axis];
            let shape = [added.len() / width, width];
            let added = Tensor::<2>::from_data(TensorData::new(added, shape), device);
            let added = if axis == 0 { added } else { added.transpose() };
            let whole = Tensor::cat(vec![table.narrow(axis, 0, keep), added], axis);
            let trained = param.is_require_grad();
            Matrix::Dense(param.map(|_| whole.detach().set_require_grad(trained)))
        }
    })
}
