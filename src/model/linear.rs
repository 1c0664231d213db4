//! A bias-free linear map, and the normalisation weights: the parameters blocks are made of.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

use crate::ops::linear;

/// `y = x W` with W `[d_in, d_out]`: the transpose of PyTorch's layout, as Burn keeps it.
#[derive(Module, Debug)]
pub struct Linear {
    pub weight: Param<Tensor<2>>,
}

impl Linear {
    pub(super) fn zeros(d_in: usize, d_out: usize, device: &Device) -> Self {
        Self { weight: Param::from_tensor(Tensor::zeros([d_in, d_out], device)) }
    }

    /// `[B, L, d_in]` → `[B, L, d_out]`. With LoRA factors `x W + scale · (x A) B`: their product is never formed, so that
    /// no dense matrix of W's shape is held for a gradient.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let Some(lora) = self.weight.adapter() else { return linear(x, self.weight.val()) };
        let low = linear(x.clone(), lora.a.val()).mul_scalar(lora.scale);
        linear(x, self.weight.base()) + linear(low, lora.b.val())
    }
}
