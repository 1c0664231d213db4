//! What a run leaves on disk so that it can go on: weights, optimiser, step. Written whole or not at all.
//!
//! A phase's state lives in a folder named by its step; `state.json` names the current one and is replaced last, so a
//! process killed at any moment leaves either the old state or the new.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use burn::module::{Module, ParamGroup, ParamId};
use burn::store::ModuleRecord;
use burn::tensor::Device;
use serde::{Deserialize, Serialize};

use super::trainer::{Health, Trainer};
use crate::guard::{guarded, read_text};
use crate::latent::reasoning::{self, Reasoning};
use crate::model::checkpoint::peft::{self, Adapter, save_adapter};
use crate::model::checkpoint::{Dtype, FINGERPRINT, ModelFiles, SaveOptions, save_hf_folder};
use crate::model::{Decoder, heads};
use crate::recipe::Compute;
use crate::store::{Inside, ensure_inside, json, remove_leftovers, remove_listed, sha256, subfolder, write_atomic};
use crate::text::Vocabulary;

/// The training behind a checkpoint, that of the checkpoints before it included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainingHistory {
    /// Optimiser steps.
    pub steps: usize,
    /// Positions fed: prompts, responses and latents.
    pub positions: usize,
}

impl TrainingHistory {
    /// `steps` and `positions` more.
    #[must_use]
    pub fn and(self, steps: usize, positions: usize) -> Self {
        Self { steps: self.steps + steps, positions: self.positions + positions }
    }
}

/// What belongs to weights that are written.
#[derive(Clone, Copy)]
pub struct CheckpointExport<'a> {
    pub vocabulary: &'a Vocabulary,
    /// What they are written over, as an adapter; `None`: whole.
    pub over: Option<Over<'a>>,
    pub reasoning: &'a Reasoning,
    pub trained: TrainingHistory,
}

/// What an adapter that is written stands over.
#[derive(Clone, Copy)]
pub struct Over<'a> {
    pub base: &'a ModelFiles,
    /// As the adapter names it.
    pub name: &'a str,
    /// What was learnt over it before: the adapter that the phase began with.
    pub before: Option<&'a Adapter>,
    /// Those whose rows it holds.
    pub tokens: &'a [u32],
    /// Whether other rows of embedding table and head may have been trained too.
    pub tables: bool,
}

/// What is written beside the weights: how a checkpoint reasons, and what is behind it.
const TRAINED: &str = "trained.json";

/// SHA-256 of every file of weights of a checkpoint that a run wrote, by name.
const WEIGHTS: &str = "weights.json";

/// Those of a folder as it is.
fn weights(folder: &Path) -> Result<BTreeMap<String, String>> {
    let failed = || format!("{}: cannot list", folder.display());
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).with_context(failed)? {
        let path = entry.with_context(failed)?.path();
        if path.extension().is_some_and(|ending| ending == "safetensors") {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            found.insert(name, sha256(&[path])?);
        }
    }
    Ok(found)
}

/// Of the files of a state, in the order of [`FILES`].
fn sums(folder: &Path) -> Result<[String; 2]> {
    let [model, optimizer] = FILES.map(|file| sha256(&[folder.join(file)]));
    Ok([model?, optimizer?])
}

/// One phase's folder.
#[derive(Clone, Debug)]
pub struct PhaseFolder {
    pub path: PathBuf,
}

/// `state.json`. Its folder is named after its step.
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
fn folder_of(step: usize) -> Result<Inside> {
    Inside::parse(&format!("state-{step:07}"))
}

/// The folders of states that this phase began to write: the only ones that it removes.
const STATES: &str = ".states.json";

/// What a state's folder holds: weights that are trained and optimiser, in Burn's format. Burn trusts the sizes in them. Frozen weights are
/// those that the phase began with.
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
    /// A folder that cannot be made; a link that leads out of the run.
    pub fn open(run: &Path, phase: &str) -> Result<Self> {
        Ok(Self { path: subfolder(run, phase)? })
    }

    /// Removes what a killed process left half-written. Only the process that holds the run's lock may.
    ///
    /// # Errors
    /// A folder that cannot be read or changed.
    pub(crate) fn sweep(&self) -> Result<()> {
        ensure_inside(&self.path)?;
        // Stopped between the result and the end of [`Self::finish`]: this state is not read again.
        if self.path.join("result.json").exists() {
            self.remove_states(self.current()?.map(|current| current.folder))?;
        }
        let current = self.current()?.map(|current| current.folder);
        for listed in self.states()?.iter().filter(|listed| current.as_ref() != Some(*listed)) {
            remove_state(&listed.of(&self.path))?;
        }
        remove_leftovers(&self.path)
    }

    /// The folders in [`STATES`].
    fn states(&self) -> Result<Vec<Inside>> {
        let path = self.path.join(STATES);
        if !path.exists() {
            return Ok(vec![]);
        }
        let text = read_text(&path).with_context(|| format!("{}: cannot read", path.display()))?;
        let failed = || format!("{}: not a list of training states; move it away", path.display());
        let states: Vec<Inside> = json::from_str(&text).with_context(failed)?;
        let is_state = |name: &Inside| {
            let step = name.strip_prefix("state-").and_then(|step| step.parse().ok());
            step.is_some_and(|step| folder_of(step).is_ok_and(|folder| folder == *name))
        };
        ensure!(states.iter().all(is_state), failed());
        Ok(states)
    }

    /// Removes all states of this phase, `current` included.
    fn remove_states(&self, current: Option<Inside>) -> Result<()> {
        let mut states = self.states()?;
        states.extend(current);
        // The list goes last: what is removed is in it until then.
        remove_listed(&self.path, &["state.json"])?;
        for state in &states {
            remove_state(&state.of(&self.path))?;
        }
        remove_listed(&self.path, &[STATES])
    }

    /// Saves everything that the next step depends on, after `step` steps.
    ///
    /// # Errors
    /// A full disk or a folder without permission, by path.
    pub fn save(&self, step: usize, trainer: &Trainer) -> Result<()> {
        let name = folder_of(step)?;
        let folder = name.of(&self.path);
        let old = self.current()?;
        if old.as_ref().is_some_and(|old| old.folder == name) {
            // Stopped again before the next step: the state that is there is this one, and must not be lost to a kill.
            return Ok(());
        }
        let mut states = self.states()?;
        if states.contains(&name) {
            remove_state(&folder)?;
        }
        let free = fs::symlink_metadata(&folder).is_err();
        ensure!(free, "{}: exists, and this run did not write it; move it away", folder.display());
        // A state is in the list before it is on disk: after a kill it can be told from a folder of somebody else's.
        states.retain(|state| fs::symlink_metadata(state.of(&self.path)).is_ok());
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
        let current = Current { folder: name.clone(), step, health: trainer.health, sums: sums(&folder)? };
        write_atomic(&self.path.join("state.json"), &serde_json::to_vec_pretty(&current)?)?;
        if let Some(old) = old.filter(|old| old.folder != name) {
            // A leftover costs disk, not correctness.
            let _ = remove_state(&old.folder.of(&self.path));
        }
        Ok(())
    }

    /// Loads the last saved state into a trainer of the same shape; returns its step, 0 where nothing was saved.
    ///
    /// # Errors
    /// A state that does not fit, by path.
    pub fn restore(&self, trainer: &mut Trainer) -> Result<usize> {
        let Some(current) = self.current()? else { return Ok(0) };
        let folder = current.folder.of(&self.path);
        let failed = |what: &str, e: String| {
            anyhow!(
                "{}: cannot read {what}: {e}; delete {} to start the phase again",
                folder.display(),
                self.path.join("state.json").display()
            )
        };
        let again = || failed("it", "its bytes are not those that were written (checksum)".to_owned());
        ensure!(sums(&folder)? == current.sums, again());
        // The state was written outside autodiff; `train` makes leaves of what was trained before. What is frozen is there already.
        let (plain, wanted) = (trainer.model.valid(), trained(&trainer.model).len());
        let weights = guarded(|| {
            let record = ModuleRecord::load(folder.join("model.bpk")).map_err(|e| anyhow!("{e:?}"))?;
            ensure!(record.len() >= wanted, "it holds {} weights, and {wanted} are trained", record.len());
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

    /// Steps that the saved state has behind it; 0 without one.
    ///
    /// # Errors
    /// A state that cannot be read.
    pub fn step(&self) -> Result<usize> {
        Ok(self.current()?.map_or(0, |current| current.step))
    }

    fn current(&self) -> Result<Option<Current>> {
        let path = self.path.join("state.json");
        if !path.exists() {
            return Ok(None);
        }
        let text = read_text(&path).with_context(|| format!("{}: cannot read", path.display()))?;
        let failed =
            || format!("{}: not a training state; move this file away to start the phase again", path.display());
        let current: Current = json::from_str(&text).with_context(failed)?;
        let named = folder_of(current.step)?;
        ensure!(
            current.folder == named,
            "{}: it names the folder {}, step {} has {named}",
            failed(),
            current.folder,
            current.step
        );
        Ok(Some(current))
    }

    /// The phase's result, once it is finished.
    ///
    /// # Errors
    /// A result that cannot be read.
    pub fn result<T: serde::de::DeserializeOwned>(&self) -> Result<Option<T>> {
        let path = self.path.join("result.json");
        if !path.exists() {
            return Ok(None);
        }
        let text = read_text(&path).with_context(|| format!("{}: cannot read", path.display()))?;
        json::from_str(&text).map(Some).with_context(|| format!("{}: not a phase result", path.display()))
    }

    /// Marks the phase finished and drops its training state.
    ///
    /// # Errors
    /// A full disk.
    pub fn finish<T: Serialize>(&self, result: &T) -> Result<()> {
        write_atomic(&self.path.join("result.json"), &serde_json::to_vec_pretty(result)?)?;
        self.remove_states(self.current()?.map(|current| current.folder))
    }

    /// Writes a folder `<phase>/<name>`, and beside the weights how they reason and how long they were trained: a PEFT folder over a base,
    /// or a Hugging Face folder of the whole model.
    ///
    /// # Errors
    /// A full disk; a model kept as stored that is to be written whole.
    pub fn export(&self, name: &str, model: &Decoder, to: &CheckpointExport) -> Result<PathBuf> {
        let CheckpointExport { vocabulary, over, reasoning, trained } = *to;
        let folder = self.path.join(name);
        ensure_inside(&folder)?;
        let mut files = vec![
            (reasoning::FILE.to_owned(), serde_json::to_vec_pretty(reasoning)?),
            (TRAINED.to_owned(), serde_json::to_vec_pretty(&trained)?),
        ];
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
        write_atomic(&folder.join(WEIGHTS), &serde_json::to_vec_pretty(&weights(&folder)?)?)?;
        Ok(folder)
    }

    /// The folder of what [`Self::export`] wrote, whose weights are those that were written. Runs of the time before did not say which.
    fn written(&self, name: &str) -> Result<PathBuf> {
        let folder = self.path.join(name);
        let path = folder.join(WEIGHTS);
        if !path.is_file() {
            return Ok(folder);
        }
        let text = read_text(&path).with_context(|| format!("{}: cannot read", path.display()))?;
        let said: BTreeMap<String, String> =
            json::from_str(&text).with_context(|| format!("{}: not the hashes of weights", path.display()))?;
        let found = weights(&folder)?;
        let other = said.keys().chain(found.keys()).find(|name| said.get(*name) != found.get(*name));
        if let Some(file) = other {
            bail!(
                "{}: is not the file that this run wrote (another sha256 than {WEIGHTS} says): put it back, or delete {} to train the phase \
                 again",
                folder.join(file).display(),
                self.path.display()
            );
        }
        Ok(folder)
    }

    /// Reads back what [`Self::export`] wrote, computing in this type.
    ///
    /// # Errors
    /// A folder that is not there or not whole.
    pub fn import(&self, name: &str, dtype: Compute, device: &Device) -> Result<Decoder> {
        dtype.load(&ModelFiles::open_folder(self.written(name)?)?, device)
    }

    /// Reads a model to be trained on: layers in this type, tables of tokens in f32, in which they are trained, where they are floats.
    ///
    /// # Errors
    /// As [`Self::import`].
    pub fn import_to_train(&self, name: &str, dtype: Compute, device: &Device) -> Result<Decoder> {
        dtype.load_to_train(&ModelFiles::open_folder(self.written(name)?)?, device)
    }

    /// The adapter that [`Self::export`] wrote; `None` where it wrote a whole model.
    ///
    /// # Errors
    /// An adapter that cannot be read.
    pub fn adapter(&self, name: &str) -> Result<Option<Adapter>> {
        let folder = self.written(name)?;
        peft::is_folder(&folder).then(|| Adapter::open(&folder)).transpose()
    }

    /// How long what [`Self::export`] wrote was trained.
    ///
    /// # Errors
    /// A folder without it.
    pub fn trained(&self, name: &str) -> Result<TrainingHistory> {
        let path = self.path.join(name).join(TRAINED);
        let text = read_text(&path).with_context(|| format!("{}: cannot read", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{}: not steps and positions of training", path.display()))
    }

    /// Writes anew how what [`Self::export`] wrote reasons.
    ///
    /// # Errors
    /// A full disk.
    pub(crate) fn write_reasoning(&self, name: &str, reasoning: &Reasoning) -> Result<()> {
        write_atomic(&self.path.join(name).join(reasoning::FILE), &serde_json::to_vec_pretty(reasoning)?)
    }

    /// How what [`Self::export`] wrote reasons.
    ///
    /// # Errors
    /// A folder without it.
    pub fn reasoning(&self, name: &str) -> Result<Reasoning> {
        let folder = self.path.join(name);
        Reasoning::read(&folder)?.with_context(|| format!("{}: has no {}", folder.display(), reasoning::FILE))
    }
}
