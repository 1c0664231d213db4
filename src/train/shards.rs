//! Gradients of shards: leaves of their own for each worker, and a sum in the order of the shards, so that results do not
//! depend on thread timing (they do depend on the number of shards).

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{DType, FloatDType, Tensor};

use crate::model::Decoder;
use crate::recipe::Compute;

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
