//! Linear probes (tab:probe, fig:layer-probe).

use super::Identity;
use crate::stats::Estimate;

names! {
    /// How rows are chosen and split.
    pub enum Protocol {
        /// Random negatives, one split by row, C = 1.
        Paper = "paper",
        /// Look-alikes as negatives, split by group, control labels.
        Grouped = "grouped",
    }

    /// Negatives of the switch probe.
    pub enum Negatives {
        /// Any response position outside blocks (the paper's protocol).
        Random = "random",
        /// The same token before a clause that is not tagged: the only other places where the annotator could have put a `<swi>`.
        ClauseStart = "clause_start",
        /// For a frontier's nodes: the other nodes of the same graph.
        OtherNodes = "other_nodes",
        /// The same token anywhere: in text whose clauses no task names, a span begins anywhere.
        SameToken = "same_token",
    }

    /// Input of the probe.
    pub enum Features {
        ResidPost = "resid_post",
        /// `hook_embed` (layer 0): token identity as the model sees it.
        Embedding = "embedding",
        /// `resid_post` of the same network with random weights.
        Untrained = "untrained",
        /// One column per token type.
        Token = "token",
        /// One column: the model's own log-margin of `<swi>`.
        Margin = "margin",
        /// `resid_post` with permuted labels (for values: shuffled): the score of the protocol without a signal.
        Shuffled = "shuffled",
    }
}

rows! {
    pub struct ProbeRow {
        #[serde(flatten)]
        pub identity: Identity,
        /// `switch` (the next token is `<swi>`), or `value:s3@2`: the result of the problem's step 3, at latent step 2 of its
        /// block. `s_j` is the block's own step, `s_j-1` the step before. `value:frontier@2`: whether a node is in the frontier of
        /// the block's step; `frontier_unsaid` excludes nodes that the solution writes.
        pub target: String => "name": "what the probe reads: switch, or value:STEP@LATENT, both from 1; STEP s3 is the result of the problem's third step, s_j of the block's own, s_j-1 of the one before",
        pub protocol: Protocol => "name": "paper: random negatives, split by row; grouped: look-alikes, split by group",
        /// Absent for values, where all latents of the step are read, and in rows of older versions.
        pub negatives: Option<Negatives> => "name": "what positives are compared with",
        pub layer: usize => LensRow,
        pub from_last: usize => "layer from 1": "the layer, counted from the last",
        pub features: Features => "name": "what the probe sees: states, or a control",
        pub rows: usize => "count": "rows that the probe is fitted and scored on",
        pub positives: usize => "count": "rows whose label is yes, or of the most frequent value",
        /// Paper: on the test rows, balanced beforehand. Grouped, switch: at the natural share of positives among them and their look-alikes.
        pub accuracy: Option<Estimate> => "share": "rows that the probe labels right",
        /// Paper: equal to the accuracy, because its rows are balanced.
        pub balanced_accuracy: Estimate => "share": "mean of the classes' recalls",
        pub auroc: Option<Estimate> => "share": "area under the ROC curve",
        pub selectivity: Option<Estimate> => "share": "balanced accuracy (for values: accuracy) minus that with permuted labels",
        pub chance: f64 => "share": "balanced accuracy of a probe that reads nothing; for values, accuracy of the commonest",
        /// C of each split, separated by blanks. Absent if C is fixed, for shuffled labels, and in rows of older versions.
        pub chosen_c: Option<String> => "text": "C (inverse strength of regularisation) chosen inside the training rows of each split",
        /// For values: gain in log-likelihood over the value's frequency in other problems. Absent in rows of older versions.
        pub bits: Option<Estimate> => "bits":
            "of values: log-probability of the value by the probe minus that by its share, held out (usable information)",
    }
}

impl ProbeRow {
    /// `target` of a probe for "the next token is `<swi>`".
    pub const SWITCH: &'static str = "switch";

    pub fn is_switch(&self) -> bool {
        self.target == Self::SWITCH
    }

    /// Text of `chosen_c`.
    pub(crate) fn listed(chosen: &[f64]) -> Option<String> {
        Some(chosen.iter().map(f64::to_string).collect::<Vec<_>>().join(" "))
    }

    /// The score that `chance` and `selectivity` refer to: balanced accuracy; for values, accuracy.
    pub fn score(&self) -> Estimate {
        self.accuracy.filter(|_| !self.is_switch()).unwrap_or(self.balanced_accuracy)
    }

    /// The score minus that of a probe without input.
    pub fn beyond_chance(&self) -> Estimate {
        let score = self.score();
        Estimate {
            value: score.value - self.chance,
            low: score.low - self.chance,
            high: score.high - self.chance,
            ..score
        }
    }

    /// The verdict that it can be read: above a probe without input.
    pub fn is_readable(&self) -> bool {
        self.score().is_above(self.chance)
    }

    /// The value and its latent step (`s3@2`) of a probe for an intermediate value.
    pub fn value(&self) -> Option<&str> {
        self.target.strip_prefix("value:")
    }
}
