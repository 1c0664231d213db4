//! The experiments on the committed micro checkpoints: known outcomes, controls that must be inert, refused settings.

use std::path::{Path, PathBuf};

use crate::common::programs::{copy, done, program, refused};
use switchyard::experiments::film;
use switchyard::experiments::latent_intervention::{Config, rows};
use switchyard::schema::{InterventionRow, Steps};
use switchyard::store::{read, read_flat};
use switchyard::study::Study;
use switchyard::study::modes::MODES;

fn micro() -> PathBuf {
    Path::new(".").join("fixtures/micro")
}

fn study(phase: &str, problems: Option<usize>, seed: u64) -> Study {
    Study::open(&micro(), phase, problems, seed).expect("the micro fixture")
}

fn config(modes: &[&str], steps: &[Steps]) -> Config {
    let modes = modes.iter().map(|m| (*m).to_owned()).collect();
    Config { modes, steps: steps.to_vec(), draws: 1, ..Config::default() }
}

/// Runs a binary on 60 problems of the micro fixture and writes to a folder.
fn command(name: &str, out: &Path, args: &[&str]) {
    done(program(name).args(["--phase", "sft", "--problems", "60", "--out"]).arg(out).args(args));
}

#[test]
fn rl_experiments_measure_the_start_of_grpo() {
    let temp = tempfile::tempdir().expect("a folder");
    let (run, out) = (temp.path().join("micro"), temp.path().join("rows"));
    copy(&micro(), &run);
    copy(&run.join("sft"), &run.join("grpo_start"));
    let measure = |name: &str, args: &[&str]| {
        done(program(name).arg(&run).args(["--problems", "40", "--out"]).arg(&out).args(args));
    };
    measure("probe", &["--only", "teacher_forced,phases"]);
    measure("intervene", &["--pairs", "2", "--draws", "1"]);
    let there = |name: &str| out.join(name).with_extension("parquet").is_file();
    for checkpoint in ["sft", "grpo_start", "grpo"] {
        assert!(there(&format!("teacher_forced-{checkpoint}")), "{checkpoint}");
        assert!(there(&format!("switch_benefit-{checkpoint}")), "{checkpoint}");
    }
    assert!(there("phases-grpo_start-grpo") && !there("phases-sft-grpo_start") && !there("phases-sft-grpo"));
    assert!(
        there("latent_intervention-grpo") && !there("latent_intervention-grpo_start"),
        "minutes, and nothing about RL"
    );
}

#[test]
fn every_experiment_runs_in_bf16_and_records_it() {
    let temp = tempfile::tempdir().expect("a folder");
    let accuracy = |dtype: &str| {
        let out = temp.path().join(dtype);
        // Too few problems for probes split by problem; enough for the others.
        let only =
            "teacher_forced,switch_window,exit_probability,accuracy,outcomes,traces,positions,entropy,logit_lens";
        command("probe", &out, &["--dtype", dtype, "--threads", "2", "--only", only]);
        let modes = "normal,zero,self_patch,known_value";
        command("intervene", &out, &["--dtype", dtype, "--threads", "2", "--modes", modes, "--pairs", "4"]);
        let text = std::fs::read_to_string(out.join("manifest.json")).expect("a manifest");
        let manifest: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        for (name, entry) in manifest.as_object().expect("entries") {
            assert_eq!((&entry["setup"]["dtype"], &entry["setup"]["device"]), (&dtype.into(), &"cpu".into()), "{name}");
            assert_eq!(entry["threads"], 2, "{name}");
        }
        let rows = read_flat(&out.join("latent_intervention-sft.parquet")).expect("rows");
        let of = |mode: &str| {
            let row = rows.iter().find(|row| row["mode"] == mode).expect("a row of the mode");
            row["accuracy.value"].as_f64().expect("an accuracy")
        };
        assert_eq!(of("self_patch"), of("normal"), "{dtype}: a self-patch has no effect");
        of("normal")
    };
    let (f32, bf16) = (accuracy("f32"), accuracy("bf16"));
    println!("accuracy on 60 problems: f32 {f32:.3}, bf16 {bf16:.3}");
    assert!((f32 - bf16).abs() < 0.1, "f32 {f32}, bf16 {bf16}");
}

#[test]
fn the_committed_rows_are_reproduced() {
    let file = Path::new(".").join("reports/micro/latent_intervention-sft.parquet");
    let held: Vec<InterventionRow> = read(&file).expect("the committed rows");
    let draws = held.iter().map(|h| h.draws).max().expect("rows");
    let config = Config { draws, ..config(&MODES, &[Steps::All]) };
    let rows = rows(&study("sft", None, 0), &config).expect("the experiment").rows;
    assert_eq!(rows.len(), MODES.len());
    for row in &rows {
        let held = held.iter().find(|h| h.mode == row.mode && h.steps == Steps::All).expect("a committed row");
        // Another processor may round differently and flip a problem or two.
        let off = (row.accuracy.value - held.accuracy.value).abs();
        assert!(off <= 0.01, "{}: accuracy {} against {}", row.mode, row.accuracy, held.accuracy);
        let fired = row.firings.abs_diff(held.firings) as f64;
        assert!(fired <= 0.02 * held.firings as f64, "{}: {} firings", row.mode, row.firings);
    }
    let of = |mode: &str| -> &InterventionRow { rows.iter().find(|r| r.mode == mode).expect("a row per mode") };
    assert_eq!(of("self_patch").mean_change, 0.0);
    assert_eq!((of("self_patch").lost, of("self_patch").gained), (0, 0));
    assert!(of("zero").diagnostic_accuracy.is_some_and(|e| e.high < 0.35));
}

#[test]
fn random_draws_follow_the_seed() {
    let with = |seed| rows(&study("sft", Some(60), seed), &config(&["random_norm"], &[Steps::All]));
    let with = |seed| with(seed).expect("rows").rows.remove(1);
    assert_eq!(with(3), with(3));
    assert_ne!(with(3).mean_change, with(4).mean_change);
}

#[test]
fn there_is_no_step_0() {
    refused(program("intervene").args(["--steps", "0"]), &["`0`", "count from 1"]);
}

#[test]
fn settings_out_of_range_are_refused_before_any_experiment_runs() {
    let none = film::Config { steps: 0, ..film::Config::default() };
    let error = film::rows(&study("sft", Some(2), 0), &none).expect_err("no steps").to_string();
    assert!(error.starts_with("film.steps must be a whole number from 1 to "), "{error}");
    let out = tempfile::tempdir().expect("a folder");
    for setting in ["card.steps=0", "card.margin=0.6", "film.steps=0", "pass_at_k.temperature=0"] {
        let (name, _) = setting.split_once('.').expect("a setting");
        let (only, out) = (format!("traces,{name}"), out.path().join(setting));
        let mut command = program("probe");
        command.args(["fixtures/micro", "--phase", "sft", "--problems", "2", "--only", &only, "--set", setting]);
        let output = command.arg("--out").arg(&out).output().expect("probe");
        let (error, key) = (String::from_utf8_lossy(&output.stderr), setting.split('=').next().unwrap_or_default());
        assert!(error.contains(&format!("settings.{key} must be")) && !out.exists(), "{error}");
    }
}

#[test]
fn unknown_names_are_errors_before_any_work() {
    let micro = micro();
    let micro = micro.to_str().expect("a path");
    for (args, needle) in [
        (vec![micro, "--modes", "zeroed"], "zeroed"),
        (vec![micro, "--modes", "zero:2"], "no dose"),
        (vec![micro, "--draws", "0"], "--draws"),
        (vec![micro, "--steps", "9"], "step 9"),
        (vec![micro, "--phase", "boundary"], "boundary"),
        (vec![micro, "--problems", "0"], "--problems"),
        (vec!["nowhere"], "nowhere: "),
    ] {
        let temp = tempfile::tempdir().expect("a temporary folder");
        let out = temp.path().join("out");
        let output = program("intervene").args(&args).arg("--out").arg(&out).output().expect("intervene runs");
        let said = String::from_utf8_lossy(&output.stderr);
        let errors = said.lines().filter(|line| !line.starts_with("note: ")).count();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(needle) && errors == 1, "{args:?} said: {said}");
        assert!(!out.exists(), "{args:?} wrote something");
    }
}
