//! The norms of a decoder, with their two hook points.

use anyhow::Result;
use burn::module::{Module, Param};
use burn::tensor::{Device, FloatDType, Tensor};

use super::config::ModelConfig;
use super::hooks::{HookPoint, Hooks};
use super::span::Span;
use crate::ops;

/// RMSNorm with a learned weight `[D]`, `x / rms(x) * (offset + weight)`; with a bias LayerNorm,
/// `(x − mean(x)) / std(x) * weight + bias`.
#[derive(Module, Debug)]
pub struct Norm {
    pub weight: Param<Tensor<1>>,
    pub bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    pub eps: f64,
    #[module(skip)]
    offset: f64,
}

impl Norm {
    /// A norm with weight one.
    pub(super) fn new(width: usize, config: &ModelConfig, device: &Device) -> Self {
        let offset = config.family.norm_offset;
        let weight = Tensor::ones([width], device).mul_scalar(1.0 - offset);
        let bias = config.family.layer_norm.then(|| Param::from_tensor(Tensor::zeros([width], device)));
        Self { weight: Param::from_tensor(weight), bias, eps: config.rms_norm_eps, offset }
    }

    /// Factor of the normalised stream, `[D]`.
    pub fn gain(&self) -> Tensor<1> {
        let weight = self.weight.val();
        if self.offset == 0.0 { weight } else { weight.add_scalar(self.offset) }
    }

    /// Without hooks: `[.., D]` → `[.., D]`.
    pub fn apply<const R: usize>(&self, x: Tensor<R>) -> Tensor<R> {
        match &self.bias {
            None => ops::rms_norm(x, self.gain(), self.eps),
            Some(bias) => ops::rms_norm(centred(x), self.gain(), self.eps) + bias.val().unsqueeze(),
        }
    }

    /// `x + more`, and its norm, if one kernel computes both.
    pub(super) fn apply_to_sum(&self, x: &Tensor<3>, more: &Tensor<3>) -> Option<(Tensor<3>, Tensor<3>)> {
        if self.bias.is_some() || x.is_autodiff() || ops::is_cpu(&x.device()) {
            return None;
        }
        ops::add_rms_norm(x, more, &self.gain(), self.eps)
    }

    /// The norm in f32, for any type of the weights.
    pub(crate) fn apply_in_f32<const R: usize>(&self, x: Tensor<R>) -> Tensor<R> {
        let f32 = |x: Tensor<1>| x.cast(FloatDType::F32);
        match &self.bias {
            None => ops::rms_norm(x, f32(self.gain()), self.eps),
            Some(bias) => ops::rms_norm(centred(x), f32(self.gain()), self.eps) + f32(bias.val()).unsqueeze(),
        }
    }

    /// `[B, L, D]` → `[B, L, D]`; `scale` and `normalized` are its hook points.
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
        let x = if self.bias.is_some() { centred(x) } else { x };
        let by = hooks.apply(scale, span, ops::rms_scale(x.clone(), self.eps))?;
        let x = hooks.apply(normalized, span, x / by)? * self.gain().unsqueeze();
        Ok(match &self.bias {
            Some(bias) => x + bias.val().unsqueeze(),
            None => x,
        })
    }
}

fn centred<const R: usize>(x: Tensor<R>) -> Tensor<R> {
    x.clone() - x.mean_dim(R - 1)
}
