//! Gradients of shards: leaves of their own for each worker, and a sum in the order of the shards, so that results do not
//! depend on thread timing (they do depend on the number of shards).

use anyhow::{Result, anyhow, ensure};
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{DType, FloatDType, Tensor, TensorData};

use crate::model::Decoder;
use crate::recipe::Compute;
use crate::world::World;

/// The same weights as leaves of a graph of their own, in the type that is computed in: Burn joins graphs that share a
/// leaf, and a graph can be back-propagated once. In f32 it costs no copy; parameter ids stay.
pub(crate) fn own_leaves(model: &Decoder, compute: Compute) -> Decoder {
    let device = model.device();
    compute.apply(model.clone().fork(&device))
}

/// Sums gradients parameter by parameter, in the order given, in f32.
pub(crate) fn sum_gradients(model: &Decoder, parts: Vec<GradientsParams>) -> GradientsParams {
    let mut total = GradientsParams::default();
    for part in parts {
        add_gradients(model, &mut total, part);
    }
    total
}

/// Adds one part to a running sum in f32, so that parts need not be kept.
pub(crate) fn add_gradients(model: &Decoder, total: &mut GradientsParams, mut part: GradientsParams) {
    model.visit(&mut Add { total, part: &mut part });
}

/// Sums gradients over all processes: one flat buffer `[parameters' values, then 1 for each that has a gradient]`. A parameter
/// without a gradient anywhere keeps none, as in one process: the optimiser leaves it alone.
///
/// # Errors
/// A device that cannot hand its data over.
pub(crate) fn sum_over(world: World, model: &Decoder, grads: GradientsParams) -> Result<GradientsParams> {
    if world.size == 1 {
        return Ok(grads);
    }
    let mut flat = Flatten { grads, values: vec![], there: vec![], failed: None };
    model.visit(&mut flat);
    let Flatten { mut values, there, failed, .. } = flat;
    if let Some(why) = failed {
        return Err(anyhow!("reading gradients: {why}"));
    }
    let at = values.len();
    values.extend(there);
    world.sum(&mut values);
    let there = values.split_off(at);
    let mut unflat = Unflatten { grads: GradientsParams::default(), values: &values, there: there.iter() };
    model.visit(&mut unflat);
    ensure!(unflat.values.is_empty(), "{} gradient values too many", unflat.values.len());
    Ok(unflat.grads)
}

struct Flatten {
    grads: GradientsParams,
    values: Vec<f32>,
    there: Vec<f32>,
    failed: Option<String>,
}

impl ModuleVisitor for Flatten {
    fn visit_float<const R: usize>(&mut self, param: &Param<Tensor<R>>) {
        if !param.is_require_grad() {
            return;
        }
        let grad = self.grads.remove::<R>(param.id);
        self.there.push(if grad.is_some() { 1.0 } else { 0.0 });
        match grad.map(|grad| grad.try_into_vec_as::<f32>()) {
            Some(Ok(values)) => self.values.extend(values),
            Some(Err(why)) => self.failed = Some(format!("{why:?}")),
            None => self.values.resize(self.values.len() + param.val().dims().iter().product::<usize>(), 0.0),
        }
    }
}

struct Unflatten<'a> {
    grads: GradientsParams,
    values: &'a [f32],
    there: std::slice::Iter<'a, f32>,
}

impl ModuleVisitor for Unflatten<'_> {
    fn visit_float<const R: usize>(&mut self, param: &Param<Tensor<R>>) {
        if !param.is_require_grad() {
            return;
        }
        let dims = param.val().dims();
        let (own, rest) = self.values.split_at(dims.iter().product());
        self.values = rest;
        if self.there.next().is_some_and(|there| *there > 0.0) {
            let device = param.val().device().inner();
            let grad = Tensor::<R>::from_data(TensorData::new(own.to_vec(), dims), (&device, DType::F32));
            self.grads.register(param.id, grad);
        }
    }
}

struct Add<'a> {
    total: &'a mut GradientsParams,
    part: &'a mut GradientsParams,
}

impl ModuleVisitor for Add<'_> {
    fn visit_float<const R: usize>(&mut self, param: &Param<Tensor<R>>) {
        let Some(more) = self.part.remove::<R>(param.id) else { return };
        let more = if more.dtype() == DType::F32 { more } else { more.cast(FloatDType::F32) };
        let sum = match self.total.remove::<R>(param.id) {
            Some(have) => have + more,
            None => more,
        };
        self.total.register(param.id, sum);
    }
}
