//! All four programs in one file, for a machine to which little can be carried (reports/gpu/pack.sh): it is the program whose
//! name it is called by, or that its first argument names.
//!
//!     ln -s switchyard probe && ./probe check
//!     ./switchyard probe check

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use switchyard::commands::{completions, exit, intervene::Intervene, probe::Probe, report::Report, train::Train};

/// Keeps the memory of one step for the next: pages given back to the system are paid for again (benches/PROFILE.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let name = arguments.first().and_then(|path| Path::new(path).file_stem()).unwrap_or_default();
    match name.to_str() {
        Some("train") => completions::parse::<Train>().run(),
        Some("probe") => exit(completions::parse::<Probe>().run()),
        Some("intervene") => exit(completions::parse::<Intervene>().run()),
        Some("report") => exit(completions::parse::<Report>().run()),
        _ => by_first_argument(&arguments),
    }
}

/// Starts itself again under the name that the first argument says: usage lines and manifests are then as the program's own.
#[cfg(unix)]
fn by_first_argument(arguments: &[OsString]) -> ExitCode {
    use std::os::unix::process::CommandExt;

    let known = |name: &&OsString| ["train", "probe", "intervene", "report"].iter().any(|known| *name == known);
    let Some(name) = arguments.get(1).filter(known) else { return unnamed() };
    let itself = match std::env::current_exe() {
        Ok(itself) => itself,
        Err(error) => return exit(Err(error.into())),
    };
    // Comes back only where it failed.
    exit(Err(std::process::Command::new(itself).arg0(name).args(&arguments[2..]).exec().into()))
}

#[cfg(not(unix))]
fn by_first_argument(_: &[OsString]) -> ExitCode {
    unnamed()
}

fn unnamed() -> ExitCode {
    eprintln!(
        "error: name a program: train, probe, intervene or report, as the first argument or as the name of this file"
    );
    ExitCode::from(2)
}
