//! `probe`: look into a model.

use std::process::ExitCode;

use switchyard::commands::{completions, exit, probe::Probe};
use switchyard_allocator as _;

fn main() -> ExitCode {
    exit(completions::parse::<Probe>().run())
}
