//! The inputs of a run besides its settings, recorded in its manifest; and the check that they have not changed.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::Run;
use crate::guard::read_text;
use crate::machine;
use crate::model::checkpoint::ModelFiles;
use crate::progress::say;
use crate::store::{commit, file_name, hex, list, sha256};

/// Inputs that must not change during a run, because weights depend on them; with the error text.
const FIXED: [(&str, &str); 10] = [
    ("settings_sha256", "recipe.toml was changed after the run began: put it back"),
    ("threads", "results depend on the number of worker threads: repeat --threads"),
    ("processes", "results depend on the number of processes: start the same number"),
    ("dtype", "the float type differs: repeat --dtype"),
    ("data_sha256", "the training problems or their tokens changed"),
    ("test_sha256", "the held-out problems changed"),
    ("model_sha256", "the files of the pretrained model changed"),
    ("adapter_sha256", "the files of the adapter changed"),
    ("grader", "answers would be graded differently"),
    ("seed", "another seed samples differently"),
];

/// Inputs whose change is only reported: bits may differ.
const TOLD: [&str; 4] = ["commit", "version", "burn", "device"];

/// The manifest of a new run.
///
/// # Errors
/// A file of the pretrained model that cannot be read.
pub(super) fn manifest(run: &Run, model: Option<&[String; 2]>) -> Result<Value> {
    let [train, test] = run.corpus.hashes()?;
    let [model, adapter] = match model {
        Some([model, adapter]) => [Some(model), Some(adapter).filter(|hash| !hash.is_empty())],
        None => [None, None],
    };
    Ok(json!({
        "command": run.options.command,
        "commit": commit(),
        "version": env!("CARGO_PKG_VERSION"),
        "burn": "0.22.1",
        "seed": run.recipe.seed,
        "settings_sha256": hash_settings(&toml::to_string(&run.recipe).context("writing the recipe as TOML")?),
        "threads": run.options.threads,
        "processes": run.options.world.size,
        "device": machine::described(&run.device),
        "dtype": run.recipe.optimizer.dtype,
        "template": run.corpus.template.described()?,
        "data_sha256": train,
        "test_sha256": test,
        "model_sha256": model,
        "adapter_sha256": adapter,
        "train_rows": run.corpus.train.len(),
        "dropped_rows": run.corpus.dropped,
        "test_rows": run.corpus.test.len(),
        "grader": run.corpus.grader(),
    }))
}

/// Hashes of the pretrained model's files and of its adapter's; empty without an adapter.
pub(super) fn hash_model(checkpoint: &ModelFiles) -> Result<[String; 2]> {
    Ok(match &checkpoint.base {
        Some(base) => [hash_folder(&base.path)?, hash_folder(&checkpoint.path)?],
        None => [hash_folder(&checkpoint.path)?, String::new()],
    })
}

/// Hash of one file, or of a folder's files for weights, settings and tokens, with their names.
fn hash_folder(path: &Path) -> Result<String> {
    if !path.is_dir() {
        return sha256(&[path]);
    }
    let read = ["safetensors", "json", "model", "jinja", "txt", "gguf"];
    let is_read = |file: &PathBuf| {
        let is_one = |ending: &OsStr| read.iter().any(|read| ending.eq_ignore_ascii_case(read));
        file.is_file() && file.extension().is_some_and(is_one)
    };
    let mut all = Sha256::new();
    for file in list(path)?.into_iter().filter(is_read) {
        all.update(format!("{} {}\n", file_name(&file), sha256(&[file])?));
    }
    Ok(hex(&all.finalize()))
}

/// Hash of the settings in a run's recipe.toml.
pub(super) fn hash_settings(recipe: &str) -> String {
    hex(&Sha256::digest(recipe))
}

/// Requires that a folder without a recipe has no files of a run.
///
/// # Errors
/// A phase of unknown settings.
pub(super) fn ensure_new(root: &Path, phases: &[&str]) -> Result<()> {
    if let Some(phase) = phases.iter().find(|phase| root.join(phase).is_dir()) {
        bail!(
            "{}: is missing, but {} exists, so its settings are unknown. Put recipe.toml back, or name another folder \
            with --out",
            root.join("recipe.toml").display(),
            root.join(phase).display()
        );
    }
    Ok(())
}

/// Reads a run's manifest; `None` if there is none and no phase has begun.
///
/// # Errors
/// A manifest that cannot be read; a folder with phases but without a manifest.
pub(super) fn read_manifest(root: &Path, phases: &[&str]) -> Result<Option<Value>> {
    let path = root.join("manifest.json");
    match read_text(&path) {
        Ok(text) => {
            serde_json::from_str(&text).map(Some).with_context(|| format!("{}: not a manifest", path.display()))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let begun = phases.iter().find(|phase| root.join(phase).is_dir());
            if let Some(phase) = begun {
                bail!(
                    "{}: is missing, but {} exists, so its inputs are unknown. Put the manifest back, or name another folder \
                    with --out",
                    path.display(),
                    root.join(phase).display()
                );
            }
            Ok(None)
        }
        Err(error) => Err(error).with_context(|| format!("{}: cannot read", path.display())),
    }
}

/// Compares a stored manifest with this run's `ours`, for the keys in `ours`. `advice`: what else the user can do.
///
/// # Errors
/// The key that differs, with both values.
pub(super) fn compare(path: &Path, held: &Value, ours: &Value, advice: &str) -> Result<()> {
    // Older hashes covered less.
    let old = held.get("test_sha256").is_none();
    for (key, why) in FIXED {
        let Some(here) = ours.get(key) else { continue };
        let there = match held.get(key) {
            // Older runs, before several processes were possible, do not record their number.
            None if key == "processes" => json!(1),
            None => continue,
            Some(_) if old && key == "data_sha256" => continue,
            Some(there) => there.clone(),
        };
        ensure!(there == *here, "{}: {key} was {there}, now {here}: {why}; {advice}", path.display());
    }
    if old && ours.get("test_sha256").is_some() {
        say(&format!(
            "warning: {} was written by an older version that recorded fewer inputs: whether data and model changed was not \
            checked",
            path.display()
        ));
    }
    for key in TOLD {
        let (there, here) = (&held[key], &ours[key]);
        if !there.is_null() && !here.is_null() && there != here {
            say(&format!(
                "warning: {}: {key} was {there}, now {here}: bits of further training may differ",
                path.display()
            ));
        }
    }
    Ok(())
}
