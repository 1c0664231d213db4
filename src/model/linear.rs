//! A bias-free linear map, and the normalisation weights: the parameters blocks are made of.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, module::linear};

/// `y = x W` with W `[d_in, d_out]`: the transpose of PyTorch's layout, as Burn keeps it.
#[derive(Module, Debug)]
pub struct Linear {
    pub weight: Param<Tensor<2>>,
}

impl Linear {
    pub(super) fn zeros(d_in: usize, d_out: usize, device: &Device) -> Self {
        Self { weight: Param::from_tensor(Tensor::zeros([d_in, d_out], device)) }
    }

    /// `[B, L, d_in]` → `[B, L, d_out]`.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        linear(x, self.weight.val(), None)
    }
}
