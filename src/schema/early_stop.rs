//! Rows of answers that are forced before a block has run to its end.

use serde::{Deserialize, Serialize};

use super::Identity;
use crate::schema::verdict::{Baseline, loss};
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
    /// Share of problems that a guess gets right.
    #[serde(default)]
    pub guess: Option<f64>,
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
    /// The verdict: `loses when cut` where fewer answers are right than in the full run, because the latents after the k-th are needed or
    /// because the model is surprised by the early end; `gains` where more are.
    pub fn verdict(&self) -> &'static str {
        let Some((difference, p)) = self.difference.zip(self.p_holm) else { return "—" };
        let baseline = Baseline::undo(self.accuracy, difference, self.guess);
        loss(self.identity.n, difference.value, p, [Self::LOSES, "gains"], baseline)
    }

    /// Whether answers are lost by the cut.
    pub fn loses(&self) -> bool {
        self.verdict() == Self::LOSES
    }

    /// What a loss does not show; printed under tables.
    pub const READING: &str = "A loss when cut has two readings: the later latents are needed, or the model is surprised by an end that it \
        was never trained to meet there. A model whose latents are not read can lose too. Interventions leave the length alone.";

    const LOSES: &str = "loses when cut";
}
