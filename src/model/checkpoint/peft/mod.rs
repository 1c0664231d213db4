//! PEFT LoRA folders: `adapter_config.json` and `adapter_model.safetensors`, in and out.
//!
//! An adapter holds, for some weights W `[out, in]`, factors A `[r, in]` and B `[out, r]` (W + s·B·A, Hu et al. 2021),
//! and whole weights that replace the base's: embeddings and head that were resized or trained. Values are read when
//! asked for; a replaced embedding of an 8B model is 2.5 GB.

mod config;
mod difference;
mod keys;
mod overlay;
mod save;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rayon::prelude::*;
use serde_json::Value;

use super::params::{EMBED, HEAD};
use super::{HostTensor, SafetensorsFile, expected_parameters};
use crate::model::config::ModelConfig;

pub use config::{AdapterConfig, Targets};
pub use difference::{Difference, difference};
use keys::Keys;
pub use overlay::Apply;
pub(super) use overlay::Overlay;
pub use save::{AdapterWeights, save_adapter};

pub(crate) const WEIGHTS: &str = "adapter_model.safetensors";
pub(crate) const SETTINGS: &str = "adapter_config.json";

/// Whether a folder holds an adapter and no model.
pub(crate) fn is_folder(dir: &Path) -> bool {
    let weights = ["model.safetensors", "model.safetensors.index.json"];
    dir.join(SETTINGS).is_file() && !weights.iter().any(|file| dir.join(file).is_file())
}

/// The two matrices of one weight.
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
    file: SafetensorsFile,
    /// Weight → keys of A and B in the file.
    factors: BTreeMap<String, (String, String)>,
    /// Weight → key of what replaces it.
    replaced: BTreeMap<String, String>,
    /// Key of the rows of `config.token_rows`, `[n, d]`.
    token_rows: Option<String>,
    /// The same of the head, where the file holds them.
    head_rows: Option<String>,
    /// Rows of the vocabulary, where a `config.json` lies beside: the base's behind them are cut, as padded ones are where tokens were
    /// added.
    vocab_size: Option<usize>,
}

impl Adapter {
    pub fn open(dir: impl AsRef<Path>) -> Result<Self> {
        let dir = dir.as_ref();
        let origin = dir.display();
        ensure!(dir.join(SETTINGS).is_file(), "{origin}: expected a PEFT folder with {SETTINGS}, found none");
        let config = AdapterConfig::read(&dir.join(SETTINGS))?;
        let path = dir.join(WEIGHTS);
        if !path.is_file() {
            let hint = if dir.join("adapter_model.bin").is_file() {
                "; adapter_model.bin is not read: save it with safe_serialization=True"
            } else {
                ""
            };
            bail!("{origin}: expected {WEIGHTS}, found none{hint}");
        }
        let file = SafetensorsFile::open(&path)?;
        let Keys { factors, replaced, token_rows, head_rows } = keys::sort(&file, &path)?;
        ensure!(
            token_rows.is_some() != config.token_rows.is_empty(),
            "{origin}: `trainable_token_indices` of {SETTINGS} names {} tokens, and {WEIGHTS} {}",
            config.token_rows.len(),
            if token_rows.is_some() { "holds rows" } else { "holds no rows" }
        );
        let beside = dir.join("config.json");
        let vocab_size = beside.is_file().then(|| vocab_size(&beside)).transpose()?.flatten();
        let adapter = Self { config, path, file, factors, replaced, token_rows, head_rows, vocab_size };
        adapter.check_ranks()?;
        Ok(adapter)
    }

    /// Weights that have factors.
    pub fn factor_names(&self) -> impl Iterator<Item = &str> {
        self.factors.keys().map(String::as_str)
    }

    /// Weights that are replaced whole.
    pub(crate) fn replaced_names(&self) -> impl Iterator<Item = &str> {
        self.replaced.keys().map(String::as_str)
    }

    pub fn factors(&self, name: &str) -> Result<Option<Factors>> {
        let Some((a, b)) = self.factors.get(name) else {
            return Ok(None);
        };
        Ok(Some(Factors { a: self.file.tensor(a)?, b: self.file.tensor(b)? }))
    }

    pub fn replaced(&self, name: &str) -> Result<Option<HostTensor>> {
        self.replaced.get(name).map(|key| self.file.tensor(key)).transpose()
    }

    /// Learnt rows of embedding table or head, by token; of a head that is tied to the table, the table's.
    pub(crate) fn token_rows(&self, name: &str) -> Result<Option<BTreeMap<usize, Vec<f32>>>> {
        let key = match name {
            EMBED => &self.token_rows,
            HEAD => &self.head_rows,
            _ => &None,
        };
        let Some(key) = key else { return Ok(None) };
        let rows = self.file.tensor(key)?;
        let values = rows.data.chunks_exact(rows.width()).map(<[f32]>::to_vec);
        Ok(Some(self.config.token_rows.iter().copied().zip(values).collect()))
    }

    pub fn scaling(&self) -> f64 {
        self.config.scaling()
    }

    fn shape(&self, key: &str) -> &[usize] {
        self.file.shape(key).unwrap_or(&[])
    }

    fn check_ranks(&self) -> Result<()> {
        let r = self.config.r;
        for (a, b) in self.factors.values() {
            let (sa, sb) = (self.shape(a), self.shape(b));
            ensure!(
                sa.len() == 2 && sa[0] == r,
                "{}: `{a}` must be [{r}, in] as `r` is {r}, found {sa:?}",
                self.path.display()
            );
            ensure!(
                sb.len() == 2 && sb[1] == r,
                "{}: `{b}` must be [out, {r}] as `r` is {r}, found {sb:?}",
                self.path.display()
            );
        }
        Ok(())
    }

    /// Checks the adapter against its base, and gives the configuration of the two together: its vocabulary is that of
    /// the replaced embedding (Qwen3-8B's 151936 rows become 151672 in the paper's adapter).
    pub fn fit(&self, base: &ModelConfig) -> Result<ModelConfig> {
        let origin = self.path.display();
        let mut config = base.clone();
        for (name, key) in &self.replaced {
            if name == EMBED || name == HEAD {
                let shape = self.shape(key);
                let good = shape.len() == 2 && shape[1] == base.hidden_size && shape[0] > 0;
                ensure!(good, "{origin}: `{key}` must be [rows, {}] for this base, found {shape:?}", base.hidden_size);
                config.vocab_size = shape[0];
            }
        }
        if let Some(key) = &self.token_rows {
            let ids = &self.config.token_rows;
            for key in std::iter::once(key).chain(&self.head_rows) {
                let found = self.shape(key);
                ensure!(
                    found == [ids.len(), base.hidden_size],
                    "{origin}: `{key}` must be [{}, {}], found {found:?}",
                    ids.len(),
                    base.hidden_size
                );
            }
            ensure!(
                base.tie_word_embeddings || self.head_rows.is_some(),
                "{origin}: `{key}`: the base's head is not tied to its embedding table and would have no rows for these tokens"
            );
            let old = config.vocab_size;
            let new = ids.iter().filter(|id| **id >= old).count();
            let last = ids.iter().max().map_or(old, |last| (last + 1).max(old));
            ensure!(
                last == old + new,
                "{origin}: `trainable_token_indices` goes up to {}, the embedding table has {old} rows: ids between them are missing",
                last - 1
            );
            config.vocab_size = last;
        }
        if let Some(rows) = self.vocab_size {
            let learnt = self.config.token_rows.iter().max().map_or(1, |last| last + 1);
            ensure!(
                rows >= learnt,
                "{origin}: `vocab_size` of config.json beside it is {rows}, and `trainable_token_indices` goes up to {}",
                learnt - 1
            );
            config.vocab_size = config.vocab_size.min(rows);
        }
        let expected: BTreeMap<String, Vec<usize>> = expected_parameters(&config).into_iter().collect();
        for (name, key) in &self.replaced {
            if name == HEAD && config.tie_word_embeddings {
                self.check_tied_head()?;
                continue;
            }
            if (name == EMBED || name == HEAD) && (self.token_rows.is_some() || self.vocab_size.is_some()) {
                // As many rows as it has; the others are in the file by themselves, or cut.
                continue;
            }
            let shape =
                expected.get(name).ok_or_else(|| anyhow!("{origin}: `{key}`: the base has no parameter `{name}`"))?;
            let found = self.shape(key);
            ensure!(found == shape, "{origin}: `{key}` has the wrong shape: expected {shape:?}, found {found:?}");
        }
        let shrinks = config.vocab_size <= base.vocab_size;
        let whole = self.token_rows.is_some()
            || self.replaced.contains_key(EMBED) && (base.tie_word_embeddings || self.replaced.contains_key(HEAD));
        ensure!(
            shrinks || whole,
            "{origin}: only one of embedding and head has {} rows, the base has {}: both are needed to add rows",
            config.vocab_size,
            base.vocab_size
        );
        for (name, (a, b)) in &self.factors {
            let shape = expected
                .get(name)
                .filter(|s| s.len() == 2)
                .ok_or_else(|| anyhow!("{origin}: `{a}`: the base has no matrix `{name}` of its own"))?;
            let found = [self.shape(b)[0], self.shape(a)[1]];
            ensure!(
                found == shape[..],
                "{origin}: factors of `{name}` make a {found:?} matrix, the base's is {shape:?}"
            );
        }
        for name in expected.keys() {
            let module = name.strip_suffix(".weight").unwrap_or(name);
            let meant = self.config.targets.matches(module) == Some(true) && self.in_layers(module);
            ensure!(
                !meant || self.factors.contains_key(name),
                "{origin}: factors of `{name}` are missing: `target_modules` names it"
            );
        }
        Ok(config)
    }

    fn in_layers(&self, module: &str) -> bool {
        let Some(layers) = &self.config.layers else {
            return true;
        };
        let number =
            module.strip_prefix("model.layers.").and_then(|rest| rest.split('.').next()).and_then(|n| n.parse().ok());
        number.is_some_and(|n: usize| layers.contains(&n))
    }

    /// A tied model has one matrix: a head saved beside the embedding must be the same.
    fn check_tied_head(&self) -> Result<()> {
        let same = self.replaced.contains_key(EMBED) && self.replaced(EMBED)? == self.replaced(HEAD)?;
        ensure!(
            same,
            "{}: replaces `{HEAD}` of a model whose head is tied to the embedding, with other values: not supported",
            self.path.display()
        );
        Ok(())
    }
}

fn vocab_size(config: &Path) -> Result<Option<usize>> {
    let origin = config.display();
    let text = fs::read_to_string(config).with_context(|| format!("{origin}: cannot read"))?;
    let value: Value = serde_json::from_str(&text).with_context(|| format!("{origin}: not valid JSON"))?;
    Ok(value["vocab_size"].as_u64().map(|rows| rows as usize))
}

impl Factors {
    /// W + s·B·A, in place. `weight` is `[out, in]`; sums run in 64 bits, so the order of the rank does not show.
    pub(crate) fn merge_into(&self, weight: &mut HostTensor, scaling: f64) -> Result<()> {
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
