//! Back-propagation through latents with the graph of a few waves in memory: gradient checkpointing (Chen et al. 2016), implemented here
//! because every later wave reads a wave's states.
//!
//! 1. Run all waves without a graph, storing keys, values and last states.
//! 2. Run segments of waves again, the last first, from those states as leaves. A segment's loss is that of its waves, plus its states times
//!    the gradient from later segments; keys and values accumulate the gradients of all later segments.

use anyhow::Result;
use burn::module::Module;
use burn::tensor::{DType, Gradients, Tensor};

use super::sequence::Sequence;
use super::source::LatentSource;
use super::stream::Gradient;
use super::unroll::{Bound, Waves};
use crate::model::{Decoder, Hooks, KvCache};

type KeysAndValues = (Tensor<4>, Tensor<4>);

/// Known sequences that are run again segment by segment, from the last.
pub(crate) struct Segments<'m> {
    model: &'m Decoder,
    sequences: &'m [Sequence],
    source: &'m dyn LatentSource,
    /// Waves per segment.
    every: usize,
    /// Beginnings of the segments that have not been run again.
    bounds: Vec<Bound>,
    /// Keys and values of everything before the last segment, outside autodiff.
    cache: KvCache,
    /// Per layer, the gradient of keys and values before the latest segment: `[B, Hkv, T, dh]`.
    of_cache: Vec<Option<KeysAndValues>>,
    /// The gradient of the last states before it, `[B, D]`.
    of_last: Option<Tensor<2>>,
}

/// One segment, begun from leaves.
pub(crate) struct Segment<'m> {
    pub waves: Waves<'m>,
    /// Keys, values and last states at its beginning.
    pub leaves: (KvCache, Option<Tensor<2>>),
}

impl<'m> Segments<'m> {
    /// Runs all but the last segment without a graph. A segment is `every` waves, that is, latents per row.
    pub fn new(
        model: &'m Decoder,
        sequences: &'m [Sequence],
        source: &'m dyn LatentSource,
        every: usize,
        hooks: &mut Hooks,
    ) -> Result<Self> {
        let plain = model.valid();
        let mut waves = Waves::new(&plain, sequences, source, Gradient::Through)?;
        let mut bounds = vec![waves.bound()];
        for _ in 1..waves.count().div_ceil(every) {
            for _ in 0..every {
                waves.next_wave(hooks)?;
            }
            bounds.push(waves.bound());
        }
        let cache = waves.into_stream().cache().clone();
        let of_cache = vec![None; model.layers.len()];
        Ok(Self { model, sequences, source, every, bounds, cache, of_cache, of_last: None })
    }

    /// The last segment that has not been run again; the caller computes the losses of its waves and calls [`Self::backward`].
    pub fn last(&mut self) -> Option<Segment<'m>> {
        let bound = self.bounds.pop()?;
        let last = bound.last.clone().map(|last| Tensor::from_inner(last).require_grad());
        let leaves = (self.cache.leaves(bound.width), last);
        let waves = Waves::from(self.model, self.sequences, self.source, bound, leaves.clone(), self.every);
        Some(Segment { waves, leaves })
    }

    /// Gradients of the segment's own loss, if any, and of its states that later segments used.
    pub fn backward(&mut self, segment: Segment<'m>, mut loss: Option<Tensor<1>>) -> Option<Gradients> {
        let Segment { waves, leaves: (leaves, last) } = segment;
        let (stream, from) = (waves.into_stream(), leaves.width());
        let mut add = |term: Tensor<1>| {
            let term = term.cast(DType::F32);
            loss = Some(match loss.take() {
                Some(loss) => loss + term,
                None => term,
            });
        };
        if let (Some(grad), Some(last)) = (self.of_last.take(), stream.last()) {
            add((last.clone() * Tensor::from_inner(grad)).sum());
        }
        for (layer, grads) in self.of_cache.iter().enumerate() {
            if let (Some((of_k, of_v)), Some((k, v))) = (grads, stream.cache().layer(layer)) {
                let own = |x: Tensor<4>| x.narrow(2, from, stream.cache().width() - from);
                add((own(k) * own(Tensor::from_inner(of_k.clone()))).sum());
                add((own(v) * own(Tensor::from_inner(of_v.clone()))).sum());
            }
        }
        let gradients = loss.filter(Tensor::is_tracked)?.backward();
        for (layer, grads) in self.of_cache.iter_mut().enumerate() {
            // Gradients that later segments pass through this one, plus its own.
            let later = grads.take();
            *grads = leaves.layer(layer).map(|(k, v)| {
                let sum = |leaf: Tensor<4>, later: Option<&Tensor<4>>| {
                    let own = leaf.grad(&gradients);
                    let later = later.map(|grad| grad.clone().narrow(2, 0, from));
                    own.into_iter().chain(later).reduce(|a, b| a + b).unwrap_or_else(|| leaf.inner().zeros_like())
                };
                let later = later.as_ref();
                (sum(k, later.map(|(k, _)| k)), sum(v, later.map(|(_, v)| v)))
            });
        }
        self.of_last = last.and_then(|last| last.grad(&gradients));
        Some(gradients)
    }
}
