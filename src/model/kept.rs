//! A decoder whose matrices stay in their stored type (f32, bf16, f16, blocks of 8 or 4 bits), on the CPU or a GPU: for inspection, and
//! for training LoRA factors over it. It computes in f32: its logits are those of the widened model up to rounding.

pub(super) mod matrix;
mod train;

use anyhow::{Context, Result, ensure};
use burn::tensor::{Device, FloatDType, Tensor, TensorData};

use super::checkpoint::{ModelFiles, expected_parameters};
use super::decoder::Decoder;
use super::linear::{Linear, Matrix};
use crate::ops::stored::{Format, Inputs, StoredMatrix};
pub use matrix::AdaptedMatrix;

/// Number of weights from which on f32 matrices are stored too. Their rows are then contiguous, a tenth faster if memory bandwidth is the
/// limit; a smaller model fits the cache, where parameters are faster.
const LARGE: usize = 1 << 24;

fn is_large(checkpoint: &ModelFiles) -> bool {
    let weights = |(_, shape): (String, Vec<usize>)| shape.iter().product::<usize>();
    expected_parameters(&checkpoint.config).into_iter().map(weights).sum::<usize>() >= LARGE
}

impl Decoder {
    /// Reads an opened checkpoint, matrix by matrix: at most one is in memory twice. Norms, and f32 matrices of small models, become
    /// parameters as in [`Self::load`]; an adapter's factors stay unmerged next to stored matrices.
    ///
    /// # Errors
    /// A tensor that cannot be read; a stored one with a value that is not finite.
    pub fn load_kept(checkpoint: &ModelFiles, device: &Device) -> Result<Self> {
        Self::load_stored(checkpoint, is_large(checkpoint), device, |matrix| matrix)
    }

    /// Loads a model to train LoRA factors over: f32 matrices of small models are stored too, so that an adapter's factors stay unmerged
    /// everywhere.
    pub fn load_kept_to_train(checkpoint: &ModelFiles, device: &Device) -> Result<Self> {
        Self::load_stored(checkpoint, true, device, |matrix| matrix)
    }

    /// As [`Self::load_kept`], with inputs rounded before the product: to bf16, as in a bf16 model (on a processor with bf16 products, large
    /// batches take half the time), or to 8 bits, for integer products with matrices of integers. Sums are f32.
    ///
    /// # Errors
    /// As [`Self::load_kept`]; a checkpoint without matrices that gain by it.
    pub fn load_kept_rounding(checkpoint: &ModelFiles, inputs: Inputs, device: &Device) -> Result<Self> {
        let gains = |matrix: &StoredMatrix| match inputs {
            Inputs::Exact => true,
            Inputs::Bf16 => matrix.has(Format::Bf16),
            Inputs::Q8 => matrix.has_integers(),
        };
        let mut found = false;
        let decoder = Self::load_stored(checkpoint, is_large(checkpoint), device, |matrix| {
            let gains = gains(&matrix);
            found |= gains;
            // A bf16 model rounds the inputs of its f32 matrices as well.
            if gains || inputs == Inputs::Bf16 { matrix.with_inputs(inputs) } else { matrix }
        })?;
        let (stored, dtype) = if inputs == Inputs::Bf16 {
            ("in bf16", "stored-bf16")
        } else {
            ("as integers (Q8_0, Q4_K, ...)", "stored-q8")
        };
        ensure!(
            found,
            "{}: no matrix is stored {stored}: --dtype {dtype} would only lose precision; use stored",
            checkpoint.path.display()
        );
        Ok(decoder)
    }

    /// `floats`: also store f32 matrices.
    fn load_stored(
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

    /// Truncates embedding and head to the first `keep` token rows, and appends the rows that `more` makes from the row `seed`. Other rows do
    /// not change, so that stored ones keep their format.
    ///
    /// # Errors
    /// A seed without a row; failures of `more`.
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

/// A matrix with other token rows after the first `keep`; floats have tokens along `axis`.
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
