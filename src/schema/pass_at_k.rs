//! Rows of pass@k: several sampled answers per problem.

use super::Identity;
use crate::stats::Estimate;

rows! {
    /// All problems, k of the samples of each.
    pub struct PassRow {
        #[serde(flatten)]
        pub identity: Identity,
        pub k: usize => "samples": "of each problem, drawn without replacement from all of them",
        pub samples: usize => "count": "answers drawn of each problem",
        pub temperature: f64 => "ratio": "that logits are divided by before an answer is drawn",
        /// The unbiased estimate for each problem; bootstrap over problems.
        pub pass_at_k: Estimate => "share": "chance that one of k samples is right, mean over problems",
        pub majority: Estimate => "share": "problems whose most frequent answer among the first k samples is right",
        pub distinct: Estimate => "count": "distinct answers among the first k samples of a problem",
        pub switch_rate: Estimate => "share": "samples with at least one block",
    }
}
