//! `switchyard train|probe|intervene|report`: the four programs in one file. It is what is installed, and what is carried to a
//! machine to which little can be carried (reports/gpu/pack.sh). A link by the name of one of the four is that program.

use std::process::ExitCode;

use switchyard::commands::door;

/// Keeps the memory of one step for the next: pages given back to the system are paid for again (benches/PROFILE.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    door::run()
}
