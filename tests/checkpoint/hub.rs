use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use switchyard::model::checkpoint::{Checkpoint, ModelRef, SaveOptions};

use super::hub_server::{Fault, Hub, files};
use super::support::*;

#[test]
fn folders_files_and_ids_are_told_apart() {
    let root = tempfile::tempdir().expect("temp");
    let text = root.path().display().to_string();
    assert_eq!(ModelRef::parse(&text).expect("parses"), ModelRef::Folder(root.path().into()));
    let path = root.path().join("m.gguf");
    fs::write(&path, b"").expect("writes");
    assert_eq!(ModelRef::parse(&path.display().to_string()).expect("parses"), ModelRef::Gguf(path));
    let hub = |id: &str, revision: &str, file: Option<&str>| ModelRef::Hub {
        id: id.into(),
        revision: revision.into(),
        file: file.map(str::to_string),
    };
    assert_eq!(ModelRef::parse("Qwen/Qwen3-8B").expect("parses"), hub("Qwen/Qwen3-8B", "main", None));
    assert_eq!(ModelRef::parse("Qwen/Qwen3-8B@abc").expect("parses"), hub("Qwen/Qwen3-8B", "abc", None));
    assert_eq!(ModelRef::parse("a/b-GGUF/c.gguf").expect("parses"), hub("a/b-GGUF", "main", Some("c.gguf")));
    for bad in ["nowhere", "/no/such/folder", "../x", "a/b/c/d", "no/such.gguf", "", "a/b@"] {
        assert_names(&message(ModelRef::parse(bad)), &["--model", bad]);
    }
    let other = root.path().join("weights.bin");
    fs::write(&other, b"").expect("writes");
    assert_names(&message(ModelRef::parse(&other.display().to_string())), &["weights.bin", "another kind of file"]);
}

#[test]
fn open_takes_a_folder() {
    let root = tempfile::tempdir().expect("temp");
    let dir = root.path().join("model");
    save(&dir, &config(&qwen3_json()), &SaveOptions::default());
    assert!(Checkpoint::open(&dir.display().to_string()).is_ok());
}

/// `probe generate` of a model of that hub, with a cache of its own: whether it worked, and what it said.
fn generate(hub: &Hub, cache: &Path, offline: bool) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_probe"));
    command.args(["generate", "--model", "org/name", "--prompt", "<bos> a = 5 ; ? a :", "--max-new-tokens", "8"]);
    command.env("HF_HOME", cache).env("HF_ENDPOINT", &hub.endpoint).env("HF_HUB_DOWNLOAD_TIMEOUT", "4");
    command.env("HF_HUB_OFFLINE", if offline { "1" } else { "0" }).stdin(Stdio::null());
    let output = command.output().expect("runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() || output.status.code() == Some(2), "{said}");
    (output.status.success(), said)
}

/// Everything under a folder, by path.
fn tree(folder: &Path) -> Vec<String> {
    let mut found = vec![];
    for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry")) {
        found.push(entry.path().display().to_string());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(tree(&entry.path()));
        }
    }
    found
}

#[test]
fn what_a_hub_sends_is_whole_or_an_error_and_the_next_try_goes_on() {
    let hub = Hub::start(files("fixtures/micro/sft/checkpoint"), "model.safetensors");
    for (fault, words) in [
        (Fault::BreaksOff, "model.safetensors"),
        (Fault::Short, "bytes of"),
        (Fault::Changed, "damaged"),
        (Fault::Silent, "nothing came from the server"),
        (Fault::Fails, "500"),
        (Fault::Loops, "org/name"),
        (Fault::Nowhere, "not that of a hub"),
        (Fault::HostileTag, "no hash"),
        (Fault::HostileCommit, "no hash"),
    ] {
        let root = tempfile::tempdir().expect("temp");
        let cache = root.path().join("a/b/c/home");
        fs::create_dir_all(&cache).expect("a folder");
        hub.set(fault);
        let started = std::time::Instant::now();
        let (worked, said) = generate(&hub, &cache, false);
        assert!(!worked && said.contains(words) && said.contains("--model org/name"), "{fault:?}: {said}");
        assert!(started.elapsed().as_secs() < 30, "{fault:?} took {:?}", started.elapsed());
        let outside: Vec<String> = tree(root.path()).into_iter().filter(|path| path.contains("evil")).collect();
        assert!(outside.is_empty(), "{fault:?}: {outside:?}");
        hub.set(Fault::None);
        let (worked, said) = generate(&hub, &cache, false);
        assert!(worked, "after {fault:?}: {said}");
        if fault == Fault::BreaksOff {
            assert!(hub.has_resumed(), "what had come was asked for again");
        }
        let (worked, said) = generate(&hub, &cache, true);
        assert!(worked, "from the cache after {fault:?}: {said}");
    }
}

#[test]
fn an_index_cannot_name_files_outside_the_cache() {
    let mut files = files("fixtures/micro/sft/checkpoint");
    let weights = files.remove("model.safetensors").expect("weights");
    files.insert("evil.safetensors".into(), weights);
    let index = serde_json::json!({ "weight_map": { "a": "../../../../../evil.safetensors" } }).to_string();
    files.insert("model.safetensors.index.json".into(), index.into_bytes());
    let hub = Hub::start(files, "");
    let root = tempfile::tempdir().expect("temp");
    let cache = root.path().join("a/b/c/home");
    fs::create_dir_all(&cache).expect("a folder");
    let (worked, said) = generate(&hub, &cache, false);
    assert!(!worked && said.contains("evil.safetensors"), "{said}");
    assert!(!tree(root.path()).iter().any(|path| path.contains("evil")), "{:?}", tree(root.path()));
}
