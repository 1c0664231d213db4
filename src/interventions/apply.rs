//! Interventions on the rows of a forked decode: each row has its own, its own steps, and is counted apart.

use std::cell::RefCell;
use std::collections::BTreeSet;

use anyhow::{Result, ensure};

use super::{Bank, Intervention, LatentPlace, Later, Steps};
use crate::model::hooks::Place;
use crate::model::{HookSpec, Hooks, Select, Step};

/// What one row does at its latents.
#[derive(Clone, Copy)]
pub struct Replacement<'a> {
    pub problem: usize,
    /// `None`: nothing, it is a normal row.
    pub what: Option<&'a dyn Intervention>,
    pub steps: Steps,
}

/// How often an intervention fired and how far it moved the states.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Firings {
    pub count: usize,
    /// Σ ‖new − old‖.
    pub moved: f64,
}

impl Firings {
    pub fn add(&mut self, other: &Firings) {
        self.count += other.count;
        self.moved += other.moved;
    }

    /// A value that was replaced.
    pub(super) fn one(old: &[f32], new: &[f32]) -> Self {
        let moved = old.iter().zip(new).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt();
        Self { count: 1, moved }
    }
}

/// The arms of a forked decode, by row, and what they have done so far.
pub struct Replacements<'a> {
    arms: Vec<Replacement<'a>>,
    later: Later,
    bank: &'a Bank,
    firings: RefCell<Vec<Firings>>,
    /// Rows and blocks in which something was replaced.
    touched: RefCell<BTreeSet<(usize, usize)>>,
}

/// Every latent position's input.
pub fn latents() -> HookSpec {
    HookSpec { pattern: "latent.hook_injected".into(), select: Select::LATENTS }
}

impl<'a> Replacements<'a> {
    /// `bank` holds the states of a normal run.
    pub fn new(arms: Vec<Replacement<'a>>, later: Later, bank: &'a Bank) -> Self {
        let firings = RefCell::new(vec![Firings::default(); arms.len()]);
        Self { arms, later, bank, firings, touched: RefCell::default() }
    }

    /// Hooks that replace and freeze; without `replacing` freeze only: for the half of a position that sees its input as it was.
    pub fn attach<'h>(&'h self, hooks: &mut Hooks<'h>, layers: usize, replacing: bool) -> Result<()> {
        if replacing || self.later == Later::Frozen {
            hooks.edit(&latents(), layers, move |site, state| {
                site.places.iter().try_for_each(|place| self.replace(place, state, replacing))
            })?;
        }
        Ok(())
    }

    /// Of each arm.
    pub fn firings(self) -> Vec<Firings> {
        self.firings.into_inner()
    }

    fn replace(&self, place: &Place, state: &mut [f32], replacing: bool) -> Result<()> {
        let (Some(arm), Step::Latent { block, step }) = (self.arms.get(place.row), place.step) else { return Ok(()) };
        // Randomness and donors belong to the problem, not to the row of this batch.
        let at = LatentPlace { problem: arm.problem, block, step };
        if !arm.steps.admits(step) {
            let behind = self.later == Later::Frozen && self.touched.borrow().contains(&(place.row, block));
            let own = self.bank.get(at.problem, block, step).filter(|_| behind);
            own.into_iter().for_each(|own| state.copy_from_slice(own));
        } else if let Some(new) = arm.what.filter(|_| replacing).and_then(|what| what.input(&at, state)) {
            ensure!(new.len() == state.len(), "a latent input of width {}, expected {}", new.len(), state.len());
            self.firings.borrow_mut()[place.row].add(&Firings::one(state, &new));
            self.touched.borrow_mut().insert((place.row, block));
            state.copy_from_slice(&new);
        }
        Ok(())
    }
}
