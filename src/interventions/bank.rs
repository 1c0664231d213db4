//! The latent inputs of a normal run, to patch with.

use std::collections::BTreeMap;

use anyhow::Result;

use super::{Intervention, LatentPlace};
use crate::model::hooks::Site;
use crate::model::{Activation, Step};

/// `(problem, block, step)` → what entered there, `[D]`.
#[derive(Clone, Debug, Default)]
pub struct Bank {
    states: BTreeMap<(usize, usize, usize), Vec<f32>>,
}

/// Of no run.
pub static NO_STATES: Bank = Bank { states: BTreeMap::new() };

impl Bank {
    /// Keeps what stands at the selected latent positions; `problem` says whose a row is.
    pub fn record(&mut self, site: &Site, value: &Activation, problem: impl Fn(usize) -> usize) -> Result<()> {
        let values = site.values(value, |_| true)?.into_iter();
        self.states.extend(values.filter_map(|(place, state)| match place.step {
            Step::Latent { block, step } => Some(((problem(place.row), block, step), state)),
            _ => None,
        }));
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
    pub(crate) fn of_step(&self, step: usize) -> impl Iterator<Item = (usize, usize, &[f32])> {
        self.states.iter().filter(move |((_, _, s), _)| *s == step).map(|((p, b, _), h)| (*p, *b, h.as_slice()))
    }

    /// Every state of one problem, with its block and step.
    pub(crate) fn of_problem(&self, problem: usize) -> impl Iterator<Item = (usize, usize, &[f32])> {
        let all = (problem, 0, 0)..(problem + 1, 0, 0);
        self.states.range(all).map(|((_, block, step), h)| (*block, *step, h.as_slice()))
    }

    pub fn steps(&self) -> usize {
        self.states.keys().map(|(_, _, step)| step + 1).max().unwrap_or(0)
    }

    pub fn len(&self) -> usize {
        self.states.len()
    }

    pub fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    pub(crate) fn merge(&mut self, other: Bank) {
        self.states.extend(other.states);
    }

    /// What stood at the same place of the same problem in the bank's run.
    pub(super) fn again(&self) -> impl Intervention {
        move |at: &LatentPlace, _: &[f32]| self.get(at.problem, at.block, at.step).map(<[f32]>::to_vec)
    }
}
