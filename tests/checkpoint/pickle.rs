//! Files of `torch.save`: every form of a state dict, models in several files, and no code is executed.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use switchyard::model::checkpoint::{ModelFiles, PickleFile, SafetensorsFile, expected_parameters};

use super::support::*;

const FOLDER: &str = "fixtures/pickle";

#[test]
fn every_form_of_a_state_dict_has_the_values_of_pytorch() {
    let folder = Path::new(FOLDER);
    let wanted = SafetensorsFile::open(&folder.join("values.safetensors")).expect("opens");
    for file in ["archive", "legacy", "wrapped", "parameters", "metadata"] {
        let found = PickleFile::open(&folder.join(format!("{file}.pt"))).expect(file);
        for name in wanted.names() {
            let (ours, theirs) = (found.tensor(name).expect("reads"), wanted.tensor(name).expect("reads"));
            assert_eq!(ours, theirs, "{file}.pt: {name}");
        }
        // The step counters are listed, but integers cannot be read as weights.
        let more = found.names().count() - wanted.names().count();
        assert_eq!(more, usize::from(file == "archive"));
    }
    let steps = PickleFile::open(&folder.join("archive.pt")).expect("opens").tensor("steps");
    fails(steps, &["archive.pt", "steps", "Long"]);
}

#[test]
fn other_pickles_are_errors_by_name_and_never_run() {
    let open = |file: &str| PickleFile::open(&Path::new(FOLDER).join(file));
    // On Linux `os` is `posix` to a pickle.
    fails(open("hostile.pt"), &["hostile.pt", "posix.system", "not executed"]);
    assert!(!Path::new("/tmp/switchyard-pickle-was-run").exists());
    fails(open("list.pt"), &["list.pt", "dictionary"]);
    fails(open("values.safetensors"), &["values.safetensors", "torch.save"]);
    let root = tempfile::tempdir().expect("temp");
    for file in ["archive.pt", "legacy.pt"] {
        let whole = fs::read(Path::new(FOLDER).join(file)).expect("reads");
        let cut = root.path().join(file);
        for keep in [3, 40, whole.len() / 2, whole.len() - 1] {
            fs::write(&cut, &whole[..keep]).expect("writes");
            fails(PickleFile::open(&cut), &[file]);
        }
    }
}

#[test]
fn a_model_in_several_bin_files_is_the_one_in_safetensors() {
    let sharded = ModelFiles::open_folder(Path::new(FOLDER).join("sharded")).expect("opens");
    let single = ModelFiles::open_folder("fixtures/tiny/llama_linear").expect("opens");
    for (name, _) in expected_parameters(&single.config) {
        let (ours, theirs) = (sharded.tensor(&name).expect("reads"), single.tensor(&name).expect("reads"));
        let off =
            ours.data.iter().zip(&theirs.data).map(|(a, b)| (a - b).abs() / b.abs().max(1e-3)).fold(0.0, f32::max);
        // Some are stored in bf16.
        assert!(
            ours.shape == theirs.shape && off < if name.contains("up_proj") { 4e-3 } else { 1e-9 },
            "{name}: {off}"
        );
        assert!(sharded.stored(&name, true).is_ok());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

    /// Opening and reading a file never panics.
    #[test]
    fn damaged_files_never_panic(legacy: bool, hits in prop::collection::vec((0usize..4000, any::<u8>()), 1..5)) {
        let file = if legacy { "legacy.pt" } else { "archive.pt" };
        let mut bytes = fs::read(Path::new(FOLDER).join(file)).expect("reads");
        for (at, value) in hits {
            let len = bytes.len();
            bytes[at % len] = value;
        }
        let root = tempfile::tempdir().expect("temp");
        let path = root.path().join("m.pt");
        fs::write(&path, bytes).expect("writes");
        if let Ok(file) = PickleFile::open(&path) {
            for name in file.names().map(str::to_owned).collect::<Vec<_>>() {
                let _ = file.tensor(&name);
            }
        }
    }
}
