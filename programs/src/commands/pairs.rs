//! `intervene pairs PAIRS.jsonl [RUN|MODEL]...`: activation patching between a user's prompts.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;
use serde::Deserialize;

use super::device::MachineArgs;
use super::runner::Runner;
use super::selection::{OutArgs, Selection};
use super::shard::ShardArgs;
use super::targets::Targets;
use super::{put, setting, spooled};
use switchyard::experiments::Settings;
use switchyard::experiments::pair_patching::{Config, Places};
use switchyard::recipe::MOST_ROWS;
use switchyard::schema::{BlockOrigin, Component, HeadPatchRow, PatchMode};

/// Patch activations between your own prompts: every head, MLP and residual stream at every position, in both directions.
///
/// A line of the file is {"clean": "…", "corrupt": "…", "answer": " Mary", "wrong": " John"}: two prompts with equal numbers of tokens,
/// without a chat template, and the single tokens that should follow the clean and the corrupt prompt. `effect` is the share of the
/// logit difference (answer minus wrong, clean minus corrupt) that one patch restores. <latent> tokens in a prompt are latent
/// steps: '… : <swi> <latent> <latent> </swi> #'.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  intervene pairs pairs.jsonl SmolLM2.gguf --components head\n  \
                        intervene pairs pairs.jsonl runs/micro --phase sft --places name")]
pub(super) struct Pairs {
    #[command(flatten)]
    request: PairsRequest,
    /// Run folders of `train`, Hugging Face folders, .gguf files or hub ids; by default fixtures/micro
    #[arg(value_name = "RUN|MODEL")]
    targets: Vec<String>,
    /// Phases of a run whose checkpoints are used; by default the existing ones of sft, grpo_start and grpo
    #[arg(long, value_delimiter = ',')]
    phase: Vec<String>,
    /// A PEFT LoRA folder over a model (not a run)
    #[arg(long, value_name = "DIR")]
    adapter: Option<PathBuf>,
    /// Seed of the bootstraps
    #[arg(long, default_value_t = 0, value_parser = super::seed)]
    seed: u64,
    #[command(flatten)]
    rows: OutArgs,
    #[command(flatten)]
    shards: ShardArgs,
    #[command(flatten)]
    machine: MachineArgs,
}

/// Patches between the pairs of a file.
#[derive(Args, Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PairsRequest {
    /// The pairs, one JSON object per line
    #[arg(value_name = "PAIRS.jsonl")]
    pub file: PathBuf,
    /// Patched components: heads' z, MLP outputs, the residual stream before and after each layer. By default all
    #[arg(long, value_delimiter = ',', value_name = "head|mlp|resid", value_parser = setting::<Component>)]
    #[serde(default)]
    components: Vec<Component>,
    /// Patched layers, counted from 0; by default all
    #[arg(long, value_delimiter = ',', value_name = "LAYER")]
    #[serde(default)]
    layers: Vec<usize>,
    /// denoise: the clean run's value into the corrupt run; noise: the corrupt run's into the clean one; mean: the mean of all runs
    /// into the clean one. By default the first two
    #[arg(long, value_delimiter = ',', value_name = "denoise|noise|mean", value_parser = setting::<PatchMode>)]
    #[serde(default)]
    modes: Vec<PatchMode>,
    /// number: every position, for prompts of equal length; name: where the prompts differ, <swi>, latent steps, </swi> and the
    /// last position
    #[arg(long, value_name = "number|name", default_value = "number", value_parser = setting::<Places>)]
    places: Option<Places>,
}

impl PairsRequest {
    /// The pairs count as problems: their hash is in the manifest. Their answers are tokens, read elsewhere.
    pub fn fields() -> [String; 2] {
        ["question=clean".into(), "answer=clean".into()]
    }

    /// `file`: the pairs, if not a pipe.
    pub fn config(&self, file: PathBuf) -> Config {
        let mut config = Config { file: Some(file), places: self.places.unwrap_or_default(), ..Config::default() };
        put(&mut config.components, self.components.clone());
        put(&mut config.modes, self.modes.clone());
        config.layers.clone_from(&self.layers);
        config
    }
}

impl Pairs {
    pub fn run(&self) -> Result<()> {
        let Self { request, targets, phase, adapter, seed, rows, shards, .. } = self.clone();
        let (file, field) = (spooled(&request.file)?, PairsRequest::fields().to_vec());
        ensure!(file.exists(), "{}: no such file; name a file of pairs", file.display());
        ensure!(!file.is_dir(), "{}: a folder; name a file of pairs", file.display());
        let (data, problems) = (Some(file.clone()), Some(MOST_ROWS));
        let targets = Targets { targets, phase, adapter, data, field, problems, seed, raw: true, ..Targets::default() };
        let chosen = &Selection { shards, ..Selection::one(HeadPatchRow::PAIRS, &rows) };
        let settings = &Settings { pair_patching: request.config(file), ..Settings::default() };
        let (program, targets, blocks) = ("intervene", &targets, BlockOrigin::Own);
        let runner = Runner { program, targets, chosen, settings, blocks, less: false };
        self.machine.compute(|machine| runner.run(machine).map(drop))
    }
}
