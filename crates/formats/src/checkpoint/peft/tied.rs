//! Embedding table and head under an adapter. If the base ties them, a trained copy or factors of one leave the other as in the base, as
//! in PEFT: the two become different.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};

use super::super::params::{EMBED, HEAD};
use super::keys::Replacement;
use super::{Adapter, SETTINGS};
use crate::config::ModelConfig;

impl Adapter {
    /// The replacement of a weight. In a tied base a replaced table that is not a copy also replaces the other.
    pub(super) fn replacement(&self, name: &str, is_tied: bool) -> Option<&Replacement> {
        let other = match name {
            EMBED => HEAD,
            HEAD => EMBED,
            _ => return self.replaced.get(name),
        };
        let shared = || self.replaced.get(other).filter(|replaced| is_tied && !replaced.is_copy);
        self.replaced.get(name).or_else(shared)
    }

    /// Whether embedding and head are still tied with this adapter.
    pub(super) fn stays_tied(&self, base: &ModelConfig) -> Result<bool> {
        let origin = self.path.display();
        if !base.tie_word_embeddings {
            return Ok(false);
        }
        let copied = |table| self.replaced.get(table).is_some_and(|replaced| replaced.is_copy);
        let tables = [self.replaced.get(EMBED), self.replaced.get(HEAD)];
        let mut parts = match tables {
            // For a tied base both are saved, with the same values, if both were resized together.
            [Some(embed), Some(head)] => {
                let same = self.file.tensor(&embed.key)? == self.file.tensor(&head.key)?;
                ensure!(
                    same || copied(EMBED) || copied(HEAD),
                    "{origin}: `{}` and `{}` are different values for the one matrix of a base whose head is tied to its embedding",
                    embed.key,
                    head.key
                );
                !same
            }
            _ => copied(EMBED) || copied(HEAD),
        };
        parts |= [EMBED, HEAD].iter().any(|table| self.factors.contains_key(*table));
        if self.config.ensure_weight_tying && !copied(HEAD) {
            parts = false;
        }
        let (embed, head) = (&self.config.token_rows, &self.config.head_rows);
        let rows_part = !head.is_empty() && head != embed;
        ensure!(
            !parts || embed.is_empty() && head.is_empty(),
            "{origin}: `trainable_token_indices` of {SETTINGS}, together with copies or factors of embedding or head over a base that \
             ties them, is not supported: merge the adapter in Python"
        );
        Ok(!(parts || rows_part))
    }

    /// Tokens whose rows it has.
    pub(super) fn token_ids(&self) -> impl Iterator<Item = usize> + '_ {
        self.config.token_rows.iter().chain(&self.config.head_rows).copied()
    }

    /// Checks the rows of tokens; `config` grows by those after the base's last one.
    pub(super) fn fit_token_rows(&self, base: &ModelConfig, config: &mut ModelConfig) -> Result<()> {
        let origin = self.path.display();
        let (embed, head) = (&self.config.token_rows, &self.config.head_rows);
        // Rows of a tied head are the table's, and may be saved a second time.
        let heads: &[usize] = if config.tie_word_embeddings { embed } else { head };
        for (key, ids) in [(&self.token_rows, embed.as_slice()), (&self.head_rows, heads)] {
            let Some(key) = key else { continue };
            let found = self.shape(key);
            let wanted = [ids.len(), base.hidden_size];
            ensure!(
                found == wanted,
                "{origin}: `{key}` must be {wanted:?} for the tokens of `trainable_token_indices`, found {found:?}"
            );
        }
        if !config.tie_word_embeddings && !head.is_empty() && self.head_rows.is_none() {
            bail!(
                "{origin}: `trainable_token_indices` names {} tokens of the head, but its rows are missing",
                head.len()
            );
        }
        let old = config.vocab_size;
        let Some(last) = self.token_ids().max().filter(|last| *last >= old) else { return Ok(()) };
        ensure!(
            config.tie_word_embeddings || head == embed,
            "{origin}: `trainable_token_indices` goes up to {last}, the embedding table has {old} rows: the base's head is not tied to it \
             and would have no rows for these tokens"
        );
        let new = embed.iter().filter(|id| **id >= old).count();
        ensure!(
            last + 1 == old + new,
            "{origin}: `trainable_token_indices` goes up to {last}, the embedding table has {old} rows: ids between them are missing"
        );
        config.vocab_size = last + 1;
        Ok(())
    }

    /// Learnt rows of embedding table or head, by token; for a tied head, the table's.
    pub(super) fn token_rows(&self, name: &str) -> Result<Option<BTreeMap<usize, Vec<f32>>>> {
        let (key, ids) = match name {
            EMBED => (&self.token_rows, &self.config.token_rows),
            HEAD => (&self.head_rows, &self.config.head_rows),
            _ => return Ok(None),
        };
        let Some(key) = key.as_ref().filter(|_| !ids.is_empty()) else { return Ok(None) };
        let rows = self.file.tensor(key)?;
        let values = rows.data.chunks_exact(rows.width()).map(<[f32]>::to_vec);
        Ok(Some(ids.iter().copied().zip(values).collect()))
    }
}
