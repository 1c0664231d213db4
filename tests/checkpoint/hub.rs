use std::fs;

use switchyard::model::checkpoint::{Checkpoint, ModelRef, SaveOptions};

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
