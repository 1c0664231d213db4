//! Gradients of shards: separate leaves for each worker, summed in the order of the shards, so that results do not depend on thread timing
//! (but on the number of shards).

use anyhow::{Result, anyhow, ensure};
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, FloatDType, IndexingUpdateOp, Int, Tensor, TensorData};

use crate::model::{Decoder, gradients};
use crate::recipe::Compute;
use crate::world::World;

/// The weights as leaves of a new graph, in the compute type: Burn joins graphs that share a leaf, and a graph can be back-propagated only
/// once. In f32 without a copy; parameter ids stay the same.
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

/// Adds one part to a running sum in f32, so that parts can be freed.
pub(crate) fn add_gradients(model: &Decoder, total: &mut GradientsParams, mut part: GradientsParams) {
    model.visit(&mut Add { total, part: &mut part });
}

/// Sums gradients over all processes in one flat buffer: `[values of all parameters, then 1 for each parameter with a gradient]`. A parameter
/// without a gradient in any process gets none, as in one process, so that the optimiser skips it. With `token_rows` only these tokens' rows
/// of embedding table and head are exchanged; the sum's other rows are zero.
pub(crate) fn sum_over(
    world: World,
    model: &Decoder,
    grads: GradientsParams,
    token_rows: Option<&[u32]>,
) -> Result<GradientsParams> {
    if world.size == 1 {
        return Ok(grads);
    }
    exchange(model, grads, token_rows, |values| world.sum(values))
}

fn exchange(
    model: &Decoder,
    grads: GradientsParams,
    token_rows: Option<&[u32]>,
    sum: impl FnOnce(&mut [f32]),
) -> Result<GradientsParams> {
    let sent = SentRows {
        tables: token_rows.map(|_| gradients::token_tables(model)).unwrap_or_default(),
        tokens: token_rows.unwrap_or_default().iter().map(|&token| token as i32).collect(),
    };
    let mut flat = Flatten { sent: &sent, grads, values: vec![], there: vec![], failed: None };
    model.visit(&mut flat);
    let Flatten { mut values, there, failed, .. } = flat;
    if let Some(why) = failed {
        return Err(anyhow!("reading gradients: {why}"));
    }
    let at = values.len();
    values.extend(there);
    sum(&mut values);
    let there = values.split_off(at);
    let mut unflat = Unflatten { sent: &sent, grads: GradientsParams::default(), values: &values, there: there.iter() };
    model.visit(&mut unflat);
    ensure!(unflat.values.is_empty(), "{} gradient values too many", unflat.values.len());
    Ok(unflat.grads)
}

/// The part of a gradient that is sent: all of it or, for tables of tokens, only these tokens' rows.
struct SentRows {
    /// Tables with the axis of their tokens.
    tables: Vec<(ParamId, usize)>,
    tokens: Vec<i32>,
}

impl SentRows {
    fn axis(&self, id: ParamId) -> Option<usize> {
        self.tables.iter().find(|(table, _)| *table == id).map(|(_, axis)| *axis)
    }

    /// The shape of the part that is sent.
    fn shape<const R: usize>(&self, param: &Param<Tensor<R>>) -> [usize; R] {
        let mut shape = param.val().dims();
        if let Some(axis) = self.axis(param.id) {
            shape[axis] = self.tokens.len();
        }
        shape
    }

    fn indices(&self, device: &Device) -> Tensor<1, Int> {
        Tensor::from_data(TensorData::from(&self.tokens[..]), device)
    }
}

struct Flatten<'a> {
    sent: &'a SentRows,
    grads: GradientsParams,
    values: Vec<f32>,
    there: Vec<f32>,
    failed: Option<String>,
}

impl ModuleVisitor for Flatten<'_> {
    fn visit_float<const R: usize>(&mut self, param: &Param<Tensor<R>>) {
        if !param.is_require_grad() {
            return;
        }
        let grad = self.grads.remove::<R>(param.id);
        self.there.push(if grad.is_some() { 1.0 } else { 0.0 });
        let sent = grad.map(|grad| match self.sent.axis(param.id) {
            Some(axis) => {
                let tokens = self.sent.indices(&grad.device());
                grad.select(axis, tokens)
            }
            None => grad,
        });
        match sent.map(|grad| grad.try_into_vec_as::<f32>()) {
            Some(Ok(values)) => self.values.extend(values),
            Some(Err(why)) => self.failed = Some(format!("{why:?}")),
            None => self.values.resize(self.values.len() + self.sent.shape(param).iter().product::<usize>(), 0.0),
        }
    }
}

struct Unflatten<'a> {
    sent: &'a SentRows,
    grads: GradientsParams,
    values: &'a [f32],
    there: std::slice::Iter<'a, f32>,
}

impl ModuleVisitor for Unflatten<'_> {
    fn visit_float<const R: usize>(&mut self, param: &Param<Tensor<R>>) {
        if !param.is_require_grad() {
            return;
        }
        let shape = self.sent.shape(param);
        let (own, rest) = self.values.split_at(shape.iter().product());
        self.values = rest;
        if self.there.next().is_some_and(|there| *there > 0.0) {
            let device = param.val().device().inner();
            let sum = Tensor::<R>::from_data(TensorData::new(own.to_vec(), shape), (&device, DType::F32));
            let grad = match self.sent.axis(param.id) {
                Some(axis) => {
                    let zeros = Tensor::<R>::zeros(param.val().dims(), (&device, DType::F32));
                    zeros.select_assign(axis, self.sent.indices(&device), sum, IndexingUpdateOp::Add)
                }
                None => sum,
            };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::model::Hooks;
    use crate::model::checkpoint::ModelFiles;
    use crate::model::gradients::{gradients_by_name, keep_token_rows};

    /// Only the trained rows of the tables are sent; where the trainer reads it, the sum equals that of a full exchange.
    #[test]
    fn rows_of_tokens_are_summed_as_whole_tables_are() {
        const TOKENS: [u32; 3] = [63, 3, 62];
        for (folder, tables) in [("fixtures/tiny/qwen3_tied", 1), ("fixtures/tiny/qwen3_untied", 2)] {
            let files = ModelFiles::open_folder(folder).expect("the model");
            let model = Decoder::load(&files, &Machine::default().device.autodiff()).expect("its weights");
            let summed = |token_rows: Option<&[u32]>| {
                let ids = vec![(0..64).collect::<Vec<u32>>()];
                let loss = model.logits(&ids, &mut Hooks::none()).expect("logits").powi_scalar(2).sum();
                let mut grads = GradientsParams::from_grads(loss.backward(), &model);
                // A parameter without a gradient here.
                drop(gradients::take(&model, &mut grads, "model.norm"));
                let mut sent = 0;
                let double = |values: &mut [f32]| {
                    sent = values.len();
                    values.iter_mut().for_each(|value| *value *= 2.0);
                };
                let mut grads = exchange(&model, grads, token_rows, double).expect("exchanged");
                keep_token_rows(&model, &mut grads, &TOKENS);
                (gradients_by_name(&model, &grads).expect("gradients"), sent)
            };
            let ((whole, all), (rows, fewer)) = (summed(None), summed(Some(&TOKENS)));
            let row = model.config().hidden_size;
            assert_eq!(all - fewer, tables * (model.config().vocab_size - TOKENS.len()) * row, "{folder}");
            assert!(whole.len() > 10 && whole.iter().any(|(_, grad)| grad.data.iter().any(|value| *value != 0.0)));
            assert_eq!(whole.len(), rows.len());
            for ((name, whole), (_, rows)) in whole.iter().zip(&rows) {
                assert!(whole.data == rows.data && whole.shape == rows.shape, "{folder}: {name}");
            }
        }
    }
}
