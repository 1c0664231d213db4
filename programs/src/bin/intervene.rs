//! `intervene`: does the latent step do work?

use std::process::ExitCode;

use switchyard_allocator as _;
use switchyard_programs::commands::{completions, exit, intervene::Intervene};

fn main() -> ExitCode {
    exit(completions::parse::<Intervene>().run())
}
