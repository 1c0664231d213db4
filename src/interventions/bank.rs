//! The latent inputs of a normal run, to patch with.

use std::collections::BTreeMap;

use anyhow::Result;

use super::engine::{ChangeLog, gather};
use super::{Intervention, LatentPlace};
use crate::model::hooks::Site;
use crate::model::{Activation, HookSpec, Select};

/// `(problem, block, step)` → the state that entered there, `[D]`.
#[derive(Clone, Debug, Default)]
pub struct Bank {
    states: BTreeMap<(usize, usize, usize), Vec<f32>>,
}

pub(super) static NO_STATES: Bank = Bank { states: BTreeMap::new() };

/// Every latent position's input.
pub fn latents() -> HookSpec {
    HookSpec { pattern: "latent.hook_injected".into(), select: Select::LATENTS }
}

impl Bank {
    /// Records the values in a region, heads concatenated, by the block and step of interventions.
    pub fn record(&mut self, region: Select, site: &Site, value: &Activation, log: &ChangeLog) -> Result<()> {
        let selected: Vec<_> =
            site.places.iter().filter_map(|place| Some((place, log.place(place, region)?))).collect();
        if selected.is_empty() {
            return Ok(());
        }
        let (dims, data) = (value.dims(), value.to_vec()?);
        for (place, at) in selected {
            self.insert((at.problem, at.block, at.step), gather(&data, &site.point.kind.ranges(&dims, place)));
        }
        Ok(())
    }

    pub fn insert(&mut self, at: (usize, usize, usize), state: Vec<f32>) {
        self.states.insert(at, state);
    }

    pub fn get(&self, problem: usize, block: usize, step: usize) -> Option<&[f32]> {
        self.states.get(&(problem, block, step)).map(Vec::as_slice)
    }

    /// These states, of each only a part of its values.
    pub(crate) fn parts(&self, part: impl Fn(&[f32]) -> Vec<f32>) -> Self {
        Self { states: self.states.iter().map(|(at, state)| (*at, part(state))).collect() }
    }

    /// Every state of one step, with its problem and block.
    pub(crate) fn states_at_step(&self, step: usize) -> impl Iterator<Item = (usize, usize, &[f32])> {
        self.states.iter().filter(move |((_, _, s), _)| *s == step).map(|((p, b, _), h)| (*p, *b, h.as_slice()))
    }

    /// Problem and block of every state, each once, in the order of the problems.
    pub(super) fn blocks(&self) -> Vec<(usize, usize)> {
        let mut blocks: Vec<_> = self.states.keys().map(|&(problem, block, _)| (problem, block)).collect();
        blocks.dedup();
        blocks
    }

    /// Every state of one problem, with its block and step.
    pub(crate) fn states_of_problem(&self, problem: usize) -> impl Iterator<Item = (usize, usize, &[f32])> {
        let all = (problem, 0, 0)..(problem + 1, 0, 0);
        self.states.range(all).map(|((_, block, step), h)| (*block, *step, h.as_slice()))
    }

    pub fn steps(&self) -> usize {
        self.states.keys().map(|(_, _, step)| step + 1).max().unwrap_or(0)
    }

    pub fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    pub(crate) fn merge(&mut self, other: Bank) {
        self.states.extend(other.states);
    }

    /// The value at the same place of the same problem in the bank's run.
    pub(super) fn replay(&self) -> impl Intervention {
        move |at: &LatentPlace, _: &[f32]| self.get(at.problem, at.block, at.step).map(<[f32]>::to_vec)
    }
}
