//! Rows of groups of problems under one way of decoding: accuracy, cost, length and confidence.

use super::Identity;
use crate::stats::Estimate;

rows! {
    /// One group of problems under one way of decoding (tab:main, tab:sft-vs-rl, tab:per-subject, tab:appendix-sweep).
    pub struct AccuracyRow {
        #[serde(flatten)]
        pub identity: Identity,
        /// `all`, `switched`, `not_switched`, `level:<l>`, `subject:<s>`; `text_only`, `forced`, `k_min:<k>`.
        pub group: String => "name": "group of problems (all, level, subject, own choice) or way of decoding",
        pub k_min: usize => "latent steps": "steps before a block may end",
        pub k_cap: usize => "latent steps": "steps after which a block must end",
        pub accuracy: Estimate => "share": "problems answered right",
        pub latent_accuracy: Option<Estimate> => "share": "right answers among problems with at least one block",
        pub text_accuracy: Option<Estimate> => "share": "right answers among problems without a block",
        pub switch_rate: Estimate => "share": "problems with at least one block",
        pub blocks: Option<Estimate> => "count": "blocks of latent steps in a response",
        pub latent_calls: Option<Estimate> => "latent steps": "of a response",
        pub visible_tokens: Option<Estimate> => "tokens": "of a response, latent steps left out",
        pub truncated: Estimate => "share": "responses that ran out of tokens (of one response: true or false)",
        /// Share of blocks that `k_cap` ended. At 1 the model has no choice between `K_min` and the cap.
        pub forced_exits: Option<Estimate> => "share": "blocks that the cap ended",
        pub difference: Option<Estimate> => "share": "accuracy minus that of the free decode of the same problems, paired",
        pub lost: Option<usize> => "count": "problems right in the normal run and wrong here; of several draws in more than half",
        pub gained: Option<usize> => "count": "problems wrong in the normal run and right here; of several draws in more than half",
        pub p_value: Option<f64> => "probability": "exact test (McNemar; of several draws sign flips) against no difference",
        pub p_holm: Option<f64> => "probability": "the p-value, Holm-adjusted over the comparisons of the experiment, or of one form, mode and gradient where rows have them",
    }
}

rows! {
    /// One group of responses (tab:gen-analysis).
    pub struct ResponseRow {
        #[serde(flatten)]
        pub identity: Identity,
        /// `all`, `correct`, `wrong`, and the last two split by whether they switched: `correct_no_swi`, `correct_swi`, …
        pub group: String => AccuracyRow,
        pub visible_tokens: Option<Estimate> => AccuracyRow,
        pub blocks: Option<Estimate> => AccuracyRow,
        pub latent_calls: Option<Estimate> => AccuracyRow,
        pub switch_rate: Estimate => AccuracyRow,
        /// At the emitted `<swi>`; absent if there is none.
        pub entropy: Option<Estimate> => "nats": "of the next-token distribution; of text without the tokens that cannot be drawn there, `<latent>` and `</swi>`",
        pub p_swi: Option<Estimate> => "probability": "of `<swi>` as the next token, in the distribution of `entropy`",
        pub first_swi: Option<Estimate> => "share": "of the response's visible tokens, those before the first `<swi>`",
        pub truncated: Estimate => AccuracyRow,
    }
}
