//! State dicts of published latent reasoners: a causal model inside the authors' own module, with PEFT's LoRA factors next to its
//! matrices, and extra heads. The layouts are those of the public code: Coconut's (`facebookresearch/coconut`: `base_causallm.`), CODI's
//! (`zhenyi4/codi`: `codi.`, `prj.`) and SIM-CoT's over either (`InternLM/SIM-CoT`), whose auxiliary decoder is used only in training.
//! iCoT's (`da03/Internalize_CoT_Step_by_Step`: `base_model.`) has the model alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};

use super::folder::{WeightsFolder, has_weights, open_file};
use super::layout::{RenamedWeights, bare, parts};
use super::params::{self, EMBED, HEAD, is_buffer};
use super::peft::Factors;
use super::{HostTensor, ModelFiles, Weights, text, tied};
use crate::config::ModelConfig;
use switchyard_ops::stored::StoredMatrix;

/// The project whose module wraps the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrapper {
    Coconut,
    Codi,
    /// A causal model alone (`da03/Internalize_CoT_Step_by_Step`): no token is added.
    Icot,
}

impl Wrapper {
    fn prefix(self) -> &'static str {
        match self {
            Wrapper::Coconut => "base_causallm.",
            Wrapper::Codi => "codi.",
            Wrapper::Icot => "base_model.",
        }
    }

    /// A parameter's name inside the wrapped model. `base_model.model.` is PEFT's prefix, not iCoT's.
    fn inner(self, name: &str) -> Option<&str> {
        let inner = name.strip_prefix(self.prefix())?;
        (self != Wrapper::Icot || !inner.starts_with("model.")).then_some(inner)
    }

    /// Number of tokens that the authors' code adds to the base's, such as padding and latent tokens.
    fn added(self) -> std::ops::RangeInclusive<usize> {
        if self == Wrapper::Icot { 0..=0 } else { 2..=4 }
    }
}

/// A model extracted from its wrapper.
pub struct InnerModel {
    pub wrapper: Wrapper,
    /// Settings and text side of the base, with the number of rows of the file's tables.
    pub checkpoint: ModelFiles,
    /// CODI's projection, by its names in `heads.safetensors`.
    pub projection: Vec<(String, HostTensor)>,
    /// Tokens that were added to the base's, at the end of its tables.
    pub added: usize,
    /// Rank of the merged LoRA factors; `None` without.
    pub rank: Option<usize>,
    /// Modules of the file that are not read.
    pub left_out: Vec<String>,
}

/// Opens a state dict (a folder or a file) with the settings of a base (a folder with its config.json and tokenizer).
///
/// # Errors
/// No weights file, no parameter names of a known wrapper, weights that do not fit the base, heads unknown to the authors' code.
pub fn unwrap(file: &Path, base: &Path, alpha: f64) -> Result<InnerModel> {
    let file = open(file)?;
    let names = file.names();
    let path = file.file_of("").display().to_string();
    let has_prefix = |wrapper: &Wrapper| names.iter().any(|name| wrapper.inner(&bare(name)).is_some());
    let wrapper = [Wrapper::Coconut, Wrapper::Codi, Wrapper::Icot].into_iter().find(has_prefix).with_context(|| {
        format!(
            "{path}: no parameter begins with `base_causallm.` (Coconut), `codi.` (CODI) or `base_model.` (iCoT): found `{}`, …; a plain \
             model (Coconut's stage 0 is one) needs no import: put the file into a folder as pytorch_model.bin, next to the base's \
             config.json and tokenizer.json",
            names.first().map_or("nothing", String::as_str)
        )
    })?;
    let mut config = ModelConfig::read(base.join("config.json"))?;
    let text = vec![text::Source::Folder(base.to_path_buf())];
    let mut wrapped = WrappedWeights { file, keys: BTreeMap::new(), alpha };
    let (mut heads, mut left_out) = (BTreeMap::new(), vec![]);
    for name in &names {
        if let Some(inner) = wrapper.inner(&bare(name)) {
            wrapped.assign(name, inner.strip_prefix("base_model.model.").unwrap_or(inner))?;
        } else if let Some(part) = bare(name).strip_prefix("prj.") {
            heads.insert(part.to_owned(), name.clone());
        } else {
            left_out.push(bare(name).split('.').next().unwrap_or_default().to_owned());
        }
    }
    left_out.dedup();
    // Coconut's second name of the embedding table.
    left_out.retain(|module| module != "embedding");
    wrapped.keys.retain(|name, _| !is_buffer(name));
    let rank = wrapped.keys.values().find_map(|key| wrapped.file.shape(&key.factors.as_ref()?.0)?.first().copied());
    let projection =
        projection(wrapped.file.as_ref(), &heads, config.hidden_size).map_err(|e| anyhow!("{path}: {e}"))?;
    let weights = RenamedWeights::rename(Box::new(wrapped))?;
    let tables = [EMBED, HEAD].iter().find_map(|table| weights.shape(table)?.first().copied());
    let rows = tables.with_context(|| format!("{path}: has neither an embedding table nor a head"))?;
    let (base_rows, mut notes) = (config.vocab_size, vec![]);
    config.vocab_size = rows;
    let weights = tied::resolve(weights, &mut config, &mut notes)?;
    params::check(weights.as_ref(), &config)?;
    let checkpoint = ModelFiles { config, path: base.to_path_buf(), base: None, notes, weights, text };
    // Resized to more rows than the base's or, if the base's table is padded, than its tokenizer's.
    let words = checkpoint.tokenizer()?.map(|tokenizer| tokenizer.get_vocab_size(true));
    let beyond = |size: usize| rows.checked_sub(size).filter(|added| wrapper.added().contains(added));
    let added = beyond(base_rows).or_else(|| beyond(words?)).with_context(|| {
        format!(
            "{path}: its tables have {rows} rows; expected {} to {} more than the {base_rows} of {} or than the {} tokens of its tokenizer: name the \
             base that it was trained from",
            wrapper.added().start(),
            wrapper.added().end(),
            base.display(),
            words.map_or("unknown number of".into(), |words| words.to_string())
        )
    })?;
    Ok(InnerModel { wrapper, checkpoint, projection, added, rank, left_out })
}

/// A folder of weights, a weights file, or a folder with one file of another name (`checkpoint_12`).
fn open(path: &Path) -> Result<Box<dyn Weights>> {
    if path.is_file() {
        return open_file(path);
    }
    ensure!(path.is_dir(), "{}: no such folder or file", path.display());
    if has_weights(path) {
        return Ok(Box::new(WeightsFolder::open(path)?));
    }
    let entries = std::fs::read_dir(path).and_then(|entries| entries.collect::<std::io::Result<Vec<_>>>());
    let entries = entries.with_context(|| format!("{}: cannot list", path.display()))?;
    let is_weights = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        path.is_file()
            && (name.starts_with("checkpoint")
                || [".pt", ".pth", ".bin", ".safetensors"].iter().any(|e| name.ends_with(e)))
            && name != "training_args.bin"
    };
    let mut files: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).filter(is_weights).collect();
    files.sort();
    match files.as_slice() {
        [one] => open_file(one),
        [] => bail!(
            "{}: no file of weights: expected model.safetensors, pytorch_model.bin or one checkpoint_N",
            path.display()
        ),
        several => bail!(
            "{}: {} files of weights: name one of them, for example {}",
            path.display(),
            several.len(),
            several[0].display()
        ),
    }
}

/// The wrapped model's parameters by their names inside the wrapper; factors are merged on reading.
struct WrappedWeights {
    file: Box<dyn Weights>,
    keys: BTreeMap<String, ParameterKey>,
    alpha: f64,
}

#[derive(Default)]
struct ParameterKey {
    stored: String,
    /// Names of A and B.
    factors: Option<(String, String)>,
}

impl WrappedWeights {
    /// Assigns one tensor of the file to its parameter.
    fn assign(&mut self, stored: &str, inner: &str) -> Result<()> {
        for (mark, is_a) in [(".lora_A.", true), (".lora_B.", false)] {
            let Some((module, rest)) = inner.split_once(mark) else { continue };
            ensure!(
                ["weight", "default.weight"].contains(&rest),
                "`{stored}`: factors of a second adapter are not supported"
            );
            let (a, b) = self.keys.entry(format!("{module}.weight")).or_default().factors.get_or_insert_default();
            *if is_a { a } else { b } = stored.to_owned();
            return Ok(());
        }
        ensure!(!inner.contains("lora_"), "`{stored}`: LoRA parameters other than A and B are not supported");
        let name = inner.replace(".base_layer.", ".");
        let key = self.keys.entry(name).or_default();
        ensure!(key.stored.is_empty(), "`{stored}` and `{}` are the same parameter", key.stored);
        stored.clone_into(&mut key.stored);
        Ok(())
    }

    fn key(&self, name: &str) -> Result<&ParameterKey> {
        let key = self.keys.get(name).filter(|key| !key.stored.is_empty());
        key.with_context(|| format!("{}: no tensor for `{name}`", self.file.file_of(name).display()))
    }
}

impl Weights for WrappedWeights {
    fn names(&self) -> Vec<String> {
        self.keys.keys().cloned().collect()
    }

    fn shape(&self, name: &str) -> Option<&[usize]> {
        self.file.shape(&self.keys.get(name)?.stored)
    }

    fn tensor(&self, name: &str) -> Result<HostTensor> {
        let key = self.key(name)?;
        let weight = self.file.tensor(&key.stored)?;
        let Some((a, b)) = &key.factors else { return Ok(weight) };
        let factors = Factors { a: self.file.tensor(a)?, b: self.file.tensor(b)? };
        let is_conv = parts(name.trim_end_matches(".weight")).first().is_some_and(|part| part.is_conv);
        let mut weight = if is_conv { weight.transposed() } else { weight };
        let merged = factors.merge_into(&mut weight, self.alpha / factors.a.rows().max(1) as f64);
        merged.with_context(|| format!("{}: `{name}`", self.file.file_of(&key.stored).display()))?;
        Ok(if is_conv { weight.transposed() } else { weight })
    }

    fn stored(&self, name: &str, floats: bool) -> Result<Option<StoredMatrix>> {
        let key = self.key(name)?;
        if key.factors.is_some() { Ok(None) } else { self.file.stored(&key.stored, floats) }
    }

    fn file_of(&self, name: &str) -> &Path {
        self.file.file_of(self.keys.get(name).map_or(name, |key| &key.stored))
    }
}

/// CODI's `prj`: dropout, a layer up, GELU, a layer down, LayerNorm.
fn projection(file: &dyn Weights, heads: &BTreeMap<String, String>, width: usize) -> Result<Vec<(String, HostTensor)>> {
    let known = [("1", "up"), ("3", "down"), ("ln", "norm")];
    if heads.is_empty() {
        return Ok(vec![]);
    }
    let mut out = vec![];
    for (theirs, ours) in known {
        for kind in ["weight", "bias"] {
            let stored = heads.get(&format!("{theirs}.{kind}")).with_context(|| {
                let without =
                    if theirs == "ln" { " (`prj_no_ln`: a projection without LayerNorm is not supported)" } else { "" };
                format!("`prj.{theirs}.{kind}` is missing{without}")
            })?;
            out.push((format!("heads.projection.{ours}.{kind}"), file.tensor(stored)?));
        }
    }
    ensure!(heads.len() == out.len(), "`prj` has {} tensors, expected {}", heads.len(), out.len());
    let hidden = out[0].1.rows();
    let shapes = [vec![hidden, width], vec![hidden], vec![width, hidden], vec![width], vec![width], vec![width]];
    for ((name, tensor), shape) in out.iter().zip(shapes) {
        ensure!(tensor.shape == shape, "`{name}` has shape {:?}, expected {shape:?}", tensor.shape);
    }
    Ok(out)
}
