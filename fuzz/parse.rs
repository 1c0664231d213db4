//! One input of one parser. An error is an answer; a panic, an abort, a hang and a flood of memory are findings.

#[path = "../tests/malformed/parsers.rs"]
#[allow(dead_code, reason = "each target reads one file of the table")]
mod parsers;

use std::path::PathBuf;
use std::sync::LazyLock;

use parsers::{TARGETS, place};

/// Reads `bytes` as if they stood in the file called `name`, beside the files that belong to it.
pub fn parse(name: &str, bytes: &[u8]) {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
        // The table names the repository's files; cargo-fuzz runs in fuzz/.
        std::env::set_current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).expect("the repository");
        std::env::temp_dir().join(format!("switchyard-fuzz-{}", std::process::id()))
    });
    let target = TARGETS.iter().find(|target| target.file == name).expect("a target of tests/malformed/parsers.rs");
    let file = FOLDER.join(name);
    if !file.exists() {
        place(target, &FOLDER);
    }
    std::fs::write(&file, bytes).expect("a file");
    (target.read)(&FOLDER, &file);
}
