//! What every row carries, so that it can be read without its folder.

use serde::{Deserialize, Serialize};

/// Flattened into the rows' own fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub checkpoint: String,
    pub dataset: String,
    /// Problems.
    pub n: usize,
    pub seed: u64,
}
