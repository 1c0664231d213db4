//! `probe`: look into a model.

use std::process::ExitCode;

use switchyard_allocator as _;
use switchyard_programs::commands::{completions, exit, probe::Probe};

fn main() -> ExitCode {
    exit(completions::parse::<Probe>().run())
}
