//! Gradients of shards: leaves of their own for each worker, and a sum in the order of the shards, so that results do not
//! depend on thread timing (they do depend on the number of shards).

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

use crate::model::Decoder;

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
