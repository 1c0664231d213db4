//! Rows of answers that are forced before a block has run to its end.

use serde::{Deserialize, Serialize};

use super::Identity;
use crate::schema::verdict::verdict;
use crate::stats::Estimate;

/// The problems that have a block, each block closed after its first `k` latents; shares are over problems (Wilson).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EarlyStopRow {
    #[serde(flatten)]
    pub identity: Identity,
    /// Most latents of each block.
    pub k: usize,
    /// Latents of the longest block of the full run.
    pub of: usize,
    pub accuracy: Estimate,
    /// The answer is that of the full run.
    pub same_answer: Estimate,
    /// The answer is that of the next problem's full run: agreement by chance.
    pub others_answer: Estimate,
    /// The answer is that of the full run, and stays so at every larger `k` that was tried.
    pub committed: Estimate,
    /// The answer is that of the full run, and at some larger `k` is another one.
    pub reversed: Estimate,
    /// Of the gold answer's first token where the response gives its answer, nats; absent where fewer than two give one.
    pub gold_logprob: Option<Estimate>,
    pub latent_calls: Option<Estimate>,
    /// Accuracy against the full run, paired; absent at the full run.
    pub difference: Option<Estimate>,
    /// Exact McNemar, Holm-adjusted over all `k`.
    pub p_holm: Option<f64>,
}

impl EarlyStopRow {
    /// The verdict: `loses` where the latents after the k-th are needed, `gains` where answers are better without them.
    pub fn verdict(&self) -> &'static str {
        let Some((difference, p)) = self.difference.zip(self.p_holm) else { return "—" };
        verdict(self.identity.n, difference.value, p, [Self::LOSES, "gains"])
    }

    /// Whether answers need a latent after the k-th.
    pub fn loses(&self) -> bool {
        self.verdict() == Self::LOSES
    }

    const LOSES: &str = "loses";
}
