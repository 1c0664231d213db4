//! `report`: from files to verdicts, tables, figures and a page; needs no model.

use std::process::ExitCode;

use switchyard_allocator as _;
use switchyard_programs::commands::{completions, exit, report::Report};

fn main() -> ExitCode {
    exit(completions::parse::<Report>().run())
}
