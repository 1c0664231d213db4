//! Typed recipes: what `train` runs. A preset, then a TOML file, then `--set key=value`; checked once, before any work.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use burn::tensor::{Device, FloatDType};
use serde::{Deserialize, Serialize};

use crate::latent::Gradient;
use crate::model::Decoder;
use crate::model::lora::LoraSettings;
use crate::tasks::Task;
use crate::text::Template;
use crate::text::annotate::AnnotateSettings;

/// Name and text of every built-in preset.
pub const PRESETS: [(&str, &str); 4] = [
    ("smoke", include_str!("presets/smoke.toml")),
    ("micro", include_str!("presets/micro.toml")),
    ("smollm2-gsm8k", include_str!("presets/smollm2-gsm8k.toml")),
    ("qwen3-8b", include_str!("presets/qwen3-8b.toml")),
];

/// Everything a training run depends on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    pub name: String,
    pub seed: u64,
    /// A generated task; otherwise `data.path` names a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<Task>,
    pub data: Data,
    /// Dimensions of a model trained from nothing; otherwise `pretrained` names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelSize>,
    /// Folder, `.gguf` or hub id of a pretrained model (`--model`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pretrained: Option<String>,
    /// LoRA settings for pretrained models; full fine-tuning where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lora: Option<Lora>,
    #[serde(default)]
    pub optimizer: Optimizer,
    #[serde(default)]
    pub base: Base,
    #[serde(default)]
    pub annotate: AnnotateSettings,
    #[serde(default)]
    pub boundary: Boundary,
    #[serde(default)]
    pub latent: Latent,
    #[serde(default)]
    pub grpo: Grpo,
    #[serde(default)]
    pub controls: Controls,
    #[serde(default)]
    pub evaluation: Evaluation,
    #[serde(default)]
    pub checkpoint: CheckpointEvery,
}

/// Problems to train and test on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Data {
    /// Training problems; an epoch is one pass over them.
    pub rows: usize,
    /// A file of problems (`--data`); its last `test_rows` are held out unless `test_path` names another file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test_path: Option<PathBuf>,
    #[serde(default)]
    pub test_rows: usize,
    pub template: Template,
    /// Samples with more tokens (prompt and tagged response) are dropped, counted and said.
    #[serde(default = "default_max_tokens")]
    pub max_tokens: usize,
}

fn default_max_tokens() -> usize {
    512
}

/// Shape of a Qwen3-style decoder trained from nothing; the vocabulary follows from the task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSize {
    pub hidden_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: usize,
    pub head_dim: usize,
    pub intermediate_size: usize,
    #[serde(default = "default_rope_theta")]
    pub rope_theta: f64,
    #[serde(default = "yes")]
    pub tie_word_embeddings: bool,
}

fn default_rope_theta() -> f64 {
    10_000.0
}

fn yes() -> bool {
    true
}

/// The paper's LoRA, by default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Lora {
    pub rank: usize,
    pub alpha: f64,
    pub targets: Vec<String>,
    pub train_embeddings: bool,
}

impl Default for Lora {
    fn default() -> Self {
        let LoraSettings { rank, alpha, targets, train_embeddings, .. } = LoraSettings::default();
        Self { rank, alpha, targets, train_embeddings }
    }
}

/// AdamW (Loshchilov & Hutter 2019) with PyTorch's defaults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Optimizer {
    pub beta_1: f64,
    pub beta_2: f64,
    pub epsilon: f64,
    pub weight_decay: f64,
    /// Largest global gradient norm.
    pub clip: f64,
    /// Micro-batches summed into one step.
    pub accumulate: usize,
    /// What forward and backward are computed in (`--dtype`); weights and optimiser state are always f32.
    pub dtype: Compute,
    /// Recompute cheap activations in the backward pass instead of keeping them: less memory, more time.
    pub gradient_checkpointing: bool,
}

/// The float type of a computation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Compute {
    #[default]
    F32,
    Bf16,
}

impl Compute {
    fn dtype(self) -> FloatDType {
        match self {
            Compute::F32 => FloatDType::F32,
            Compute::Bf16 => FloatDType::BF16,
        }
    }

    /// # Errors
    /// A device that does not compute in this type.
    pub fn check(self, device: &Device) -> Result<()> {
        ensure!(
            device.supports_dtype(self.dtype()),
            "optimizer.dtype (--dtype): {device:?} does not compute in {self:?}; use f32"
        );
        Ok(())
    }

    /// The decoder computing in this type; f32 is what it is in already.
    pub fn apply(self, model: Decoder) -> Decoder {
        if self == Compute::F32 { model } else { model.cast(self.dtype()) }
    }
}

impl Default for Optimizer {
    fn default() -> Self {
        Self {
            beta_1: 0.9,
            beta_2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.01,
            clip: 1.0,
            accumulate: 1,
            dtype: Compute::F32,
            gradient_checkpointing: false,
        }
    }
}

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
}

/// Phase 2: text inside `<swi>…</swi>` becomes latents, stage by stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Latent {
    pub batch: usize,
    pub learning_rate: f64,
    pub warmup: usize,
    /// Latents per replaced token.
    pub c: usize,
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
}

impl Default for Latent {
    fn default() -> Self {
        Self {
            batch: 32,
            learning_rate: 1e-4,
            warmup: 10,
            c: 2,
            k_max: 8,
            suffix: Suffix::KeepSuffix,
            schedule: Schedule::Parallel,
            smoothing: 0.1,
            keep_text: 0.0,
            untagged: 0.0,
            gradient: Gradient::Through,
            stages: vec![],
        }
    }
}

/// How `r_use` pays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UseReward {
    /// `r_corr · 1[well formed] · 1[used]` (the paper's formula).
    #[default]
    Signed,
    /// `1[correct] · 1[well formed] · 1[used]` (the paper's prose).
    Gated,
}

/// Weights of the reward terms (the paper's appendix).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Reward {
    pub correct: f64,
    pub format: f64,
    #[serde(rename = "use")]
    pub usage: f64,
    pub use_form: UseReward,
    pub brevity: f64,
    pub t_lo: usize,
    pub t_hi: usize,
}

impl Default for Reward {
    fn default() -> Self {
        Self { correct: 1.0, format: 0.1, usage: 0.1, use_form: UseReward::Signed, brevity: 0.0, t_lo: 800, t_hi: 2000 }
    }
}

/// How a rollout is replayed for its gradient.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplayMode {
    #[default]
    Segmented,
    TextGraph,
    FullBptt,
}

impl ReplayMode {
    pub fn gradient(self) -> Gradient {
        match self {
            ReplayMode::Segmented => Gradient::Segmented,
            ReplayMode::TextGraph => Gradient::Frozen,
            ReplayMode::FullBptt => Gradient::Through,
        }
    }
}

/// What the KL term is measured against.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Anchor {
    /// The policy that made the rollouts (the paper).
    #[default]
    Old,
    /// The policy at the start of the phase.
    Reference,
}

/// Phase 3: Switch-GRPO.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Grpo {
    pub steps: usize,
    /// Start from the phase-2 weights after this step of the last stage; 0 takes the finished phase.
    pub from_step: usize,
    pub questions: usize,
    pub group: usize,
    pub inner_epochs: usize,
    pub learning_rate: f64,
    pub temperature: f64,
    pub k_min: usize,
    pub clip: f64,
    pub beta: f64,
    pub anchor: Anchor,
    /// The paper's 1e-8 is always added; a floor keeps the smallest term from being scale-free (recipe notes).
    pub std_floor: f64,
    pub replay: ReplayMode,
    /// Adds `log(1 − p_exit)` for each choice to stay in a block.
    pub continue_term: bool,
    /// Rollouts with more positions are dropped from their group.
    pub max_positions: usize,
    /// Steps between probes of the cosine between the replay modes' gradients; 0 never.
    pub cosine_every: usize,
    /// Steps of the window that watches for reward hacking; 0 never stops early.
    pub early_stop_window: usize,
    pub reward: Reward,
}

impl Default for Grpo {
    fn default() -> Self {
        Self {
            steps: 0,
            from_step: 0,
            questions: 1,
            group: 5,
            inner_epochs: 3,
            learning_rate: 1e-6,
            temperature: 0.5,
            k_min: 4,
            clip: 0.2,
            beta: 1e-3,
            anchor: Anchor::Old,
            std_floor: 0.0,
            replay: ReplayMode::Segmented,
            continue_term: false,
            max_positions: 8192,
            cosine_every: 20,
            early_stop_window: 0,
            reward: Reward::default(),
        }
    }
}

/// Controls trained by the same command.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Controls {
    /// Answer-only training from nothing; 0 skips it.
    pub no_cot_steps: usize,
    /// Phase 2 again with a fixed embedding in place of the recurrence.
    pub fixed_embedding: bool,
}

/// Held-out evaluation after each phase: greedy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Evaluation {
    pub problems: usize,
    pub k_min: usize,
    pub k_cap: usize,
    pub max_new_tokens: usize,
    pub batch: usize,
}

impl Default for Evaluation {
    fn default() -> Self {
        Self { problems: 500, k_min: 4, k_cap: 16, max_new_tokens: 256, batch: 100 }
    }
}

/// How often a run can be resumed from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointEvery {
    /// Optimiser steps.
    pub every: usize,
}

impl Default for CheckpointEvery {
    fn default() -> Self {
        Self { every: 100 }
    }
}

impl Recipe {
    /// Resolves a preset (or a TOML file, where `source` ends in `.toml`) and the overrides.
    ///
    /// # Errors
    /// An unknown preset, an unknown or ill-typed key, and contradictory settings, each by name.
    pub fn resolve(source: &str, overrides: &[String]) -> Result<Self> {
        let recipe = Self::read(source, overrides)?;
        recipe.check()?;
        Ok(recipe)
    }

    /// A preset or file whose data and model the caller will name: it says how a model is prompted, tagged and decoded.
    ///
    /// # Errors
    /// An unknown preset, an unknown or ill-typed key.
    pub fn like(source: &str) -> Result<Self> {
        Self::read(source, &[])
    }

    fn read(source: &str, overrides: &[String]) -> Result<Self> {
        let text = if source.ends_with(".toml") {
            std::fs::read_to_string(source).with_context(|| format!("{source}: cannot read the recipe"))?
        } else {
            let names: Vec<&str> = PRESETS.iter().map(|(name, _)| *name).collect();
            let found = PRESETS.iter().find(|(name, _)| *name == source);
            found
                .with_context(|| format!("unknown preset `{source}`: expected one of {names:?} or a .toml file"))?
                .1
                .into()
        };
        let mut table: toml::Table = text.parse().with_context(|| format!("{source}: not TOML"))?;
        for pair in overrides {
            set(&mut table, pair)?;
        }
        toml::Value::Table(table).try_into().with_context(|| format!("{source}: invalid recipe"))
    }

    /// # Errors
    /// Settings that contradict each other, by name.
    pub fn check(&self) -> Result<()> {
        ensure!(
            self.task.is_some() != self.data.path.is_some(),
            "exactly one of `task` and `data.path` (--data FILE) must be given, found {}",
            if self.task.is_some() { "both" } else { "neither" }
        );
        ensure!(
            self.model.is_some() != self.pretrained.is_some(),
            "exactly one of `model` (train from nothing) and `pretrained` (--model) must be given, found {}",
            if self.model.is_some() { "both" } else { "neither" }
        );
        ensure!(
            self.pretrained.is_some() || self.base.steps > 0,
            "base.steps must be above 0 without a pretrained model"
        );
        ensure!(self.data.rows > 0, "data.rows must be at least 1, found 0");
        if let Some(task) = &self.task {
            task.check()?;
        }
        self.annotate.check()?;
        for (key, share) in [
            ("boundary.untagged", self.boundary.untagged),
            ("latent.untagged", self.latent.untagged),
            ("latent.keep_text", self.latent.keep_text),
            ("latent.smoothing", self.latent.smoothing),
            ("base.annotator_accuracy", self.base.annotator_accuracy),
        ] {
            ensure!((0.0..=1.0).contains(&share), "{key} must be between 0 and 1, found {share}");
        }
        for (key, n) in [
            ("base.batch", self.base.batch),
            ("boundary.batch", self.boundary.batch),
            ("latent.batch", self.latent.batch),
            ("latent.c", self.latent.c),
            ("latent.k_max", self.latent.k_max),
            ("grpo.questions", self.grpo.questions),
            ("grpo.inner_epochs", self.grpo.inner_epochs),
            ("optimizer.accumulate", self.optimizer.accumulate),
            ("evaluation.problems", self.evaluation.problems),
            ("evaluation.batch", self.evaluation.batch),
            ("evaluation.max_new_tokens", self.evaluation.max_new_tokens),
            ("evaluation.k_cap", self.evaluation.k_cap),
            ("checkpoint.every", self.checkpoint.every),
        ] {
            ensure!(n > 0, "{key} must be at least 1, found 0");
        }
        ensure!(
            self.grpo.group >= 2,
            "grpo.group must be at least 2 (a group's std needs two), found {}",
            self.grpo.group
        );
        ensure!(
            self.evaluation.k_min <= self.evaluation.k_cap && self.grpo.k_min <= self.evaluation.k_cap,
            "evaluation.k_min and grpo.k_min must not exceed evaluation.k_cap ({})",
            self.evaluation.k_cap
        );
        ensure!(self.grpo.temperature > 0.0, "grpo.temperature must be above 0, found {}", self.grpo.temperature);
        for (key, lr) in [
            ("base.learning_rate", self.base.learning_rate),
            ("boundary.learning_rate", self.boundary.learning_rate),
            ("latent.learning_rate", self.latent.learning_rate),
            ("grpo.learning_rate", self.grpo.learning_rate),
        ] {
            ensure!(lr.is_finite() && lr > 0.0, "{key} must be a positive number, found {lr}");
        }
        for (i, stage) in self.latent.stages.iter().enumerate() {
            ensure!(
                (stage.steps > 0) != (stage.epochs > 0.0),
                "latent.stages[{i}]: give one of `steps` and `epochs`, found steps = {}, epochs = {}",
                stage.steps,
                stage.epochs
            );
        }
        let spans = &self.annotate.spans;
        ensure!(
            spans.latents_per_token == self.latent.c && spans.max_stage == self.latent.k_max,
            "annotate.spans (latents_per_token {}, max_stage {}) contradicts latent (c {}, k_max {})",
            spans.latents_per_token,
            spans.max_stage,
            self.latent.c,
            self.latent.k_max
        );
        Ok(())
    }
}

/// Applies `a.b.c=value`; the value is TOML, or a bare string.
fn set(table: &mut toml::Table, pair: &str) -> Result<()> {
    let Some((path, value)) = pair.split_once('=') else {
        bail!("--set {pair}: write key=value, for example base.steps=200");
    };
    let parsed = format!("value = {value}").parse::<toml::Table>().ok().and_then(|mut t| t.remove("value"));
    let value = parsed.unwrap_or_else(|| toml::Value::String(value.to_owned()));
    let keys: Vec<&str> = path.trim().split('.').collect();
    let Some((last, parents)) = keys.split_last() else { bail!("--set {pair}: empty key") };
    let mut at = table;
    for key in parents {
        let entry = at.entry((*key).to_owned()).or_insert_with(|| toml::Value::Table(toml::Table::new()));
        at = entry.as_table_mut().with_context(|| format!("--set {pair}: `{key}` is not a table"))?;
    }
    at.insert((*last).to_owned(), value);
    Ok(())
}
