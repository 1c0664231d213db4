//! `train`: base → Switch-SFT phases 1 and 2 → Switch-GRPO, and the controls.

use std::process::ExitCode;

use switchyard::commands::{completions, train::Train};

/// Keeps the memory of one step for the next: pages given back to the system are paid for again (benches/PROFILE.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    completions::parse::<Train>().run()
}
