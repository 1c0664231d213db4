//! `report`: from files to verdicts, tables, figures and a page; needs no model.

use std::process::ExitCode;

use switchyard::commands::{completions, exit, report::Report};
use switchyard_allocator as _;

fn main() -> ExitCode {
    exit(completions::parse::<Report>().run())
}
