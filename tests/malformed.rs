//! Damaged and hostile input: every parser gets files with bytes changed, cut, doubled and swapped, and must return a result or an
//! error. No panic, no abort, at most two seconds of work and two gigabytes, no file elsewhere. Half of the mutations change bytes,
//! half preserve the structure that a reader checks first.
//!
//! The cases run in child processes with a memory limit: a failed allocation ends the child, and the parent names the case. A case
//! depends only on its number:
//! `SWITCHYARD_CASES=N..M cargo test --test suite malformed:: -- --include-ignored` reruns some.

mod parsers;
mod structure;

use std::ops::Range;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use parsers::{TARGETS, Target, place};

const CASES: &str = "SWITCHYARD_CASES";
const FOLDER: &str = "SWITCHYARD_FOLDER";
/// CPU time, which does not depend on the machine's load.
const SLOWEST: Duration = Duration::from_secs(2);
/// Wall time: a case that waits without work hangs.
const LONGEST: Duration = Duration::from_secs(60);
/// Limit of address space, in KiB.
const MEMORY: usize = 2 << 20;

/// Faults that the test must detect: cases from [`CANARIES`] on, outside the project's code.
const CANARIES: u64 = 1 << 40;

fn canary(case: u64) {
    match case - CANARIES {
        0 => panic!("a canary"),
        1 => {
            let begun = worked();
            while worked() - begun < 2 * SLOWEST {}
        }
        2 => drop(std::hint::black_box(vec![1_u8; 3 << 30])),
        _ => drop(std::hint::black_box(Vec::<u8>::with_capacity(1 << 50))),
    }
}

/// CPU time of this process, in hundredths of a second.
fn worked() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("process statistics");
    let after = stat.rsplit_once(')').expect("a name").1;
    // User and system time are the fields 14 and 15; the third follows the name.
    let ticks = after.split_whitespace().skip(11).take(2).map(|field| field.parse::<u64>().expect("a number"));
    Duration::from_millis(10 * ticks.sum::<u64>())
}

/// The seed of case `number` after one to four mutations.
fn changed(seed: &[u8], text: bool, rng: &mut ChaCha8Rng) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..rng.random_range(1..=4) {
        if bytes.is_empty() {
            break;
        }
        // Most formats start with headers and keys.
        let end = if rng.random_bool(0.5) { bytes.len() } else { bytes.len().min(600) };
        let at = rng.random_range(0..end);
        let to = (at + rng.random_range(1..64_usize)).min(bytes.len());
        match rng.random_range(0..9) {
            0 => bytes[at] ^= 1 << rng.random_range(0..8),
            1 => bytes.truncate(at),
            2 => drop(bytes.drain(at..to)),
            3 => {
                let piece = bytes[at..to].to_vec();
                bytes.splice(at..at, piece.repeat(rng.random_range(1..4)));
            }
            4 => {
                let from = rng.random_range(0..seed.len());
                let piece = &seed[from..(from + 64).min(seed.len())];
                bytes.splice(at..to, piece.iter().copied());
            }
            5 if !text => {
                let size = [u64::MAX, 1 << 62, 1 << 40, 1 << 31, u64::from(u32::MAX), 0][rng.random_range(0..6)];
                let width = [4, 8][rng.random_range(0..2)].min(bytes.len() - at);
                bytes[at..at + width].copy_from_slice(&size.to_le_bytes()[..width]);
            }
            6 => {
                let piece = ["[", "{\"a\":", "\\", "\"", "(", "{", "^", "-"][rng.random_range(0..8)];
                bytes.splice(at..at, piece.repeat([1, 3, 20_000][rng.random_range(0..3)]).into_bytes());
            }
            7 => {
                let digits = |from: usize| (from..bytes.len()).find(|&i| bytes[i].is_ascii_digit());
                let Some(start) = digits(at).or_else(|| digits(0)) else { continue };
                let stop = (start..bytes.len()).find(|&i| !bytes[i].is_ascii_digit()).unwrap_or(bytes.len());
                let values = [
                    "0",
                    "-1",
                    "1e999",
                    "99999999999999999999",
                    "18446744073709551615",
                    "4611686018427387904",
                    "null",
                    "1e-9",
                ];
                bytes.splice(start..stop, values[rng.random_range(0..values.len())].bytes());
            }
            _ => bytes[at] = [0, 0xFF, b'"', b'\n', b'{', b'/'][rng.random_range(0..6)],
        }
    }
    bytes
}

/// Seeds of all targets with their folders, in which one file is mutated.
fn workplace(temp: &Path) -> Vec<(PathBuf, PathBuf, Vec<u8>)> {
    let own = |(number, target): (usize, &Target)| {
        let folder = temp.join(number.to_string());
        place(target, &folder);
        let file = folder.join(target.file);
        let seed = std::fs::read(Path::new(target.folder).join(target.file)).or_else(|_| std::fs::read(&file));
        (folder.clone(), file, seed.expect("a seed"))
    };
    TARGETS.iter().enumerate().map(own).collect()
}

/// One line of a corpus at a time, if the whole file is slow.
fn seed_of<'a>(target: &Target, seed: &'a [u8], rng: &mut ChaCha8Rng) -> &'a [u8] {
    if !target.file.ends_with(".jsonl") {
        return seed;
    }
    let lines: Vec<&[u8]> = seed.split(|b| *b == b'\n').filter(|line| !line.is_empty()).collect();
    lines[rng.random_range(0..lines.len())]
}

/// The suite does not build `fuzz/`: detects crates missing there.
#[test]
fn the_fuzz_target_names_the_crates_of_the_parsers() {
    let manifest = std::fs::read_to_string("fuzz/Cargo.toml").expect("a manifest");
    let used =
        include_str!("malformed/parsers.rs").lines().filter_map(|line| line.strip_prefix("use ")?.split("::").next());
    for name in used.filter(|name| *name != "std") {
        assert!(manifest.contains(&format!("\n{} = ", name.replace('_', "-"))), "fuzz/Cargo.toml lacks {name}");
    }
}

/// In the child: runs the cases named by the environment. Without them it does nothing, which the parent detects.
#[test]
#[ignore = "the process in which `no_input_panics_hangs_or_fills_the_memory` runs its cases"]
fn worker() {
    let (Ok(cases), Ok(temp)) = (std::env::var(CASES), std::env::var(FOLDER)) else { return };
    let (first, last) = cases.split_once("..").expect("N..M");
    let (first, last): (u64, u64) = (first.parse().expect("a number"), last.parse().expect("a number"));
    // Deep, so that a path out of the folder still ends inside `temp`.
    let places = workplace(&Path::new(&temp).join("a/b/c/d"));
    static CASE: AtomicU64 = AtomicU64::new(u64::MAX);
    let note = Path::new(&temp).join("case");
    let watched = note.with_extension("slow");
    let slow = watched.clone();
    std::thread::spawn(move || {
        let (mut case, mut since, mut before) = (u64::MAX, Instant::now(), worked());
        loop {
            std::thread::sleep(Duration::from_millis(50));
            let now = CASE.load(Ordering::Relaxed);
            if now != case {
                (case, since, before) = (now, Instant::now(), worked());
                continue;
            }
            let why = match (worked() - before > SLOWEST, since.elapsed() > LONGEST) {
                (true, _) => "over two seconds",
                (_, true) => "nothing for a minute",
                _ => continue,
            };
            let _ = std::fs::write(&slow, why);
            std::process::exit(9);
        }
    });
    let mut refused = vec![];
    for ((folder, file, seed), target) in places.iter().zip(&TARGETS) {
        std::fs::write(file, seed).expect("a file");
        if !(target.read)(folder, file) {
            refused.push(format!("{}/{}", target.folder, target.file));
        }
    }
    assert!(refused.is_empty(), "unchanged, and not read: {refused:?}");
    let before = tree(Path::new(&temp));
    std::panic::set_hook(Box::new(|_| ()));
    for case in first..last {
        CASE.store(case, Ordering::Relaxed);
        std::fs::write(&note, case.to_string()).expect("a note");
        let number = case as usize % TARGETS.len();
        let (target, (folder, file, seed)) = (&TARGETS[number], &places[number]);
        let mut rng = ChaCha8Rng::seed_from_u64(case);
        let seed = seed_of(target, seed, &mut rng);
        let kept = rng.random_bool(0.5).then(|| structure::changed(seed, target.file, &mut rng)).flatten();
        let bytes = kept.unwrap_or_else(|| changed(seed, target.text, &mut rng));
        std::fs::write(file, &bytes).expect("a file");
        let read = || match case {
            CANARIES.. => canary(case),
            _ => _ = (target.read)(folder, file),
        };
        if let Err(panic) = catch_unwind(read) {
            let said = panic.downcast_ref::<String>().cloned();
            let said = said.or_else(|| panic.downcast_ref::<&str>().map(|said| (*said).to_owned()));
            std::fs::write(note.with_extension("slow"), format!("panic: {}", said.unwrap_or_default()))
                .expect("a note");
            std::process::exit(9);
        }
    }
    let new = |path: &PathBuf| !before.contains(path) && *path != note;
    let elsewhere: Vec<_> = tree(Path::new(&temp)).into_iter().filter(new).collect();
    if !elsewhere.is_empty() {
        std::fs::write(watched, format!("wrote {elsewhere:?}")).expect("a note");
        std::process::exit(9);
    }
    std::fs::write(&note, "done").expect("a note");
}

/// Everything below a folder.
fn tree(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { [tree(&path), vec![path]].concat() } else { vec![path] }).collect()
}

fn start(cases: &Range<u64>, temp: &Path) -> Child {
    let this = std::env::current_exe().expect("this program");
    let limited = format!("ulimit -v {MEMORY}; ulimit -c 0; exec \"$0\" --exact malformed::worker --ignored");
    let mut command = Command::new("sh");
    command.args(["-c", &limited]).arg(this).env(CASES, format!("{}..{}", cases.start, cases.end)).env(FOLDER, temp);
    command.env("RAYON_NUM_THREADS", "1").stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("starts")
}

/// Runs cases in two processes. Returns the failed cases with their errors.
fn failures(cases: Range<u64>) -> Vec<String> {
    let middle = cases.start + (cases.end - cases.start) / 2;
    let halves = [cases.start..middle, middle..cases.end].map(|half| {
        let temp = tempfile::tempdir().expect("a folder");
        (start(&half, temp.path()), temp, half)
    });
    let mut failures = vec![];
    for (mut child, temp, half) in halves {
        let mut rest = half;
        loop {
            let ended = child.wait().expect("its end");
            let case = std::fs::read_to_string(temp.path().join("case")).unwrap_or_default();
            if case == "done" {
                break;
            }
            let case: u64 = case.parse().unwrap_or_else(|_| panic!("the cases did not start: {ended}"));
            let why = temp.path().join("case.slow");
            let how = std::fs::read_to_string(&why).unwrap_or_else(|_| format!("the process ended: {ended}"));
            let _ = std::fs::remove_file(why);
            let target = &TARGETS[case as usize % TARGETS.len()];
            failures.push(format!("case {case}, {}/{}: {how}", target.folder, target.file));
            rest.start = case + 1;
            if failures.len() >= 20 || rest.is_empty() {
                break;
            }
            child = start(&rest, temp.path());
        }
    }
    failures
}

/// Cases of `SWITCHYARD_CASES=N..M`, instead of the default million.
fn named_cases() -> Option<Range<u64>> {
    let text = std::env::var(CASES).ok()?;
    let (first, last) = text.split_once("..")?;
    Some(first.parse().ok()?..last.parse().ok()?)
}

#[test]
fn panics_hangs_and_floods_are_noticed() {
    if cfg!(target_os = "linux") {
        let failures = failures(CANARIES..CANARIES + 4);
        let expected = ["panic: a canary", "over two seconds", "the process ended", "the process ended"];
        assert_eq!(failures.len(), 4, "{failures:?}");
        assert!(expected.iter().all(|how| failures.iter().any(|failure| failure.contains(how))), "{failures:?}");
    }
}

#[test]
fn no_input_panics_hangs_or_fills_the_memory() {
    if !cfg!(target_os = "linux") {
        eprintln!("malformed input: skipped, the limit on memory needs Linux");
        return;
    }
    let failures = failures(0..100_000);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
#[ignore = "a million cases: a quarter of an hour on two cores"]
fn no_input_of_a_million_panics_hangs_or_fills_the_memory() {
    let failures = failures(named_cases().unwrap_or(100_000..1_100_000));
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
