//! Rows of solutions that are decoded from latents and verified.

use super::Identity;
use crate::nth::Nth;
use crate::schema::verdict::verdict;
use crate::stats::Estimate;

names! {
    /// How the value of a step is read from its latent.
    pub enum Reader {
        /// Final norm and head: the most probable of the possible values.
        Logit = "logit",
        /// A linear probe that was fitted on other programs and other calculations.
        Probe = "probe",
    }
}

rows! {
    /// Problems answered right, each block read at one latent. Wilson intervals over problems unless noted.
    pub struct DecodedTraceRow {
        #[serde(flatten)]
        pub identity: Identity,
        pub reader: Reader => "name":
            "logit: final norm and head, among the values that steps have; probe: fitted on other programs and other calculations",
        pub layer: usize => "layers passed": "of the stream that is read; 0 is the embedding",
        pub step: Nth => "latent step from 1": "at which each block is read",
        pub reads: usize => "count": "steps of solutions that are read from a block, of all problems together",
        pub left_out: usize => "count": "right answers with a block whose text is not that of the solution",
        pub valid: Estimate => "share": "problems whose steps, as read, each follow from those before, and the answer from the last",
        /// Bootstrap over problems.
        pub follows: Option<Estimate> => "share": "steps read that follow from the step before, as that was read",
        /// As `valid`, with the values read in another problem whose blocks have the same lengths; absent if no two problems have.
        pub shuffled: Option<Estimate> => "share": "valid, with values read in another problem with blocks of the same lengths",
        pub valid_of_several: Option<Estimate> => "share": "valid, of problems with several blocks",
        pub permuted: Option<Estimate> => "share": "the same, with a problem's values moved to other steps",
        /// `valid` minus `shuffled`, paired by problem; bootstrap over groups.
        pub difference: Option<Estimate> => "share": "valid minus shuffled, of the same problems, paired",
        /// Exact sign-flip test of the two over groups, Holm-adjusted over all rows.
        pub p_holm: Option<f64> => AccuracyRow,
    }
}

impl DecodedTraceRow {
    /// The verdict: `derives` if the values read are a derivation more often than those of another problem.
    pub fn verdict(&self) -> &'static str {
        let Some((difference, p)) = self.difference.zip(self.p_holm) else { return "—" };
        verdict(self.identity.n, difference.value, p, ["below its null", Self::DERIVES])
    }

    /// Whether this reader finds derivations in latents.
    pub fn derives(&self) -> bool {
        self.verdict() == Self::DERIVES
    }

    const DERIVES: &str = "derives";
}
