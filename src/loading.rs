//! Opens a checkpoint (`--model`, `--adapter`) as a decoder with its text side. Knows checkpoints, the decoder and vocabularies, not command
//! lines or the use of the model.

mod by_hand;
mod lens;

pub use by_hand::RecordedLogits;
pub use lens::Reading;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Error, Result, anyhow, ensure};
use burn::tensor::Device;

use crate::latent::{Reasoning, SwitchIds, reasoning};
use crate::machine::{Compute, Machine};
use crate::model::checkpoint::peft::{Adapter, Apply};
use crate::model::checkpoint::rows::{drawn, jittered};
use crate::model::checkpoint::{ModelFiles, locate_adapter};
use crate::model::{Decoder, ModelConfig, heads};
use crate::progress::say;
use crate::text::Vocabulary;
use crate::text::vocabulary::SWI;

/// A model whose settings and text side have been read and checked, but not its weights.
///
/// Requests (hooks, ids, settings) are checked against it before anything slow happens.
pub struct Checkpoint {
    pub files: ModelFiles,
    /// `None` if the checkpoint has no readable tokenizer: such a model runs on token ids.
    pub vocabulary: Option<Vocabulary>,
    /// Why its text side cannot be read. The weights can be read anyway.
    fault: Option<Error>,
    /// Ids that end a generation: the model's own and the tokenizer's.
    pub stop: Vec<u32>,
    /// Its reasoning, from the folder of the adapter or of the weights, or from the layout of the paper's release.
    pub reasoning: Option<Reasoning>,
    /// Whether `reasoning` was inferred from the layout.
    pub is_released: bool,
    /// Folder of the adapter over the model.
    pub adapter: Option<PathBuf>,
    /// An adapter whose factors stay unmerged ([`Apply::ReplacedOnly`]).
    attached: Option<Arc<Adapter>>,
    allows_non_finite: bool,
}

/// A decoder with its text side.
#[derive(Clone)]
pub struct Loaded {
    pub model: Decoder,
    pub vocabulary: Option<Vocabulary>,
    /// `None`: a model that cannot switch.
    pub switch: Option<SwitchIds>,
    pub stop: Vec<u32>,
    /// By default SWITCH's.
    pub reasoning: Reasoning,
}

impl Checkpoint {
    /// Opens a folder, a `.gguf` or a hub id, with a PEFT folder over it if there is one.
    ///
    /// # Errors
    /// A file that cannot be read, or files that do not match.
    pub fn open(model: &str, adapter: Option<&Path>, apply: Apply) -> Result<Self> {
        let files = ModelFiles::open(model)?;
        let Some(named) = adapter else { return Self::of(files, None, None) };
        let dir = locate_adapter(named)?;
        let adapter = Arc::new(Adapter::open(&dir)?);
        let attached = (apply == Apply::ReplacedOnly).then(|| adapter.clone());
        Self::of(files.with_adapter(adapter.clone(), apply)?, Some((dir, adapter)), attached)
    }

    /// Opens an adapter over a base for training: the result is written as one adapter over that base.
    pub(crate) fn open_to_train(model: &str, adapter: Option<&str>) -> Result<Self> {
        let Some(named) = adapter else { return Self::open(model, None, Apply::Merged) };
        Self::of(ModelFiles::open_below(model, &locate_adapter(Path::new(named))?)?, None, None)
    }

    fn of(files: ModelFiles, over: Option<(PathBuf, Arc<Adapter>)>, attached: Option<Arc<Adapter>>) -> Result<Self> {
        let (dir, adapter) = over.unzip();
        files.notes.iter().for_each(|note| say(note));
        let mut stop = files.config.eos_token_ids.clone();
        let (vocabulary, fault) = match text_side(&files, &mut stop) {
            Ok(vocabulary) => (vocabulary, None),
            Err(fault) => {
                say(&format!("warning: text cannot be read, only token ids: {fault:#}"));
                (None, Some(fault))
            }
        };
        let own = || Reasoning::read(&files.path);
        let mut reasoning = match dir.as_deref().map(Reasoning::read).transpose()?.flatten() {
            Some(reasoning) => Some(reasoning),
            None => own()?,
        };
        let tables = adapter.as_ref().or(files.base.as_ref().map(|base| &base.adapter));
        let is_released = reasoning.is_none()
            && tables.is_some_and(|adapter| adapter.replaces_tables())
            && vocabulary.as_ref().is_some_and(|vocabulary| vocabulary.switch().is_ok());
        if is_released {
            say(&format!(
                "{}: an adapter with trained tables, {SWI} in its vocabulary and no {}, as the paper's authors released theirs: decoded by \
                 the rule of their code (blocks end by argmax and are cut at 256 steps, text masks nothing), with the settings of the preset \
                 switch-released unless --like names others",
                dir.as_deref().unwrap_or(&files.path).display(),
                reasoning::FILE
            ));
            reasoning = Some(Reasoning::released());
        }
        if let Some(reasoning) = &reasoning {
            let place = dir.as_deref().unwrap_or(&files.path);
            reasoning.check_fits(files.config.max_position_embeddings, place)?;
        }
        Ok(Self {
            files,
            vocabulary,
            fault,
            stop,
            reasoning,
            is_released,
            adapter: dir,
            attached,
            allows_non_finite: false,
        })
    }

    pub fn config(&self) -> &ModelConfig {
        &self.files.config
    }

    /// The folder with the heads: the adapter's, if it has some.
    pub fn heads_folder(&self) -> &Path {
        let own = self.adapter.as_deref().filter(|folder| folder.join(heads::FILE).is_file());
        own.unwrap_or(&self.files.path)
    }

    /// Ids of the switch tokens, if the vocabulary has them.
    pub fn switch(&self) -> Option<SwitchIds> {
        self.vocabulary.as_ref()?.switch().ok()
    }

    /// The vocabulary of a model that must have one.
    ///
    /// # Errors
    /// A checkpoint without a tokenizer, or with one that cannot be read.
    pub fn text(&self) -> Result<&Vocabulary> {
        let path = self.files.path.display();
        match (&self.vocabulary, &self.fault) {
            (Some(vocabulary), _) => Ok(vocabulary),
            (None, Some(fault)) => Err(anyhow!("{path}: its text side cannot be read: {fault:#}")),
            (None, None) => Err(anyhow!("{path}: the model has no tokenizer; give token ids with --ids")),
        }
    }

    /// Accepts weights that are not finite, for programs that search for them.
    #[must_use]
    pub fn allowing_non_finite(self) -> Self {
        Self { allows_non_finite: true, ..self }
    }

    /// Reads the weights.
    ///
    /// # Errors
    /// A tensor that cannot be read, or with a value that is not finite.
    pub fn load(self, device: &Device) -> Result<Loaded> {
        self.load_as(Compute::F32, device)
    }

    /// Reads the weights of a model that will compute in this type, layers in it. Embedding table and head stay in f32 until tokens have been
    /// added ([`Loaded::computing_in`]).
    ///
    /// # Errors
    /// A tensor that cannot be read or does not fit into the device's memory.
    pub fn load_as(self, dtype: Compute, device: &Device) -> Result<Loaded> {
        let model = match dtype {
            Compute::Stored => dtype.load(&self.files, device)?,
            _ => dtype.load_to_train(&self.files, device)?,
        };
        self.loaded(model)
    }

    /// Reads the weights for a machine, in its type.
    pub fn load_on(self, machine: &Machine) -> Result<Loaded> {
        Ok(self.load_as(machine.dtype, &machine.device)?.computing_in(machine.dtype))
    }

    /// Reads the weights of a model for training ([`Decoder::load_kept_to_train`]).
    pub fn load_to_train(self, dtype: Compute, device: &Device) -> Result<Loaded> {
        let model = dtype.load_to_train(&self.files, device)?;
        self.loaded(model)
    }

    fn loaded(self, mut model: Decoder) -> Result<Loaded> {
        if let Some(adapter) = &self.attached {
            model = model.with_adapter(adapter)?;
        }
        if let Some(folder) = &self.adapter {
            model = model.with_heads_of(folder)?;
        }
        if !self.allows_non_finite {
            model.ensure_finite().with_context(|| self.files.path.display().to_string())?;
        }
        let switch = self.switch();
        let Self { vocabulary, stop, reasoning, .. } = self;
        Ok(Loaded { model, vocabulary, switch, stop, reasoning: reasoning.unwrap_or_default() })
    }
}

/// The vocabulary, with the base's chat templates if an adapter has none. Adds the ids that end a generation to `stop`: the model's own and
/// the tokenizer's.
fn text_side(files: &ModelFiles, stop: &mut Vec<u32>) -> Result<Option<Vocabulary>> {
    *stop = files.stop_ids()?;
    let ignored = files.not_applied()?;
    let side = files.text_side()?;
    for note in ignored.iter().chain(side.iter().flat_map(|side| &side.notes)) {
        say(&format!("{}: {note}", files.path.display()));
    }
    let templates = files.templates()?;
    let vocabulary = side.map(Vocabulary::new).transpose()?.map(|vocabulary| vocabulary.or_templates(templates));
    if let Some(vocabulary) = &vocabulary {
        vocabulary.check_fits(files.config.vocab_size)?;
    }
    for id in vocabulary.iter().flat_map(|v| v.stops().to_vec()) {
        if !stop.contains(&id) {
            stop.push(id);
        }
    }
    Ok(vocabulary.map(|vocabulary| vocabulary.stopping_at(stop)))
}

/// Initial rows of the three added tokens (method §1).
#[derive(Clone, Debug, PartialEq)]
pub struct NewRows {
    /// Text of the content-neutral token that they are copied from; `None`: the first of [`NEUTRAL`] that exists.
    pub seed_token: Option<String>,
    /// Draws them from N(0, std²) instead: the initialisation that the paper found to collapse at 8B.
    pub std: Option<f64>,
    /// Standard deviation of the noise that distinguishes the three, relative to the row's root mean square.
    pub jitter: f32,
    pub seed: u64,
}

/// A line break, a space, a full stop, a semicolon (`Ċ` and `Ġ` are the first two in byte-level vocabularies).
const NEUTRAL: [&str; 6] = ["\n", "Ċ", " ", "Ġ", ".", ";"];

impl Default for NewRows {
    fn default() -> Self {
        Self { seed_token: None, std: None, jitter: 0.02, seed: 0 }
    }
}

impl NewRows {
    /// The token whose row the new ones are copied from.
    fn source(&self, vocabulary: &Vocabulary) -> Result<u32> {
        match &self.seed_token {
            Some(token) => vocabulary.required_id(token),
            None => Ok(NEUTRAL.iter().find_map(|token| vocabulary.id(token)).unwrap_or(0)),
        }
    }
}

impl Loaded {
    /// The model computing in this type. Add tokens first: new rows are drawn in f32.
    #[must_use]
    pub fn computing_in(mut self, dtype: Compute) -> Self {
        self.model = dtype.apply(self.model);
        self
    }

    /// Adds `<swi>`, `</swi>`, `<latent>` to vocabulary, embedding and head, unless the model has them. Padding rows beyond the vocabulary
    /// are removed.
    ///
    /// # Errors
    /// A model without a vocabulary; a seed token without a row.
    pub fn add_switch_tokens(mut self, how: &NewRows) -> Result<Self> {
        if self.switch.is_some() {
            return Ok(self);
        }
        let vocabulary = self.vocabulary.as_mut();
        let vocabulary = vocabulary.ok_or_else(|| anyhow!("the model has no tokenizer to add switch tokens to"))?;
        let (old, source) = (vocabulary.size(), how.source(vocabulary)?);
        let rows = self.model.config().vocab_size;
        ensure!(
            old <= rows,
            "{}: its tokens need {old} embedding rows, the model has {rows}: its embedding was not resized when they were added",
            vocabulary.source().display()
        );
        self.switch = Some(vocabulary.add_switch_tokens()?);
        let rows = vocabulary.size();
        // Head and embedding get different noise.
        let mut stream = how.seed;
        self.model = self.model.with_token_rows(old, source as usize, |row| {
            stream = stream.wrapping_add(1);
            let initial = |new| match how.std {
                Some(std) => drawn(row.len(), new, std, stream),
                None => jittered(row, new, how.jitter, stream),
            };
            Ok((old..rows).flat_map(initial).collect())
        })?;
        Ok(self)
    }
}
