//! Rows of solutions that are read from latents and verified.

use serde::{Deserialize, Serialize};

use super::Identity;
use crate::nth::Nth;
use crate::schema::verdict::verdict;
use crate::stats::Estimate;

names! {
    /// How a latent is read as the value of its step.
    pub enum Reader {
        /// Final norm and head, the most probable of the values that steps have.
        Logit = "logit",
        /// A linear probe that was fitted on other groups of problems.
        Probe = "probe",
    }
}

/// The problems that are answered right with blocks in the place of steps, each block read at one of its latents; shares are over
/// problems (Wilson) unless said otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecodedTraceRow {
    #[serde(flatten)]
    pub identity: Identity,
    pub reader: Reader,
    /// Blocks passed: 0 is the embedding.
    pub layer: usize,
    /// Latent of each block that is read.
    pub step: Nth,
    /// Steps of solutions that are read from a block, of all problems together.
    pub reads: usize,
    /// Right answers with a block whose text is not that of the solution: the steps of their blocks are unknown.
    pub left_out: usize,
    /// Every step follows from those before it, and the answer from the last.
    pub valid: Estimate,
    /// Of the steps read: it follows from the step before, as that was read (problems resampled).
    pub follows: Option<Estimate>,
    /// As `valid`, with the values read in another problem whose blocks have the same lengths; absent where no two have.
    pub shuffled: Option<Estimate>,
    /// As `valid`, of problems with several blocks.
    pub valid_of_several: Option<Estimate>,
    /// The same problems, the values read in them moved to other steps.
    pub permuted: Option<Estimate>,
    /// `valid` minus `shuffled`, paired by problem, groups resampled.
    pub difference: Option<Estimate>,
    /// Exact sign-flip test of the two over groups, Holm-adjusted over all rows.
    pub p_holm: Option<f64>,
}

impl DecodedTraceRow {
    /// The verdict: `derives` where the latents read are a derivation more often than those of another problem.
    pub fn verdict(&self) -> &'static str {
        let Some((difference, p)) = self.difference.zip(self.p_holm) else { return "—" };
        verdict(self.identity.n, difference.value, p, ["below its null", Self::DERIVES])
    }

    /// Whether latents hold a derivation that this reader reads.
    pub fn derives(&self) -> bool {
        self.verdict() == Self::DERIVES
    }

    const DERIVES: &str = "derives";
}
