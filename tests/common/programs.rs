//! Runs the programs as a user does, and makes their folders.

use std::path::Path;
use std::process::{Command, Output};

/// Names and paths.
pub const PROGRAMS: [(&str, &str); 4] = [
    ("train", env!("CARGO_BIN_EXE_train")),
    ("probe", env!("CARGO_BIN_EXE_probe")),
    ("intervene", env!("CARGO_BIN_EXE_intervene")),
    ("report", env!("CARGO_BIN_EXE_report")),
];

#[track_caller]
pub fn program(name: &str) -> Command {
    let found = PROGRAMS.iter().find(|(program, _)| *program == name);
    Command::new(found.unwrap_or_else(|| panic!("no program {name}")).1)
}

/// A program that has no network.
pub fn offline(name: &str, args: &[&str]) -> Command {
    let mut command = program(name);
    command.args(args).env("HF_HUB_OFFLINE", "1").env("HF_HOME", "/nonexistent");
    command
}

/// Standard output of a `probe` that must succeed.
#[track_caller]
pub fn run_probe(args: &[&str]) -> String {
    done(&mut offline("probe", args)).0
}

/// `probe` fails with exit code 2, one line with all of these texts, and no other output.
#[track_caller]
pub fn probe_refuses(args: &[&str], parts: &[&str]) {
    let output = offline("probe", args).output().expect("it runs");
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
    assert!(said.starts_with("error: ") && said.trim_end().lines().count() == 1, "{args:?}, not one line: {said}");
    assert!(output.stdout.is_empty(), "{args:?} printed a result all the same");
    for part in parts {
        assert!(said.contains(part), "{args:?}: `{part}` is not in: {said}");
    }
}

/// Standard output, then standard error.
pub fn text_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Standard output and standard error of a program that must succeed.
#[track_caller]
pub fn done(command: &mut Command) -> (String, String) {
    let output = command.output().expect("it runs");
    let [printed, said] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success(), "{command:?}: {said}");
    (printed, said)
}

/// Exit code 2, with all of these texts on standard error.
#[track_caller]
pub fn refused(command: &mut Command, parts: &[&str]) {
    let output = command.output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{command:?}: {said}");
    for part in parts {
        assert!(said.contains(part), "{command:?}: `{part}` is not in: {said}");
    }
}

/// A path as an argument.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("a path of text")
}

/// A folder with all its files.
pub fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder").map(|entry| entry.expect("an entry")) {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy(&from, &to);
        } else {
            std::fs::copy(&from, &to).expect("a copy");
        }
    }
}
