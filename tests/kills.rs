//! `kill -9` and a full disk at chosen system calls of a run: after `--resume` every file is what an uninterrupted run
//! leaves. strace makes the kernel kill the process, or fail the call, at the call of a given number; without strace these tests
//! print so and pass.
//!
//! `SWITCHYARD_KILLS=1000 cargo test --test suite kills:: -- --include-ignored --nocapture` is the long run.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::common::programs::copy;
use super::common::run_files::difference;

/// System calls that write, and that publish a written file.
#[rustfmt::skip]
const CALLS: [&str; 7] = [
    "write", "openat", "fsync,fdatasync", "rename,renameat,renameat2", "unlink,unlinkat,rmdir", "mkdir,mkdirat", "ftruncate",
];

/// A point of a run: the `number`th call of a kind.
#[derive(Clone, Copy, Debug)]
struct KillPoint {
    call: &'static str,
    number: usize,
}

/// Every phase of SWITCH on `smoke`, a few steps each; or a branch of the run `trunk` next to it; or the same with LoRA over the model
/// [`MODEL`] next to it.
fn train(out: &Path, resume: bool) -> Vec<String> {
    let mut line = vec![env!("CARGO_BIN_EXE_train")];
    let (recipe, model) = (out.with_file_name(RECIPE), out.with_file_name(MODEL));
    let (recipe, model) = (recipe.display().to_string(), model.display().to_string());
    if out.with_file_name(MODEL).exists() {
        line.extend(["--preset", &recipe, "--model", &model]);
    } else {
        line.extend(["--preset", "smoke"]);
    }
    line.extend(["--method", "switch", "--threads", "1"]);
    const SHORT: &str = "checkpoint.every=3 data.rows=60 base.steps=7 boundary.steps=5 grpo.steps=3 evaluation.problems=6 \
        grpo.keep_every=2 grpo.early_stop_window=2";
    line.extend(SHORT.split_whitespace().flat_map(|set| ["--set", set]));
    let mut line: Vec<String> = line.into_iter().map(str::to_owned).collect();
    line.extend(["--out".to_owned(), out.display().to_string()]);
    line.extend(resume.then(|| "--resume".to_owned()));
    let trunk = out.with_file_name(TRUNK);
    if out != trunk && trunk.exists() {
        line.extend(["--from".to_owned(), trunk.display().to_string()]);
        line.extend(["--set", "grpo.learning_rate=1e-4"].map(str::to_owned));
    }
    line
}

/// If a finished run with this name exists, the others branch from it.
const TRUNK: &str = "trunk";

/// Folder of the model, and recipe that trains factors over it.
const MODEL: &str = "model";
const RECIPE: &str = "lora.toml";

/// `smoke` over a model from files.
fn write_lora(temp: &Path) {
    let smoke = std::fs::read_to_string("src/presets/smoke.toml").expect("a preset");
    let mut recipe: toml::Table = smoke.parse().expect("TOML");
    recipe.remove("model").expect("trains a model from nothing");
    let lora = "rank = 2\nalpha = 4.0\nonly_new_rows = true".parse::<toml::Table>().expect("TOML");
    recipe.insert("lora".into(), lora.into());
    recipe["optimizer"]["weight_decay"] = 0.0.into();
    std::fs::write(temp.join(RECIPE), recipe.to_string()).expect("written");
    copy(Path::new("fixtures/micro/base/annotator"), &temp.join(MODEL));
}

fn run(line: &[String]) -> Output {
    let mut command = Command::new(&line[0]);
    // Files name the repository's commit, which may change during a long test: hide it.
    command.args(&line[1..]).env("GIT_DIR", "/dev/null").env("RAYON_NUM_THREADS", "1");
    command.stdin(Stdio::null()).output().expect("starts")
}

/// The same under strace, which injects `what` at a point, or from there on (`+`).
fn injected(line: &[String], point: KillPoint, what: &str, on: &str) -> Output {
    let KillPoint { call, number } = point;
    let mut traced: Vec<String> =
        ["strace", "-f", "-qq", "--seccomp-bpf", "-o", "/dev/null", "-e"].map(str::to_owned).into();
    traced.push(format!("trace={call}"));
    traced.extend(["-e".to_owned(), format!("inject={call}:{what}:when={number}{on}")]);
    traced.extend_from_slice(line);
    run(&traced)
}

fn has_strace() -> bool {
    let works = Command::new("strace").args(["-qq", "-o", "/dev/null", "true"]).stderr(Stdio::null()).status();
    let works = works.is_ok_and(|status| status.success());
    if !works {
        eprintln!("kills at system calls: skipped, strace is not here or not allowed");
    }
    works
}

/// A finished run, and the number of calls of each kind in its main thread.
fn whole(temp: &Path) -> [usize; CALLS.len()] {
    let log = temp.join("calls");
    let mut line: Vec<String> = ["strace", "-f", "-qq", "-o"].map(str::to_owned).into();
    line.extend([log.display().to_string(), "-e".to_owned(), format!("trace={}", CALLS.join(","))]);
    line.extend(train(&temp.join("whole"), false));
    let output = run(&line);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(log).expect("calls");
    let mut by_thread = std::collections::BTreeMap::<&str, usize>::new();
    for line in text.lines() {
        *by_thread.entry(line.split(' ').next().unwrap_or_default()).or_default() += 1;
    }
    let main = by_thread.iter().max_by_key(|(_, calls)| **calls).map(|(thread, _)| *thread).expect("calls");
    CALLS.map(|kind| {
        let of = |line: &&str| {
            let name = line.strip_prefix(main).map(str::trim_start).and_then(|rest| rest.split('(').next());
            name.is_some_and(|name| kind.split(',').any(|call| call == name))
        };
        text.lines().filter(of).count()
    })
}

/// `wanted` points over all kinds of calls, evenly; `turn` shifts them.
fn points(counts: [usize; CALLS.len()], wanted: usize, turn: usize) -> Vec<KillPoint> {
    let mut points = vec![];
    if wanted == 0 {
        return points;
    }
    for (call, total) in CALLS.into_iter().zip(counts) {
        let each = (total * CALLS.len() / wanted).max(1);
        points
            .extend((1..=total).filter(|number| number % each == turn % each).map(|number| KillPoint { call, number }));
    }
    points
}

/// Resumes, or starts a run that never began, until it is finished.
fn finish(out: &Path) -> Result<(), String> {
    let output = run(&train(out, out.join("recipe.toml").exists()));
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("resume failed with {}: {said}", output.status)) }
}

/// Error of a run that was killed at a point, and again at `second` after its resume.
fn killed(temp: &Path, at: KillPoint, second: Option<KillPoint>) -> Option<String> {
    let out = temp.join("broken");
    let _ = std::fs::remove_dir_all(&out);
    injected(&train(&out, false), at, "signal=KILL", "");
    if let Some(second) = second {
        injected(&train(&out, out.join("recipe.toml").exists()), second, "signal=KILL", "");
    }
    let wrong = finish(&out).err().or_else(|| difference(&temp.join("whole"), &out));
    wrong.map(|wrong| format!("killed at {at:?} and {second:?}: {wrong}"))
}

/// Error of a run whose disk was full from a point on.
fn full(temp: &Path, at: KillPoint) -> Option<String> {
    let out = temp.join("full");
    let _ = std::fs::remove_dir_all(&out);
    let output = injected(&train(&out, false), at, "error=ENOSPC", "+");
    let wrong = match output.status.code() {
        // 0: the failed write was a progress line; 127: the system could not load the program.
        Some(0 | 2 | 127) => finish(&out).err().or_else(|| difference(&temp.join("whole"), &out)),
        other => Some(format!("ended with {other:?}: {}", String::from_utf8_lossy(&output.stderr))),
    };
    wrong.map(|wrong| format!("refused at {at:?}: {wrong}"))
}

/// What is attacked.
#[derive(Clone, Copy, PartialEq)]
enum Victim {
    Plain,
    Branch,
    Lora,
}

fn attack(victim: Victim, kills: usize, pairs: usize, refusals: usize) {
    if !has_strace() {
        return;
    }
    let temp = tempfile::tempdir().expect("a temporary folder");
    match victim {
        Victim::Plain => {}
        Victim::Branch => assert!(run(&train(&temp.path().join(TRUNK), false)).status.success()),
        Victim::Lora => write_lora(temp.path()),
    }
    let counts = whole(temp.path());
    let mut wrong = vec![];
    let once = points(counts, kills, 0);
    wrong.extend(once.iter().filter_map(|at| killed(temp.path(), *at, None)));
    let (first, then) = (points(counts, pairs, 1), points(counts, pairs, 2));
    // The second kill is soon after the resume, at its first writes.
    let soon = |at: &KillPoint| KillPoint { number: at.number % 40 + 1, ..*at };
    let twice: Vec<_> = first.iter().zip(then.iter().rev()).map(|(at, second)| (*at, soon(second))).collect();
    wrong.extend(twice.iter().filter_map(|(at, second)| killed(temp.path(), *at, Some(*second))));
    let refused: Vec<KillPoint> = points(counts, refusals, 3).into_iter().filter(|at| at.call != "ftruncate").collect();
    wrong.extend(refused.iter().filter_map(|at| full(temp.path(), *at)));
    let [once, twice, refused] = [once.len(), twice.len(), refused.len()];
    println!("calls {CALLS:?} {counts:?}: {once} kills, {twice} pairs of kills, {refused} full disks");
    assert!(once >= CALLS.len(), "too few kills to show anything: {once}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A stop between a phase's last writes: found by 1,000 kills and 203 full disks.
#[test]
fn a_stop_just_before_a_phase_ends_costs_nothing() {
    let temp = tempfile::tempdir().expect("a temporary folder");
    let (whole, broken) = (temp.path().join("whole"), temp.path().join("broken"));
    assert!(run(&train(&whole, false)).status.success());
    assert!(Command::new("cp").arg("-r").args([&whole, &broken]).status().expect("cp runs").success());
    std::fs::remove_file(broken.join("annotate/sample.txt")).expect("was there");
    let state = broken.join("boundary/state-0000003");
    std::fs::create_dir(&state).expect("made");
    std::fs::write(state.join("model.bpk"), "weights").expect("written");
    let current = r#"{ "folder": "state-0000003", "step": 3, "extra": null, "sums": ["", ""] }"#;
    std::fs::write(broken.join("boundary/state.json"), current).expect("written");
    assert_eq!(finish(&broken).err().or_else(|| difference(&whole, &broken)), None);
}

#[test]
fn a_kill_or_a_full_disk_at_any_call_costs_nothing() {
    attack(Victim::Plain, 7, 3, 7);
}

#[test]
fn a_kill_at_any_call_of_a_branch_costs_nothing() {
    attack(Victim::Branch, 7, 0, 0);
}

#[test]
fn a_kill_at_any_call_of_a_run_with_lora_costs_nothing() {
    attack(Victim::Lora, 7, 0, 0);
}

#[test]
#[ignore = "hours with SWITCHYARD_KILLS=1000"]
fn a_thousand_kills_cost_nothing() {
    let kills = std::env::var("SWITCHYARD_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(100);
    attack(Victim::Plain, kills, kills / 5, kills / 5);
    attack(Victim::Branch, kills / 5, kills / 5, kills / 5);
    attack(Victim::Lora, kills / 5, kills / 5, kills / 5);
}
