//! Embedding table and head of a folder, tied as in transformers 5: if `config.json` ties them, the file may have either or both; if it
//! has both with different values, they are not tied.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;

use super::params::{EMBED, HEAD};
use super::{HostTensor, Weights};
use crate::config::ModelConfig;
use switchyard_ops::stored::StoredMatrix;

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
        return Ok(Arc::new(FromHead(weights)));
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

/// A tied model that stores the common table as its head.
struct FromHead(Box<dyn Weights>);

fn stored_name(name: &str) -> &str {
    if name == EMBED { HEAD } else { name }
}

impl Weights for FromHead {
    fn names(&self) -> Vec<String> {
        self.0.names().into_iter().map(|name| if name == HEAD { EMBED.to_owned() } else { name }).collect()
    }

    fn shape(&self, name: &str) -> Option<&[usize]> {
        self.0.shape(stored_name(name))
    }

    fn tensor(&self, name: &str) -> Result<HostTensor> {
        self.0.tensor(stored_name(name))
    }

    fn stored(&self, name: &str, floats: bool) -> Result<Option<StoredMatrix>> {
        self.0.stored(stored_name(name), floats)
    }

    fn file_of(&self, name: &str) -> &Path {
        self.0.file_of(stored_name(name))
    }
}
