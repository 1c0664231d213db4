//! Rows of answers that are forced before a block has run to its end.

use super::Identity;
use crate::schema::verdict::{Baseline, loss};
use crate::stats::Estimate;

rows! {
    /// The problems that have a block, each block closed after its first `k` latents; shares are over problems (Wilson).
    pub struct EarlyStopRow {
        #[serde(flatten)]
        pub identity: Identity,
        pub k: usize => "latent steps": "each block is closed after its first k latents",
        pub of: usize => "latent steps": "of the longest block of the full run",
        pub accuracy: Estimate => AccuracyRow,
        #[serde(default)]
        pub guess: Option<f64> => "share":
            "problems that a guess gets right: the share of the commonest gold answer, .5 where a question names two candidates",
        pub same_answer: Estimate => "share": "problems whose answer is that of the full run",
        pub others_answer: Estimate => "share": "problems whose answer is that of the next problem's full run: agreement by luck",
        pub committed: Estimate => "share": "problems whose answer is that of the full run, at this k and every larger one tried",
        pub reversed: Estimate => "share": "problems whose answer is that of the full run, and at some larger k another one",
        /// Of the gold answer's first token where the response gives its answer, nats; absent where fewer than two give one.
        pub gold_logprob: Option<Estimate> => "nats":
            "log-probability of the gold answer's first token where the response gives its answer",
        pub latent_calls: Option<Estimate> => AccuracyRow,
        pub difference: Option<Estimate> => "share": "accuracy minus that of the full run of the same problems, paired",
        /// Exact McNemar, Holm-adjusted over all `k`.
        pub p_holm: Option<f64> => AccuracyRow,
    }
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
