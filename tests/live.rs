//! The page's models: JavaScript against the fixtures and `probe generate`. Runs in Node.js if it is installed; `.ci/page` runs in
//! Chromium.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use switchyard_programs::report::folder::Folder;
use switchyard_programs::report::render::report;
use tempfile::TempDir;

/// Rows of the committed run that the page needs to identify its checkpoints.
fn rows() -> TempDir {
    let rows = tempfile::tempdir().expect("a folder");
    for file in ["manifest.json", "positions-sft.parquet", "positions-grpo.parquet", "traces-grpo_start.parquet"] {
        std::fs::copy(Path::new("reports/micro").join(file), rows.path().join(file)).expect("a file of rows");
    }
    rows
}

/// The page of these rows, and the terminal's output.
fn page(rows: &TempDir) -> (String, String) {
    let file = rows.path().join("index.html");
    let done = report(&[Folder::open(rows.path()).expect("rows")], &file).expect("a page");
    (std::fs::read_to_string(file).expect("a page"), done.summary)
}

#[test]
fn small_checkpoints_run_in_the_page_and_are_listed() {
    let (html, said) = page(&rows());
    for phase in ["sft", "grpo"] {
        assert!(said.contains(&format!("micro/{phase} runs in the page")), "{said}");
    }
    assert!(said.contains("micro/grpo_start does not run in the page: there is no room"), "{said}");
    assert!(
        html.contains("id=\"lab-data\"") && html.contains("id=\"lab-weights-1\"") && html.contains("href=\"#try\"")
    );
    let policy = html.split("Content-Security-Policy\" content=\"").nth(1).expect("a policy");
    let policy = &policy[..policy.find('"').expect("its end")];
    assert!(policy.contains("default-src 'none'") && policy.contains("script-src 'sha256-"), "{policy}");
    assert!(!policy.contains("script-src 'unsafe"), "{policy}");
    let weights = html.split("lab-weights-").count();
    assert!(weights > 2 && html.len() < 3_000_000, "{} bytes", html.len());
}

#[test]
fn weights_that_do_not_match_the_rows_do_not_run() {
    let rows = rows();
    let manifest = rows.path().join("manifest.json");
    let text = std::fs::read_to_string(&manifest).expect("a manifest");
    std::fs::write(&manifest, text.replace("24353a65e373", "000000000000")).expect("a file");
    let (html, said) = page(&rows);
    assert!(
        said.contains("micro/sft does not run in the page")
            && said.contains("does not have the weights of its records"),
        "{said}"
    );
    assert!(said.contains("micro/grpo runs in the page") && html.contains("id=\"lab-data\""), "{said}");
    std::fs::remove_file(manifest).expect("a manifest");
    let (html, said) = page(&rows);
    assert!(!said.contains("in the page") && !html.contains("id=\"try\"") && !html.contains("class Decoder"), "{said}");
}

/// Node.js with the browser functions that the page's script needs.
fn node() -> Option<Command> {
    let needed = "process.exit(typeof DecompressionStream === 'function' && Array.prototype.findLastIndex ? 0 : 1)";
    let there = Command::new("node").args(["-e", needed]).output().is_ok_and(|output| output.status.success());
    there.then(|| Command::new("node"))
}

#[test]
fn the_pages_decoder_agrees_with_ours() {
    let Some(mut node) = node() else {
        println!("left out: no Node.js (18 or later) on this machine");
        return;
    };
    let rows = rows();
    page(&rows);
    let output =
        node.arg("tests/live.cjs").arg(rows.path().join("index.html")).arg(rows.path()).output().expect("Node.js");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.lines().filter(|line| line.starts_with("ok ")).count() >= 20, "{said}");

    let cases = std::fs::read_to_string(rows.path().join("cases.json")).expect("cases");
    let cases: Vec<Value> = serde_json::from_str(&cases).expect("JSON");
    assert!(cases.len() >= 60, "{} cases", cases.len());
    let mut kinds: Vec<&str> = cases.iter().filter_map(|case| case["kind"].as_str()).collect();
    kinds.dedup();
    assert!(["swap", "zero", "random", "mean", "own", "steer"].iter().all(|kind| kinds.contains(kind)), "{kinds:?}");
    // One of each kind and each choice of steps, then every fifth: one process each.
    for case in cases.iter().enumerate().filter(|(at, _)| *at < 21 || at % 5 == 0).map(|(_, case)| case) {
        let line = case["line"].as_str().expect("a command");
        let shell = line.replace("cargo run --bin probe --", "\"$PROBE\"") + " --json --threads 1";
        let output = Command::new("sh")
            .args(["-c", &shell])
            .env("PROBE", env!("CARGO_BIN_EXE_probe"))
            .output()
            .expect("a shell");
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(answer["tokens"], case["tokens"], "{line}");
    }
}

#[test]
fn an_unreadable_checkpoint_is_named_and_the_page_is_written() {
    let rows = rows();
    let broken = rows.path().join("sft/checkpoint");
    std::fs::create_dir_all(&broken).expect("a folder");
    std::fs::write(broken.join("model.safetensors"), b"half a file").expect("a file");
    let (html, said) = page(&rows);
    assert!(said.contains("micro/sft does not run in the page") && said.contains("model.safetensors"), "{said}");
    assert!(html.contains("<h1>") && html.contains("id=\"lab-data\""), "the others run");
}
