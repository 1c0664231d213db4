use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use switchyard::model::checkpoint::{ModelFiles, ModelRef, SaveOptions};

use super::hub_server::{COMMIT, Fault, Hub, HubRequest, files};
use super::support::*;

#[test]
fn folders_files_and_ids_are_distinguished() {
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
        fails(ModelRef::parse(bad), &["--model", bad]);
    }
    let other = root.path().join("weights.bin");
    fs::write(&other, b"").expect("writes");
    fails(ModelRef::parse(&other.display().to_string()), &["weights.bin", "another kind of file"]);
}

#[test]
fn open_accepts_a_folder() {
    let root = tempfile::tempdir().expect("temp");
    let dir = root.path().join("model");
    save(&dir, &config(&qwen3_json()), &SaveOptions::default());
    assert!(ModelFiles::open(&dir.display().to_string()).is_ok());
}

/// `probe generate` with a model of that hub and a separate cache.
fn command(hub: &Hub, cache: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_probe"));
    command.args(["generate", "--model", "org/name", "--prompt", "<bos> a = 5 ; ? a :", "--max-new-tokens", "8"]);
    for name in ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"] {
        command.env_remove(name);
    }
    command.env("HF_HOME", cache).env("HF_ENDPOINT", &hub.endpoint).env("HF_HUB_DOWNLOAD_TIMEOUT", "4");
    command.env("NO_PROXY", "127.0.0.1,localhost").stdin(Stdio::null());
    command
}

/// Whether it succeeded, and its output.
fn ended(command: &mut Command) -> (bool, String) {
    let output = command.output().expect("runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() || output.status.code() == Some(2), "{said}");
    (output.status.success(), said)
}

fn generate(hub: &Hub, cache: &Path, offline: bool) -> (bool, String) {
    ended(command(hub, cache).env("HF_HUB_OFFLINE", if offline { "1" } else { "0" }))
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
fn downloads_are_complete_or_an_error_and_resume() {
    let hub = Hub::start(files("fixtures/micro/sft/checkpoint"), "model.safetensors");
    for (fault, words) in [
        (Fault::BreaksOff, "model.safetensors"),
        (Fault::Short, "bytes of"),
        (Fault::Longer, "sends more than"),
        (Fault::Changed, "damaged"),
        (Fault::ChangedUnderGit, "damaged"),
        (Fault::Silent, "no data from the server"),
        (Fault::Fails, "500"),
        (Fault::Loops, "sends on more than"),
        (Fault::Nowhere, "not a hub's"),
        (Fault::HostileTag, "not a hash"),
        (Fault::HostileCommit, "not a hash"),
        (Fault::Pushed, "is of commit decaf instead of c0ffee"),
        (Fault::Huge, "announced with 18446744073709551615 bytes"),
        (Fault::EndlessList, "list of files is longer"),
        (Fault::Busy(100_000), "try again in 100000 s"),
    ] {
        let root = tempfile::tempdir().expect("temp");
        let cache = root.path().join("a/b/c/home");
        fs::create_dir_all(&cache).expect("a folder");
        hub.set(fault.clone());
        let (worked, said) = generate(&hub, &cache, false);
        assert!(!worked && said.contains(words) && said.contains("--model org/name"), "{fault:?}: {said}");
        let outside: Vec<String> = tree(root.path()).into_iter().filter(|path| path.contains("evil")).collect();
        assert!(outside.is_empty(), "{fault:?}: {outside:?}");
        let (worked, said) = generate(&hub, &cache, true);
        assert!(!worked && said.contains("HF_HUB_OFFLINE is set"), "what is not whole is not in the cache: {said}");
        hub.set(Fault::None);
        hub.asked();
        let (worked, said) = generate(&hub, &cache, false);
        assert!(worked, "after {fault:?}: {said}");
        if fault == Fault::BreaksOff {
            assert!(hub.asked().iter().any(HubRequest::goes_on), "the received bytes were requested again");
        }
        let (worked, said) = generate(&hub, &cache, true);
        assert!(worked, "from the cache after {fault:?}: {said}");
    }
}

/// An adapter's repository has no model: the adapter and the base that it names are two downloads.
#[test]
fn an_adapter_of_the_hub_opens_with_and_without_a_named_base() {
    let mut both = files("fixtures/released/adapter");
    let settings = String::from_utf8(both["adapter_config.json"].clone()).expect("text");
    let base = fs::canonicalize("fixtures/released/base").expect("a base").display().to_string();
    let hub = Hub::start(both.clone(), "adapter_model.safetensors");
    let home = tempfile::tempdir().expect("temp");
    let run = |hub: &Hub, home: &Path, words: &[&str]| {
        let mut named = Command::new(env!("CARGO_BIN_EXE_probe"));
        named.args(["generate", "--prompt", "Ann", "--max-new-tokens", "4"]).args(words);
        for (key, value) in command(hub, home).get_envs() {
            match value {
                Some(value) => named.env(key, value),
                None => named.env_remove(key),
            };
        }
        ended(named.stdin(Stdio::null()))
    };
    let (worked, said) = run(&hub, home.path(), &["--model", &base, "--adapter", "org/lora"]);
    assert!(worked && said.contains("blocks end by argmax"), "{said}");
    assert!(hub.asked().iter().any(|request| request.path.ends_with("adapter_model.safetensors")));
    let (worked, said) = run(&hub, home.path(), &["--model", &base, "--adapter", "org/lora"]);
    assert!(worked && hub.asked().is_empty(), "all of it is in the cache: {said}");
    // The base is a path on the authors' machine: the message names the flag to set.
    let (worked, said) = run(&hub, home.path(), &["--model", "org/lora"]);
    assert!(!worked && said.contains("/home/authors/models/Qwen3") && said.contains("--adapter"), "{said}");
    both.insert("adapter_config.json".into(), settings.replace("/home/authors/models/Qwen3", &base).into_bytes());
    let (hub, home) = (Hub::start(both, ""), tempfile::tempdir().expect("temp"));
    let (worked, said) = run(&hub, home.path(), &["--model", "org/lora"]);
    assert!(worked, "{said}");
}

/// For every request, whether it had a token.
fn with_token(asked: &[HubRequest], token: &str) -> (usize, usize) {
    let right = asked.iter().filter(|r| r.authorization.as_deref() == Some(&format!("Bearer {token}"))).count();
    let none = asked.iter().filter(|request| request.authorization.is_none()).count();
    assert_eq!(right + none, asked.len(), "{asked:?}");
    (right, none)
}

#[test]
fn the_token_goes_only_to_the_hub_and_is_never_printed() {
    let checkpoint = || files("fixtures/micro/sft/checkpoint");
    let (hub, other) = (Hub::start(checkpoint(), "model.safetensors"), Hub::start(checkpoint(), ""));
    let token = "hf_secretsecretsecret";
    // The same server under another name is another host: the name may resolve elsewhere later.
    let renamed = hub.endpoint.replace("127.0.0.1", "localhost");
    for fault in [
        Fault::Elsewhere(other.endpoint.clone()),
        Fault::Moved(other.endpoint.clone()),
        Fault::Elsewhere(format!("{renamed}/again")),
        Fault::Elsewhere(other.endpoint.replace("http://", "http://127.0.0.1@")),
        Fault::Fails,
        Fault::None,
    ] {
        let home = tempfile::tempdir().expect("temp");
        hub.set(fault.clone());
        hub.asked();
        other.asked();
        let (_, said) = ended(command(&hub, home.path()).env("HF_TOKEN", token).env("RUST_BACKTRACE", "full"));
        assert!(!said.contains(token), "{fault:?}: {said}");
        let (own, rest): (Vec<_>, Vec<_>) = hub.asked().into_iter().partition(|r| !r.host.starts_with("localhost"));
        let (with, without) = with_token(&own, token);
        assert!(with > 0 && without == 0, "{fault:?}: {own:?}");
        assert_eq!(with_token(&rest, token).0, 0, "{fault:?}: {rest:?}");
        let elsewhere = other.asked();
        assert_eq!(with_token(&elsewhere, token).0, 0, "{fault:?}: {elsewhere:?}");
        let plain = |to: &String| *to == other.endpoint;
        let leads = matches!(&fault, Fault::Elsewhere(to) | Fault::Moved(to) if plain(to));
        assert_eq!(leads, !elsewhere.is_empty(), "{fault:?}: {said}");
    }
}

#[test]
fn large_files_redirect_and_tokens_come_from_their_file() {
    let checkpoint = || files("fixtures/micro/sft/checkpoint");
    let (hub, other) = (Hub::start(checkpoint(), "model.safetensors"), Hub::start(checkpoint(), ""));
    hub.set(Fault::Elsewhere(other.endpoint.clone()));
    let kept = |place: &str| {
        let home = tempfile::tempdir().expect("temp");
        fs::write(home.path().join(place), "hf_kept\n").expect("a token");
        let mut command = command(&hub, home.path());
        if place != "token" {
            command.env("HF_TOKEN_PATH", home.path().join(place));
        }
        let (worked, said) = ended(&mut command);
        assert!(worked, "{said}");
        with_token(&hub.asked(), "hf_kept")
    };
    assert!(matches!(kept("token"), (1.., 0)));
    assert!(matches!(kept("elsewhere"), (1.., 0)));
    let home = tempfile::tempdir().expect("temp");
    let (worked, said) = ended(command(&hub, home.path()).env("HF_TOKEN", "hf_mine\nX-Evil: 1"));
    assert!(!worked && said.contains("HF_TOKEN has no token") && !said.contains("hf_mine"), "{said}");
    let (worked, said) = ended(command(&hub, home.path()).env("HF_ENDPOINT", "http://me:secret@127.0.0.1"));
    assert!(!worked && said.contains("HF_ENDPOINT") && !said.contains("secret"), "{said}");
}

#[test]
fn a_busy_hub_is_retried() {
    let hub = Hub::start(files("fixtures/micro/sft/checkpoint"), "model.safetensors");
    let home = tempfile::tempdir().expect("temp");
    hub.set(Fault::Busy(1));
    let (worked, said) = generate(&hub, home.path(), false);
    assert!(worked && said.contains("busy (HTTP 429): next try in 1 s"), "{said}");
}

/// The layout that `huggingface_hub` writes and reads.
#[test]
fn the_cache_is_that_of_transformers() {
    let hub = Hub::start(files("fixtures/micro/sft/checkpoint"), "");
    let home = tempfile::tempdir().expect("temp");
    let cache = home.path().join("elsewhere");
    let (worked, said) = ended(command(&hub, home.path()).env("HF_HUB_CACHE", &cache));
    assert!(worked, "{said}");
    let folder = cache.join("models--org--name");
    assert_eq!(fs::read_to_string(folder.join("refs/main")).expect("a reference"), COMMIT);
    let link = fs::read_link(folder.join("snapshots").join(COMMIT).join("config.json")).expect("a link");
    assert!(link.starts_with("../../blobs"), "{link:?}");
    assert!(folder.join(".no_exist").join(COMMIT).join("merges.txt").exists());
    assert!(tree(&folder).iter().all(|path| !path.ends_with(".incomplete") && !path.ends_with(".tmp")));

    // A partial snapshot of another program (weights and settings only) is completed from the same commit.
    for name in ["tokenizer.json", "reasoning.json"] {
        fs::remove_file(folder.join("snapshots").join(COMMIT).join(name)).expect("a link");
    }
    let mut offline = command(&hub, home.path());
    offline.env("HF_HUB_CACHE", &cache).env("HF_HUB_OFFLINE", "1");
    let (_, said) = ended(&mut offline);
    assert!(said.contains("without reasoning.json, tokenizer.json"), "{said}");
    hub.asked();
    let (worked, said) = ended(command(&hub, home.path()).env("HF_HUB_CACHE", &cache));
    assert!(worked, "{said}");
    let asked: Vec<String> = hub.asked().into_iter().map(|request| request.path).collect();
    assert!(asked.contains(&format!("/api/models/org/name/revision/{COMMIT}")), "{asked:?}");
    assert!(!asked.iter().any(|path| path.ends_with("model.safetensors")), "{asked:?}");
    let (worked, said) = ended(&mut offline);
    assert!(worked && !said.contains("cache"), "{said}");
    assert!(hub.asked().is_empty(), "offline mode sends no request");
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
