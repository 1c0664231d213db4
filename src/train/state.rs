//! A run's state on disk for resuming: weights, optimiser, step. Writes are atomic.
//!
//! A phase's state is in a folder named after its step. `state.json` names the current folder and is replaced last, so that a process
//! killed at any moment leaves either the old state or the new.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use burn::module::{Module, ParamGroup, ParamId};
use burn::store::ModuleRecord;
use burn::tensor::Device;
use serde::{Deserialize, Serialize};

use super::trainer::{Health, Trainer};
use crate::guard::guarded;
use crate::latent::reasoning::{self, Reasoning};
use crate::model::checkpoint::peft::{self, Adapter, save_adapter};
use crate::model::checkpoint::{Dtype, FINGERPRINT, ModelFiles, SaveOptions, save_hf_folder};
use crate::model::{Decoder, heads};
use crate::recipe::Compute;
use crate::store::{
    Inside, MODEL_CARD, ensure_inside, file_name, json, list, remove_leftovers, remove_listed, sha256, subfolder,
    write_atomic,
};
use crate::text::Vocabulary;

/// Training that led to a checkpoint, including that of its predecessors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainingHistory {
    /// Optimiser steps.
    pub steps: usize,
    /// Positions fed: prompts, responses and latents.
    pub positions: usize,
}

impl TrainingHistory {
    /// Adds `steps` and `positions`.
    #[must_use]
    pub fn and(self, steps: usize, positions: usize) -> Self {
        Self { steps: self.steps + steps, positions: self.positions + positions }
    }
}

/// Parts of an exported checkpoint besides its weights.
#[derive(Clone, Copy)]
pub struct CheckpointExport<'a> {
    pub vocabulary: &'a Vocabulary,
    /// The base, if an adapter is written; `None`: a whole model.
    pub over: Option<Over<'a>>,
    pub reasoning: &'a Reasoning,
    pub trained: TrainingHistory,
    /// Text of its `README.md`. It has no hash in the export: users edit it.
    pub model_card: Option<&'a str>,
}

/// The base of an adapter.
#[derive(Clone, Copy)]
pub struct Over<'a> {
    pub base: &'a ModelFiles,
    /// Its name in the adapter.
    pub name: &'a str,
    /// The adapter that the phase began with.
    pub before: Option<&'a Adapter>,
    /// Tokens whose rows the adapter contains.
    pub tokens: &'a [u32],
    /// Whether other rows of embedding table and head may have been trained too.
    pub tables: bool,
}

/// File of the training history, next to the weights.
const TRAINED: &str = "trained.json";

/// SHA-256 of every weights file of an exported checkpoint, by name.
const WEIGHTS: &str = "weights.json";

/// Hashes of the weights files in a folder.
fn hash_weights(folder: &Path) -> Result<BTreeMap<String, String>> {
    let weights =
        list(folder)?.into_iter().filter(|path| path.extension().is_some_and(|ending| ending == "safetensors"));
    weights.map(|path| Ok((file_name(&path), sha256(&[path])?))).collect()
}

/// Hashes of a state's files, in the order of [`FILES`].
fn hash_state(folder: &Path) -> Result<[String; 2]> {
    let [model, optimizer] = FILES.map(|file| sha256(&[folder.join(file)]));
    Ok([model?, optimizer?])
}

/// One phase's folder.
#[derive(Clone, Debug)]
pub struct PhaseFolder {
    pub path: PathBuf,
}

/// `state.json`. The folder is named after its step.
#[derive(Debug, Serialize, Deserialize)]
struct Current {
    folder: Inside,
    step: usize,
    #[serde(default)]
    health: Health,
    /// SHA-256 of each of [`FILES`].
    sums: [String; 2],
}

/// The folder of the state after this many steps.
fn state_folder(step: usize) -> Result<Inside> {
    Inside::parse(&format!("state-{step:07}"))
}

/// List of the state folders that this phase began to write: the only ones that it removes.
const STATES: &str = ".states.json";

/// Files of a state: trained weights and optimiser in Burn's format, whose sizes Burn trusts. Frozen weights come from the start of
/// the phase.
const FILES: [&str; 2] = ["model.bpk", "optimizer.bpk"];

/// Removes the files of a state in [`STATES`], and those that Burn was writing when the process was killed. A user's own files stay.
fn remove_state(folder: &Path) -> Result<()> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let unfinished =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| is_unfinished(name));
    let names: Vec<String> = FILES.map(str::to_owned).into_iter().chain(unfinished).collect();
    remove_listed(folder, &names.iter().map(String::as_str).collect::<Vec<_>>())
}

/// `model.bpk.PID-N.tmp`: Burn writes a file under this name and renames it.
fn is_unfinished(name: &str) -> bool {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    FILES.iter().any(|file| {
        let middle = name.strip_prefix(file).and_then(|rest| rest.strip_prefix('.')?.strip_suffix(".tmp"));
        middle.and_then(|middle| middle.split_once('-')).is_some_and(|(pid, n)| number(pid) && number(n))
    })
}

fn trained(model: &Decoder) -> Vec<ParamId> {
    model.parameters().into_iter().filter(|parameter| parameter.trained).map(|parameter| parameter.id).collect()
}

impl PhaseFolder {
    /// # Errors
    /// A folder that cannot be created; a link that leads out of the run.
    pub fn open(run: &Path, phase: &str) -> Result<Self> {
        Ok(Self { path: subfolder(run, phase)? })
    }

    /// Removes what a killed process left half-written. Only for the process that holds the run's lock.
    ///
    /// # Errors
    /// A folder that cannot be read or changed.
    pub(crate) fn sweep(&self) -> Result<()> {
        ensure_inside(&self.path)?;
        // Killed between the result and the end of [`Self::finish`]: this state is not read again.
        if self.path.join("result.json").exists() {
            self.remove_states(self.current()?.map(|current| current.folder))?;
        }
        let current = self.current()?.map(|current| current.folder);
        for listed in self.states()?.iter().filter(|listed| current.as_ref() != Some(*listed)) {
            remove_state(&listed.join_to(&self.path))?;
        }
        remove_leftovers(&self.path)
    }

    /// The folders listed in [`STATES`].
    fn states(&self) -> Result<Vec<Inside>> {
        let path = self.path.join(STATES);
        if !path.exists() {
            return Ok(vec![]);
        }
        let what = "a list of training states; move it away";
        let states: Vec<Inside> = json::read(&path, what)?;
        let is_state = |name: &Inside| {
            let step = name.strip_prefix("state-").and_then(|step| step.parse().ok());
            step.is_some_and(|step| state_folder(step).is_ok_and(|folder| folder == *name))
        };
        ensure!(states.iter().all(is_state), "{}: not {what}", path.display());
        Ok(states)
    }

    /// Removes all states of this phase, `current` included.
    fn remove_states(&self, current: Option<Inside>) -> Result<()> {
        let mut states = self.states()?;
        states.extend(current);
        // The list is removed last: it names every folder that is still to be removed.
        remove_listed(&self.path, &["state.json"])?;
        for state in &states {
            remove_state(&state.join_to(&self.path))?;
        }
        remove_listed(&self.path, &[STATES])
    }

    /// Saves everything that the next step depends on, after `step` steps.
    ///
    /// # Errors
    /// A full disk or a folder without permission, by path.
    pub fn save(&self, step: usize, trainer: &Trainer) -> Result<()> {
        let name = state_folder(step)?;
        let folder = name.join_to(&self.path);
        let old = self.current()?;
        if old.as_ref().is_some_and(|old| old.folder == name) {
            // Stopped again before the next step: the saved state is this one, and a kill must not lose it.
            return Ok(());
        }
        let mut states = self.states()?;
        if states.contains(&name) {
            remove_state(&folder)?;
        }
        let free = fs::symlink_metadata(&folder).is_err();
        ensure!(free, "{}: exists, and this run did not write it; move it away", folder.display());
        // A state is listed before it is written: after a kill it can be distinguished from a foreign folder.
        states.retain(|state| fs::symlink_metadata(state.join_to(&self.path)).is_ok());
        states.push(name.clone());
        write_atomic(&self.path.join(STATES), &serde_json::to_vec(&states)?)?;
        subfolder(&self.path, &name)?;
        let failed = |what: &str, e: String| anyhow!("{}: cannot write {what}: {e}", folder.display());
        let record = trainer.model.valid().into_record_group(ParamGroup::from_ids(trained(&trainer.model)));
        record.save(folder.join("model.bpk")).map_err(|e| failed("the weights", format!("{e:?}")))?;
        let optimizer = trainer.optimizer.save(folder.join("optimizer.bpk"));
        optimizer.map_err(|e| failed("the optimiser", format!("{e:?}")))?;
        for file in FILES {
            let path = folder.join(file);
            let synced = fs::File::open(&path).and_then(|f| f.sync_all());
            synced.with_context(|| format!("{}: cannot flush", path.display()))?;
        }
        let current = Current { folder: name.clone(), step, health: trainer.health, sums: hash_state(&folder)? };
        write_atomic(&self.path.join("state.json"), &serde_json::to_vec_pretty(&current)?)?;
        if let Some(old) = old.filter(|old| old.folder != name) {
            // A leftover costs disk, not correctness.
            let _ = remove_state(&old.folder.join_to(&self.path));
        }
        Ok(())
    }

    /// Loads the last saved state into a trainer of the same shape; returns its step, 0 if nothing was saved.
    ///
    /// # Errors
    /// A state that does not fit, by path.
    pub fn restore(&self, trainer: &mut Trainer) -> Result<usize> {
        let Some(current) = self.current()? else { return Ok(0) };
        let folder = current.folder.join_to(&self.path);
        let failed = |what: &str, e: String| {
            anyhow!(
                "{}: cannot read {what}: {e}; delete {} to start the phase again",
                folder.display(),
                self.path.join("state.json").display()
            )
        };
        let again = || failed("it", "checksum mismatch".to_owned());
        ensure!(hash_state(&folder)? == current.sums, again());
        // The state was written outside autodiff; `train` makes the trained tensors leaves again. Frozen weights are loaded already.
        let (plain, wanted) = (trainer.model.valid(), trained(&trainer.model).len());
        let weights = guarded(|| {
            let record = ModuleRecord::load(folder.join("model.bpk")).map_err(|e| anyhow!("{e:?}"))?;
            ensure!(record.len() >= wanted, "it has {} weights, but {wanted} are trained", record.len());
            plain.try_load_record(record.allow_partial(true)).map_err(|e| anyhow!("{e:?}"))
        });
        let weights = weights.flatten().map_err(|e| failed("the weights", e.to_string()))?;
        trainer.model = weights.trained_again_on(&trainer.model.device());
        let fresh = trainer.optimizer.clone();
        let optimizer = guarded(|| fresh.load(folder.join("optimizer.bpk")).map_err(|e| anyhow!("{e:?}")));
        trainer.optimizer = optimizer.flatten().map_err(|e| failed("the optimiser", e.to_string()))?;
        trainer.health = current.health;
        Ok(current.step)
    }

    /// Step of the saved state; 0 without one.
    pub fn step(&self) -> Result<usize> {
        Ok(self.current()?.map_or(0, |current| current.step))
    }

    fn current(&self) -> Result<Option<Current>> {
        let path = self.path.join("state.json");
        if !path.exists() {
            return Ok(None);
        }
        let what = "a training state; move this file away to start the phase again";
        let current: Current = json::read(&path, what)?;
        let named = state_folder(current.step)?;
        ensure!(
            current.folder == named,
            "{}: not {what}: it names the folder {}, but step {} has {named}",
            path.display(),
            current.folder,
            current.step
        );
        Ok(Some(current))
    }

    /// The phase's result, if it is finished.
    pub fn result<T: serde::de::DeserializeOwned>(&self) -> Result<Option<T>> {
        let path = self.path.join("result.json");
        path.exists().then(|| json::read(&path, "a phase result")).transpose()
    }

    /// Marks the phase as finished and deletes its training state.
    pub fn finish<T: Serialize>(&self, result: &T) -> Result<()> {
        write_atomic(&self.path.join("result.json"), &serde_json::to_vec_pretty(result)?)?;
        self.remove_states(self.current()?.map(|current| current.folder))
    }

    /// Writes `<phase>/<name>` with weights, way of reasoning and training history: a PEFT folder over a base, or a Hugging Face folder of
    /// the whole model.
    ///
    /// # Errors
    /// A full disk; a model in its stored type that is to be written whole.
    pub fn export(&self, name: &str, model: &Decoder, to: &CheckpointExport) -> Result<PathBuf> {
        let CheckpointExport { vocabulary, over, reasoning, trained, model_card } = *to;
        let folder = self.path.join(name);
        ensure_inside(&folder)?;
        let mut files = vec![
            (reasoning::FILE.to_owned(), serde_json::to_vec_pretty(reasoning)?),
            (TRAINED.to_owned(), serde_json::to_vec_pretty(&trained)?),
        ];
        files.extend(model_card.map(|card| (MODEL_CARD.to_owned(), card.as_bytes().to_vec())));
        files.extend(model.heads_file()?.map(|bytes| (heads::FILE.to_owned(), bytes)));
        let mut config = model.config().clone();
        config.bos_token_id = vocabulary.bos();
        config.eos_token_ids = vocabulary.stops().to_vec();
        config.pad_token_id = vocabulary.pad();
        if let Some(Over { base, name, before, tokens, tables }) = over {
            let mut adapter = model.adapter_over(tables.then_some(base), before, tokens)?;
            adapter.config.base_model = Some(name.to_owned());
            // The vocabulary may be shorter than the base's padded one.
            let config = config.to_json(Dtype::F32.torch_name());
            files.push(("config.json".to_owned(), serde_json::to_vec_pretty(&config)?));
            files.push((FINGERPRINT.to_owned(), serde_json::to_vec_pretty(&base.fingerprint()?)?));
            save_adapter(&folder, &adapter, Dtype::F32, &files, true)?;
        } else {
            let options = SaveOptions { overwrite: true, files, ..SaveOptions::default() };
            save_hf_folder(&folder, &config, model.tensors()?, &options)?;
        }
        vocabulary.save(&folder)?;
        write_atomic(&folder.join(WEIGHTS), &serde_json::to_vec_pretty(&hash_weights(&folder)?)?)?;
        Ok(folder)
    }

    /// The folder of an export, after checking its hashes. Older runs did not store hashes.
    fn check_export(&self, name: &str) -> Result<PathBuf> {
        let folder = self.path.join(name);
        let path = folder.join(WEIGHTS);
        if !path.is_file() {
            return Ok(folder);
        }
        let said: BTreeMap<String, String> = json::read(&path, "the hashes of weights")?;
        let found = hash_weights(&folder)?;
        let other = said.keys().chain(found.keys()).find(|name| said.get(*name) != found.get(*name));
        if let Some(file) = other {
            bail!(
                "{}: is not the file that this run wrote (hash mismatch with {WEIGHTS}): put it back, or delete {} to train the phase \
                again",
                folder.join(file).display(),
                self.path.display()
            );
        }
        Ok(folder)
    }

    /// Reads an export of [`Self::export`], computing in this type.
    ///
    /// # Errors
    /// A folder that is missing or incomplete.
    pub fn import(&self, name: &str, dtype: Compute, device: &Device) -> Result<Decoder> {
        dtype.load(&ModelFiles::open_folder(self.check_export(name)?)?, device)
    }

    /// Reads a model for training: layers in this type, token tables in f32, the type of their training, if they are floats.
    pub fn import_to_train(&self, name: &str, dtype: Compute, device: &Device) -> Result<Decoder> {
        dtype.load_to_train(&ModelFiles::open_folder(self.check_export(name)?)?, device)
    }

    /// The exported adapter; `None` for a whole model.
    pub fn adapter(&self, name: &str) -> Result<Option<Adapter>> {
        let folder = self.check_export(name)?;
        peft::is_folder(&folder).then(|| Adapter::open(&folder)).transpose()
    }

    /// Training history of an export.
    ///
    /// # Errors
    /// A folder without the file.
    pub fn trained(&self, name: &str) -> Result<TrainingHistory> {
        json::read(&self.path.join(name).join(TRAINED), "steps and positions of training")
    }

    /// Replaces the way of reasoning of an export.
    pub(crate) fn write_reasoning(&self, name: &str, reasoning: &Reasoning) -> Result<()> {
        write_atomic(&self.path.join(name).join(reasoning::FILE), &serde_json::to_vec_pretty(reasoning)?)
    }

    /// Way of reasoning of an export.
    ///
    /// # Errors
    /// A folder without the file.
    pub fn reasoning(&self, name: &str) -> Result<Reasoning> {
        let folder = self.path.join(name);
        Reasoning::read(&folder)?.with_context(|| format!("{}: has no {}", folder.display(), reasoning::FILE))
    }
}
