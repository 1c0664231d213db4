//! The keys of `adapter_model.safetensors` in PEFT's past and present versions.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;

use anyhow::{Result, anyhow, bail, ensure};

use super::super::Weights;
use super::super::layout::parts;
use super::super::params::{EMBED, HEAD};
use super::AdapterConfig;

/// PEFT's prefix before the base model's path.
pub const PREFIX: &str = "base_model.model.";

/// PEFT's suffix of the embedding table's path if some of its rows are trained.
pub const TOKEN_ROWS: &str = "token_adapter.trainable_tokens_delta";

/// The two factors of one weight.
pub struct FactorKeys {
    pub a: String,
    pub b: String,
    /// LoRA of a table `[V, D]`: A is `[r, V]` and B is `[D, r]`, transposed.
    pub is_table: bool,
    /// Index of the weight that B's rows belong to, and the number of weights.
    pub part: (usize, usize),
    pub rank: usize,
    pub scaling: f64,
}

pub struct Replacement {
    pub key: String,
    /// A copy next to the base's module, which stays if another module is tied to it.
    pub is_copy: bool,
}

/// Keys by our names.
#[derive(Default)]
pub struct Keys {
    pub factors: BTreeMap<String, FactorKeys>,
    pub replaced: BTreeMap<String, Replacement>,
    /// Key of the token rows.
    pub token_rows: Option<String>,
    /// Key of the head's rows. A tied head's rows are the table's: PEFT may write them a second time.
    pub head_rows: Option<String>,
    /// Modules whose factors the settings exclude.
    pub left_out: Vec<String>,
}

pub fn sort(file: &dyn Weights, config: &AdapterConfig, path: &Path) -> Result<Keys> {
    let origin = path.display();
    let mut halves: BTreeMap<(String, bool), [Option<String>; 2]> = BTreeMap::new();
    let mut keys = Keys::default();
    for key in file.names() {
        let inner = key
            .strip_prefix(PREFIX)
            .ok_or_else(|| anyhow!("{origin}: unexpected key `{key}`: expected it to begin with {PREFIX}"))?;
        ensure!(!inner.contains("lora_magnitude_vector"), "{origin}: `{key}`: DoRA is not supported");
        let is_base = ["layers.", "h.", "embed_tokens.", "wte."].iter().any(|module| inner.starts_with(module));
        ensure!(
            !is_base,
            "{origin}: `{key}`: the adapter of a model without its head (AutoModel), whose modules PEFT does not find in a causal \
             model: put `model.` (`transformer.` in a GPT-2) after {PREFIX} in the names of its tensors"
        );
        if let Some(module) = inner.strip_suffix(TOKEN_ROWS) {
            let table = parts(module.trim_end_matches('.')).pop().map(|part| format!("{}.weight", part.module));
            let rows = match table.as_deref() {
                Some(EMBED) => &mut keys.token_rows,
                Some(HEAD) => &mut keys.head_rows,
                _ => bail!("{origin}: `{key}`: rows of other modules than embedding table and head are not supported"),
            };
            *rows = Some(key.clone());
            continue;
        }
        match half(inner) {
            Some((module, at, is_table, rest)) => {
                // `default` is the adapter's name, left in by some writers.
                ensure!(
                    ["", "weight", "default", "default.weight"].contains(&rest),
                    "{origin}: unexpected key `{key}`"
                );
                halves.entry((module.to_owned(), is_table)).or_default()[at] = Some(key.clone());
            }
            None => read_whole_weight(&key, inner, config, &mut keys.replaced).map_err(|e| anyhow!("{origin}: {e}"))?,
        }
    }
    for ((module, is_table), pair) in halves {
        let [Some(a), Some(b)] = &pair else {
            let lacking = if pair[0].is_some() { "B" } else { "A" };
            bail!("{origin}: `{module}` has only half of its factors: lora_{lacking} is missing");
        };
        if !config.reaches(&module) {
            keys.left_out.push(module);
            continue;
        }
        for part in parts(&module) {
            let own = FactorKeys {
                a: a.clone(),
                b: b.clone(),
                is_table,
                part: (part.nth, part.of),
                rank: config.rank_of(&module),
                scaling: config.scaling_of(&module),
            };
            keys.factors.insert(format!("{}.weight", part.module), own);
        }
    }
    Ok(keys)
}

/// Module, which factor, whether of a table, and the rest: `….q_proj.lora_A.weight`.
fn half(inner: &str) -> Option<(&str, usize, bool, &str)> {
    let marks =
        [("lora_A", 0, false), ("lora_B", 1, false), ("lora_embedding_A", 0, true), ("lora_embedding_B", 1, true)];
    marks.into_iter().find_map(|(mark, at, is_table)| {
        let (module, rest) = inner.split_once(&format!(".{mark}"))?;
        let rest = if rest.is_empty() { rest } else { rest.strip_prefix('.')? };
        Some((module, at, is_table, rest))
    })
}

/// A weight that replaces the base's.
fn read_whole_weight(
    key: &str,
    inner: &str,
    config: &AdapterConfig,
    replaced: &mut BTreeMap<String, Replacement>,
) -> Result<()> {
    let (module, kind) = inner.rsplit_once('.').unwrap_or((inner, ""));
    ensure!(["weight", "bias"].contains(&kind), "unexpected key `{key}`");
    // The weight before training, which PEFT stores next to the trained one.
    if module.ends_with(".original_module") {
        return Ok(());
    }
    // `token_adapter` is followed by the resized table, then by the trained rows of tokens.
    let wrapper = [".modules_to_save.default", ".modules_to_save", ".token_adapter.base_layer", ".base_layer"]
        .into_iter()
        .find(|wrapper| module.ends_with(wrapper));
    let is_wrapped = wrapper.is_some_and(|w| w.starts_with(".modules_to_save"));
    let module = wrapper.and_then(|w| module.strip_suffix(w)).unwrap_or(module);
    let is_saved = config.saves(module);
    ensure!(kind == "weight" || is_wrapped || is_saved, "`{key}`: a bias is not supported");
    let own = parts(module);
    ensure!(
        own.len() == 1 && !own[0].is_conv,
        "`{key}`: a whole matrix of GPT-2's `Conv1D` is not supported: merge the adapter in Python"
    );
    let name = format!("{}.{kind}", own[0].module);
    let is_copy = is_wrapped || is_saved && wrapper.is_none();
    // PEFT may write the trained weight a second time under its plain name; PEFT loads the wrapped one.
    match replaced.entry(name) {
        Entry::Vacant(slot) => {
            slot.insert(Replacement { key: key.to_owned(), is_copy });
        }
        Entry::Occupied(mut slot) => {
            let name = slot.key().clone();
            let before_wrapped = slot.get().key.contains(".modules_to_save");
            ensure!(before_wrapped != is_wrapped, "`{name}` is replaced twice, the second time by `{key}`");
            if is_wrapped {
                slot.insert(Replacement { key: key.to_owned(), is_copy: true });
            }
        }
    }
    Ok(())
}
