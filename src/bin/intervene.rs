//! `intervene`: does the latent step do work? Parses, calls, prints.

use std::process::ExitCode;

use switchyard::commands::{completions, exit, intervene::Intervene};

fn main() -> ExitCode {
    exit(completions::parse::<Intervene>().run())
}
