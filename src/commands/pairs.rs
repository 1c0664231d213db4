//! `intervene pairs PAIRS.jsonl [RUN|MODEL]...`: activation patching between prompts of one's own.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};

use super::causals::Causals;
use super::chosen::Chosen;
use super::device::MachineArgs;
use super::targets::Targets;
use crate::experiments::Settings;
use crate::experiments::pair_patching::{Config, Places};
use crate::recipe::MOST_ROWS;
use crate::schema::{BlockOrigin, Component, HeadPatchRow, PatchMode};

/// Patch activations between prompts of your own: every head, MLP and stream at every position, each way.
///
/// A line of the file is {"clean": "…", "corrupt": "…", "answer": " Mary", "wrong": " John"}: two prompts of as many tokens, as the
/// model reads them (no chat template is put around them), and a single token each that the clean and the corrupt prompt should be
/// followed by. `effect` is the share of the difference of their logits (answer minus wrong, clean minus corrupt) that one patch
/// moves. Where a prompt holds <latent> tokens they are latent steps: '… : <swi> <latent> <latent> </swi> #'.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  intervene pairs pairs.jsonl SmolLM2.gguf --components head\n  \
                        intervene pairs pairs.jsonl runs/micro --phase sft --places name")]
pub(super) struct Pairs {
    /// The pairs, one JSON object a line
    #[arg(value_name = "PAIRS.jsonl")]
    file: PathBuf,
    /// Run folders of `train`, Hugging Face folders, .gguf files or hub ids; fixtures/micro where none is named
    #[arg(value_name = "RUN|MODEL")]
    targets: Vec<String>,
    /// Which phases' checkpoints of a run; by default those of sft, grpo_start and grpo that exist
    #[arg(long, value_delimiter = ',')]
    phase: Vec<String>,
    /// A PEFT LoRA folder over a model (not a run)
    #[arg(long, value_name = "DIR")]
    adapter: Option<PathBuf>,
    /// What is patched: heads' z, what MLPs add, the stream before and after each block. By default all
    #[arg(long, value_enum, value_delimiter = ',')]
    components: Vec<ComponentArg>,
    /// denoise: the clean run's value into the corrupt run; noise: the corrupt run's into the clean one; mean: the mean of all runs
    /// into the clean one. By default the first two
    #[arg(long, value_enum, value_delimiter = ',')]
    modes: Vec<ModeArg>,
    /// number: every position, all prompts having as many tokens; name: where the prompts differ, <swi>, latent steps, </swi> and the
    /// last position
    #[arg(long, value_enum, default_value = "number")]
    places: PlacesArg,
    /// Of the bootstraps
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Where rows and manifest go; by default runs/reports/<name of the run or model>
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Go on with a run that was stopped
    #[arg(long)]
    resume: bool,
    /// Write over rows that were made of more pairs, modes or components, or of other ones under the same name
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    machine: MachineArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ComponentArg {
    Head,
    Mlp,
    Resid,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ModeArg {
    Denoise,
    Noise,
    Mean,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PlacesArg {
    Number,
    Name,
}

impl Pairs {
    /// # Errors
    /// A line that is no pair and a target that cannot be opened, before any work; and as the model's.
    pub fn run(&self) -> Result<()> {
        ensure!(self.file.is_file(), "{}: no such file; name a file of pairs", self.file.display());
        let Self { targets, phase, adapter, seed, out, resume, replace, .. } = self.clone();
        // The pairs are the problems: their hash stands in the manifest. Their answers are tokens, read elsewhere.
        let field = vec!["question=clean".into(), "answer=clean".into()];
        let (data, problems, like) = (Some(self.file.clone()), Some(MOST_ROWS), None);
        let targets = Targets {
            targets,
            phase,
            adapter,
            data,
            field,
            grader: None,
            like,
            problems,
            batch: None,
            seed,
            raw: true,
        };
        let chosen = Chosen::only(HeadPatchRow::PAIRS, out, resume, replace);
        let settings = Settings { pair_patching: self.config(), ..Settings::default() };
        let (blocks, less) = (BlockOrigin::Own, false);
        let causals = Causals { targets: &targets, chosen: &chosen, settings: &settings, blocks, less };
        self.machine.compute(|machine| causals.run(machine))
    }

    fn config(&self) -> Config {
        let component = |component: &ComponentArg| match component {
            ComponentArg::Head => Component::Head,
            ComponentArg::Mlp => Component::Mlp,
            ComponentArg::Resid => Component::Resid,
        };
        let mode = |mode: &ModeArg| match mode {
            ModeArg::Denoise => PatchMode::Denoise,
            ModeArg::Noise => PatchMode::Noise,
            ModeArg::Mean => PatchMode::Mean,
        };
        let places = match self.places {
            PlacesArg::Number => Places::Number,
            PlacesArg::Name => Places::Name,
        };
        let mut config = Config { file: Some(self.file.clone()), places, ..Config::default() };
        if !self.components.is_empty() {
            config.components = self.components.iter().map(component).collect();
        }
        if !self.modes.is_empty() {
            config.modes = self.modes.iter().map(mode).collect();
        }
        config
    }
}
