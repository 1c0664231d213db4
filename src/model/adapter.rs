//! Exports what was trained over a base as a PEFT adapter over the base's files.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use burn::module::LoraAdapter;
use burn::tensor::Tensor;

use super::Decoder;
use super::checkpoint::peft::{Adapter, AdapterWeights, Factors};
use super::checkpoint::{EMBED, HEAD, HostTensor, ModelFiles};
use super::kept::matrix::host;
use super::linear::Matrix;

impl Decoder {
    /// Factors of every projection, and these tokens' rows of embedding table and head. Outside autodiff.
    ///
    /// Ranks add up: next to stored matrices, factors of earlier adapters are still separate; in floats they were merged, and `before` has
    /// them. If other rows of the tables may have been trained too, `base` has their old values: float tables with differences are written
    /// whole.
    ///
    /// # Errors
    /// A float projection in a model of stored matrices, from which earlier factors cannot be separated; a table with factors; a failed copy
    /// from the device.
    pub fn adapter_over(
        &self,
        base: Option<&ModelFiles>,
        before: Option<&Adapter>,
        tokens: &[u32],
    ) -> Result<AdapterWeights> {
        let mut adapter = AdapterWeights::new(self.factors_over(before)?, self.config())?;
        let tokens: BTreeSet<usize> = tokens.iter().map(|token| *token as usize).collect();
        let head = self.lm_head.as_ref().map(|head| (HEAD, &head.weight));
        let tables: Vec<(&str, &Matrix)> = std::iter::once((EMBED, &self.embed_tokens)).chain(head).collect();
        let floats = tables.iter().filter_map(|(name, table)| Some((*name, table.param()?)));
        let floats = floats.map(|(name, param)| Ok((name, float_table(name, param.val())?)));
        let floats: BTreeMap<&str, HostTensor> = floats.collect::<Result<_>>()?;
        ensure!(
            floats.is_empty() || floats.len() == tables.len(),
            "one of `{EMBED}` and `{HEAD}` is in its file format and the other is not"
        );
        if let Some(base) = base {
            let differs = |(name, table): (&&str, &HostTensor)| differs(&base.tensor(name)?, table, &tokens);
            if floats.iter().map(differs).collect::<Result<Vec<bool>>>()?.contains(&true) {
                adapter.replaced.extend(floats.into_iter().map(|(name, table)| (name.to_owned(), table)));
                return Ok(adapter);
            }
        }
        let tokens: Vec<usize> = tokens.into_iter().collect();
        for (name, table) in tables.into_iter().filter(|_| !tokens.is_empty()) {
            let rows = match (table, floats.get(name)) {
                (_, Some(table)) => {
                    let rows = tokens.iter().flat_map(|&token| row(table, token)).copied().collect();
                    HostTensor::new(vec![tokens.len(), table.width()], rows)?
                }
                (Matrix::Kept(kept), None) => {
                    ensure!(
                        kept.all_factors()?.is_none(),
                        "`{name}` has LoRA factors, which our adapters do not support"
                    );
                    host(kept.rows(Some(&tokens), &self.device())?).with_context(|| format!("`{name}`"))?
                }
                (Matrix::Dense(_), None) => continue,
            };
            let AdapterWeights { config, token_rows, head_rows, .. } = &mut adapter;
            let (place, ids) = match name {
                HEAD => (head_rows, &mut config.head_rows),
                _ => (token_rows, &mut config.token_rows),
            };
            *place = Some(rows);
            ids.clone_from(&tokens);
        }
        Ok(adapter)
    }

    /// Factors of every projection that has some, including those of `before`.
    fn factors_over(&self, before: Option<&Adapter>) -> Result<BTreeMap<String, Factors>> {
        let is_kept = self.is_kept();
        let mut all = BTreeMap::new();
        for (layer, block) in self.layers.iter().enumerate() {
            for (path, linear) in block.projections() {
                let name = format!("model.layers.{layer}.{path}.weight");
                let own = match &linear.weight {
                    Matrix::Kept(kept) => kept.all_factors()?,
                    Matrix::Dense(param) => {
                        ensure!(
                            !is_kept,
                            "`{name}` is not in its file format: what was trained cannot be separated from it"
                        );
                        let held = before.map(|before| before.scaled_factors(&name)).transpose()?.flatten();
                        let lora = param.adapter().filter(|lora| has_learnt(lora));
                        let own = lora.map(|lora| factors([lora.a.val(), lora.b.val().mul_scalar(lora.scale)]));
                        match (held, own.transpose()?) {
                            (Some(held), Some(own)) => Some(held.stack(own)?),
                            (held, own) => held.or(own),
                        }
                    }
                };
                all.extend(own.map(|own| (name, own)));
            }
        }
        Ok(all)
    }
}

/// A table of floats as files have it, `[V, D]`.
fn float_table(name: &str, table: Tensor<2>) -> Result<HostTensor> {
    host(if name == HEAD { table.transpose() } else { table }).with_context(|| format!("`{name}`"))
}

/// Whether B differs from its initial value, zero.
pub(super) fn has_learnt(lora: &LoraAdapter) -> bool {
    lora.b.val().abs().max().into_scalar::<f32>() != 0.0
}

/// A `[d_in, r]` and B `[r, d_out]` in PEFT's layout.
pub(super) fn factors([a, b]: [Tensor<2>; 2]) -> Result<Factors> {
    Ok(Factors { a: host(a.transpose())?, b: host(b.transpose())? })
}

/// A row of a table; empty after its last.
fn row(table: &HostTensor, row: usize) -> &[f32] {
    table.data.get(row * table.width()..(row + 1) * table.width()).unwrap_or_default()
}

/// Whether a row outside `tokens` differs from the base's table.
fn differs(base: &HostTensor, table: &HostTensor, tokens: &BTreeSet<usize>) -> Result<bool> {
    ensure!(base.width() == table.width(), "rows of {} and {} values", base.width(), table.width());
    Ok((0..table.rows()).any(|at| !tokens.contains(&at) && row(base, at) != row(table, at)))
}
