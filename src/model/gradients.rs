//! Gradients by parameter name: reading them out, their global norm, scaling and summing them.

use anyhow::{Result, anyhow};
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Tensor, TensorData};

use super::checkpoint::{EMBED, HEAD, HostTensor};
use super::decoder::Decoder;
use super::weights::{Names, follow_names, is_table};
use crate::ops::{scalars, sum_of_squares};

/// Every gradient on the host by Hugging Face name, `[out, in]` (LoRA factors in Burn's layout).
pub fn gradients_by_name(model: &Decoder, grads: &GradientsParams) -> Result<Vec<(String, HostTensor)>> {
    let mut visitor = GradientReader { names: Names::default(), grads, out: vec![], error: None };
    model.visit(&mut visitor);
    visitor.error.map_or(Ok(visitor.out), Err)
}

pub fn scale(model: &Decoder, grads: &mut GradientsParams, factor: f64) {
    model.visit(&mut GradientScale { grads, factor });
}

/// Scales all gradients so that the global norm, `√Σ g²`, is at most `max_norm`; returns the norm before.
///
/// PyTorch's rule: the factor is `max_norm / (norm + 1e-6)`, at most 1.
pub(crate) fn clip_global_norm(model: &Decoder, grads: &mut GradientsParams, max_norm: f64) -> f64 {
    let mut visitor = Squares { grads, sums: vec![] };
    model.visit(&mut visitor);
    let norm = scalars(visitor.sums).iter().sum::<f64>().sqrt();
    let factor = max_norm / (norm + 1e-6);
    if factor < 1.0 {
        scale(model, grads, factor);
    }
    norm
}

/// Sets the gradients of embedding table and head to zero but in the rows of these tokens.
pub fn keep_token_rows(model: &Decoder, grads: &mut GradientsParams, tokens: &[u32]) {
    let learnt = |token| if tokens.contains(&token) { 1.0 } else { 0.0 };
    let mask: Vec<f32> = (0..model.config().vocab_size as u32).map(learnt).collect();
    model.visit(&mut KeepRows { tables: token_tables(model), grads, mask: &mask });
}

/// Embedding table and head, each with the axis of its tokens: Burn keeps a head as `[D, V]`.
pub(crate) fn token_tables(model: &Decoder) -> Vec<(ParamId, usize)> {
    let mut visitor = TokenTables { names: Names::default(), found: vec![] };
    model.visit(&mut visitor);
    visitor.found
}

struct TokenTables {
    names: Names,
    found: Vec<(ParamId, usize)>,
}

impl ModuleVisitor for TokenTables {
    follow_names!();

    fn visit_float<const R: usize>(&mut self, param: &Param<Tensor<R>>) {
        let axis = [EMBED, HEAD].iter().position(|table| *table == self.names.hugging_face());
        self.found.extend(axis.map(|axis| (param.id, axis)));
    }
}

/// Removes and returns the gradients of the parameters with this prefix.
pub(crate) fn take(model: &Decoder, grads: &mut GradientsParams, name: &str) -> GradientsParams {
    let mut visitor = Take { names: Names::default(), grads, name, taken: GradientsParams::new() };
    model.visit(&mut visitor);
    visitor.taken
}

struct Take<'a> {
    names: Names,
    grads: &'a mut GradientsParams,
    name: &'a str,
    taken: GradientsParams,
}

impl ModuleVisitor for Take<'_> {
    follow_names!();

    fn visit_float<const R: usize>(&mut self, param: &Param<Tensor<R>>) {
        if self.names.hugging_face().starts_with(self.name)
            && let Some(grad) = self.grads.remove::<R>(param.id)
        {
            self.taken.register(param.id, grad);
        }
    }
}

struct KeepRows<'a> {
    tables: Vec<(ParamId, usize)>,
    grads: &'a mut GradientsParams,
    /// 1 for each token whose row is trained.
    mask: &'a [f32],
}

impl ModuleVisitor for KeepRows<'_> {
    fn visit_float<const R: usize>(&mut self, param: &Param<Tensor<R>>) {
        let Some((_, axis)) = self.tables.iter().find(|(id, _)| *id == param.id) else { return };
        if let Some(grad) = self.grads.remove::<R>(param.id) {
            let mut shape = [1; R];
            shape[*axis] = self.mask.len();
            let mask = Tensor::<R>::from_data(TensorData::new(self.mask.to_vec(), shape), &grad.device());
            self.grads.register(param.id, grad * mask);
        }
    }
}

struct Squares<'a> {
    grads: &'a GradientsParams,
    /// `Σ g²` of each gradient.
    sums: Vec<Tensor<1>>,
}

impl ModuleVisitor for Squares<'_> {
    fn visit_float<const R: usize>(&mut self, param: &Param<Tensor<R>>) {
        if let Some(grad) = self.grads.get::<R>(param.id) {
            self.sums.push(sum_of_squares(grad));
        }
    }
}

struct GradientScale<'a> {
    grads: &'a mut GradientsParams,
    factor: f64,
}

impl ModuleVisitor for GradientScale<'_> {
    fn visit_float<const R: usize>(&mut self, param: &Param<Tensor<R>>) {
        if let Some(grad) = self.grads.remove::<R>(param.id) {
            self.grads.register(param.id, grad.mul_scalar(self.factor));
        }
    }
}

struct GradientReader<'a> {
    names: Names,
    grads: &'a GradientsParams,
    out: Vec<(String, HostTensor)>,
    error: Option<anyhow::Error>,
}

impl ModuleVisitor for GradientReader<'_> {
    follow_names!();

    fn visit_float<const R: usize>(&mut self, param: &Param<Tensor<R>>) {
        let Some(grad) = self.grads.get::<R>(param.id) else { return };
        let name = self.names.hugging_face();
        // LoRA factors are not Hugging Face parameters: they stay in Burn's layout. Rows of tables are as in the file.
        let transposed = R == 2 && !is_table(&name) && !name.contains("lora") && !name.ends_with(".learnt");
        let grad = if transposed { grad.transpose() } else { grad };
        let shape = grad.dims().to_vec();
        let data = grad.try_into_vec_as::<f32>().map_err(|e| anyhow!("reading the gradient of `{name}`: {e:?}"));
        match data.and_then(|data| HostTensor::new(shape, data)) {
            Ok(host) => self.out.push((name, host)),
            Err(error) => self.error = Some(error),
        }
    }
}
