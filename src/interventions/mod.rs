//! Interventions on latent states, one small documented value per file; each says when it misleads.
//!
//! An [`Intervention`] says what enters a latent position instead of the recurrence's input (`latent.hook_injected`); a
//! [`Rule`] changes when blocks are opened and closed. To add one: a file here, and a line in [`ALL`] or [`RULES`].
//! On which steps it acts, what later latents do and how far it reaches are settings of every intervention ([`crate::schema::Steps`],
//! [`crate::schema::Later`], [`crate::latent::Channel`]). Every firing is counted, with the norm of its change.

mod apply;
mod bank;
mod embedding;
mod empty_block;
mod force_switch;
mod gaussian;
mod known_value;
mod mean;
mod random_norm;
mod resample;
mod rotate;
mod scale;
mod self_patch;
mod sibling;
mod skip;
mod suppress_switch;
mod zero;

use std::collections::BTreeMap;

pub use apply::{Firings, Replacement, Replacements, latents};
pub use bank::Bank;
pub(crate) use embedding::{ArgmaxEmbedding, ExitEmbedding};
pub(crate) use empty_block::EMPTY_BLOCK;
pub(crate) use force_switch::FORCE_SWITCH;
pub(crate) use gaussian::Gaussian;
pub(crate) use known_value::KnownValue;
pub use known_value::Swap;
pub use mean::Mean;
pub(crate) use random_norm::RandomNorm;
pub(crate) use resample::Resample;
pub(crate) use rotate::Rotate;
pub use scale::Scale;
pub(crate) use self_patch::SelfPatch;
pub(crate) use sibling::Sibling;
pub(crate) use skip::SKIP;
pub(crate) use suppress_switch::SUPPRESS_SWITCH;
pub use zero::Zero;

pub use crate::schema::{Later, Steps};

use crate::latent::{Start, Switching};
use crate::model::Decoder;
use crate::model::hooks::Place;

/// What replaces the input of one latent position.
pub trait Intervention: Send + Sync {
    /// The new input `[D]` at a place whose own would be `h` `[D]` (`at.row` is the problem); `None` leaves it alone (it
    /// then does not fire).
    fn input(&self, at: &Place, h: &[f32]) -> Option<Vec<f32>>;
}

/// A change of when blocks are opened and closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    pub name: &'static str,
    /// From where it differs from a normal run.
    pub start: Start,
    pub switching: Switching,
}

/// What interventions are made of.
#[derive(Clone, Copy)]
pub struct Material<'a> {
    /// The states of a normal run on the same problems.
    pub bank: &'a Bank,
    /// Those of sampled rollouts, one bank a draw.
    pub siblings: &'a [Bank],
    /// Who is exchanged for whom, one map a draw.
    pub swaps: &'a [BTreeMap<usize, Swap>],
    pub model: &'a Decoder,
    /// `E[</swi>]`.
    pub exit: &'a [f32],
}

/// Which of several draws, at which dose.
#[derive(Clone, Copy, Debug)]
pub struct Draw {
    pub number: usize,
    pub seed: u64,
    pub dose: f64,
}

/// An intervention by its name on the command line and in tables.
pub struct About {
    pub name: &'static str,
    /// Whether draws differ.
    pub random: bool,
    /// What it is tried at unless a dose is named (`scale:0.5`); empty where there is no dose.
    pub doses: &'static [f64],
    pub make: for<'a> fn(&Material<'a>, Draw) -> Box<dyn Intervention + 'a>,
}

/// Every replacement of latent inputs.
pub const ALL: &[About] = &[
    About { name: "zero", random: false, doses: &[], make: |_, _| Box::new(Zero) },
    About { name: "random_norm", random: true, doses: &[], make: |_, d| Box::new(RandomNorm { seed: d.seed }) },
    About { name: "self_patch", random: false, doses: &[], make: |m, _| Box::new(SelfPatch { bank: m.bank }) },
    About { name: "mean", random: false, doses: &[], make: |m, _| Box::new(Mean::per_step(m.bank)) },
    About { name: "mean_global", random: false, doses: &[], make: |m, _| Box::new(Mean::of_all(m.bank)) },
    About { name: "gaussian", random: true, doses: &[], make: |m, d| Box::new(Gaussian::per_step(m.bank, d.seed)) },
    About { name: "resample", random: true, doses: &[], make: |m, d| Box::new(Resample::new(m.bank, d.seed)) },
    About { name: "sibling", random: true, doses: &[], make: |m, d| Box::new(Sibling { bank: &m.siblings[d.number] }) },
    About {
        name: "embedding",
        random: false,
        doses: &[],
        make: |m, _| Box::new(ExitEmbedding { row: m.exit.to_vec() }),
    },
    About {
        name: "embedding_argmax",
        random: false,
        doses: &[],
        make: |m, _| Box::new(ArgmaxEmbedding { model: m.model }),
    },
    About {
        name: "scale",
        random: false,
        doses: &[0.25, 0.5, 0.75, 1.25, 1.5, 2.0],
        make: |_, d| Box::new(Scale { factor: d.dose as f32 }),
    },
    About {
        name: "rotate",
        random: true,
        doses: &[15.0, 30.0, 45.0, 60.0, 90.0, 180.0],
        make: |_, d| Box::new(Rotate { degrees: d.dose, seed: d.seed }),
    },
    About {
        name: "known_value",
        random: true,
        doses: &[],
        make: |m, d| Box::new(KnownValue { bank: m.bank, swaps: &m.swaps[d.number] }),
    },
];

/// Every change of when blocks are opened and closed.
pub(crate) const RULES: [Rule; 4] = [SKIP, EMPTY_BLOCK, FORCE_SWITCH, SUPPRESS_SWITCH];

fn norm(x: &[f64]) -> f64 {
    x.iter().map(|v| v * v).sum::<f64>().sqrt()
}
