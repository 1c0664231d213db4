//! The keys of `adapter_model.safetensors`, as PEFT has written them over its versions.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, anyhow, bail, ensure};

use super::super::SafetensorsFile;

/// What PEFT puts before the base model's own path.
pub const PREFIX: &str = "base_model.model.";

/// Weight → keys of (A, B).
pub type FactorKeys = BTreeMap<String, (String, String)>;

/// Sorts the keys into factors and replaced weights.
pub fn sort(file: &SafetensorsFile, path: &Path) -> Result<(FactorKeys, BTreeMap<String, String>)> {
    let origin = path.display();
    let mut halves: BTreeMap<String, [Option<String>; 2]> = BTreeMap::new();
    let mut replaced = BTreeMap::new();
    for key in file.names() {
        let inner = key
            .strip_prefix(PREFIX)
            .ok_or_else(|| anyhow!("{origin}: unexpected key `{key}`: expected it to begin with {PREFIX}"))?;
        for (mark, what) in [
            ("lora_embedding_", "LoRA on embeddings"),
            ("lora_magnitude_vector", "DoRA"),
            ("trainable_tokens", "trainable token rows"),
            (".bias", "a bias"),
        ] {
            ensure!(!inner.contains(mark), "{origin}: `{key}`: {what} is not supported");
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
        let module = [".modules_to_save.default", ".modules_to_save", ".base_layer"]
            .iter()
            .find_map(|wrapper| module.strip_suffix(wrapper))
            .unwrap_or(module);
        let twice = replaced.insert(format!("{module}.weight"), key.to_string());
        ensure!(twice.is_none(), "{origin}: `{module}.weight` is replaced twice, the second time by `{key}`");
    }
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
    Ok((factors, replaced))
}
