//! `fixtures/…`, as the pages write it, from any folder: the checkout's, or `micro` as the program carries it.

use std::path::{Path, PathBuf};

use anyhow::Result;
use sha2::{Digest, Sha256};

use switchyard::store::{CHECKOUT, replace_folder, write_atomic};

macro_rules! carried {
    ($($path:literal)*) => {
        &[$(($path, include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/micro/", $path)))),*]
    };
}

/// `fixtures/micro`, for a program installed without a checkout.
const MICRO: &[(&str, &[u8])] = carried![
    "manifest.json" "recipe.toml" "summary.md" "annotate/summary.json"
    "base/annotator/config.json" "base/annotator/generation_config.json" "base/annotator/model.safetensors"
    "base/annotator/tokenizer.json" "base/annotator/tokenizer_config.json"
    "sft/checkpoint/config.json" "sft/checkpoint/generation_config.json" "sft/checkpoint/model.safetensors"
    "sft/checkpoint/reasoning.json" "sft/checkpoint/tokenizer.json" "sft/checkpoint/tokenizer_config.json"
    "grpo_start/checkpoint/config.json" "grpo_start/checkpoint/generation_config.json"
    "grpo_start/checkpoint/model.safetensors" "grpo_start/checkpoint/reasoning.json"
    "grpo_start/checkpoint/tokenizer.json" "grpo_start/checkpoint/tokenizer_config.json"
    "grpo/checkpoint/config.json" "grpo/checkpoint/generation_config.json" "grpo/checkpoint/model.safetensors"
    "grpo/checkpoint/reasoning.json" "grpo/checkpoint/tokenizer.json" "grpo/checkpoint/tokenizer_config.json"
];

/// A path unchanged; for one below `fixtures/` that does not exist here, the committed folder, or the one embedded in the program.
pub(crate) fn fixture_path(path: impl AsRef<Path>) -> PathBuf {
    let path = path.as_ref();
    let there = Path::new(CHECKOUT).join(path);
    if !path.starts_with("fixtures") || path.exists() {
        return path.to_owned();
    }
    if there.exists() {
        return there;
    }
    // If it cannot be unpacked, the error names the path itself.
    let unpacked =
        path.strip_prefix("fixtures/micro").ok().and_then(|below| Some(unpacked(&cache()?).ok()?.join(below)));
    unpacked.filter(|path| path.exists()).unwrap_or_else(|| path.to_owned())
}

/// `$XDG_CACHE_HOME/switchyard`, or the system's equivalent.
fn cache() -> Option<PathBuf> {
    let named = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || Some(named("HOME")?.join(".cache"));
    Some(named("XDG_CACHE_HOME").or_else(|| named("LOCALAPPDATA")).or_else(home)?.join("switchyard"))
}

/// The embedded run, unpacked atomically into a folder named by its content.
fn unpacked(cache: &Path) -> Result<PathBuf> {
    let mut hash = Sha256::new();
    MICRO.iter().for_each(|(path, bytes)| hash.update([path.as_bytes(), *bytes].concat()));
    let folder = cache.join(format!("micro-{}", &format!("{:x}", hash.finalize())[..16]));
    if folder.is_dir() {
        return Ok(folder);
    }
    let unpack = |new: &Path| MICRO.iter().try_for_each(|(path, bytes)| write_atomic(&new.join(path), bytes));
    match replace_folder(&folder, false, unpack) {
        // Another process was faster; its folder has the same content.
        Err(_) if folder.is_dir() => Ok(folder),
        done => done.map(|()| folder),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cargo starts tests in `programs/`.
    fn start_in_checkout() {
        std::env::set_current_dir(CHECKOUT).unwrap();
    }

    #[test]
    fn what_is_here_or_nowhere_or_elsewhere_stays_as_it_is() {
        start_in_checkout();
        for path in ["fixtures/micro", "fixtures/nothing", "src/lib.rs", "/fixtures/micro", "Qwen/Qwen3-8B"] {
            assert_eq!(fixture_path(path), Path::new(path));
        }
    }

    #[test]
    fn what_is_carried_is_every_committed_file() {
        start_in_checkout();
        let mut found = vec![];
        files(Path::new("fixtures/micro"), &mut found);
        assert_eq!(found.len(), MICRO.len(), "a file of fixtures/micro is not carried: {found:?}");
        let cache = tempfile::tempdir().unwrap();
        let folder = unpacked(cache.path()).unwrap();
        for path in found {
            let unpacked = folder.join(path.strip_prefix("fixtures/micro").unwrap());
            assert!(std::fs::read(&unpacked).unwrap() == std::fs::read(&path).unwrap(), "{}", path.display());
        }
        assert_eq!(unpacked(cache.path()).unwrap(), folder);
        assert_eq!(std::fs::read_dir(cache.path()).unwrap().count(), 1);
    }

    fn files(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() { files(&entry, found) } else { found.push(entry) }
        }
    }
}
