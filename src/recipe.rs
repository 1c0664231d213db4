//! Typed recipes of `train`: a preset or a TOML file, merged over the one that it `extends`, then `--set key=value`. Checked once, before any
//! work.

mod check;
mod evaluation;
mod grpo;
mod optimizer;
pub(crate) mod ranges;
mod reward;
mod supervised;

use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use check::MOST_ROWS;
pub(crate) use check::fits;
pub use evaluation::{CheckpointEvery, Evaluation};
pub use grpo::{FromStage, Grpo, Invalid, KlAnchor, LossForm, LossMean, ReplayMode, Strongest};
pub use optimizer::Optimizer;
use ranges::Range::{Count, Each, Positive, Typed};
pub(crate) use ranges::{BATCH, POSITIONS, Range, STEPS, WIDTH};
pub use reward::{Facts, Reward, TERMS, Terms, UseReward};
pub use supervised::{BaseTraining, Boundary, Latent, Schedule, Stage, Suffix};

use crate::grade::Grader;
use crate::guard::read_text;
use crate::latent::LearntRule;
pub use crate::machine::Compute;
use crate::model::lora::LoraSettings;
use crate::names::suggest;
use crate::tasks::Task;
use crate::text::annotate::AnnotateSettings;
use crate::text::sources::Generations;
use crate::text::{Fields, Template};

/// Name and text of every built-in preset.
pub(crate) const PRESETS: [(&str, &str); 17] = [
    ("smoke", include_str!("presets/smoke.toml")),
    ("micro", include_str!("presets/micro.toml")),
    ("micro-budget", include_str!("presets/micro-budget.toml")),
    ("micro-bptt", include_str!("presets/micro-bptt.toml")),
    ("micro-adaptive", include_str!("presets/micro-adaptive.toml")),
    ("micro-rivals", include_str!("presets/micro-rivals.toml")),
    ("micro-compressed", include_str!("presets/micro-compressed.toml")),
    ("micro-two-latents", include_str!("presets/micro-two-latents.toml")),
    ("micro-paper", include_str!("presets/micro-paper.toml")),
    ("micro-graph", include_str!("presets/micro-graph.toml")),
    ("micro-prosqa", include_str!("presets/micro-prosqa.toml")),
    ("micro-organism", include_str!("presets/micro-organism.toml")),
    ("micro-organism-honest", include_str!("presets/micro-organism-honest.toml")),
    ("smollm2-chains", include_str!("presets/smollm2-chains.toml")),
    ("smollm2-gsm8k", include_str!("presets/smollm2-gsm8k.toml")),
    ("qwen3-8b", include_str!("presets/qwen3-8b.toml")),
    ("switch-released", include_str!("presets/switch-released.toml")),
];

/// The settings of a training run that methods share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shared {
    pub name: String,
    /// Of problems, weights, order of samples and noise. Rollouts of step i draw with `seed` + i + 1, so that GRPO runs of
    /// neighbouring seeds share random numbers between steps.
    pub seed: u64,
    /// What is trained (`--method`), by name, in this order; phases that several share are trained once.
    #[serde(default = "default_methods")]
    pub methods: Vec<String>,
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
    /// PEFT folder or hub id of an adapter over `pretrained` that training goes on from (`--adapter`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
    /// The content-neutral token whose row `<swi>`, `</swi>` and `<latent>` are copied from (method §1); absent: the first that
    /// the vocabulary has of line break, space and stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed_token: Option<String>,
    /// Standard deviation of N(0, σ), from which these rows are drawn instead; the paper reports that they collapse so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed_std: Option<f64>,
    /// LoRA settings for pretrained models; full fine-tuning where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lora: Option<Lora>,
    /// How blocks end that the model opens: the paper's text unless set; preset `switch-released` has the released code's.
    #[serde(default, skip_serializing_if = "is_default")]
    pub blocks: LearntRule,
    #[serde(default)]
    pub optimizer: Optimizer,
    #[serde(default)]
    pub base: BaseTraining,
    #[serde(default)]
    pub annotate: AnnotateSettings,
    #[serde(default)]
    pub boundary: Boundary,
    #[serde(default)]
    pub latent: Latent,
    #[serde(default)]
    pub grpo: Grpo,
    // Serialised after the settings of methods.
    #[serde(default, skip_serializing)]
    pub evaluation: Evaluation,
    #[serde(default, skip_serializing)]
    pub checkpoint: CheckpointEvery,
}

/// Settings of later versions are not written at their default, so that the hash of older runs' settings does not change.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn is_true(value: &bool) -> bool {
    *value
}

fn default_methods() -> Vec<String> {
    vec!["switch".into()]
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
    /// Samples with more tokens (prompt and tagged response) are dropped, and their number is printed.
    #[serde(default = "default_max_tokens")]
    pub max_tokens: usize,
    /// Names of the files' keys (`--field question=frage`), where they are not those of a known format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fields: Option<Fields>,
    /// Names of the keys of `test_path` (`--test-field`), where they are neither those of a known format nor `fields`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test_fields: Option<Fields>,
    /// Which text is the solution where records have `generations` (OpenR1-Math): `solution`, the `first` that is marked right, or `all`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub generations: Generations,
    /// The `rows` training problems are drawn from all of the file by the recipe's seed; otherwise they are its first.
    #[serde(default, skip_serializing_if = "is_default")]
    pub shuffle: bool,
    /// A file of questions that GRPO asks instead of the training problems; they need no solutions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpo_path: Option<PathBuf>,
    /// How answers of a file are graded (`--grader`): `math`, `exact` or `choice`; absent: as each gold answer asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grader: Option<Grader>,
    /// Each question of a file begins with `budget N ;`: its answer may have N visible tokens, at most `evaluation.max_new_tokens`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub budgets: bool,
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

settings! {
    /// The paper's LoRA, by default.
    pub struct Lora {
        pub rank: usize = LoraSettings::default().rank => Count(1, WIDTH),
        pub alpha: f64 = LoraSettings::default().alpha => Positive,
        pub targets: Vec<String> = LoraSettings::default().targets => Each(&Typed),
        pub train_embeddings: bool = LoraSettings::default().train_embeddings => Typed,
        /// Of embedding table and head, train the rows of `<swi>`, `</swi>` and `<latent>` only: an adapter of a few megabytes.
        pub only_new_rows: bool = false => Typed,
    }
}

impl Lora {
    /// Whether the tables of tokens are trained whole.
    pub(crate) fn trains_tables(&self) -> bool {
        self.train_embeddings && !self.only_new_rows
    }
}

impl Shared {
    /// Makes the paths of files of problems and of a local pretrained model absolute.
    pub(crate) fn anchor(&mut self) -> Result<()> {
        let whole =
            |path: &PathBuf| std::path::absolute(path).with_context(|| format!("{}: no absolute path", path.display()));
        let Data { path, test_path, grpo_path, .. } = &mut self.data;
        for path in [path, test_path, grpo_path].into_iter().flatten() {
            *path = whole(path)?;
        }
        let here = self.pretrained.as_ref().map(PathBuf::from).filter(|model| model.exists());
        if let Some(model) = here {
            self.pretrained = Some(whole(&model)?.display().to_string());
        }
        Ok(())
    }

    /// Name of its data set in rows: the task's name, or the file's.
    pub fn dataset(&self) -> String {
        let file = self.data.test_path.as_ref().or(self.data.path.as_ref()).and_then(|path| path.file_stem());
        let file = file.map_or_else(|| "file".into(), |stem| stem.to_string_lossy().into_owned());
        // `gsm8k/test.jsonl` is GSM8K.
        let path = self.data.test_path.as_ref().or(self.data.path.as_ref());
        let folder = path.and_then(|path| path.parent()?.file_name()).map(|name| name.to_string_lossy().into_owned());
        let file = folder.filter(|_| ["test", "train", "validation", "valid"].contains(&file.as_str())).unwrap_or(file);
        self.task.as_ref().map_or(file, |task| task.name().to_owned())
    }
}

/// Reads a preset (or a TOML file, if `source` ends in `.toml`), then applies the overrides.
///
/// # Errors
/// An unknown preset, an unknown or ill-typed key.
pub(crate) fn read<R: DeserializeOwned>(source: &str, overrides: &[String]) -> Result<R> {
    let mut table = table(source, &mut vec![])?;
    drop_replaced(&mut table, overrides);
    // toml ends its messages with empty lines.
    let recipe = |table: &toml::Table| {
        toml::Value::Table(table.clone()).try_into::<R>().map_err(|error| anyhow!("{}", error.to_string().trim_end()))
    };
    let mut made = recipe(&table);
    // The override that made it invalid: type errors have no key.
    let mut at = None;
    for pair in overrides {
        set(&mut table, pair)?;
        let before = made.is_ok();
        made = recipe(&table);
        at = if before && made.is_err() { Some(pair) } else { at.filter(|_| made.is_err()) };
    }
    made.with_context(|| match at {
        Some(pair) => format!("--set {pair}: invalid setting"),
        None => format!("{source}: invalid recipe"),
    })
}

/// Removes the generated task if the overrides name a file of problems, and the dimensions of a new model if they name a pretrained one.
/// A part that the overrides also set stays, and the check refuses both together.
fn drop_replaced(table: &mut toml::Table, overrides: &[String]) {
    let sets = |key: &str| {
        overrides.iter().any(|pair| {
            let rest = pair.trim_start().strip_prefix(key);
            rest.is_some_and(|rest| rest.starts_with('=') || rest.starts_with('.') || rest.starts_with(' '))
        })
    };
    for (given, replaced) in [("data.path", "task"), ("pretrained", "model")] {
        if sets(given) && !sets(replaced) {
            table.remove(replaced);
        }
    }
}

/// Reads a recipe's table, merged over the one that it `extends`. `under`: recipes that are being read, to detect a cycle.
fn table(source: &str, under: &mut Vec<String>) -> Result<toml::Table> {
    under.push(source.to_owned());
    let text = if source.ends_with(".toml") {
        read_text(source).with_context(|| format!("{source}: cannot read the recipe"))?
    } else {
        let names: Vec<&str> = PRESETS.iter().map(|(name, _)| *name).collect();
        let found = PRESETS.iter().find(|(name, _)| *name == source);
        found
            .with_context(|| {
                let meant = suggest(source, names.iter().copied());
                format!("unknown preset `{source}`{meant}: expected one of {names:?} or a .toml file")
            })?
            .1
            .into()
    };
    let mut own: toml::Table = text.parse().with_context(|| format!("{source}: not TOML"))?;
    let Some(base) = own.remove("extends") else { return Ok(own) };
    let base = base.as_str().with_context(|| format!("{source}: `extends` names a preset or a .toml file"))?;
    ensure!(!under.iter().any(|name| name == base), "{source}: extends {base}, which extends it");
    let mut whole = table(base, under).with_context(|| format!("{source}: extends {base}"))?;
    lay(own, &mut whole);
    Ok(whole)
}

/// Merges settings over others, table by table.
fn lay(over: toml::Table, under: &mut toml::Table) {
    for (key, value) in over {
        match (under.get_mut(&key), value) {
            (Some(toml::Value::Table(under)), toml::Value::Table(over)) => lay(over, under),
            (_, value) => drop(under.insert(key, value)),
        }
    }
}

/// Applies `a.b.c=value`; the value is TOML, or a bare string.
pub(crate) fn set(table: &mut toml::Table, pair: &str) -> Result<()> {
    let Some((path, value)) = pair.split_once('=') else {
        bail!("--set {pair}: write key=value, for example base.steps=200");
    };
    let parsed = format!("value = {value}").parse::<toml::Table>().unwrap_or_default();
    ensure!(parsed.len() <= 1, "--set {pair}: one setting at a time; name the others with --set too");
    let parsed = parsed.into_iter().next().map(|(_, value)| value);
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
