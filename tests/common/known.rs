//! The hand-built models of `calibration::known` and the trained micro fixture.

use std::path::Path;

use switchyard::calibration::known::{self, Built};
use switchyard::machine::Machine;
use switchyard::study::Study;

pub use switchyard::calibration::known::Purpose;

/// First layer whose `resid_post` at `=` contains the decision.
pub const DECIDED_AT: usize = 2;
/// Latent step (from 1) after which `</swi>` is certain.
pub const EXIT_STEP: usize = 3;

/// The model with its problems and their spans.
pub fn study(which: Purpose, n: usize, seed: u64) -> Study {
    of(&Built::new(which), n, seed)
}

/// The same for a model with other parts.
pub fn of(built: &Built, n: usize, seed: u64) -> Study {
    known::study(built, n, seed, &Machine::default().device).expect("a study")
}

/// The micro fixture with its first problems.
pub fn micro(phase: &str, problems: usize) -> Study {
    Study::open(Path::new("fixtures/micro"), phase, Some(problems), 0).expect("the micro fixture")
}

/// The same on a number of threads.
pub fn micro_on(threads: usize, phase: &str, problems: usize) -> Study {
    let mut study = micro(phase, problems);
    study.threads = threads;
    study
}
