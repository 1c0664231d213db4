//! Folders that are not models: the error names their kind; unambiguous ones are opened.

use std::fs;
use std::path::Path;

use switchyard::model::checkpoint::{ModelFiles, SaveOptions};

use super::support::*;

fn touch(root: &Path, file: &str) {
    let path = root.join(file);
    fs::create_dir_all(path.parent().expect("a parent")).expect("created");
    fs::write(path, "x").expect("written");
}

#[test]
fn the_error_for_a_folder_without_a_model_names_its_kind() {
    for (files, text) in [
        (&["README.md", "M-Q8_0.gguf", "M-Q4_0.gguf"][..], &["folder of GGUF files", "M-Q4_0.gguf", "M-Q8_0.gguf"][..]),
        (&["M-00001-of-00002.gguf", "M-00002-of-00002.gguf"], &["give ", "M-00001-of-00002.gguf"]),
        (&["checkpoint-100/config.json", "checkpoint-20/config.json"], &["trainer's folder", "checkpoint-100"]),
        (&["models--org--name/refs/main", "version.txt"], &["cache of the hub", "models--org--name"]),
        (&["a/config.json", "b/adapter_config.json", "c/x"], &["name the model's folder", "/a, ", "/b"]),
        (&["notes.txt"], &["expected a folder with config.json", "found notes.txt"]),
        (&[], &["found nothing"]),
    ] {
        let root = tempfile::tempdir().expect("temp");
        files.iter().for_each(|file| touch(root.path(), file));
        let said_here = message(ModelFiles::open_folder(root.path()));
        assert_names(&said_here, text);
        assert!(!said_here.contains("-00002-of"), "a later part is not to be named: {said_here}");
    }
    // The later checkpoint comes first.
    let root = tempfile::tempdir().expect("temp");
    ["checkpoint-100/x", "checkpoint-20/x"].iter().for_each(|file| touch(root.path(), file));
    let text = message(ModelFiles::open_folder(root.path()));
    assert!(text.find("checkpoint-100") < text.find("checkpoint-20"), "{text}");
}

#[test]
fn the_hubs_cache_opens_if_the_version_is_unambiguous() {
    let root = tempfile::tempdir().expect("temp");
    let repository = root.path().join("models--org--name");
    let config = config(&qwen3_json());
    let snapshot = |name: &str| repository.join("snapshots").join(name);
    fs::create_dir_all(repository.join("snapshots")).expect("created");
    fails(ModelFiles::open_folder(&repository), &["without downloaded files"]);
    save(&snapshot("aaa"), &config, &SaveOptions::default());
    let opened = ModelFiles::open_folder(&repository).expect("opens");
    assert_eq!(opened.path, snapshot("aaa"));
    save(&snapshot("bbb"), &config, &SaveOptions::default());
    fails(ModelFiles::open_folder(&repository), &["several versions", "snapshots/aaa", "snapshots/bbb"]);
    touch(&repository, "refs/main");
    fs::write(repository.join("refs/main"), "bbb\n").expect("written");
    assert_eq!(ModelFiles::open_folder(&repository).expect("opens").path, snapshot("bbb"));
}
