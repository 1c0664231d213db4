//! Interventions, one small documented value per file; each documents when it misleads.
//!
//! An [`Intervention`] computes what enters a latent position instead of the recurrence's input (`latent.hook_injected`), or what
//! replaces the value at any other hook point. To add one: a file here with a constant `ABOUT`, which declares its facts, and its name in
//! the list below. A [`Change`] is an intervention with the places where it acts, as users write it (`change.rs`); `engine.rs` executes
//! changes. A [`SwitchRule`] changes when blocks are opened and closed (`rules.rs`). The steps on which an intervention acts, the treatment of
//! later latents and the channel are settings of every intervention ([`crate::schema::Steps`], [`crate::schema::Later`],
//! [`crate::schema::At`]).

mod bank;
mod call;
mod change;
mod engine;
mod heads;
mod rules;
mod values;

use std::collections::BTreeMap;

pub use bank::{Bank, latents};
pub use call::{Client, FunctionCall, set_client};
pub use change::{Change, InterventionSpec, ModelChange};
pub use engine::{ChangeLog, ChangePlace, ChangeReport, Changes, Firings, PreparedChange};
pub use heads::Heads;
pub use known_value::Swap;
pub(crate) use resample::resampled;
pub(crate) use rules::{FORCE_SWITCH, RULES};
pub use zero::Zero;

pub use crate::schema::{At, Later, Steps};

use rand_chacha::ChaCha8Rng;

use crate::latent::Switching;
use crate::model::Decoder;
use crate::random::normal;

/// Replaces the input of one latent position.
pub trait Intervention: Send + Sync {
    /// The new input `[D]` at a place with input `h` `[D]`; `None` leaves it unchanged (the intervention does not fire).
    fn input(&self, at: &LatentPlace, h: &[f32]) -> Option<Vec<f32>>;
}

/// A latent step. Elsewhere an equivalent: the t-th token of a response counts as step t.
#[derive(Clone, Copy, Debug)]
pub struct LatentPlace {
    pub problem: usize,
    pub block: usize,
    pub step: usize,
}

impl LatentPlace {
    /// Random key: one draw per place and seed.
    fn key(&self, seed: u64) -> [u64; 4] {
        [seed, self.problem as u64, self.block as u64, self.step as u64]
    }
}

impl<F: Fn(&LatentPlace, &[f32]) -> Option<Vec<f32>> + Send + Sync> Intervention for F {
    fn input(&self, at: &LatentPlace, h: &[f32]) -> Option<Vec<f32>> {
        self(at, h)
    }
}

/// A change of when blocks are opened and closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchRule {
    pub name: &'static str,
    pub switching: Switching,
}

/// Inputs for the construction of interventions.
#[derive(Clone, Copy)]
pub struct Material<'a> {
    /// The states of a normal run on the same problems.
    pub bank: &'a Bank,
    /// States of sampled rollouts, one bank per draw.
    pub siblings: &'a [Bank],
    /// Exchanged blocks, one map per draw.
    pub swaps: &'a [BTreeMap<usize, Swap>],
    /// `None`: no intervention needs embeddings.
    pub model: Option<&'a Decoder>,
    /// `E[</swi>]`.
    pub exit: &'a [f32],
}

impl Material<'static> {
    /// No material: enough for [`Acts::Alone`].
    pub const NONE: Self = Self { bank: &bank::NO_STATES, siblings: &[], swaps: &[], model: None, exit: &[] };
}

/// The number of a draw, and its dose.
#[derive(Clone, Copy, Debug)]
pub struct Draw {
    pub number: usize,
    pub seed: u64,
    pub dose: f64,
}

impl Draw {
    /// Without runs, with its own seed.
    pub(crate) fn keyed(seed: u64, number: usize, dose: Option<f64>) -> Self {
        let seed = seed.wrapping_add((number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        Self { number, seed, dose: dose.unwrap_or(0.0) }
    }
}

/// Values that an intervention needs, which determine where it can act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acts {
    /// The value itself: at any hook point of any run.
    Alone,
    /// A normal run of the same problems: at any hook point of an experiment.
    OnRun,
    /// States of latent inputs: only there.
    OnLatents,
}

/// An intervention by its name on the command line and in tables.
pub struct InterventionAbout {
    /// As in `--modes` and in tables.
    pub name: &'static str,
    pub acts: Acts,
    /// Whether draws differ.
    pub random: bool,
    /// Default doses, unless one is named (`scale:0.5`); empty: it has no dose.
    pub doses: &'static [f64],
    /// Whether each new value depends only on the old one at its place: sequences may then differ in length.
    pub value_wise: bool,
    /// Whether positive values stay positive at a dose: only then may the stream be divided by them.
    pub positive: fn(f64) -> bool,
    pub make: for<'a> fn(&Material<'a>, Draw) -> Box<dyn Intervention + 'a>,
}

impl InterventionAbout {
    /// Without draws that differ, without doses, and without a claim about its values.
    pub const fn new(
        name: &'static str,
        acts: Acts,
        make: for<'a> fn(&Material<'a>, Draw) -> Box<dyn Intervention + 'a>,
    ) -> Self {
        Self { name, acts, random: false, doses: &[], value_wise: false, positive: |_| false, make }
    }

    pub const fn random(self) -> Self {
        Self { random: true, ..self }
    }

    pub const fn with_doses(self, doses: &'static [f64]) -> Self {
        Self { doses, ..self }
    }

    pub const fn value_wise(self) -> Self {
        Self { value_wise: true, ..self }
    }

    pub const fn positive_at(self, positive: fn(f64) -> bool) -> Self {
        Self { positive, ..self }
    }
}

impl PartialEq for InterventionAbout {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

macro_rules! interventions {
    ($($replacement:ident),* $(,)?) => {
        $(mod $replacement;)*

        /// Every replacement of latent inputs, in the order of the tables.
        pub fn all() -> impl Iterator<Item = &'static InterventionAbout> {
            [$($replacement::ABOUT),*].into_iter().flatten()
        }
    };
}

interventions! {
    zero, random_norm, self_patch, mean, gaussian, resample, reverse, sibling, embedding, scale, rotate, known_value
}

pub(crate) fn norm(x: &[f64]) -> f64 {
    x.iter().map(|v| v * v).sum::<f64>().sqrt()
}

/// A random direction, as long as `x`.
pub(crate) fn drawn_like(x: &[f64], rng: &mut ChaCha8Rng) -> Vec<f64> {
    let raw: Vec<f64> = x.iter().map(|_| normal(rng)).collect();
    let scale = norm(x) / norm(&raw).max(1e-30);
    raw.into_iter().map(|v| v * scale).collect()
}
