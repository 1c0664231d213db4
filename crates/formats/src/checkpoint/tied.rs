//! Embedding table and head of a folder, tied as in transformers 5: if `config.json` ties them, the file may have either or both; if it
//! has both with different values, they are not tied.

use std::sync::Arc;

use anyhow::Result;

use super::Weights;
use super::layout::RenamedWeights;
use super::params::{EMBED, HEAD};
use crate::config::ModelConfig;

/// Resolves the two tables of a model that `config.json` ties. If they differ, unties `config` and adds a warning to `notes`.
pub(super) fn resolve(
    weights: Box<dyn Weights>,
    config: &mut ModelConfig,
    notes: &mut Vec<String>,
) -> Result<Arc<dyn Weights>> {
    let [embed, head] = [EMBED, HEAD].map(|name| weights.shape(name).is_some());
    if !config.tie_word_embeddings || !head {
        return Ok(weights.into());
    }
    if !embed {
        // The common table is stored as the head.
        return Ok(Arc::new(RenamedWeights::with_name(weights, HEAD, EMBED)));
    }
    if weights.shape(EMBED) != weights.shape(HEAD) || weights.tensor(EMBED)? != weights.tensor(HEAD)? {
        config.tie_word_embeddings = false;
        notes.push(format!(
            "warning: {}: `{HEAD}` has other values than `{EMBED}`, so that the head is not tied to the embedding, as in transformers 5, \
             although `tie_word_embeddings` of config.json is true; set it to false",
            weights.file_of(HEAD).display()
        ));
    }
    Ok(weights.into())
}
