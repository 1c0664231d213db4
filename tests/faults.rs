//! What a run meets that is not its own doing: models of NaNs, readers that go away, signals, a second process.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// `smoke`, long enough to be met in the middle of its first phase.
fn long_train(out: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_train"));
    command.args(["--preset", "smoke", "--threads", "1", "--only", "base", "--set", "base.steps=100000", "--out"]);
    command.arg(out).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Waits until `done`, while the process lives.
fn until(child: &mut Child, done: impl Fn() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(child.try_wait().expect("its state").is_none(), "it ended by itself");
        assert!(started.elapsed() < Duration::from_secs(120), "nothing happened in two minutes");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn copy(from: &Path, to: &Path) {
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

#[test]
fn a_model_of_nans_is_an_error_and_no_accuracy() {
    let temp = tempfile::tempdir().expect("a temporary folder");
    let run = temp.path().join("micro");
    copy(Path::new("fixtures/micro"), &run);
    let file = run.join("sft/checkpoint/model.safetensors");
    let mut bytes = std::fs::read(&file).expect("weights");
    // The last value of the last tensor, of four bytes or of two.
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&[0xC0, 0x7F, 0xC0, 0x7F]);
    std::fs::write(&file, bytes).expect("weights");
    for (binary, only) in
        [(env!("CARGO_BIN_EXE_probe"), "accuracy"), (env!("CARGO_BIN_EXE_intervene"), "latent_intervention")]
    {
        let out = temp.path().join("out");
        let mut command = Command::new(binary);
        command.arg(&run).args(["--phase", "sft", "--problems", "5", "--only", only, "--out"]).arg(&out);
        let output = command.output().expect("runs");
        let said = text(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("the weight `model.") && said.contains("not finite"), "{said}");
        assert!(!out.join("accuracy-sft.parquet").exists());
    }
}

#[test]
fn training_goes_on_when_nobody_reads_what_it_says() {
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
fn a_schedulers_signal_leaves_a_checkpoint_and_a_second_process_is_told_who_trains() {
    let temp = tempfile::tempdir().expect("a temporary folder");
    let out = temp.path().join("run");
    let mut child = long_train(&out).spawn().expect("starts");
    // The second phase of a start: the folder is locked, the recipe is written, steps are being made.
    until(&mut child, || out.join("base/metrics.rows.tmp").metadata().is_ok_and(|m| m.len() > 1000));

    let mut second = long_train(&out);
    let refused = second.arg("--resume").stderr(Stdio::piped()).output().expect("runs");
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused).contains(&format!("process {}", child.id())), "{}", text(&refused));

    let sent = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().expect("kill");
    assert!(sent.success());
    assert_eq!(child.wait().expect("its end").code(), Some(130));
    assert!(out.join("base/state.json").exists(), "the steps so far are saved");
}
