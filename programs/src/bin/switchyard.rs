//! `switchyard train|probe|intervene|report`: the four programs in one file. It is what is installed, and what is carried to a
//! machine to which little can be carried (reports/gpu/pack.sh). A link by the name of one of the four is that program.

use std::process::ExitCode;

use switchyard_allocator as _;
use switchyard_programs::commands::door;

fn main() -> ExitCode {
    door::run()
}
