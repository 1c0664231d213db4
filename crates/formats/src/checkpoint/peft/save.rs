//! Writes an adapter folder, whole or not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Result, anyhow, ensure};
use serde_json::{Value, json};

use super::super::layout::{filed, gpt2_module};
use super::super::params::{EMBED, HEAD};
use super::super::save::{write_file, write_json};
use super::super::write::write_single;
use super::super::{Dtype, HostTensor, expected_parameters};
use super::keys::{PREFIX, TOKEN_ROWS};
use super::{AdapterConfig, Factors, SETTINGS, Targets, WEIGHTS};
use crate::config::ModelConfig;
use crate::output::replace_folder;

/// Contents of an adapter's files.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterWeights {
    pub config: AdapterConfig,
    pub factors: BTreeMap<String, Factors>,
    /// Weights without factors: norms, tables with many changed rows.
    pub replaced: BTreeMap<String, HostTensor>,
    /// The rows of `config.token_rows`, `[n, d]`.
    pub token_rows: Option<HostTensor>,
    /// Rows of `config.head_rows`, for a head that is not tied to the embedding.
    pub head_rows: Option<HostTensor>,
}

impl AdapterWeights {
    /// Prepares scaled factors for PEFT: one rank for all; every layer gets the modules that any layer has, zero where missing. Without
    /// any factors: zeros of rank 1 for the queries. Factors of a GPT-2 get its module names.
    pub fn new(factors: BTreeMap<String, Factors>, config: &ModelConfig) -> Result<Self> {
        let module = |name: &str| name.split('.').nth_back(1).unwrap_or_default().to_owned();
        let is_gpt2 = config.family.is_gpt2;
        let factors = if is_gpt2 { fuse_gpt2(factors)? } else { factors };
        let r = factors.values().map(|f| f.a.rows()).max().unwrap_or(1);
        let mut targets: BTreeSet<String> = factors.keys().map(|name| module(name)).collect();
        if targets.is_empty() {
            targets.insert(if is_gpt2 { "c_attn" } else { "q_proj" }.into());
        }
        let mut all = BTreeMap::new();
        for (name, f) in factors {
            all.insert(name, f.pad_to_rank(r)?);
        }
        for (mut name, mut shape) in expected_parameters(config) {
            if let Some((theirs, part)) = filed(&name).filter(|_| is_gpt2) {
                name = theirs;
                shape[0] *= part.of;
            }
            if shape.len() == 2 && targets.contains(&module(&name)) && !all.contains_key(&name) {
                let zeros = |shape: Vec<usize>| HostTensor::new(shape.clone(), vec![0.0; shape.iter().product()]);
                all.insert(name, Factors { a: zeros(vec![r, shape[1]])?, b: zeros(vec![shape[0], r])? });
            }
        }
        let config = AdapterConfig {
            r,
            // The scale is in the factors.
            alpha: r as f64,
            targets: Targets::Names(targets.into_iter().collect()),
            ..AdapterConfig::default()
        };
        Ok(Self { config, factors: all, replaced: BTreeMap::new(), token_rows: None, head_rows: None })
    }
}

/// Factors under GPT-2's names, where queries, keys and values are one module: A stacks their rows, and B is block-diagonal.
fn fuse_gpt2(factors: BTreeMap<String, Factors>) -> Result<BTreeMap<String, Factors>> {
    let mut out: BTreeMap<String, Factors> = BTreeMap::new();
    for (name, Factors { a, b }) in factors {
        let Some((theirs, part)) = filed(&name) else {
            out.insert(name, Factors { a, b });
            continue;
        };
        let (rows, r) = (b.rows(), b.width());
        let mut placed = vec![0.0; part.of * rows * r];
        placed[part.nth * rows * r..][..rows * r].copy_from_slice(&b.data);
        let b = HostTensor::new(vec![part.of * rows, r], placed)?;
        let own = Factors { a, b };
        let all = match out.remove(&theirs) {
            Some(before) => before.stack(own)?,
            None => own,
        };
        out.insert(theirs, all);
    }
    Ok(out)
}

impl Factors {
    /// The sum of two products as one pair: A stacked by rows, B by columns.
    pub fn stack(self, more: Self) -> Result<Self> {
        let (own, other) = (self.b.width(), more.b.width());
        let a = HostTensor::new(vec![own + other, self.a.width()], [self.a.data, more.a.data].concat())?;
        let pairs = self.b.data.chunks_exact(own).zip(more.b.data.chunks_exact(other));
        let b = pairs.flat_map(|(x, y)| [x, y].concat()).collect();
        Ok(Self { a, b: HostTensor::new(vec![self.b.rows(), own + other], b)? })
    }

    /// Pads with zeros to rank `r`, at least the current one.
    fn pad_to_rank(self, r: usize) -> Result<Self> {
        let Self { mut a, b } = self;
        let (own, width) = (a.rows(), a.width());
        if own == r {
            return Ok(Self { a, b });
        }
        a.data.resize(r * width, 0.0);
        let zeros = vec![0.0; r - own];
        let rows = b.data.chunks_exact(own).flat_map(|row| row.iter().chain(&zeros).copied()).collect();
        Ok(Self { a: HostTensor::new(vec![r, width], a.data)?, b: HostTensor::new(vec![b.rows(), r], rows)? })
    }
}

/// `adapter_config.json`. A GPT-2's table of tokens has its own name, and its matrices are transposed.
fn settings(config: &AdapterConfig, is_gpt2: bool) -> Value {
    let mut settings = config.to_json();
    if is_gpt2 {
        settings["fan_in_fan_out"] = json!(true);
        if let Some(tokens) = settings["trainable_token_indices"].as_object_mut()
            && let Some(rows) = tokens.remove("embed_tokens")
        {
            tokens.insert("wte".into(), rows);
        }
    }
    settings
}

/// Writes a folder that PEFT loads over the base. Replaced embeddings have their plain names, as in PEFT's `save_embedding_layers`:
/// resize the base to the same rows before loading. `files` as in `SaveOptions`.
pub fn save_adapter(
    dir: &Path,
    AdapterWeights { config, factors, replaced, token_rows, head_rows }: &AdapterWeights,
    dtype: Dtype,
    files: &[(String, Vec<u8>)],
    overwrite: bool,
) -> Result<()> {
    // A GPT-2's factors already have its names; all other weights then get them too.
    let is_gpt2 = factors.keys().any(|name| name.starts_with("transformer."));
    let named = |module: &str| gpt2_module(module).filter(|_| is_gpt2).unwrap_or_else(|| module.to_owned());
    let mut tensors: Vec<(String, &HostTensor)> = Vec::new();
    for (name, f) in factors {
        let module = name
            .strip_suffix(".weight")
            .ok_or_else(|| anyhow!("cannot save factors of `{name}`: expected a name that ends in .weight"))?;
        let (r, a, b) = (config.r, &f.a.shape, &f.b.shape);
        ensure!(
            a.len() == 2 && b.len() == 2 && a[0] == r && b[1] == r,
            "cannot save factors of `{name}`: `r` is {r}, found A {a:?} and B {b:?}"
        );
        tensors.push((format!("{PREFIX}{module}.lora_A.weight"), &f.a));
        tensors.push((format!("{PREFIX}{module}.lora_B.weight"), &f.b));
    }
    for (name, t) in replaced {
        let (module, kind) = name.rsplit_once('.').unwrap_or((name, ""));
        tensors.push((format!("{PREFIX}{}.{kind}", named(module)), t));
    }
    for (name, rows, ids) in [(EMBED, token_rows, &config.token_rows), (HEAD, head_rows, &config.head_rows)] {
        let found = rows.as_ref().map_or(0, HostTensor::rows);
        ensure!(found == ids.len(), "cannot save an adapter: {found} rows of `{name}` for {} tokens", ids.len());
        let table = named(name.trim_end_matches(".weight"));
        tensors.extend(rows.as_ref().map(|rows| (format!("{PREFIX}{table}.{TOKEN_ROWS}"), rows)));
    }
    let expected: Vec<_> = tensors.iter().map(|(name, t)| (name.clone(), t.shape.clone())).collect();
    replace_folder(dir, overwrite, |temp| {
        let list = tensors.iter().map(|(name, t)| Ok((name.clone(), (*t).clone())));
        write_single(&temp.join(WEIGHTS), &expected, list, dtype)?;
        write_json(&temp.join(SETTINGS), &settings(config, is_gpt2))?;
        files.iter().try_for_each(|(name, bytes)| write_file(&temp.join(name), bytes))
    })
}
