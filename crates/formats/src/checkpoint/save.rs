//! Writing a Hugging Face folder that `transformers` loads strictly. The folder appears complete or not at all:
//! everything is written into a temporary sibling, flushed, and renamed.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::{Value, json};

use super::host::{Dtype, HostTensor};
use super::layout::as_filed;
use super::write::write_weights;
use crate::config::ModelConfig;

/// How a folder is written.
pub struct SaveOptions {
    pub dtype: Dtype,
    /// A new file is begun when the current one would exceed this (transformers' default is 5 GB; ours too).
    pub shard_bytes: usize,
    /// Replace an existing folder; otherwise one that is not empty is an error.
    pub overwrite: bool,
    /// Files written next to the weights: tokenizer, chat template, … as (name, contents).
    pub files: Vec<(String, Vec<u8>)>,
    /// `generation_config.json`; by default the special ids of the configuration.
    pub generation_config: Option<Value>,
}

impl Default for SaveOptions {
    fn default() -> Self {
        Self { dtype: Dtype::F32, shard_bytes: 5_000_000_000, overwrite: false, files: vec![], generation_config: None }
    }
}

/// Writes `dir`. The tensors may come in any order, each expected one exactly once; only one is held at a time.
pub fn save_hf_folder(
    dir: &Path,
    config: &ModelConfig,
    tensors: impl IntoIterator<Item = Result<(String, HostTensor)>>,
    options: &SaveOptions,
) -> Result<()> {
    config.validate("the configuration to save")?;
    in_new_folder(dir, options.overwrite, |temp| {
        let (expected, tensors) = as_filed(config, tensors);
        write_weights(temp, &expected, tensors, options.dtype, options.shard_bytes)?;
        write_json(&temp.join("config.json"), &config.to_json(options.dtype.torch_name()))?;
        let generation = options.generation_config.clone().unwrap_or_else(|| {
            json!({
                "_from_model_config": true,
                "bos_token_id": config.bos_token_id,
                "eos_token_id": config.eos_json(),
                "pad_token_id": config.pad_token_id,
            })
        });
        write_json(&temp.join("generation_config.json"), &generation)?;
        for (name, bytes) in &options.files {
            ensure!(!name.contains(['/', '\\']), "{}: extra file {name:?} must be a plain name", dir.display());
            write_file(&temp.join(name), bytes)?;
        }
        Ok(())
    })
}

/// Runs `fill` on a temporary sibling and moves it to `dir`. On any error nothing of it remains.
pub(super) fn in_new_folder(dir: &Path, overwrite: bool, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    // A link to a folder is written through: a rename would put a folder in its place.
    let linked = fs::symlink_metadata(dir).is_ok_and(|there| there.is_symlink());
    let real = if linked {
        fs::canonicalize(dir).with_context(|| format!("{}: a link that leads nowhere", dir.display()))?
    } else {
        dir.to_path_buf()
    };
    let dir = real.as_path();
    ensure!(!dir.exists() || dir.is_dir(), "{}: exists and is not a folder", dir.display());
    let name =
        dir.file_name().ok_or_else(|| anyhow!("{}: expected a path that ends in a folder name", dir.display()))?;
    let parent = dir.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let occupied = dir.exists();
    if occupied {
        let empty = dir.is_dir() && fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none());
        ensure!(empty || overwrite, "{}: already exists: remove it, or choose another name", dir.display());
    }
    fs::create_dir_all(parent).with_context(|| format!("{}: cannot create", parent.display()))?;
    // Its own name: the number of a process may be another's in another container.
    let prefix = format!(".{}.partial-", name.to_string_lossy());
    let scratch = tempfile::Builder::new().prefix(&prefix).tempdir_in(parent);
    let scratch = scratch.with_context(|| format!("{}: cannot create a folder", parent.display()))?;
    let (new, old) = (scratch.path().join("new"), scratch.path().join("old"));
    fs::create_dir(&new).with_context(|| format!("{}: cannot create", new.display()))?;
    fill(&new)?;
    sync_dir(&new)?;
    if occupied {
        fs::rename(dir, &old).with_context(|| format!("{}: cannot move the old folder aside", dir.display()))?;
    }
    if let Err(e) = fs::rename(&new, dir) {
        let back = !occupied || fs::rename(&old, dir).is_ok();
        let kept = if back { String::new() } else { format!("; the old one is in {}", scratch.keep().display()) };
        return Err(anyhow!("{}: cannot move the finished folder into place: {e}{kept}", dir.display()));
    }
    sync_dir(parent)?;
    // Only now is the old folder dispensable.
    let at = scratch.path().to_path_buf();
    scratch.close().with_context(|| format!("{}: cannot remove what was replaced", at.display()))
}

/// Makes the names in a folder durable. Not every platform can open a folder; there it is left to the system.
fn sync_dir(dir: &Path) -> Result<()> {
    match File::open(dir) {
        Ok(handle) if cfg!(unix) => handle.sync_all().with_context(|| format!("{}: cannot flush", dir.display())),
        _ => Ok(()),
    }
}

pub(super) fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let write = || {
        let mut file = File::create_new(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().with_context(|| format!("{}: cannot write", path.display()))
}

pub(super) fn write_json(path: &Path, value: &Value) -> Result<()> {
    write_file(path, format!("{value:#}\n").as_bytes())
}
