//! Third-party task, method, experiment, intervention and reward term (`tests/extend/`): each is one file and one line in a list. They
//! are added to a copy of the library, compiled and run there, and shown by a copy of the report that does not name them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Test file, target folder, list, and the line added to the list.
const ADDED: [(&str, &str, &str, &str); 5] = [
    ("parity_bits", "tasks", "families! {", "parity_bits::ParityBits,"),
    ("dots", "method", "methods! {\n", "dots(dots?),"),
    ("negate", "interventions", "interventions! {", "negate,"),
    ("thrift", "recipe/reward", "terms! {", "thrift: \"thrift\","),
    ("block_length", "experiments", "experiments! {\n    one:", "block_length,"),
];

/// Makes `to` equal to `from`, except for the third-party files: removes files that were moved or deleted.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(to).expect("a copy").map(|entry| entry.expect("an entry")) {
        let name = entry.file_name();
        let theirs =
            name == "together.rs" || ADDED.iter().any(|(file, ..)| name.to_str() == Some(&format!("{file}.rs")));
        if theirs || from.join(&name).exists() {
            continue;
        }
        let gone = if entry.path().is_dir() { fs::remove_dir_all(entry.path()) } else { fs::remove_file(entry.path()) };
        gone.expect("removed");
    }
    for entry in fs::read_dir(from).expect("sources").map(|entry| entry.expect("an entry")) {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() { copy(&from, &to) } else { write(&to, &fs::read(&from).expect("a source")) }
    }
}

/// Skips an unchanged file, so that cargo compiles only changes.
fn write(to: &Path, bytes: &[u8]) {
    if fs::read(to).ok().as_deref() != Some(bytes) {
        fs::write(to, bytes).expect("a file");
    }
}

#[test]
fn an_extension_is_a_file_and_a_line() {
    let ours = Path::new(switchyard::store::CHECKOUT);
    // Always the same folder, or cargo would store a build for every new one.
    let copied: PathBuf = Path::new(env!("CARGO_TARGET_TMPDIR")).join("extended");
    ["src", "programs"].iter().for_each(|folder| copy(&ours.join(folder), &copied.join(folder)));
    // Files that the programs embed.
    for folder in ["experiments", "fixtures", "reports"].map(|folder| (ours.join(folder), copied.join(folder))) {
        if !folder.1.exists() {
            std::os::unix::fs::symlink(folder.0, folder.1).expect("a link");
        }
    }
    write(&copied.join("Cargo.lock"), &fs::read(ours.join("Cargo.lock")).expect("a file"));
    // The copy has no benches or tests, and uses the packages of `crates/` in place.
    let alone = |manifest: &str, crates: &str| {
        let text = fs::read_to_string(ours.join(manifest)).expect("a manifest");
        let kept = |section: &&str| ["[bench]]", "[test]]"].iter().all(|begin| !section.starts_with(begin));
        let text = text.split("\n[").filter(kept).collect::<Vec<_>>().join("\n[");
        let text = text
            .replace(", \"crates/*\"", "")
            .replace(&format!("path = \"{crates}"), &format!("path = \"{}/crates", ours.display()));
        write(&copied.join(manifest), text.as_bytes());
    };
    alone("Cargo.toml", "crates");
    alone("programs/Cargo.toml", "../crates");

    for (name, room, list, line) in ADDED {
        let file = fs::read(ours.join("tests/extend").join(name).with_extension("rs")).expect("a template");
        write(&copied.join("src").join(room).join(name).with_extension("rs"), &file);
        let lists = copied.join("src").join(room).join("mod.rs");
        let text = fs::read_to_string(&lists).expect("a list");
        assert_eq!(text.matches(list).count(), 1, "src/{room}/mod.rs has one list that begins with `{list}`");
        write(&lists, text.replace(list, &format!("{list} {line}")).as_bytes());
    }
    let tests = fs::read(ours.join("tests/extend/together.rs")).expect("the test inside");
    write(&copied.join("programs/src/together.rs"), &tests);
    let lib = copied.join("programs/src/lib.rs");
    let text = fs::read_to_string(&lib).expect("lib.rs");
    write(&lib, format!("{text}\n#[cfg(test)]\nmod together;\n").as_bytes());

    // No optimisation: the library is compiled once and runs for seconds.
    let mut cargo = Command::new(env!("CARGO"));
    // Cargo's variables of this test describe our package, not the copy: build scripts that read them (ring's) would run again, here and in
    // the next build of ours, and everything that depends on them would be compiled again.
    let ours = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_", "CARGO_PRIMARY_", "CARGO_TARGET_TMPDIR"];
    for (name, _) in std::env::vars().filter(|(name, _)| ours.iter().any(|begin| name.starts_with(begin))) {
        cargo.env_remove(name);
    }
    let output = cargo
        .args(["test", "--offline", "-p", "switchyard-programs", "--lib", "together::"])
        .arg("--config=profile.dev.package.switchyard.opt-level=0")
        .current_dir(&copied)
        .output()
        .expect("cargo runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}
