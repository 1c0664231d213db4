//! The value at a hook point.

use anyhow::{Result, bail};
use burn::tensor::{Bool, Device, Tensor, TensorData};

use crate::model::kept::matrix::index;

/// The value at a hook point, which determines the rank.
#[derive(Clone, Debug)]
pub enum Activation {
    Rank3(Tensor<3>),
    Rank4(Tensor<4>),
}

impl Activation {
    /// Whether the mask hides this attention score, of a model in f32 or bf16.
    pub(crate) fn is_masked(score: f32) -> bool {
        score <= crate::ops::MASKED / 2.0
    }

    pub fn dims(&self) -> Vec<usize> {
        match self {
            Activation::Rank3(x) => x.dims().to_vec(),
            Activation::Rank4(x) => x.dims().to_vec(),
        }
    }

    /// The values on the host, row-major, as f32.
    pub fn to_vec(&self) -> Result<Vec<f32>> {
        let data = match self {
            Activation::Rank3(x) => x.clone().try_to_vec_as::<f32>(),
            Activation::Rank4(x) => x.clone().try_to_vec_as::<f32>(),
        };
        data.map_err(|e| anyhow::anyhow!("reading an activation: {e:?}"))
    }

    /// Some rows of `[B · L, ..]` on the host, as f32.
    pub(super) fn rows(&self, rows: &[usize]) -> Result<Vec<Vec<f32>>> {
        let dims = self.dims();
        if rows.is_empty() {
            return Ok(vec![]);
        }
        let shape = [dims[0] * dims[1], dims[2..].iter().product()];
        let flat: Tensor<2> = match self {
            Activation::Rank3(x) => x.clone().reshape(shape),
            Activation::Rank4(x) => x.clone().reshape(shape),
        };
        let data = rows_of(&flat, rows).try_into_vec_as::<f32>();
        let data = data.map_err(|e| anyhow::anyhow!("reading an activation: {e:?}"))?;
        Ok(data.chunks(shape[1]).map(<[f32]>::to_vec).collect())
    }

    /// The same shape, device and float type with these values, row-major.
    #[must_use]
    pub(crate) fn with_values(&self, values: Vec<f32>) -> Self {
        let data = TensorData::new(values, self.dims());
        match self {
            Activation::Rank3(x) => Activation::Rank3(Tensor::from_data(data, (&x.device(), x.dtype()))),
            Activation::Rank4(x) => Activation::Rank4(Tensor::from_data(data, (&x.device(), x.dtype()))),
        }
    }

    /// The tensor of rank 3.
    ///
    /// # Errors
    /// An activation of rank 4.
    pub fn three(self) -> Result<Tensor<3>> {
        match self {
            Activation::Rank3(x) => Ok(x),
            Activation::Rank4(x) => bail!("expected an activation of rank 3, found {:?}", x.dims()),
        }
    }
}

/// `[N, D]` → its rows by number, `[n, D]`.
pub(crate) fn rows_of(x: &Tensor<2>, rows: &[usize]) -> Tensor<2> {
    x.clone().select(0, index(rows, &x.device()))
}

/// Tensors that can be an [`Activation`]: rank 3 and rank 4.
pub trait Hookable: Clone + Sized {
    fn wrap(self) -> Activation;
    fn unwrap_from(value: Activation) -> Option<Self>;
    fn device_of(&self) -> Device;
    /// `self` where `mask` (`[B, L]`, along `axis`) is false, `other` where it is true.
    fn merge(self, other: Self, mask: Tensor<2, Bool>, axis: usize) -> Self;
}

impl Hookable for Tensor<3> {
    fn wrap(self) -> Activation {
        Activation::Rank3(self)
    }
    fn unwrap_from(value: Activation) -> Option<Self> {
        match value {
            Activation::Rank3(x) => Some(x),
            Activation::Rank4(_) => None,
        }
    }
    fn device_of(&self) -> Device {
        self.device()
    }
    fn merge(self, other: Self, mask: Tensor<2, Bool>, _axis: usize) -> Self {
        let dims = self.dims();
        self.mask_where(mask.unsqueeze_dim::<3>(2).expand(dims), other)
    }
}

impl Hookable for Tensor<4> {
    fn wrap(self) -> Activation {
        Activation::Rank4(self)
    }
    fn unwrap_from(value: Activation) -> Option<Self> {
        match value {
            Activation::Rank4(x) => Some(x),
            Activation::Rank3(_) => None,
        }
    }
    fn device_of(&self) -> Device {
        self.device()
    }
    fn merge(self, other: Self, mask: Tensor<2, Bool>, axis: usize) -> Self {
        let dims = self.dims();
        let [b, l] = mask.dims();
        let shape = if axis == 2 { [b, 1, l, 1] } else { [b, l, 1, 1] };
        self.mask_where(mask.reshape(shape).expand(dims), other)
    }
}
