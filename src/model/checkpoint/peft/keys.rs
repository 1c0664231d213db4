//! The keys of `adapter_model.safetensors`, as PEFT has written them over its versions.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;

use anyhow::{Result, anyhow, bail, ensure};

use super::super::SafetensorsFile;
use super::super::params::{EMBED, HEAD};

/// What PEFT puts before the base model's own path.
pub(crate) const PREFIX: &str = "base_model.model.";

/// Weight → keys of (A, B).
pub(crate) type FactorKeys = BTreeMap<String, (String, String)>;

/// What PEFT puts behind the embedding table's path where some of its rows are trained.
pub(crate) const TOKEN_ROWS: &str = "token_adapter.trainable_tokens_delta";

/// What the keys are for.
pub struct Keys {
    pub factors: FactorKeys,
    /// Weight → key of what replaces it.
    pub replaced: BTreeMap<String, String>,
    /// Key of the token rows.
    pub token_rows: Option<String>,
    /// Key of those of the head. A tied head's rows are the table's: PEFT may write them a second time.
    pub head_rows: Option<String>,
}

/// Sorts the keys.
pub fn sort(file: &SafetensorsFile, path: &Path) -> Result<Keys> {
    let origin = path.display();
    let mut halves: BTreeMap<String, [Option<String>; 2]> = BTreeMap::new();
    let mut replaced: BTreeMap<String, (String, bool)> = BTreeMap::new();
    let (mut token_rows, mut head_rows) = (None, None);
    for key in file.names() {
        let inner = key
            .strip_prefix(PREFIX)
            .ok_or_else(|| anyhow!("{origin}: unexpected key `{key}`: expected it to begin with {PREFIX}"))?;
        for (mark, what) in
            [("lora_embedding_", "LoRA on embeddings"), ("lora_magnitude_vector", "DoRA"), (".bias", "a bias")]
        {
            ensure!(!inner.contains(mark), "{origin}: `{key}`: {what} is not supported");
        }
        if let Some(module) = inner.strip_suffix(TOKEN_ROWS) {
            let rows = match module {
                _ if Some(module) == EMBED.strip_suffix("weight") => &mut token_rows,
                _ if Some(module) == HEAD.strip_suffix("weight") => &mut head_rows,
                _ => bail!("{origin}: `{key}`: rows of other modules than embedding table and head are not supported"),
            };
            *rows = Some(key.to_string());
            continue;
        }
        let half = ["lora_A", "lora_B"].iter().position(|h| inner.contains(&format!(".{h}.")));
        if let Some(half) = half {
            let (module, rest) =
                inner.split_once(if half == 0 { ".lora_A." } else { ".lora_B." }).unwrap_or((inner, ""));
            // `default` is the adapter's name, left in by some writers.
            ensure!(rest == "weight" || rest == "default.weight", "{origin}: unexpected key `{key}`");
            halves.entry(format!("{module}.weight")).or_default()[half] = Some(key.to_string());
            continue;
        }
        let Some(module) = inner.strip_suffix(".weight") else { bail!("{origin}: unexpected key `{key}`") };
        // The weight before training, which PEFT keeps beside the trained one.
        if module.ends_with(".original_module") {
            continue;
        }
        let wrapper = [".modules_to_save.default", ".modules_to_save", ".base_layer"]
            .into_iter()
            .find(|wrapper| module.ends_with(wrapper));
        let trained = wrapper.is_some_and(|w| w.starts_with(".modules_to_save"));
        let name = format!("{}.weight", wrapper.and_then(|w| module.strip_suffix(w)).unwrap_or(module));
        // PEFT may write the trained weight a second time under its plain name: the wrapped one is what it loads.
        match replaced.entry(name) {
            Entry::Vacant(slot) => {
                slot.insert((key.to_string(), trained));
            }
            Entry::Occupied(mut slot) => {
                let name = slot.key().clone();
                ensure!(slot.get().1 != trained, "{origin}: `{name}` is replaced twice, the second time by `{key}`");
                if trained {
                    slot.insert((key.to_string(), true));
                }
            }
        }
    }
    let replaced = replaced.into_iter().map(|(name, (key, _))| (name, key)).collect();
    let mut factors = FactorKeys::new();
    for (name, pair) in halves {
        match pair {
            [Some(a), Some(b)] => factors.insert(name, (a, b)),
            [a, _] => bail!(
                "{origin}: `{name}` has only half of its factors: lora_{} is missing",
                if a.is_some() { "B" } else { "A" }
            ),
        };
    }
    Ok(Keys { factors, replaced, token_rows, head_rows })
}
