//! Reads and writes PEFT LoRA folders: `adapter_config.json` and `adapter_model.safetensors`.
//!
//! For some weights W `[out, in]` an adapter has factors A `[r, in]` and B `[out, r]` (W + s·B·A, Hu et al. 2021), and it has whole
//! weights that replace the base's: resized or trained embeddings and head. Values are read when requested; a replaced embedding of an
//! 8B model is 2.5 GB.

mod config;
mod difference;
mod keys;
mod overlay;
mod reach;
mod save;
mod tied;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rayon::prelude::*;

use super::fingerprint::Fingerprint;
use super::folder::{has_weights, open_file};
use super::layout::gpt2_module;
use super::params::{EMBED, HEAD};
use super::{HostTensor, ModelFiles, Weights, expected_parameters, fingerprint, place};
use crate::config::ModelConfig;
use crate::tokenizer::read_object;

pub use config::{AdapterConfig, Targets};
pub use difference::{Difference, difference};
use keys::{FactorKeys, Keys, Replacement};
pub use overlay::Apply;
pub(super) use overlay::Overlay;
pub use save::{AdapterWeights, save_adapter};

pub const WEIGHTS: &str = "adapter_model.safetensors";
/// In PEFT's order of preference.
pub(super) const FILES: [&str; 2] = [WEIGHTS, "adapter_model.bin"];
pub const SETTINGS: &str = "adapter_config.json";

/// Whether a folder has an adapter and no model.
pub fn is_folder(dir: &Path) -> bool {
    dir.join(SETTINGS).is_file() && !has_weights(dir)
}

/// Whether a folder has an adapter, with or without a model.
pub(super) fn has_adapter(dir: &Path) -> bool {
    dir.join(SETTINGS).is_file() && weights(dir).is_some()
}

/// The file of an adapter's weights.
fn weights(dir: &Path) -> Option<PathBuf> {
    FILES.iter().map(|file| dir.join(file)).find(|path| path.is_file())
}

/// The two factors of one weight.
#[derive(Clone, Debug, PartialEq)]
pub struct Factors {
    /// `[r, in]`
    pub a: HostTensor,
    /// `[out, r]`
    pub b: HostTensor,
}

/// An opened adapter. Weights go by the Hugging Face names of the base.
pub struct Adapter {
    pub config: AdapterConfig,
    pub path: PathBuf,
    /// Notes for the user.
    pub notes: Vec<String>,
    file: Box<dyn Weights>,
    factors: BTreeMap<String, FactorKeys>,
    replaced: BTreeMap<String, Replacement>,
    /// Key of the rows of `config.token_rows`, `[n, d]`.
    token_rows: Option<String>,
    /// Key of the rows of `config.head_rows`, if the file has them.
    head_rows: Option<String>,
    /// Rows of the vocabulary, from a `config.json` in the folder: further rows of the base are removed, such as padding where tokens
    /// were added.
    vocab_size: Option<usize>,
    /// Fingerprint of the base of the training, if a file in the folder has it.
    fingerprint: Option<Fingerprint>,
}

impl Adapter {
    pub fn open(dir: impl AsRef<Path>) -> Result<Self> {
        let dir = dir.as_ref();
        let origin = dir.display();
        if !dir.join(SETTINGS).is_file() {
            let inner = place::names(dir, true);
            let inner: Vec<&String> = inner.iter().filter(|name| dir.join(name).join(SETTINGS).is_file()).collect();
            ensure!(inner.is_empty(), "{origin}: has no {SETTINGS} itself: name one of {}", place::listed(dir, &inner));
            bail!("{origin}: expected a PEFT folder with {SETTINGS}, found none");
        }
        let config = AdapterConfig::read(&dir.join(SETTINGS))?;
        let path = weights(dir).with_context(|| format!("{origin}: expected {WEIGHTS}, found none"))?;
        let file = open_file(&path)?;
        let Keys { factors, replaced, token_rows, head_rows, mut left_out } =
            keys::sort(file.as_ref(), &config, &path)?;
        ensure!(
            token_rows.is_some() != config.token_rows.is_empty(),
            "{origin}: `trainable_token_indices` of {SETTINGS} names {} tokens, and {WEIGHTS} {}",
            config.token_rows.len(),
            if token_rows.is_some() { "has rows" } else { "has no rows" }
        );
        let mut notes = vec![];
        // A head that stays tied to its embedding is saved with factors that are the embedding's.
        left_out.retain(|module| !(config.ensure_weight_tying && module == "lm_head"));
        if let Some(first) = left_out.first() {
            notes.push(format!(
                "warning: {}: factors of {} modules are not used (`{first}`, …): `target_modules`, `layers_to_transform`, \
                 `exclude_modules` or `modules_to_save` of {SETTINGS} leaves them out, as in PEFT",
                path.display(),
                left_out.len()
            ));
        }
        let vocab_size = vocab_size(&dir.join("config.json"))?;
        let fingerprint = Fingerprint::read_stored(dir)?;
        let adapter =
            Self { config, path, notes, file, factors, replaced, token_rows, head_rows, vocab_size, fingerprint };
        adapter.check_ranks()?;
        Ok(adapter)
    }

    /// Whether it replaces both embedding and head.
    pub fn replaces_tables(&self) -> bool {
        self.replaced.contains_key(EMBED) && self.replaced.contains_key(HEAD)
    }

    /// Weights that have factors.
    pub fn factor_names(&self) -> impl Iterator<Item = &str> {
        self.factors.keys().map(String::as_str)
    }

    /// Weights that are replaced whole.
    pub fn replaced_names(&self) -> impl Iterator<Item = &str> {
        self.replaced.keys().map(String::as_str)
    }

    pub fn factors(&self, name: &str) -> Result<Option<Factors>> {
        let Some(keys) = self.factors.get(name) else {
            return Ok(None);
        };
        let (mut a, mut b) = (self.file.tensor(&keys.a)?, self.file.tensor(&keys.b)?);
        if keys.is_table {
            (a, b) = (b.transposed(), a.transposed());
        }
        let (nth, of) = keys.part;
        if of > 1 {
            let (rows, r) = (b.rows() / of, b.width());
            b = HostTensor::new(vec![rows, r], b.data[nth * rows * r..][..rows * r].to_vec())?;
        }
        Ok(Some(Factors { a, b }))
    }

    /// Factors with their scale multiplied in; zero ones are omitted.
    pub fn scaled_factors(&self, name: &str) -> Result<Option<Factors>> {
        let factors = self.factors(name)?.filter(|factors| factors.b.data.iter().any(|x| *x != 0.0));
        let scale = self.scaling(name) as f32;
        Ok(factors.map(|mut factors| {
            factors.b.data.iter_mut().for_each(|x| *x *= scale);
            factors
        }))
    }

    /// Scale of the product of a weight's factors.
    pub fn scaling(&self, name: &str) -> f64 {
        self.factors.get(name).map_or(1.0, |keys| keys.scaling)
    }

    /// The common rank and scale of all factors, for a decoder that trains them further.
    ///
    /// # Errors
    /// Factors of different ranks or scales.
    pub fn uniform(&self) -> Result<(usize, f64)> {
        let mut all = self.factors.values().map(|keys| (keys.rank, keys.scaling));
        let first = all.next().unwrap_or((self.config.r, 1.0));
        ensure!(
            all.all(|other| other == first),
            "{}: `rank_pattern` or `alpha_pattern` gives factors of several ranks or scales, which cannot stay unmerged: merge them",
            self.path.display()
        );
        Ok(first)
    }

    /// The message if this base is not the one that the adapter was trained on.
    pub(super) fn trained_over_another(&self, base: &ModelFiles) -> Result<Option<String>> {
        let Some(wanted) = &self.fingerprint else { return Ok(None) };
        let found = base.fingerprint()?;
        let file = self.path.with_file_name(fingerprint::FILE);
        Ok((found != *wanted).then(|| {
            format!("{}: trained over a base of {wanted}; {} differs: {found}", file.display(), base.path.display())
        }))
    }

    fn shape(&self, key: &str) -> &[usize] {
        self.file.shape(key).unwrap_or(&[])
    }

    fn check_ranks(&self) -> Result<()> {
        for FactorKeys { a, b, is_table, rank: r, .. } in self.factors.values() {
            let (sa, sb) = (self.shape(a), self.shape(b));
            let inputs = if *is_table { "rows" } else { "in" };
            ensure!(
                sa.len() == 2 && sa[0] == *r,
                "{}: `{a}` must be [{r}, {inputs}] as `r` is {r}, found {sa:?}",
                self.path.display()
            );
            ensure!(
                sb.len() == 2 && sb[1] == *r,
                "{}: `{b}` must be [out, {r}] as `r` is {r}, found {sb:?}",
                self.path.display()
            );
        }
        Ok(())
    }

    /// Checks the adapter against its base, and returns the joint configuration: its vocabulary is that of the replaced embedding
    /// (Qwen3-8B's 151936 rows become 151672 in the paper's adapter).
    pub fn fit(&self, base: &ModelConfig) -> Result<ModelConfig> {
        let origin = self.path.display();
        let mut config = ModelConfig { tie_word_embeddings: self.stays_tied(base)?, ..base.clone() };
        for (name, Replacement { key, .. }) in &self.replaced {
            if name == EMBED || name == HEAD {
                let shape = self.shape(key);
                let good = shape.len() == 2 && shape[1] == base.hidden_size && shape[0] > 0;
                ensure!(good, "{origin}: `{key}` must be [rows, {}] for this base, found {shape:?}", base.hidden_size);
                config.vocab_size = shape[0];
            }
        }
        self.fit_token_rows(base, &mut config)?;
        if let Some(rows) = self.vocab_size {
            let learnt = self.token_ids().max().map_or(1, |last| last + 1);
            ensure!(
                rows >= learnt,
                "{origin}: `vocab_size` of its config.json is {rows}, but `trainable_token_indices` goes up to {}",
                learnt - 1
            );
            config.vocab_size = config.vocab_size.min(rows);
        }
        let expected: BTreeMap<String, Vec<usize>> = expected_parameters(&config).into_iter().collect();
        for (name, Replacement { key, .. }) in &self.replaced {
            if name == HEAD && config.tie_word_embeddings {
                continue;
            }
            let is_table = name == EMBED || name == HEAD;
            if is_table && (self.token_ids().next().is_some() || self.vocab_size.is_some()) {
                // Its number of rows differs from the result's: others are stored separately, or removed.
                continue;
            }
            let shape =
                expected.get(name).ok_or_else(|| anyhow!("{origin}: `{key}`: the base has no parameter `{name}`"))?;
            let found = self.shape(key);
            ensure!(found == shape, "{origin}: `{key}` has the wrong shape: expected {shape:?}, found {found:?}");
        }
        let shrinks = config.vocab_size <= base.vocab_size;
        let replaces = |table| self.replacement(table, base.tie_word_embeddings).is_some();
        let whole = self.token_rows.is_some() || replaces(EMBED) && (config.tie_word_embeddings || replaces(HEAD));
        ensure!(
            shrinks || whole,
            "{origin}: only one of embedding and head has {} rows, the base has {}: both are needed to add rows",
            config.vocab_size,
            base.vocab_size
        );
        for (name, keys) in &self.factors {
            if name == HEAD && config.tie_word_embeddings {
                continue;
            }
            let shape = expected
                .get(name)
                .filter(|s| s.len() == 2)
                .ok_or_else(|| anyhow!("{origin}: `{}`: the base has no separate matrix `{name}`", keys.a))?;
            let [rows, width] = [self.shape(&keys.b)[0], self.shape(&keys.a)[1]];
            let found = if keys.is_table { [width, rows] } else { [rows / keys.part.1, width] };
            ensure!(
                found == shape[..] && rows.is_multiple_of(keys.part.1),
                "{origin}: factors of `{name}` make a {found:?} matrix, the base's is {shape:?}"
            );
        }
        for (name, _) in expected.iter().filter(|(_, shape)| shape.len() == 2) {
            let module = name.strip_suffix(".weight").unwrap_or(name);
            let module =
                base.family.is_gpt2.then(|| gpt2_module(module)).flatten().unwrap_or_else(|| module.to_owned());
            let named = matches!(self.config.targets, Targets::Names(_)) && self.config.reaches(&module);
            ensure!(
                !named || self.factors.contains_key(name),
                "{origin}: factors of `{name}` are missing: `target_modules` names it"
            );
        }
        Ok(config)
    }
}

/// `vocab_size` of a `config.json`, if there is one.
fn vocab_size(config: &Path) -> Result<Option<usize>> {
    let map = read_object(config)?.unwrap_or_default();
    let origin = config.display().to_string();
    crate::config::keys::Keys { origin: &origin, path: "", map: &map }.usize("vocab_size")
}

impl Factors {
    /// W + s·B·A, in place. `weight` is `[out, in]`; sums are in 64 bits, so the order of the ranks has no effect.
    pub(in crate::checkpoint) fn merge_into(&self, weight: &mut HostTensor, scaling: f64) -> Result<()> {
        let (out, width, r) = (self.b.rows(), self.a.width(), self.b.width());
        ensure!(
            weight.shape == [out, width] && self.a.rows() == r,
            "factors make a [{out}, {width}] matrix, the weight is {:?}",
            weight.shape
        );
        if weight.data.is_empty() {
            return Ok(());
        }
        weight.data.par_chunks_mut(width).zip(self.b.data.par_chunks(r)).for_each(|(row, b)| {
            let mut sum = vec![0.0f64; width];
            for (bk, a) in b.iter().zip(self.a.data.chunks_exact(width)) {
                for (s, v) in sum.iter_mut().zip(a) {
                    *s += f64::from(*bk) * f64::from(*v);
                }
            }
            for (w, s) in row.iter_mut().zip(sum) {
                *w = (f64::from(*w) + scaling * s) as f32;
            }
        });
        Ok(())
    }
}
