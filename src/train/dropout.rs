//! One dropout mask per rollout (method §5, `dropout_rollouts`): a group explores by dropout as well as by sampling tokens. A rollout
//! has the same mask from its first prompt token to its last replay, so that the ratio of the first inner epoch is 1, as without
//! dropout.
//!
//! The mask is applied to what each layer adds to the residual stream, to attention and MLP separately, like GPT-2's residual dropout,
//! but with the same coordinates at every position: value · m / (1 − share), m ~ Bernoulli(1 − share) per coordinate.

use std::rc::Rc;

use anyhow::Result;
use burn::tensor::{Tensor, TensorData};
use rand::Rng;

use crate::model::{Activation, Decoder, HookPoint, Hooks, Site};
use crate::random::{fnv1a, keyed};

/// Masks of the rows of a batch; a row's name ([`crate::model::Span::rows`]) is its index in `rollouts`.
pub(super) struct Masks {
    /// Share of the coordinates that are set to zero; 0: no dropout.
    pub share: f64,
    /// Seed of the rollouts; differs at each optimiser step.
    pub seed: u64,
    /// `(problem, rollout)` of each row.
    pub rollouts: Vec<(usize, usize)>,
}

impl Masks {
    /// Hooks that apply the masks to `model`; none without dropout.
    pub fn hooks(self, model: &Decoder) -> Result<Hooks<'static>> {
        let mut hooks = Hooks::none();
        if self.share > 0.0 {
            let masks = Rc::new(self);
            for point in ["blocks.*.hook_attn_out", "blocks.*.hook_mlp_out"] {
                let masks = Rc::clone(&masks);
                hooks.replace(&point.parse()?, model.layers.len(), move |site, value| masks.apply(site, value))?;
            }
        }
        Ok(hooks)
    }

    fn apply(&self, site: &Site, value: Activation) -> Result<Activation> {
        let value = value.three()?;
        let [rows, _, width] = value.dims();
        let mask: Vec<f32> = site.span.rows.iter().flat_map(|&row| self.mask(site.point, row, width)).collect();
        let mask = Tensor::<3>::from_data(TensorData::new(mask, [rows, 1, width]), &value.device());
        Ok(Activation::Rank3(value.clone() * mask.cast(value.dtype())))
    }

    fn mask(&self, point: HookPoint, row: usize, width: usize) -> Vec<f32> {
        let (problem, rollout) = self.rollouts[row];
        let place = fnv1a(point.to_string().bytes());
        let mut rng = keyed([self.seed, problem as u64, rollout as u64, place]);
        let kept = 1.0 / (1.0 - self.share);
        (0..width).map(|_| if rng.random::<f64>() < self.share { 0.0 } else { kept as f32 }).collect()
    }
}
