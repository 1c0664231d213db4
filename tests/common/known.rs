//! The hand-built models of `calibration::known` and the trained micro fixture, as tests ask for them.

use std::path::Path;

use switchyard::calibration::known::{self, Built};
use switchyard::machine::Machine;
use switchyard::study::Study;

pub use switchyard::calibration::known::Purpose;

/// Layer after which `=` holds the decision (its `resid_post` is the first that does).
pub const DECIDED_AT: usize = 2;
/// Latent step (from 1) after which `</swi>` is certain.
pub const EXIT_STEP: usize = 3;

/// The model with its problems and their spans, as experiments take it.
pub fn study(which: Purpose, n: usize, seed: u64) -> Study {
    of(&Built::new(which), n, seed)
}

/// The same of a model with other parts.
pub fn of(built: &Built, n: usize, seed: u64) -> Study {
    known::study(built, n, seed, &Machine::default().device).expect("a study")
}

/// The micro fixture on its first problems.
pub fn micro(phase: &str, problems: usize) -> Study {
    Study::open(Path::new("fixtures/micro"), phase, Some(problems), 0).expect("the micro fixture")
}
