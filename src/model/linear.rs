//! Matrices, as floats or in their file format, and the linear map.

use anyhow::{Result, ensure};
use burn::module::{Module, Param};
use burn::tensor::{Device, Int, Tensor};

use super::decoder::Make;
use super::kept::AdaptedMatrix;
use super::kept::matrix::index;
use crate::ops::{self, linear, linear_stored, linear_stored_each, linear_three, linear_transposed, linear_two};

/// A weight matrix. A model has seven per layer: the handle's size does not matter.
#[allow(clippy::large_enum_variant)]
#[derive(Module, Debug)]
pub enum Matrix {
    /// Trainable floats, in the layout of the owner.
    Dense(Param<Tensor<2>>),
    /// Frozen, as the file stores it.
    Kept(AdaptedMatrix),
}

impl Matrix {
    /// Placeholder for floats that are not read yet.
    pub(super) fn unset(device: &Device) -> Self {
        Matrix::Dense(Param::from_tensor(Tensor::zeros([1, 1], device)))
    }

    /// The parameter of a matrix of floats.
    pub fn param(&self) -> Option<&Param<Tensor<2>>> {
        match self {
            Matrix::Dense(param) => Some(param),
            Matrix::Kept(_) => None,
        }
    }
}

/// `y = x W + b` with W `[d_in, d_out]`, Burn's layout: the transpose of PyTorch's.
#[derive(Module, Debug)]
pub struct Linear {
    pub weight: Matrix,
    /// `[d_out]`.
    pub bias: Option<Param<Tensor<1>>>,
}

impl Linear {
    /// Makes the projection `name` of a decoder, `[d_out, d_in]`.
    pub(super) fn named(name: &str, shape: [usize; 2], make: Make) -> Result<Self> {
        Ok(Self { weight: make(&format!("{name}.weight"), shape)?, bias: None })
    }

    /// Adds a bias of zero, if the model has one, to be filled on reading.
    pub(super) fn biased(self, has_bias: bool, d_out: usize, device: &Device) -> Self {
        let bias = has_bias.then(|| Param::from_tensor(Tensor::zeros([d_out], device)));
        Self { bias, ..self }
    }

    /// `[B, L, d_in]` → `[B, L, d_out]`.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        if let Some(y) = self.adapted(&x) {
            return self.with_bias(y);
        }
        let y = match &self.weight {
            Matrix::Dense(weight) => linear(x.clone(), weight.base()),
            Matrix::Kept(kept) => linear_stored(x.clone(), &kept.matrix),
        };
        self.completed(y, x)
    }

    /// Two projections of one input. With few rows, as in decoding, the CPU shares both among threads at once; a GPU in training computes them
    /// separately.
    pub(super) fn forward_two([a, b]: [&Self; 2], x: Tensor<3>) -> [Tensor<3>; 2] {
        use Matrix::{Dense, Kept};
        if x.is_autodiff() && !ops::is_cpu(&x.device()) {
            return [a.forward(x.clone()), b.forward(x)];
        }
        let [y, z] = match [&a.weight, &b.weight] {
            [Dense(a), Dense(b)] => linear_two(x.clone(), [a.base(), b.base()]),
            [Kept(a), Kept(b)] => linear_stored_each(x.clone(), [&a.matrix, &b.matrix]),
            _ => return [a.forward(x.clone()), b.forward(x)],
        };
        [a.completed(y, x.clone()), b.completed(z, x)]
    }

    /// Three projections of one input, as [`Self::forward_two`].
    pub(super) fn forward_three([a, b, c]: [&Self; 3], x: Tensor<3>) -> [Tensor<3>; 3] {
        use Matrix::{Dense, Kept};
        if x.is_autodiff() && !ops::is_cpu(&x.device()) {
            return [a.forward(x.clone()), b.forward(x.clone()), c.forward(x)];
        }
        let [p, q, r] = match [&a.weight, &b.weight, &c.weight] {
            [Dense(a), Dense(b), Dense(c)] => linear_three(x.clone(), [a.base(), b.base(), c.base()]),
            [Kept(a), Kept(b), Kept(c)] => linear_stored_each(x.clone(), [&a.matrix, &b.matrix, &c.matrix]),
            _ => return [a.forward(x.clone()), b.forward(x.clone()), c.forward(x)],
        };
        [a.completed(p, x.clone()), b.completed(q, x.clone()), c.completed(r, x)]
    }

    /// Adds LoRA factors and bias to the product y of x with the frozen weight: `x W + scale · (x A) B`. The product of the factors is never
    /// formed, so that no dense matrix of W's shape is stored for a gradient.
    fn completed(&self, y: Tensor<3>, x: Tensor<3>) -> Tensor<3> {
        let y = match &self.weight {
            Matrix::Kept(kept) => kept.completed(y, x),
            Matrix::Dense(weight) => match weight.adapter() {
                Some(lora) => y + linear(linear(x, lora.a.val()).mul_scalar(lora.scale), lora.b.val()),
                None => y,
            },
        };
        self.with_bias(y)
    }

    fn with_bias(&self, y: Tensor<3>) -> Tensor<3> {
        match &self.bias {
            Some(bias) => y + bias.val().unsqueeze(),
            None => y,
        }
    }

    /// The product with the frozen weight and its factors, if one kernel computes it ([`ops::adapted`]).
    fn adapted(&self, x: &Tensor<3>) -> Option<Tensor<3>> {
        let Matrix::Dense(weight) = &self.weight else { return None };
        let lora = weight.adapter()?;
        ops::adapted(x, &weight.base(), [&lora.a.val(), &lora.b.val()], lora.scale)
    }

    /// x `[B, L, d_in]`, rounded as before the product with W.
    pub(super) fn rounded(&self, x: Tensor<3>) -> Result<Tensor<3>> {
        match &self.weight {
            Matrix::Dense(_) => Ok(x),
            Matrix::Kept(kept) => kept.matrix.rounded(x),
        }
    }

    /// W without the bias as floats, `[d_in, d_out]`, factors merged; a copy for a stored matrix.
    pub fn floats(&self, device: &Device) -> Result<Tensor<2>> {
        match &self.weight {
            Matrix::Dense(weight) => Ok(weight.val()),
            Matrix::Kept(kept) => Ok(kept.rows(None, device)?.transpose()),
        }
    }

    /// W's columns for some outputs, as rows, without the bias: `[n, d_in]`.
    pub(crate) fn outputs(&self, outputs: &[usize], device: &Device) -> Result<Tensor<2>> {
        match &self.weight {
            Matrix::Dense(weight) => {
                let weight = weight.val();
                let there = weight.dims()[1];
                ensure!(outputs.iter().all(|&at| at < there), "outputs {outputs:?} of a matrix that has {there}");
                Ok(weight.clone().select(1, index(outputs, &weight.device())).transpose())
            }
            Matrix::Kept(kept) => kept.rows(Some(outputs), device),
        }
    }

    /// `y Wᵀ` (without bias): `[B, L, d_out]` → `[B, L, d_in]`, the backward pass of the input. Not for a matrix that is being trained.
    pub(crate) fn backward(&self, y: Tensor<3>) -> Tensor<3> {
        match &self.weight {
            Matrix::Dense(weight) => ops::matmul(y, weight.val().transpose().unsqueeze()),
            Matrix::Kept(kept) => kept.back(y),
        }
    }

    /// Whether several CPU threads share the product with so few rows.
    pub(crate) fn is_shared(&self, rows: usize) -> bool {
        match &self.weight {
            Matrix::Dense(weight) => ops::is_shared(&weight.base(), rows),
            Matrix::Kept(kept) => ops::is_stored_shared(&kept.matrix, rows),
        }
    }
}

/// The embedding table `[V, D]`, which is also the head of a tied model.
impl Matrix {
    /// Rows by token id, `[n, D]`.
    pub(crate) fn embedding(&self, ids: &[usize], device: &Device) -> Result<Tensor<2>> {
        match self {
            Matrix::Dense(table) => {
                let table = table.val();
                let there = table.dims()[0];
                ensure!(ids.iter().all(|&id| id < there), "ids {ids:?} of a table of {there} rows");
                Ok(table.clone().select(0, index(ids, &table.device())))
            }
            Matrix::Kept(kept) => kept.rows(Some(ids), device),
        }
    }

    /// Rows of ids on the device, `[N]`, all in the table.
    pub(super) fn embedding_on_device(&self, ids: Tensor<1, Int>) -> Result<Tensor<2>> {
        match self {
            Matrix::Dense(table) => Ok(table.val().select(0, ids)),
            Matrix::Kept(kept) => kept.rows_on_device(ids),
        }
    }

    /// Standard deviation of all its values, without a stored matrix's factors.
    pub(super) fn spread(&self) -> f32 {
        match self {
            Matrix::Dense(table) => table.val().detach().reshape([-1]).var(0).sqrt().into_scalar::<f32>(),
            Matrix::Kept(kept) => kept.matrix.spread(),
        }
    }

    /// `x Tᵀ`: `[B, L, D]` → `[B, L, V]`.
    pub(super) fn as_head(&self, x: Tensor<3>) -> Tensor<3> {
        match self {
            Matrix::Dense(table) => linear_transposed(x, table.val()),
            Matrix::Kept(kept) => kept.product(x),
        }
    }

    /// `y T`: `[B, L, V]` → `[B, L, D]`.
    pub(crate) fn as_head_back(&self, y: Tensor<3>) -> Tensor<3> {
        match self {
            Matrix::Dense(table) => ops::matmul(y, table.val().unsqueeze()),
            Matrix::Kept(kept) => kept.back(y),
        }
    }
}
