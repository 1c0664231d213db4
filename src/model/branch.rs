//! Runs sequences that share a known prefix up to some block at some position; the shared part is not recomputed.

use std::ops::Range;

use anyhow::{Result, ensure};
use burn::tensor::Tensor;

use super::cache::KvCache;
use super::decoder::Decoder;
use super::hooks::Hooks;
use super::span::{Span, Step};

/// State of one sequence of the trunk's run.
pub(crate) struct Trunk {
    /// The stream before each block and after the last, `[1, L, D]` each.
    pub stream: Vec<Tensor<3>>,
    /// Keys and values of its `L` positions.
    pub cache: KvCache,
}

impl Decoder {
    /// Continues the trunk: at its next positions, row r is the trunk up to block `starts[r]` (increasing; the number of blocks: up to the
    /// end). Returns the last position's states after the final norm, `[rows, D]`, and the KV cache. Hooks see a row from its start block
    /// on; their changes below it are lost.
    ///
    /// # Errors
    /// Unsorted rows; positions that the trunk lacks; as [`Self::hidden`].
    pub(crate) fn branch(
        &self,
        trunk: &Trunk,
        starts: &[usize],
        (at, steps): (Range<usize>, &[Step]),
        hooks: &mut Hooks,
    ) -> Result<(Tensor<2>, Option<KvCache>)> {
        let (rows, positions) = (starts.len(), trunk.cache.width());
        ensure!(starts.is_sorted() && rows > 0, "rows of a branch must be sorted by the block that they start at");
        ensure!(at.end <= positions && steps.len() == at.len(), "positions {at:?} of a row of {positions}");
        let mut whole = (at.end < positions).then(|| self.cache(rows));
        let mut x: Option<Tensor<3>> = None;
        for layer in 0..=self.layers.len() {
            let (running, inside) = (x.as_ref().map_or(0, |x| x.dims()[0]), starts.partition_point(|&s| s <= layer));
            if inside > running {
                let own = trunk.stream[layer].clone().narrow(1, at.start, at.len()).repeat_dim(0, inside - running);
                x = Some(match x {
                    Some(x) => Tensor::cat(vec![x, own], 0),
                    None => own,
                });
            }
            let Some(block) = self.layers.get(layer) else { break };
            let mut cache = trunk.cache.of_layer(layer, at.start, inside);
            if let Some(before) = x.take() {
                let span = Span {
                    rows: vec![0; inside],
                    positions: vec![at.clone().collect(); inside],
                    steps: vec![steps.iter().copied().map(Some).collect(); inside],
                };
                cache.open(&span)?;
                let call = self.call(&span, &cache, hooks, &before)?;
                x = Some(block.forward(before.into(), layer, &call, &mut cache, hooks)?.sum());
            }
            if let Some(whole) = &mut whole {
                whole.take_layer(layer, [cache, trunk.cache.of_layer(layer, at.end, rows - inside)]);
            }
        }
        let Some(x) = x.filter(|x| x.dims()[0] == rows) else {
            anyhow::bail!("a row of a branch starts after the model's {} blocks", self.layers.len());
        };
        Ok((self.norm.apply(x.narrow(1, at.len() - 1, 1)).squeeze_dim(1), whole))
    }
}
