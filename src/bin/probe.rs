//! `probe`: look into a model.

use std::process::ExitCode;

use switchyard::commands::{completions, exit, probe::Probe};

/// Keeps the memory of one step for the next: pages given back to the system are paid for again (benches/PROFILE.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    exit(completions::parse::<Probe>().run())
}
