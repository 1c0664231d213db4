//! External faults of a run: NaN weights, closed pipes, signals, a second process.

use crate::common::programs::{copy, program, refused, text_of};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// `smoke`, long enough to be interrupted in its first phase.
fn long_train(out: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_train"));
    command.args(["--preset", "smoke", "--threads", "1", "--only", "base", "--set", "base.steps=100000", "--out"]);
    command.arg(out).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Waits until `done` is true, while the process lives.
fn until(child: &mut Child, done: impl Fn() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(child.try_wait().expect("its state").is_none(), "it ended by itself");
        assert!(started.elapsed() < Duration::from_secs(120), "timed out after two minutes");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Sends a scheduler's signal.
fn stop(child: &Child) {
    let sent = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().expect("kill");
    assert!(sent.success());
}

#[test]
fn a_model_of_nans_is_an_error() {
    let temp = tempfile::tempdir().expect("a temporary folder");
    let run = temp.path().join("micro");
    copy(Path::new("fixtures/micro"), &run);
    let file = run.join("sft/checkpoint/model.safetensors");
    let mut bytes = std::fs::read(&file).expect("weights");
    // The last value of the last tensor: four or two bytes.
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&[0xC0, 0x7F, 0xC0, 0x7F]);
    std::fs::write(&file, bytes).expect("weights");
    for (name, only) in [("probe", "accuracy"), ("intervene", "latent_intervention")] {
        let out = temp.path().join("out");
        let mut command = program(name);
        command.arg(&run).args(["--phase", "sft", "--problems", "5", "--only", only, "--out"]).arg(&out);
        refused(&mut command, &["the weight `model.", "not finite"]);
        assert!(!out.join("accuracy-sft.parquet").exists());
    }
}

#[test]
fn training_continues_when_its_output_pipe_closes() {
    let temp = tempfile::tempdir().expect("a temporary folder");
    let out = temp.path().join("run");
    let mut command = Command::new(env!("CARGO_BIN_EXE_train"));
    command
        .args(["--preset", "smoke", "--threads", "1", "--only", "base", "--set", "base.steps=20", "--out"])
        .arg(&out);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    drop((child.stdout.take(), child.stderr.take()));
    assert!(child.wait().expect("its end").success());
    assert!(out.join("base/checkpoint/model.safetensors").exists());
}

#[cfg(unix)]
#[test]
fn a_signal_leaves_a_checkpoint_and_the_lock_names_its_process() {
    let temp = tempfile::tempdir().expect("a temporary folder");
    let out = temp.path().join("run");
    let mut child = long_train(&out).spawn().expect("starts");
    // The second phase of a start: the folder is locked, the recipe is written, steps are being made.
    until(&mut child, || out.join("base/metrics.rows.tmp").metadata().is_ok_and(|m| m.len() > 1000));

    let mut second = long_train(&out);
    let refused = second.arg("--resume").stderr(Stdio::piped()).output().expect("runs");
    assert_eq!(refused.status.code(), Some(2));
    assert!(text_of(&refused).contains(&format!("process {}", child.id())), "{}", text_of(&refused));

    stop(&child);
    assert_eq!(child.wait().expect("its end").code(), Some(130));
    assert!(out.join("base/state.json").exists(), "the steps so far are saved");
}

#[cfg(unix)]
#[test]
fn a_damaged_state_or_row_file_is_an_error() {
    let temp = tempfile::tempdir().expect("a temporary folder");
    let run = temp.path().join("run");
    let mut child = long_train(&run).spawn().expect("starts");
    until(&mut child, || run.join("base/metrics.rows.tmp").metadata().is_ok_and(|file| file.len() > 2_000));
    stop(&child);
    child.wait().expect("its end");
    let state = std::fs::read_dir(run.join("base")).expect("a folder").map(|entry| entry.expect("an entry").path());
    let state = state.filter(|path| path.is_dir()).find(|path| path.join("optimizer.bpk").exists()).expect("a state");
    for file in ["optimizer.bpk", "model.bpk"] {
        let path = state.join(file);
        let whole = std::fs::read(&path).expect("a record");
        // A length in Burn's header can request any amount of memory.
        let mut damaged = whole.clone();
        damaged[8..16].fill(0x7F);
        std::fs::write(&path, damaged).expect("writes");
        refused(long_train(&run).arg("--resume").stderr(Stdio::piped()), &["checksum", "delete"]);
        std::fs::write(&path, whole).expect("writes");
    }

    let rows = temp.path().join("rows");
    std::fs::create_dir(&rows).expect("a folder");
    let file = rows.join("teacher_forced-sft.parquet");
    let mut bytes = std::fs::read("reports/micro/teacher_forced-sft.parquet").expect("rows");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, bytes).expect("writes");
    refused(program("report").arg(&rows), &["teacher_forced-sft.parquet", "checksum"]);
    refused(program("report").args(["reports/micro", "--grpo", "grpoo"]), &["--grpo", "did you mean `grpo`?"]);
    refused(program("intervene").args(["fixtures/micro", "--phase", "sft", "--pairs", "0"]), &["--pairs"]);
}

#[test]
fn grading_names_the_line_and_replaces_files_only() {
    let temp = tempfile::tempdir().expect("a temporary folder");
    let pairs = temp.path().join("pairs.jsonl");
    let grade = |out: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_report"));
        command.arg("grade").arg("--pairs").arg(&pairs).arg("--out").arg(out).output().expect("runs")
    };
    let row = "{\"gold\":\"1\",\"pred\":\"1\"}\n".as_bytes();
    std::fs::write(&pairs, [row.repeat(5000).as_slice(), b"\xFF\xFE\n"].concat()).expect("writes");
    let out = temp.path().join("graded.jsonl");
    let text = text_of(&grade(&out));
    assert!(text.contains("pairs.jsonl:5001"), "{text}");
    assert!(!out.exists());

    std::fs::write(&pairs, row).expect("writes");
    let text = text_of(&grade(Path::new("/dev/null")));
    assert!(text.contains("not a file"), "{text}");
    assert!(grade(&out).status.success());
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let plain = temp.path().join("plain");
        std::fs::write(&plain, "").expect("writes");
        let mode = |path: &Path| path.metadata().expect("a file").permissions().mode();
        assert_eq!(mode(&out), mode(&plain));
    }
}

/// Invalid UTF-8 arguments: exit code 2 or normal work, and no panic.
#[cfg(unix)]
#[test]
fn invalid_utf8_arguments_are_errors() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let temp = tempfile::tempdir().expect("a temporary folder");
    let odd = OsStr::from_bytes(b"f\xFF\x80o");
    let folder = temp.path().join(odd);
    let programs: [(&str, &[&[&str]]); 4] = [
        (env!("CARGO_BIN_EXE_train"), &[&["--preset"], &["--set"], &["--method"], &["--preset", "smoke", "--only"]]),
        (env!("CARGO_BIN_EXE_probe"), &[&[], &["--only"], &["generate", "--model"], &["generate", "--prompt"]]),
        (env!("CARGO_BIN_EXE_intervene"), &[&[], &["--modes"], &["--problems", "1", "--only"]]),
        (env!("CARGO_BIN_EXE_report"), &[&[], &["compare"], &["merge"], &["curves"], &["grade", "--pairs"]]),
    ];
    for (program, lines) in programs {
        for line in lines {
            let output = Command::new(program).args(*line).arg(odd).current_dir(temp.path()).output().expect("runs");
            let text = text_of(&output);
            assert!(output.status.code() == Some(2) && !text.contains("panicked"), "{program} {line:?}: {text}");
        }
    }
    // A folder may have such a name: the recorded command is then lossy.
    let mut train = Command::new(env!("CARGO_BIN_EXE_train"));
    train
        .args(["--preset", "smoke", "--threads", "1", "--only", "base", "--set", "base.steps=2", "--out"])
        .arg(&folder);
    let output = train.output().expect("runs");
    let text = text_of(&output);
    assert!(matches!(output.status.code(), Some(0 | 2)) && !text.contains("panicked"), "{text}");
}

#[cfg(unix)]
#[test]
fn threads_that_cannot_start_are_an_error() {
    // Each thread has a stack of 8 MiB: this many exceed the memory limit.
    let line = "ulimit -v 3000000; exec \"$0\" generate --threads 1000 --prompt '<bos> a = 5 ; ? a :'";
    let output = Command::new("sh").args(["-c", line, env!("CARGO_BIN_EXE_probe")]).output().expect("runs");
    let text = text_of(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("cannot start 1000 threads") && text.contains("ulimit -u"), "{text}");
}
