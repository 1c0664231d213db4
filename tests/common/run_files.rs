//! Compares the files of two runs byte for byte.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Asserts that two runs have the same files with the same bytes. `after` names the second run's interruption.
#[track_caller]
pub fn assert_same(whole: &Path, broken: &Path, after: &str) {
    if let Some(difference) = difference(whole, broken) {
        panic!("after {after}: {difference}");
    }
}

/// First difference between two runs.
pub fn difference(whole: &Path, broken: &Path) -> Option<String> {
    let (whole, broken) = (files(whole, whole), files(broken, broken));
    let missing =
        whole.keys().find(|name| !broken.contains_key(*name)).map(|name| format!("{} is missing", name.display()));
    let left =
        broken.keys().find(|name| !whole.contains_key(*name)).map(|name| format!("{} is left over", name.display()));
    let differs = || whole.iter().find(|(name, bytes)| broken.get(*name) != Some(bytes));
    missing.or(left).or_else(|| differs().map(|(name, _)| format!("{} differs", name.display())))
}

/// Every file of a run by its path in `root`, without values that depend on the clock or the command line.
fn files(root: &Path, folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    const CLOCK: [&str; 2] = ["seconds", "tokens_per_s"];
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(root, &path));
            continue;
        }
        let name = path.strip_prefix(root).expect("inside").to_path_buf();
        if name == Path::new(".lock") {
            // Names the last process to lock it.
            continue;
        }
        let ending = |wanted: &str| path.extension().is_some_and(|e| e == wanted);
        let bytes = match path.file_stem().and_then(|stem| stem.to_str()) {
            // The same rows as the Parquet file, untyped.
            Some("metrics") if ending("csv") => vec![],
            Some("metrics") => {
                let rows = switchyard::store::read_flat(&path).expect("rows");
                let kept = |row: &serde_json::Map<String, serde_json::Value>| {
                    let kept = row.iter().filter(|(name, _)| !CLOCK.contains(&name.as_str()));
                    kept.map(|(name, value)| format!("{name}={value} ")).collect::<String>()
                };
                rows.iter().map(kept).collect::<String>().into_bytes()
            }
            Some("manifest") => {
                let text = std::fs::read_to_string(&path).expect("a manifest");
                text.lines()
                    .filter(|line| !["\"command\"", "\"commit\""].iter().any(|key| line.contains(key)))
                    .collect::<String>()
                    .into_bytes()
            }
            Some("summary") if ending("md") => {
                let text = std::fs::read_to_string(&path).expect("a summary");
                let command = |line: &&str| line.starts_with("`train");
                assert_eq!(text.lines().filter(command).count(), 1, "{text}");
                text.lines().filter(|line| !command(line)).collect::<String>().into_bytes()
            }
            Some("README") => {
                let text = std::fs::read_to_string(&path).expect("a model card");
                text.lines().filter(|line| !line.starts_with("| commit |")).collect::<String>().into_bytes()
            }
            _ => std::fs::read(&path).expect("a file"),
        };
        found.insert(name, bytes);
    }
    found
}
