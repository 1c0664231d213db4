//! Entropy and log-probability by kind of position.

use super::Identity;
use crate::stats::Estimate;

rows! {
    /// One kind of position; intervals are cluster bootstraps over problems.
    pub struct EntropyRow {
        #[serde(flatten)]
        pub identity: Identity,
        pub kind: String => "name": "kind of the position: text, swi, latent, swi_end",
        pub positions: usize => "count": "positions of the row",
        pub entropy: Option<Estimate> => ResponseRow,
        /// Absent for latents, at which nothing is drawn.
        pub logprob: Option<Estimate> => "nats": "log-probability of what was drawn",
    }
}
