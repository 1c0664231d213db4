//! Rows of answers with blocks that are closed early.

use super::Identity;
use crate::schema::verdict::{Baseline, loss};
use crate::stats::Estimate;

rows! {
    /// Problems with a block, each block closed after its first `k` latents. Wilson intervals over problems.
    pub struct EarlyStopRow {
        #[serde(flatten)]
        pub identity: Identity,
        pub k: usize => "latent steps": "each block is closed after its first k latents",
        pub of: usize => "latent steps": "of the longest block of the full run",
        pub accuracy: Estimate => AccuracyRow,
        pub guess: Option<f64> => "share":
            "problems that a guess gets right: the share of the commonest gold answer, .5 where a question names two candidates",
        pub same_answer: Estimate => "share": "problems whose answer is that of the full run",
        pub others_answer: Estimate => "share": "problems whose answer is that of the next problem's full run: agreement by luck",
        pub committed: Estimate => "share": "problems whose answer is that of the full run, at this k and every larger one tried",
        pub reversed: Estimate => "share": "problems whose answer is that of the full run, and at some larger k another one",
        /// Of the gold answer's first token, at the response's answer; absent if fewer than two responses have one.
        pub gold_logprob: Option<Estimate> => "nats":
            "log-probability of the gold answer's first token where the response gives its answer",
        pub latent_calls: Option<Estimate> => AccuracyRow,
        pub difference: Option<Estimate> => "share": "accuracy minus that of the full run of the same problems, paired",
        /// Exact McNemar test, Holm-adjusted over all `k`.
        pub p_holm: Option<f64> => AccuracyRow,
        /// The control. Absent for the full run, and in rows of older versions.
        pub resampled: Option<Estimate> => "share":
            "problems answered right where blocks keep their length and latents after the k-th are another problem's",
        pub resampled_difference: Option<Estimate> => "share":
            "resampled minus the accuracy of the full run of the same problems, paired",
        pub resampled_p_holm: Option<f64> => "probability": "of resampled_difference, Holm-adjusted over all k",
    }
}

impl EarlyStopRow {
    /// The verdict. `needs later latents`: both the cut and the control lose right answers of the full run; `loses to the cut alone`: the
    /// control does not; `loses, no control`: rows without one; `gains`: more answers are right after the cut.
    pub fn verdict(&self) -> &'static str {
        let Some((difference, p)) = self.difference.zip(self.p_holm) else { return "—" };
        let of = |accuracy, difference: Estimate, p| {
            let baseline = Baseline::undo(accuracy, difference, self.guess);
            loss(self.identity.n, difference.value, p, [Self::NEEDS, "gains"], baseline)
        };
        match (of(self.accuracy, difference, p), self.resampled, self.resampled_difference.zip(self.resampled_p_holm)) {
            (Self::NEEDS, Some(accuracy), Some((difference, p))) => match of(accuracy, difference, p) {
                Self::NEEDS => Self::NEEDS,
                _ => Self::SURPRISED,
            },
            (Self::NEEDS, ..) => "loses, no control",
            (other, ..) => other,
        }
    }

    /// Whether answers need the latents after the k-th.
    pub fn needs_later(&self) -> bool {
        self.verdict() == Self::NEEDS
    }

    /// How to read the verdicts; printed under tables.
    pub const READING: &str = "Later latents are needed where answers are lost both when blocks end early and when blocks keep their \
        length but continue with another problem's latents. What the cut alone loses is the early end's doing.";

    const NEEDS: &str = "needs later latents";
    const SURPRISED: &str = "loses to the cut alone";
}
