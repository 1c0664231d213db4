//! Existing checkpoints as host tensors under their Hugging Face names.
//!
//! [`ModelFiles::open`] reads a folder (of weights, or of an adapter that names its base), a `.gguf` or a hub id. It checks presence and
//! shape of every parameter before it reads values; values are converted one tensor at a time from a memory map. [`save_hf_folder`]
//! writes what `transformers` loads. Knows neither the decoder nor Burn.

mod fingerprint;
mod folder;
pub(crate) mod gguf;
mod host;
mod hub;
mod layout;
mod license;
mod params;
pub mod peft;
mod pickle;
mod place;
mod random;
pub mod rows;
mod safetensors;
mod save;
mod text;
mod tied;
pub mod wrapped;
mod write;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use memmap2::Mmap;

pub use fingerprint::FILE as FINGERPRINT;
pub use gguf::GgufFile;
pub use host::{Dtype, HostTensor};
pub use hub::ModelRef;
pub use hub::locate_adapter;
pub use params::{EMBED, HEAD, POSITIONS, expected_parameters};
pub use pickle::PickleFile;
pub use pickle::write::lens as write_lens;
pub use random::spread;
pub use random::write_random;
pub use safetensors::SafetensorsFile;
pub use save::{SaveOptions, save_hf_folder};
pub use text::check_fits;

use crate::config::ModelConfig;
use crate::guard::regular;
use folder::WeightsFolder;
use layout::RenamedWeights;
use peft::{Adapter, Apply, Factors, Overlay};
use switchyard_ops::stored::StoredMatrix;

/// Source of values: tensors by Hugging Face name, converted on demand.
pub trait Weights: Send + Sync {
    fn names(&self) -> Vec<String>;
    fn shape(&self, name: &str) -> Option<&[usize]>;
    /// Row-major floats, converted from the file's type.
    fn tensor(&self, name: &str) -> Result<HostTensor>;
    /// A matrix as its file stores it. `None` if it is not a matrix, is stored as f32 (unless `floats`), or has been changed.
    fn stored(&self, name: &str, floats: bool) -> Result<Option<StoredMatrix>>;
    /// Factors of an adapter that [`Self::stored`] leaves out and [`Self::tensor`] merges, and their scale.
    fn factors(&self, _name: &str) -> Result<Option<(Factors, f64)>> {
        Ok(None)
    }
    /// The file that an error about this tensor should name.
    fn file_of(&self, name: &str) -> &Path;
}

/// An opened model: its checked settings, its weights (not yet read) and its text side.
pub struct ModelFiles {
    pub config: ModelConfig,
    /// The folder or file that was read.
    pub path: PathBuf,
    /// For an adapter's folder, its base.
    pub base: Option<Base>,
    /// Notes for the user: guesses, and unused parts of the files.
    pub notes: Vec<String>,
    weights: Arc<dyn Weights>,
    text: Vec<text::Source>,
}

/// The base of an adapter that was opened by its folder.
pub struct Base {
    /// As `adapter_config.json` names it.
    pub name: String,
    pub path: PathBuf,
    pub adapter: Arc<Adapter>,
}

/// The weights file of iCoT's code.
const ICOT: &str = "state_dict.bin";

impl ModelFiles {
    /// Opens a Hugging Face folder (`config.json` and weights), or a PEFT folder with the base that its settings name. If a folder has
    /// both, the adapter is applied to the model in it, as in transformers.
    pub fn open_folder(dir: impl AsRef<Path>) -> Result<Self> {
        let dir = dir.as_ref();
        ensure!(
            dir.is_dir(),
            "{}: expected a folder with config.json and model.safetensors, but the folder does not exist",
            dir.display()
        );
        let found = place::find_model(dir)?;
        let dir = found.as_path();
        if peft::is_folder(dir) {
            return Self::open_adapter(dir);
        }
        let whole = Self::open_whole(dir)?;
        if !peft::has_adapter(dir) {
            return Ok(whole);
        }
        let mut both = whole.with_adapter(Arc::new(Adapter::open(dir)?), Apply::Merged)?;
        both.notes.push(format!(
            "warning: {}: has a whole model and an adapter, which is applied over it, as in transformers: if the model has it merged, \
             move {} away",
            dir.display(),
            peft::SETTINGS
        ));
        Ok(both)
    }

    fn open_whole(dir: &Path) -> Result<Self> {
        let mut config = ModelConfig::read(dir.join("config.json")).map_err(|error| match dir.join(ICOT).is_file() {
            false => error,
            true => error.context(format!(
                "{}: has iCoT's {ICOT}, whose config.json does not describe a model: convert it with `probe import {} --as icot --base BASE \
                 --out FOLDER`",
                dir.display(),
                dir.display()
            )),
        })?;
        let mut notes = vec![];
        let weights = RenamedWeights::rename(Box::new(WeightsFolder::open(dir)?))?;
        let weights = tied::resolve(weights, &mut config, &mut notes)?;
        params::check(weights.as_ref(), &config)?;
        let text = vec![text::Source::Folder(dir.to_path_buf())];
        Ok(Self { config, path: dir.to_path_buf(), base: None, notes, weights, text })
    }

    /// A PEFT folder with the base that it names, as PEFT's `AutoPeftModel` opens it.
    fn open_adapter(dir: &Path) -> Result<Self> {
        let adapter = Adapter::open(dir)?;
        let origin = dir.join(peft::SETTINGS).display().to_string();
        let name = adapter.config.base_model.clone().with_context(|| {
            format!(
                "{origin}: `base_model_name_or_path` names no base: name it with --model BASE --adapter {}",
                dir.display()
            )
        })?;
        let name = adapter.config.base_at(&name);
        let moved = || {
            format!(
                "{origin}: `base_model_name_or_path` (with `revision`, if any) is {name:?}; if the base has moved, \
                 name it (--model BASE --adapter {}), correct the setting, or leave a link at the old place",
                dir.display()
            )
        };
        let place = ModelRef::parse(&resolve_base(dir, &name)).and_then(|base| base.locate()).with_context(moved)?;
        // Also if it is this folder: its name may be found again above it.
        ensure!(
            !place::find_model(&place).is_ok_and(|found| peft::is_folder(&found)),
            "{origin}: `base_model_name_or_path` is {name}, found at {}, an adapter itself: name its base",
            place.display()
        );
        let base = Self::open_path(place).with_context(moved)?;
        if let Some(why) = adapter.trained_over_another(&base)? {
            bail!(
                "{why}. Put the base back, or correct `base_model_name_or_path` of {origin}; --model with --adapter {} opens it over another",
                dir.display()
            );
        }
        let (path, adapter) = (base.path.clone(), Arc::new(adapter));
        let whole = base.with_adapter(adapter.clone(), Apply::Merged)?;
        Ok(Self { path: dir.to_path_buf(), base: Some(Base { name, path, adapter }), ..whole })
    }

    /// Opens a `.gguf`, which has settings, weights and tokenizer in one file.
    pub fn open_gguf(path: impl AsRef<Path>) -> Result<Self> {
        let file = Arc::new(GgufFile::open(path.as_ref())?);
        let weights: Arc<dyn Weights> = RenamedWeights::rename(Box::new(file.clone()))?.into();
        params::check(weights.as_ref(), file.config())?;
        Ok(Self {
            config: file.config().clone(),
            path: path.as_ref().to_path_buf(),
            base: None,
            notes: vec![],
            weights,
            text: vec![text::Source::Gguf(file)],
        })
    }

    /// A model with the adapter in a folder, as if the adapter named this model as its base.
    pub fn open_below(base: &str, dir: &Path) -> Result<Self> {
        let below = Self::open(base)?;
        ensure!(below.base.is_none(), "{base}: an adapter itself: name the base of {}", dir.display());
        let (path, adapter) = (below.path.clone(), Arc::new(Adapter::open(dir)?));
        let whole = below.with_adapter(adapter.clone(), Apply::Merged)?;
        Ok(Self { path: dir.to_path_buf(), base: Some(Base { name: base.to_owned(), path, adapter }), ..whole })
    }

    /// Applies an adapter. The tokenizer of its folder, if any, replaces the base's.
    pub fn with_adapter(self, adapter: Arc<Adapter>, apply: Apply) -> Result<Self> {
        let config = adapter.fit(&self.config)?;
        let another = adapter.trained_over_another(&self)?.map(|why| format!("warning: {why}"));
        let mut text = self.text;
        if let Some(dir) = adapter.path.parent() {
            text.insert(0, text::Source::Folder(dir.to_path_buf()));
        }
        let notes = [self.notes, adapter.notes.clone(), another.into_iter().collect()].concat();
        let weights = Arc::new(Overlay::new(self.weights, adapter, apply, [&self.config, &config]));
        Ok(Self { config, path: self.path, base: self.base, notes, weights, text })
    }

    /// Folder or file of the weights; for an adapter's folder, also its base.
    pub fn places(&self) -> Vec<PathBuf> {
        std::iter::once(&self.path).chain(self.base.as_ref().map(|base| &base.path)).cloned().collect()
    }

    /// One parameter, `[out, in]`. Peak memory is this tensor.
    pub fn tensor(&self, name: &str) -> Result<HostTensor> {
        self.weights.tensor(name)
    }

    /// One matrix as its file stores it. `None` if it is not a matrix, is stored as f32 (unless `floats`), or has been changed.
    ///
    /// # Errors
    /// A matrix that cannot be read, or has a value that is not finite.
    pub fn stored(&self, name: &str, floats: bool) -> Result<Option<StoredMatrix>> {
        let read = self.weights.stored(name, floats);
        read.with_context(|| format!("{}: `{name}`", self.weights.file_of(name).display()))
    }

    /// Factors of an adapter that [`Self::stored`] leaves out and [`Self::tensor`] merges, and their scale.
    pub fn factors(&self, name: &str) -> Result<Option<(Factors, f64)>> {
        self.weights.factors(name)
    }

    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.weights.shape(name)
    }

    pub fn names(&self) -> Vec<String> {
        self.weights.names()
    }

    /// Every parameter the configuration has, in forward order, read as the iterator advances.
    pub fn tensors(&self) -> impl Iterator<Item = Result<(String, HostTensor)>> + '_ {
        expected_parameters(&self.config).into_iter().map(|(name, _)| self.tensor(&name).map(|t| (name, t)))
    }
}

/// Resolves the relative path of a base in an adapter's settings, written on the machine that trained it: if the working folder has no
/// such path, relative to the nearest folder above the adapter that has it. A hub id and an absolute path do not change.
fn resolve_base(dir: &Path, name: &str) -> String {
    if Path::new(name).exists() || Path::new(name).is_absolute() {
        return name.to_owned();
    }
    let dir = std::fs::canonicalize(dir).unwrap_or_else(|_| dir.to_path_buf());
    let found = dir.ancestors().skip(1).map(|above| above.join(name)).find(|path| path.exists());
    found.map_or_else(|| name.to_owned(), |path| path.display().to_string())
}

/// Read-only map. Sound unless another process truncates the file, which no reader of weights can rule out.
fn map_file(path: &Path) -> Result<Mmap> {
    regular(path).with_context(|| format!("{}: cannot open", path.display()))?;
    let file = File::open(path).with_context(|| format!("{}: cannot open", path.display()))?;
    // SAFETY: the map is read-only and private to this process; see above for the assumption on other processes.
    #[allow(unsafe_code)]
    let map = unsafe { Mmap::map(&file) };
    map.with_context(|| format!("{}: cannot map into memory", path.display()))
}

/// Releases the pages of these bytes of a map, which would count as the program's memory. Reading them again is correct but slower.
fn release(map: &Mmap, range: &std::ops::Range<usize>) {
    #[cfg(unix)]
    {
        // SAFETY: the map is a read-only view of a file: a released page is read again from the file.
        #[allow(unsafe_code)]
        let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len()) };
    }
    #[cfg(not(unix))]
    let _ = (map, range);
}
