//! Entropy and log-probability by kind of position.

use serde::{Deserialize, Serialize};

use super::Identity;
use crate::stats::Estimate;

/// One kind of position; intervals are cluster bootstraps over problems.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EntropyRow {
    #[serde(flatten)]
    pub identity: Identity,
    /// `text`, `swi`, `latent`, `swi_end`.
    pub kind: String,
    pub positions: usize,
    /// Nats.
    pub entropy: Option<Estimate>,
    /// Nats; nothing is drawn at a latent.
    pub logprob: Option<Estimate>,
}
