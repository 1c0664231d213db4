//! One input of one parser of `tests/malformed/parsers.rs`; `SWITCHYARD_FILE` says which, by the file that it reads.
//! An error is an answer; a panic, an abort, a hang and a flood of memory are findings.
#![no_main]

#[path = "../../tests/malformed/parsers.rs"]
#[allow(dead_code, reason = "the suite also reads how a file is changed")]
mod parsers;

use std::path::PathBuf;
use std::sync::LazyLock;

use parsers::{TARGETS, Target, place};

struct Chosen {
    target: &'static Target,
    /// The changed file lies here, beside the files that belong to it.
    folder: PathBuf,
}

static CHOSEN: LazyLock<Chosen> = LazyLock::new(|| {
    let names = TARGETS.map(|target| target.file).join(", ");
    let name = std::env::var("SWITCHYARD_FILE").unwrap_or_else(|_| panic!("SWITCHYARD_FILE must be one of {names}"));
    let target = TARGETS.iter().find(|target| target.file == name);
    let target = target.unwrap_or_else(|| panic!("SWITCHYARD_FILE = {name}: not one of {names}"));
    // The table names the repository's files; cargo-fuzz runs in fuzz/.
    std::env::set_current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).expect("the repository");
    let folder = std::env::temp_dir().join(format!("switchyard-fuzz-{}", std::process::id()));
    place(target, &folder);
    Chosen { target, folder }
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Chosen { target, folder } = &*CHOSEN;
    let file = folder.join(target.file);
    std::fs::write(&file, bytes).expect("a file");
    (target.read)(folder, &file);
});
