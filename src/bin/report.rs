//! `report`: from files to verdicts, tables, figures and a page; needs no model.

use std::process::ExitCode;

use switchyard::commands::{completions, exit, report::Report};

/// Keeps the memory of one step for the next: pages given back to the system are paid for again (benches/PROFILE.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    exit(completions::parse::<Report>().run())
}
