//! Writing an adapter folder, whole or not at all.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, anyhow, ensure};

use super::super::params::EMBED;
use super::super::save::{in_new_folder, write_file, write_json};
use super::super::write::write_single;
use super::super::{Dtype, HostTensor};
use super::keys::{PREFIX, TOKEN_ROWS};
use super::{AdapterConfig, Factors, SETTINGS, WEIGHTS};

/// What an adapter's files hold.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterWeights {
    pub config: AdapterConfig,
    pub factors: BTreeMap<String, Factors>,
    /// Weights that no factors are for: norms, tables with many changed rows.
    pub replaced: BTreeMap<String, HostTensor>,
    /// The rows of `config.token_rows`, `[n, d]`.
    pub token_rows: Option<HostTensor>,
}

/// Writes a folder that PEFT loads over the base. Replaced embeddings go under their plain names, as PEFT's own
/// `save_embedding_layers` does: resize the base to the same rows before loading. `files` as in `SaveOptions`.
pub fn save_adapter(
    dir: &Path,
    AdapterWeights { config, factors, replaced, token_rows }: &AdapterWeights,
    dtype: Dtype,
    files: &[(String, Vec<u8>)],
    overwrite: bool,
) -> Result<()> {
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
        tensors.push((format!("{}{module}.lora_A.weight", PREFIX), &f.a));
        tensors.push((format!("{}{module}.lora_B.weight", PREFIX), &f.b));
    }
    tensors.extend(replaced.iter().map(|(name, t)| (format!("{}{name}", PREFIX), t)));
    let rows = token_rows.as_ref().map_or(0, HostTensor::rows);
    ensure!(
        rows == config.token_rows.len(),
        "cannot save an adapter: {rows} token rows for {} tokens",
        config.token_rows.len()
    );
    let table = EMBED.trim_end_matches("weight");
    tensors.extend(token_rows.as_ref().map(|rows| (format!("{PREFIX}{table}{TOKEN_ROWS}"), rows)));
    let expected: Vec<_> = tensors.iter().map(|(name, t)| (name.clone(), t.shape.clone())).collect();
    in_new_folder(dir, overwrite, |temp| {
        let list = tensors.iter().map(|(name, t)| Ok((name.clone(), (*t).clone())));
        write_single(&temp.join(WEIGHTS), &expected, list, dtype)?;
        write_json(&temp.join(SETTINGS), &config.to_json())?;
        files.iter().try_for_each(|(name, bytes)| write_file(&temp.join(name), bytes))
    })
}
