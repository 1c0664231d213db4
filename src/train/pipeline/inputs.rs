//! What a run depends on besides its settings, as its manifest names it; and whether that is still what it was.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::Run;
use crate::guard::read_text;
use crate::machine;
use crate::model::checkpoint::ModelFiles;
use crate::progress::say;
use crate::store::{commit, hex, sha256};

/// What must not change between the start of a run and its end, with the words for it. Weights depend on all of it.
const FIXED: [(&str, &str); 10] = [
    ("settings_sha256", "recipe.toml was changed after the run began: put it back"),
    ("threads", "results depend on the number of worker threads: repeat --threads"),
    ("processes", "results depend on the number of processes: start as many again"),
    ("dtype", "weights are computed in another float type: repeat --dtype"),
    ("data_sha256", "the training problems are others than at the start, or their tokens are"),
    ("test_sha256", "the held-out problems are others than at the start"),
    ("model_sha256", "the files of the pretrained model are others than at the start"),
    ("adapter_sha256", "the files of the adapter are others than at the start"),
    ("grader", "answers would be graded in another way"),
    ("seed", "another seed draws other samples"),
];

/// What may change and is said: bits may differ.
const TOLD: [&str; 4] = ["commit", "version", "burn", "device"];

/// The manifest of a run that begins.
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
        "settings_sha256": hash_of(&toml::to_string(&run.recipe).context("writing the recipe as TOML")?),
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

/// Of the files of a pretrained model and of the adapter that stands over it; empty where there is no adapter.
///
/// # Errors
/// A file that cannot be read.
pub(super) fn model(checkpoint: &ModelFiles) -> Result<[String; 2]> {
    Ok(match &checkpoint.base {
        Some(base) => [of_files(&base.path)?, of_files(&checkpoint.path)?],
        None => [of_files(&checkpoint.path)?, String::new()],
    })
}

/// Of one file, or of those files of a folder that weights, settings and tokens are read from, with their names.
fn of_files(path: &Path) -> Result<String> {
    if !path.is_dir() {
        return sha256(&[path]);
    }
    let failed = || format!("{}: cannot list", path.display());
    let mut files: Vec<PathBuf> = vec![];
    for entry in fs::read_dir(path).with_context(failed)? {
        let file = entry.with_context(failed)?.path();
        let read = ["safetensors", "json", "model", "jinja", "txt", "gguf"];
        if file.is_file() && file.extension().is_some_and(|ending| read.iter().any(|read| ending == *read)) {
            files.push(file);
        }
    }
    files.sort();
    let mut all = Sha256::new();
    for file in files {
        let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        all.update(format!("{name} {}\n", sha256(&[file])?));
    }
    Ok(hex(&all.finalize()))
}

/// Of the settings, as a run's recipe.toml has them.
pub(super) fn hash_of(recipe: &str) -> String {
    hex(&Sha256::digest(recipe))
}

/// Whether a folder without a recipe holds nothing of a run.
///
/// # Errors
/// A phase that is there: nobody knows with which settings it was made.
pub(super) fn ensure_new(root: &Path, phases: &[&str]) -> Result<()> {
    if let Some(phase) = phases.iter().find(|phase| root.join(phase).is_dir()) {
        bail!(
            "{}: is missing, and {} is there: nothing says with which settings it was made. Put recipe.toml back, or name another folder \
             with --out",
            root.join("recipe.toml").display(),
            root.join(phase).display()
        );
    }
    Ok(())
}

/// Reads a run's manifest; `None` where there is none and nothing has been computed yet.
///
/// # Errors
/// A manifest that cannot be read; none in a folder with phases, of which nobody knows what they were made of.
pub(super) fn held(root: &Path, phases: &[&str]) -> Result<Option<Value>> {
    let path = root.join("manifest.json");
    match read_text(&path) {
        Ok(text) => {
            serde_json::from_str(&text).map(Some).with_context(|| format!("{}: not a manifest", path.display()))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let begun = phases.iter().find(|phase| root.join(phase).is_dir());
            if let Some(phase) = begun {
                bail!(
                    "{}: is missing, and {} is there: nothing says what it was made of. Put the manifest back, or name another folder \
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

/// Whether what another manifest names is what this run has, as far as `ours` names it. `advice`: what else can be done.
///
/// # Errors
/// What differs, by name and with both values.
pub(super) fn same(path: &Path, held: &Value, ours: &Value, advice: &str) -> Result<()> {
    // Their hashes were of less.
    let old = held.get("test_sha256").is_none();
    for (key, why) in FIXED {
        let Some(here) = ours.get(key) else { continue };
        let there = match held.get(key) {
            // Runs of the time before there could be several processes do not name their one.
            None if key == "processes" => json!(1),
            None => continue,
            Some(_) if old && key == "data_sha256" => continue,
            Some(there) => there.clone(),
        };
        ensure!(there == *here, "{}: {key} was {there}, now {here}: {why}; {advice}", path.display());
    }
    if old && ours.get("test_sha256").is_some() {
        say(&format!(
            "warning: {} was written by an older version, which did not say all that a run depends on: whether data and model are \
             still the same was not checked",
            path.display()
        ));
    }
    for key in TOLD {
        let (there, here) = (&held[key], &ours[key]);
        if !there.is_null() && !here.is_null() && there != here {
            say(&format!(
                "warning: {}: {key} was {there}, now {here}: bits of what is trained from here on may differ",
                path.display()
            ));
        }
    }
    Ok(())
}
