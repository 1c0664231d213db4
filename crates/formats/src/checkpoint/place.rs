//! Errors for folders without a model: they name what the folder is, and the path to give instead.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::gguf::parts::is_later_part;
use crate::guard::read_text;

/// Names that a message lists at most.
const MOST: usize = 6;

/// The model's folder: for a repository in the hub's cache its only snapshot, or that of its branch `main`.
pub(super) fn find_model(dir: &Path) -> Result<PathBuf> {
    if is_model(dir) {
        return Ok(dir.to_path_buf());
    }
    let place = dir.display();
    let files = names(dir, false);
    let folders = names(dir, true);
    if folders.iter().any(|name| name == "snapshots") {
        return snapshot(dir);
    }
    if let Some(name) = folders.iter().find(|name| name.starts_with("models--")) {
        bail!(
            "{place}: a cache of the hub, not a model: name a model by its id, or its folder, for example {place}/{name}"
        );
    }
    let gguf = |name: &&String| name.to_lowercase().ends_with(".gguf") && !is_later_part(name);
    let models: Vec<&String> = files.iter().filter(gguf).collect();
    if !models.is_empty() {
        bail!("{place}: a folder of GGUF files, which are opened by their names: give {}", listed(dir, &models));
    }
    let step = |name: &&String| name.strip_prefix("checkpoint-").is_some_and(|step| step.parse::<u64>().is_ok());
    let mut steps: Vec<&String> = folders.iter().filter(step).collect();
    if !steps.is_empty() {
        steps.sort_by_key(|name| name.trim_start_matches("checkpoint-").parse::<u64>().unwrap_or_default());
        steps.reverse();
        bail!("{place}: a trainer's folder, not a model: name one of its checkpoints: {}", listed(dir, &steps));
    }
    let holds = |name: &&String| is_model(&dir.join(name));
    let inner: Vec<&String> = folders.iter().filter(holds).collect();
    if !inner.is_empty() {
        bail!("{place}: has no config.json itself: name the model's folder: {}", listed(dir, &inner));
    }
    let found = files.iter().chain(&folders).take(MOST).map(String::as_str).collect::<Vec<_>>().join(", ");
    let found = if found.is_empty() { "nothing".to_owned() } else { found };
    bail!("{place}: expected a folder with config.json and model.safetensors, found {found}")
}

fn is_model(dir: &Path) -> bool {
    ["config.json", "adapter_config.json"].iter().any(|name| dir.join(name).is_file())
}

/// Names in a folder: of folders, or of files.
pub(super) fn names(dir: &Path, folders: bool) -> Vec<String> {
    let listed = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let of_kind = listed.filter(|entry| entry.path().is_dir() == folders);
    let mut names: Vec<String> = of_kind.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

pub(super) fn listed(dir: &Path, names: &[&String]) -> String {
    let more = if names.len() > MOST { format!(", and {} more", names.len() - MOST) } else { String::new() };
    let paths: Vec<String> = names.iter().take(MOST).map(|name| dir.join(name).display().to_string()).collect();
    paths.join(", ") + &more
}

/// The snapshot of a repository in the hub's cache.
fn snapshot(dir: &Path) -> Result<PathBuf> {
    let snapshots = dir.join("snapshots");
    let there = names(&snapshots, true);
    let main = read_text(dir.join("refs/main")).unwrap_or_default();
    let named = there.iter().find(|name| *name == main.trim());
    match (named, there.as_slice()) {
        (Some(one), _) | (None, [one]) => find_model(&snapshots.join(one)),
        (None, []) => bail!("{}: the hub's cache of a model without downloaded files", dir.display()),
        (None, _) => {
            let all: Vec<&String> = there.iter().collect();
            bail!(
                "{}: the hub's cache of a model in several versions: name one: {}",
                dir.display(),
                listed(&snapshots, &all)
            )
        }
    }
}
