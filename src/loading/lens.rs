//! The logit lens of a text: each layer's prediction of the next token. Knows known sequences, no experiment.

use anyhow::{Context, Result};
use burn::tensor::{Tensor, TensorData};

use super::Loaded;
use crate::latent::{Sequence, sampling};
use crate::model::{HookSpec, Hooks};

/// States whose logits are in memory at once: 13 MB for a vocabulary of 50,000 tokens.
const STATES: usize = 64;

/// One layer's most probable next tokens at one position, with their probabilities, the most probable first.
pub type Reading = Vec<(u32, f64)>;

impl Loaded {
    /// The logit lens (nostalgebraist 2020): final norm and head on the output of every layer, at every position of a known sequence.
    /// `[layer][position]`; the last layer's readings are the model's own.
    ///
    /// # Errors
    /// A hook that never fired; failures of the model.
    pub fn lens(&self, row: &Sequence, top: usize, hooks: Hooks) -> Result<Vec<Vec<Reading>>> {
        let all = self.lens_through(row, top, hooks, |_, states| Some(states.to_vec()))?;
        Ok(all.into_iter().map(|(_, readings)| readings).collect())
    }

    /// Reads states `[L × D]` of each layer after `carry` has mapped them to the final state's basis. Layers for which it returns `None` are
    /// left out, except the last, whose states are the final ones.
    pub fn lens_through(
        &self,
        row: &Sequence,
        top: usize,
        hooks: Hooks,
        carry: impl Fn(usize, &[f32]) -> Option<Vec<f32>>,
    ) -> Result<Vec<(usize, Vec<Reading>)>> {
        let spec: HookSpec = "blocks.*.hook_resid_post".parse()?;
        let states = self.record(std::slice::from_ref(row), &[spec], false, hooks)?;
        let carried = |(layer, states): (usize, &[f32])| match layer + 1 == self.layers() {
            true => Some((layer, states.to_vec())),
            false => Some((layer, carry(layer, states)?)),
        };
        let all = states.iter().map(|states| states.data.as_slice()).enumerate().filter_map(carried);
        all.map(|(layer, states)| Ok((layer, self.read(&states, top)?))).collect()
    }

    /// States `[n × D]` → readings.
    fn read(&self, states: &[f32], top: usize) -> Result<Vec<Reading>> {
        let (device, width) = (self.model.device(), self.model.config().hidden_size);
        let mut out = vec![];
        for part in states.chunks(STATES * width) {
            let h = TensorData::new(part.to_vec(), [part.len() / width, width]);
            let h = self.model.norm.apply(Tensor::<2>::from_data(h, (&device, self.model.norm.weight.val().dtype())));
            let logits = self.model.unembed(h.unsqueeze_dim(0));
            let logits =
                logits.try_into_vec_as::<f32>().map_err(|e| anyhow::anyhow!("{e}")).context("the lens' logits")?;
            let vocabulary = logits.len() / (part.len() / width);
            out.extend(logits.chunks(vocabulary).map(|logits| most_probable(logits, top)));
        }
        Ok(out)
    }
}

fn most_probable(logits: &[f32], top: usize) -> Reading {
    let logprobs = sampling::log_softmax(logits, 1.0, &[]);
    let mut ids: Vec<u32> = (0..).take(logprobs.len()).collect();
    let top = top.min(ids.len());
    let falling = |a: &u32, b: &u32| logprobs[*b as usize].total_cmp(&logprobs[*a as usize]).then(a.cmp(b));
    if top < ids.len() {
        ids.select_nth_unstable_by(top, falling);
        ids.truncate(top);
    }
    ids.sort_by(falling);
    ids.into_iter().map(|id| (id, logprobs[id as usize].exp())).collect()
}
