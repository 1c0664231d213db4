//! Data parallelism over threads: each worker a share of the rows on its own handle of the model, gradients summed in
//! the order of the shards, so that results do not depend on thread timing (they do depend on the number of shards).

use anyhow::{Result, anyhow};
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

use crate::model::Decoder;

/// Cuts `items` into at most `shards` contiguous parts of like size.
pub fn cut<T>(items: &[T], shards: usize) -> Vec<&[T]> {
    let size = items.len().div_ceil(shards.max(1)).max(1);
    items.chunks(size).collect()
}

/// Runs `work` on every part, one thread each; results in order.
///
/// # Errors
/// The first part that fails; a panic inside a worker becomes an error.
pub fn run<T: Sync, R: Send>(parts: &[&[T]], work: impl Fn(&[T]) -> Result<R> + Sync) -> Result<Vec<R>> {
    if let [only] = parts {
        return Ok(vec![work(only)?]);
    }
    std::thread::scope(|scope| {
        let workers: Vec<_> = parts.iter().map(|part| scope.spawn(|| work(part))).collect();
        // Every worker is joined before the first error is looked at: a scope does not forgive a lost panic.
        let joined: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        joined.into_iter().map(|done| done.map_err(|_| anyhow!("a worker thread panicked"))?).collect()
    })
}

/// The same weights as leaves of a graph of their own: Burn joins graphs that share a leaf, and a graph can be
/// back-propagated once. Costs no copy; parameter ids stay.
pub fn own_leaves(model: &Decoder) -> Decoder {
    let device = model.device();
    model.clone().fork(&device)
}

/// Sums gradients parameter by parameter, in the order given.
pub fn sum_gradients(model: &Decoder, parts: Vec<GradientsParams>) -> GradientsParams {
    let mut parts = parts.into_iter();
    let mut total = parts.next().unwrap_or_default();
    for mut part in parts {
        model.visit(&mut Add { total: &mut total, part: &mut part });
    }
    total
}

struct Add<'a> {
    total: &'a mut GradientsParams,
    part: &'a mut GradientsParams,
}

impl ModuleVisitor for Add<'_> {
    fn visit_float<const R: usize>(&mut self, param: &Param<Tensor<R>>) {
        let Some(more) = self.part.remove::<R>(param.id) else { return };
        let sum = match self.total.remove::<R>(param.id) {
            Some(have) => have + more,
            None => more,
        };
        self.total.register(param.id, sum);
    }
}
