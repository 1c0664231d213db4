//! What was trained over kept matrices, as a PEFT adapter over the files that they were read from.

use std::collections::BTreeMap;

use anyhow::{Context, Result, anyhow, ensure};

use super::matrix::host;
use crate::model::Decoder;
use crate::model::checkpoint::peft::AdapterWeights;
use crate::model::checkpoint::{EMBED, HEAD};
use crate::model::linear::Matrix;

impl Decoder {
    /// Factors of every projection, those of adapters that were there before among them (their ranks add up), and of embedding table and
    /// head the rows of these tokens, or all where they are floats. Outside autodiff.
    ///
    /// # Errors
    /// A projection that is not kept, whose factors of before are merged; a table with factors; a device that cannot hand its data over.
    pub(crate) fn adapter_over_kept(&self, tokens: &[u32]) -> Result<AdapterWeights> {
        let mut factors = BTreeMap::new();
        for (layer, block) in self.layers.iter().enumerate() {
            for (path, linear) in block.projections() {
                let name = format!("model.layers.{layer}.{path}.weight");
                let Matrix::Kept(kept) = &linear.weight else {
                    return Err(anyhow!("`{name}` is not kept as stored: what was trained cannot be told from it"));
                };
                if let Some(own) = kept.all_factors()? {
                    factors.insert(name, own);
                }
            }
        }
        let mut tokens: Vec<usize> = tokens.iter().map(|token| *token as usize).collect();
        tokens.sort_unstable();
        tokens.dedup();
        let mut adapter = AdapterWeights::of(factors, self.config())?;
        let head = self.lm_head.as_ref().map(|head| &head.weight);
        ensure!(
            head.is_none_or(|head| head.param().is_some() == self.embed_tokens.param().is_some()),
            "one of `{EMBED}` and `{HEAD}` is kept as stored and the other is not"
        );
        for (name, table) in [(EMBED, Some(&self.embed_tokens)), (HEAD, head)] {
            let Some(table) = table else { continue };
            match table {
                Matrix::Dense(param) => {
                    let table = if name == HEAD { param.val().transpose() } else { param.val() };
                    adapter.replaced.insert(name.to_owned(), host(table).with_context(|| format!("`{name}`"))?);
                }
                Matrix::Kept(_) if tokens.is_empty() => {}
                Matrix::Kept(kept) => {
                    ensure!(
                        kept.all_factors()?.is_none(),
                        "`{name}` has factors, which an adapter of ours does not hold"
                    );
                    let rows = host(kept.rows(Some(&tokens), &self.device())?).with_context(|| format!("`{name}`"))?;
                    let AdapterWeights { config, token_rows, head_rows, .. } = &mut adapter;
                    let (place, ids) = match name {
                        HEAD => (head_rows, &mut config.head_rows),
                        _ => (token_rows, &mut config.token_rows),
                    };
                    *place = Some(rows);
                    ids.clone_from(&tokens);
                }
            }
        }
        Ok(adapter)
    }
}
