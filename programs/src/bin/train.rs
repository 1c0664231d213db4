//! `train`: base → Switch-SFT phases 1 and 2 → Switch-GRPO, and the controls.

use std::process::ExitCode;

use switchyard_allocator as _;
use switchyard_programs::commands::{completions, train::Train};

fn main() -> ExitCode {
    completions::parse::<Train>().run()
}
