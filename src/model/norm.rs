//! RMSNorm with its two hook points.

use anyhow::Result;
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

use super::hooks::{HookPoint, Hooks};
use super::span::Span;
use crate::ops;

/// Root-mean-square normalisation with a learned weight `[D]`.
#[derive(Module, Debug)]
pub struct RmsNorm {
    pub weight: Param<Tensor<1>>,
    #[module(skip)]
    pub eps: f64,
}

impl RmsNorm {
    pub(super) fn ones(width: usize, eps: f64, device: &Device) -> Self {
        Self { weight: Param::from_tensor(Tensor::ones([width], device)), eps }
    }

    /// `[B, L, D]` → `[B, L, D]`; `scale` and `normalized` are where hooks stand.
    pub(super) fn forward(
        &self,
        x: Tensor<3>,
        [scale, normalized]: [HookPoint; 2],
        span: &Span,
        hooks: &mut Hooks,
    ) -> Result<Tensor<3>> {
        if !hooks.wants(scale) && !hooks.wants(normalized) {
            return Ok(ops::rms_norm(x, self.weight.val(), self.eps));
        }
        let by = hooks.apply(scale, span, ops::rms_scale(x.clone(), self.eps))?;
        let x = hooks.apply(normalized, span, x / by)?;
        Ok(x * self.weight.val().unsqueeze())
    }
}
