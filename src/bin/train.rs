//! `train`: base → Switch-SFT phases 1 and 2 → Switch-GRPO, and the controls.

use std::process::ExitCode;

use switchyard::commands::{completions, train::Train};
use switchyard_allocator as _;

fn main() -> ExitCode {
    completions::parse::<Train>().run()
}
