//! RMSNorm with its two hook points.

use anyhow::Result;
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

use super::config::ModelConfig;
use super::hooks::{HookPoint, Hooks};
use super::span::Span;
use crate::ops;

/// Root-mean-square normalisation with a learned weight `[D]`: `x / rms(x) * (offset + weight)`.
#[derive(Module, Debug)]
pub struct RmsNorm {
    pub weight: Param<Tensor<1>>,
    #[module(skip)]
    pub eps: f64,
    #[module(skip)]
    offset: f64,
}

impl RmsNorm {
    /// A norm that multiplies by one.
    pub(super) fn new(width: usize, config: &ModelConfig, device: &Device) -> Self {
        let offset = config.family.norm_offset();
        let weight = Tensor::ones([width], device).mul_scalar(1.0 - offset);
        Self { weight: Param::from_tensor(weight), eps: config.rms_norm_eps, offset }
    }

    /// What the normalised stream is multiplied by, `[D]`.
    pub fn gain(&self) -> Tensor<1> {
        let weight = self.weight.val();
        if self.offset == 0.0 { weight } else { weight.add_scalar(self.offset) }
    }

    /// Without hooks: `[.., D]` → `[.., D]`.
    pub fn apply<const R: usize>(&self, x: Tensor<R>) -> Tensor<R> {
        ops::rms_norm(x, self.gain(), self.eps)
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
            return Ok(self.apply(x));
        }
        let by = hooks.apply(scale, span, ops::rms_scale(x.clone(), self.eps))?;
        let x = hooks.apply(normalized, span, x / by)?;
        Ok(x * self.gain().unsqueeze())
    }
}
