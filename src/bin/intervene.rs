//! `intervene`: does the latent step do work?

use std::process::ExitCode;

use switchyard::commands::{completions, exit, intervene::Intervene};
use switchyard_allocator as _;

fn main() -> ExitCode {
    exit(completions::parse::<Intervene>().run())
}
