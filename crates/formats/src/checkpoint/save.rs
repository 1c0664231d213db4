//! Writing a Hugging Face folder that `transformers` loads strictly. The folder appears complete or not at all:
//! everything is written into a temporary sibling, flushed, and renamed.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::host::{Dtype, HostTensor};
use super::layout::to_file_layout;
use super::write::write_weights;
use crate::config::ModelConfig;
use crate::output::replace_folder;

/// How a folder is written.
pub struct SaveOptions {
    pub dtype: Dtype,
    /// A new file begins when the current one would exceed this size (transformers' default is 5 GB; ours too).
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

/// Writes `dir`. The tensors may come in any order, each expected one exactly once; only one is in memory at a time.
pub fn save_hf_folder(
    dir: &Path,
    config: &ModelConfig,
    tensors: impl IntoIterator<Item = Result<(String, HostTensor)>>,
    options: &SaveOptions,
) -> Result<()> {
    config.validate("the configuration to save")?;
    replace_folder(dir, options.overwrite, |temp| {
        let (expected, tensors) = to_file_layout(config, tensors);
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
