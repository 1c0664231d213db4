//! Settings of the supervised phases: base, boundary (phase 1), latent (phase 2).

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::is_default;
use super::ranges::Range::{self, Count, Each, NotNegative, Positive, Share, Tables, Typed};
use super::ranges::{BATCH, POSITIONS, STEPS};
use crate::latent::{Gradient, Source};

settings! {
    /// Text chain-of-thought training from nothing. `steps = 0` uses the pretrained model unchanged.
    pub struct BaseTraining {
        pub steps: usize = 0 => Count(0, STEPS),
        pub batch: usize = 32 => Count(1, BATCH),
        pub learning_rate: f64 = 1e-3 => Positive,
        pub warmup: usize = 50 => Count(0, STEPS),
        /// The annotator is the model at the first 25-step window with this token accuracy, because a converged model has no
        /// entropy left. 0: the finished model.
        pub annotator_accuracy: f64 = 0.0 => Share,
    }
}

settings! {
    /// Phase 1: learn to write `<swi>…</swi>` around annotated spans.
    pub struct Boundary {
        pub steps: usize = 0 => Count(0, STEPS),
        /// Passes over the data; the larger of this and `steps` counts.
        pub epochs: f64 = 0.0 => NotNegative,
        pub batch: usize = 32 => Count(1, BATCH),
        pub learning_rate: f64 = 1e-4 => Positive,
        pub warmup: usize = 20 => Count(0, STEPS),
        /// Share of samples left without tags.
        pub untagged: f64 = 0.0 => Share,
    }
}

/// What happens to the text of a span that latents do not replace yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Suffix {
    /// The first `min(k, |S|)` tokens are replaced, the rest stays (Coconut's way).
    #[default]
    KeepSuffix,
    /// As `keep_suffix`, but the rest is removed if k > 0.
    Drop,
}

/// Which spans a stage converts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// All spans, up to k tokens of each.
    #[default]
    Parallel,
    /// The leftmost k spans, up to `k_max` tokens of each.
    Sequential,
}

/// One stage of the curriculum.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    pub k: usize,
    #[serde(default)]
    pub steps: usize,
    /// Instead of `steps`: passes over the data.
    #[serde(default)]
    pub epochs: f64,
    /// Phase 2 only: latents per replaced token at this stage, instead of `latent.c`. Stages of the same k may lower it to shorten
    /// blocks whose text is already replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub c: Option<f64>,
}

impl Stage {
    /// The range of each setting, by its key.
    pub(crate) const RANGES: &[(&str, Range)] =
        &[("k", Count(0, POSITIONS)), ("steps", Count(0, STEPS)), ("epochs", NotNegative), ("c", Positive)];

    /// # Errors
    /// A stage with both `steps` and `epochs`, or neither; one that repeats a non-adjacent earlier one and would replace its checkpoint.
    pub(crate) fn check(key: &str, stages: &[Self]) -> Result<()> {
        for (i, stage) in stages.iter().enumerate() {
            ensure!(
                (stage.steps > 0) != (stage.epochs > 0.0),
                "{key}.stages[{i}]: give one of `steps` and `epochs`, found steps = {}, epochs = {}",
                stage.steps,
                stage.epochs
            );
            let same = |other: &Self| (other.k, other.c) == (stage.k, stage.c);
            let again = i > 0 && !same(&stages[i - 1]) && stages[..i].iter().any(same);
            ensure!(!again, "{key}.stages[{i}]: k = {} repeats an earlier stage and replaces its checkpoint", stage.k);
        }
        Ok(())
    }
}

settings! {
    /// Phase 2: text inside `<swi>…</swi>` becomes latents, stage by stage.
    pub struct Latent {
        pub batch: usize = 32 => Count(1, BATCH),
        pub learning_rate: f64 = 1e-4 => Positive,
        pub warmup: usize = 10 => Count(0, STEPS),
        /// Latents per replaced token: n tokens become ⌈c·n⌉ latents. The paper has 2; with 0.2 a clause of five tokens is one latent.
        pub c: f64 = 2.0 => Positive,
        pub k_max: usize = 8 => Count(1, POSITIONS),
        pub suffix: Suffix = Suffix::KeepSuffix => Typed,
        pub schedule: Schedule = Schedule::Parallel => Typed,
        /// Probability that a sample's k is drawn uniformly from 0 to the last stage's.
        pub smoothing: f64 = 0.1 => Share,
        /// Share of tagged spans that keep their text.
        pub keep_text: f64 = 0.0 => Share,
        /// Share of samples left without tags.
        pub untagged: f64 = 0.0 => Share,
        pub gradient: Gradient = Gradient::Through => Typed,
        /// Input at latent positions: the hidden state (the paper), the hidden state scaled to a norm
        /// (`{kind="scaled_state",norm=3}`), or the probability-weighted embeddings of its most probable tokens
        /// (`{kind="vocabulary_mixture",top_k=8,temperature=1}`).
        #[serde(skip_serializing_if = "is_default")]
        pub source: Source = Source::HiddenState => Typed,
        pub stages: Vec<Stage> = vec![] => Tables(Stage::RANGES),
        /// Every stage is a separate training run on the weights of the stage before (the paper's warm start): the optimiser's
        /// moments are reset, and the learning rate warms up and falls as a cosine over the stage. Otherwise moments and rate
        /// continue, and the rate falls only in the last stage.
        #[serde(skip_serializing_if = "is_default")]
        pub fresh_stages: bool = false => Typed,
        /// Steps of the last stage after which a checkpoint is saved: any of them may be `grpo.from_step` of a run that reuses phase 2
        /// (`train --from`).
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub keep_steps: Vec<usize> = vec![] => Each(&Count(1, STEPS)),
    }
}
