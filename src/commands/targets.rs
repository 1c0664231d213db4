//! What a user names to be examined (runs, models) → studies. Shared by `probe` and `intervene`.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use clap::Args;

use crate::machine::Machine;
use crate::recipe::Recipe;
use crate::schema::GRPO_START;
use crate::study::{Study, Subject};

/// What is examined where nothing is named: the committed checkpoints.
pub(crate) const FIXTURE: &str = "fixtures/micro";

/// Which checkpoints, on which problems.
#[derive(Args, Clone, Debug)]
pub struct Targets {
    /// Run folders of `train`, Hugging Face folders, .gguf files or hub ids; fixtures/micro where none is named
    #[arg(value_name = "RUN|MODEL")]
    pub targets: Vec<String>,
    /// Which phases' checkpoints of a run; by default those of sft, grpo_start and grpo that exist
    #[arg(long, value_delimiter = ',')]
    pub phase: Vec<String>,
    /// A PEFT LoRA folder over a model (not a run)
    #[arg(long, value_name = "DIR")]
    pub adapter: Option<PathBuf>,
    /// A file of held-out problems instead of the run's own
    #[arg(long, value_name = "FILE")]
    pub data: Option<PathBuf>,
    /// For a model that is not a run: the preset or recipe that says how it is prompted, tagged and decoded
    #[arg(long, value_name = "PRESET|FILE", default_value = "smollm2-gsm8k")]
    pub like: String,
    /// Held-out problems; by default as many as the run's evaluation has
    #[arg(long, value_name = "N")]
    pub problems: Option<usize>,
    /// Of everything random: bootstraps, splits, draws
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
}

impl Targets {
    /// Opens everything that is named on the machine, before any work.
    ///
    /// # Errors
    /// The first that cannot be opened.
    pub fn open(&self, machine: &Machine) -> Result<Vec<Study>> {
        let Machine { device, dtype, threads } = machine;
        let study = |subject: Subject| Study::new(subject.computing_in(*dtype), self.seed, *threads, device.clone());
        let named = if self.targets.is_empty() { vec![FIXTURE.to_owned()] } else { self.targets.clone() };
        ensure!(
            !self.targets.is_empty() || Path::new(FIXTURE).is_dir(),
            "{FIXTURE} is not here: run in the repository's folder, or name a run folder of `train` or a model"
        );
        let mut studies = vec![];
        for target in &named {
            let run = Path::new(target);
            if run.join("recipe.toml").is_file() || (run.is_dir() && !run.join("config.json").is_file()) {
                ensure!(self.adapter.is_none(), "{target}: --adapter goes over a model, this is a run folder");
                for phase in self.phases(run) {
                    let subject = Subject::of_run(run, &phase, self.data.as_deref(), self.problems, device)?;
                    studies.push(study(subject));
                }
                continue;
            }
            let like = Recipe::like(&self.like)?;
            let (adapter, data) = (self.adapter.as_deref(), self.data.as_deref());
            let subject = Subject::of_model(target, adapter, &like, data, self.problems, device)?;
            studies.push(study(subject));
        }
        let mut names: Vec<_> = studies.iter().map(|study| &study.subject.name).collect();
        names.sort_unstable();
        let twice = names.windows(2).find(|pair| pair[0] == pair[1]);
        ensure!(twice.is_none(), "{} is named twice: its rows would overwrite each other", names[0]);
        Ok(studies)
    }

    fn phases(&self, run: &Path) -> Vec<String> {
        if !self.phase.is_empty() {
            return self.phase.clone();
        }
        let there: Vec<String> = ["sft", GRPO_START, "grpo"]
            .into_iter()
            .filter(|phase| run.join(phase).join("checkpoint").is_dir())
            .map(str::to_owned)
            .collect();
        // None trained: the error names the first.
        if there.is_empty() { vec!["sft".to_owned()] } else { there }
    }
}
