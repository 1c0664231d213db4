//! Outputs that are links or devices: writes follow a link and keep it; a device is an error and is not replaced.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::Path;
use std::process::Command;

use burn::tensor::Device;
use switchyard::model::Decoder;
use switchyard::model::checkpoint::{SaveOptions, save_hf_folder};
use switchyard::model::config::Family;

use super::common::tiny_config;

#[test]
fn a_linked_folder_is_written_through() {
    let home = tempfile::tempdir().expect("a folder");
    let at = |name: &str| home.path().join(name);
    let config = tiny_config(Family::Qwen3, true);
    let model = Decoder::random(&config, 1, &Device::flex()).expect("a model");
    let save = |folder: &Path, overwrite: bool| {
        let weights = model.export().expect("weights").into_iter().map(Ok);
        save_hf_folder(folder, &config, weights, &SaveOptions { overwrite, ..SaveOptions::default() })
    };
    fs::create_dir_all(at("disk/real")).expect("made");
    symlink("disk/real", at("link")).expect("linked");
    for overwrite in [false, true] {
        save(&at("link"), overwrite).expect("saves");
        assert!(fs::symlink_metadata(at("link")).expect("there").is_symlink(), "the link was replaced");
        assert!(at("disk/real/model.safetensors").is_file());
    }
    assert_eq!(fs::read_dir(at("disk")).expect("a folder").count(), 1, "no other file is left");
    symlink("nowhere", at("dead")).expect("linked");
    fs::write(at("file"), "kept").expect("written");
    for taken in ["dead", "file"] {
        save(&at(taken), true).expect_err(taken);
    }
    assert_eq!(fs::read_to_string(at("file")).expect("there"), "kept");
}

/// As root, a rename would replace a device by a file.
#[test]
fn programs_do_not_replace_devices() {
    let home = tempfile::tempdir().expect("a folder");
    let at = |name: &str| home.path().join(name);
    fs::write(at("pairs.jsonl"), "{\"gold\": \"3\", \"pred\": \"3\"}\n").expect("written");
    symlink("/proc/self/fd/1", at("stdout.jsonl")).expect("linked");
    symlink("/proc/self/fd/1", at("stdout.safetensors")).expect("linked");
    fs::create_dir(at("disk")).expect("made");
    symlink("disk/grades.jsonl", at("grades.jsonl")).expect("linked");
    let micro = Path::new(switchyard::store::CHECKOUT).join("fixtures/micro").display().to_string();
    let grade =
        |out: &str| (env!("CARGO_BIN_EXE_report"), vec!["grade", "--pairs", "pairs.jsonl", "--out"], out.to_owned());
    let record = |out: &str| {
        let mut args = vec!["generate", &micro, "--phase", "sft", "--threads", "1", "--prompt", "<bos> a = 5 ; ? a :"];
        args.extend(["--record", "blocks.0.hook_resid_post", "--out"]);
        (env!("CARGO_BIN_EXE_probe"), args, out.to_owned())
    };
    let run = |(program, args, out): &(&str, Vec<&str>, String)| {
        Command::new(program).current_dir(home.path()).args(args).arg(out).output().expect("starts")
    };
    for line in ["stdout.jsonl", "/dev/stdout", "/dev/full"]
        .map(grade)
        .iter()
        .chain(&["stdout.safetensors", "/dev/full"].map(record))
    {
        let output = run(line);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains("not a file"), "{}: {text}", line.2);
    }
    for name in ["stdout.jsonl", "stdout.safetensors", "/dev/stdout"] {
        assert!(fs::symlink_metadata(at(name)).expect("there").is_symlink(), "{name}");
    }
    assert!(fs::symlink_metadata("/dev/full").expect("there").file_type().is_char_device());
    assert!(run(&grade("grades.jsonl")).status.success());
    assert!(at("disk/grades.jsonl").is_file() && fs::symlink_metadata(at("grades.jsonl")).expect("there").is_symlink());
}
