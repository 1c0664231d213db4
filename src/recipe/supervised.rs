//! Settings of the supervised phases: base, boundary (phase 1), latent (phase 2).

use serde::{Deserialize, Serialize};

use crate::latent::Gradient;

/// Text chain-of-thought training from nothing. `steps = 0` takes the pretrained model as it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Base {
    pub steps: usize,
    pub batch: usize,
    pub learning_rate: f64,
    pub warmup: usize,
    /// The annotator is the model at the first 25-step window with this token accuracy: a converged one has no
    /// entropy left. 0 takes the finished model.
    pub annotator_accuracy: f64,
}

impl Default for Base {
    fn default() -> Self {
        Self { steps: 0, batch: 32, learning_rate: 1e-3, warmup: 50, annotator_accuracy: 0.0 }
    }
}

/// The answer alone: batch and learning rate are those of `base`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NoCot {
    pub steps: usize,
    /// Starts from the checkpoint of `base`, as every other method does; otherwise from the initial model. `pause` starts alike.
    pub from_base: bool,
}

impl Default for NoCot {
    fn default() -> Self {
        Self { steps: 0, from_base: true }
    }
}

/// Phase 1: learn to write `<swi>…</swi>` around annotated spans.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Boundary {
    pub steps: usize,
    /// Instead of `steps`: passes over the data.
    pub epochs: f64,
    pub batch: usize,
    pub learning_rate: f64,
    pub warmup: usize,
    /// Share of samples left without tags.
    pub untagged: f64,
}

impl Default for Boundary {
    fn default() -> Self {
        Self { steps: 0, epochs: 0.0, batch: 32, learning_rate: 1e-4, warmup: 20, untagged: 0.0 }
    }
}

/// What happens to the text of a span that latents do not replace yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Suffix {
    /// The first `min(k, |S|)` tokens are replaced, the rest stays (Coconut's way).
    #[default]
    KeepSuffix,
    /// The whole span goes.
    Drop,
}

/// Which spans a stage converts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// All at once, growing.
    #[default]
    Parallel,
    /// The leftmost k, fully.
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
    /// Phase 2 only: latents per replaced token at this stage, instead of `latent.c`. Stages of the same k may have fewer and
    /// fewer: the text is gone, then the block grows shorter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub c: Option<f64>,
}

/// Phase 2: text inside `<swi>…</swi>` becomes latents, stage by stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Latent {
    pub batch: usize,
    pub learning_rate: f64,
    pub warmup: usize,
    /// Latents per replaced token: n tokens become ⌈c·n⌉ latents. The paper has 2; with 0.2 a clause of five tokens is one latent.
    pub c: f64,
    pub k_max: usize,
    pub suffix: Suffix,
    pub schedule: Schedule,
    /// Probability that a sample's k is drawn uniformly instead.
    pub smoothing: f64,
    /// Share of tagged spans that keep their text.
    pub keep_text: f64,
    /// Share of samples left without tags.
    pub untagged: f64,
    pub gradient: Gradient,
    pub stages: Vec<Stage>,
    /// Steps of the last stage whose weights are kept: any of them may be `grpo.from_step` of a run that takes phase 2 over
    /// (`train --from`).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub keep_steps: Vec<usize>,
}

impl Default for Latent {
    fn default() -> Self {
        Self {
            batch: 32,
            learning_rate: 1e-4,
            warmup: 10,
            c: 2.0,
            k_max: 8,
            suffix: Suffix::KeepSuffix,
            schedule: Schedule::Parallel,
            smoothing: 0.1,
            keep_text: 0.0,
            untagged: 0.0,
            gradient: Gradient::Through,
            stages: vec![],
            keep_steps: vec![],
        }
    }
}
