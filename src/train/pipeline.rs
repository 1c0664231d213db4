//! Runs the phases of a recipe's methods in order, each from the checkpoint that it names, and writes their results.

mod annotate;
mod inputs;
mod measure;
mod model_card;
mod plan;
mod resume;
mod setup;
mod summary;
mod supervised;
mod switch_grpo;
mod taken;

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use burn::tensor::Device;

pub use setup::Options;
pub use summary::PhaseResult;
pub(super) use summary::{WARNING, rows};
pub use taken::RunBranch;

use crate::corpus::Corpus;
use crate::method::{self, Phase, Recipe, Work};
use crate::progress::{Interruption, say};
use crate::store::Lock;
use crate::train::state::PhaseFolder;

/// A run in progress.
pub struct Run {
    pub recipe: Recipe,
    pub options: Options,
    pub root: PathBuf,
    pub corpus: Corpus,
    /// Autodiff device.
    pub device: Device,
    /// Evaluation batch size.
    together: usize,
    pretrained: Option<setup::PretrainedAdapter>,
    /// Licence of the pretrained model, if its files name one.
    license: Option<String>,
    /// Lock of the run's folder, held by the writing process.
    pub(super) _lock: Option<Lock>,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub enum RunEnd {
    Finished(Vec<PhaseResult>),
    /// The user stopped it; `--resume` continues.
    Stopped,
}

/// Runs the phases of the recipe's methods (or those of `options.only`) and writes the summary of every finished phase in the folder.
///
/// # Errors
/// Invalid settings, before any work; later, a disk that cannot be written or training that diverged.
pub fn run(recipe: Recipe, options: Options) -> Result<RunEnd> {
    let phases = method::phases(&recipe)?;
    for name in &options.only {
        if !phases.iter().any(|phase| phase.name == name) {
            let known: Vec<&str> = phases.iter().map(|phase| phase.name).collect();
            bail!("unknown phase `{name}`: this recipe has {}", known.join(", "));
        }
    }
    let run = setup::open(recipe, options, &phases)?;
    if run.options.dry {
        say("dry run: data, model and settings fit together; nothing was trained or written");
        return Ok(RunEnd::Finished(vec![]));
    }
    let mut results = vec![];
    for phase in &phases {
        if !run.options.only.is_empty() && !run.options.only.iter().any(|name| name == phase.name) {
            if run.root.join(phase.name).is_dir() {
                results.extend(PhaseFolder::open(&run.root, phase.name)?.result::<PhaseResult>()?);
            }
            continue;
        }
        // Every process reads what the previous phase wrote.
        run.options.world.barrier();
        match run.phase(phase) {
            Ok(Some(result)) => results.extend(result),
            Ok(None) => return Ok(RunEnd::Stopped),
            // An interrupted evaluation is discarded: the phase resumes from its last state.
            Err(error) if error.is::<Interruption>() => return Ok(RunEnd::Stopped),
            Err(error) => return Err(error),
        }
    }
    // Annotation alone has no result.
    if run.writes() && !results.is_empty() {
        summary::write(&run, &phases, &results)?;
    }
    Ok(RunEnd::Finished(results))
}

/// Requires that one of these runs has a phase that the recipe can reuse ([`Options::from`]).
///
/// # Errors
/// Why no run can be reused.
pub(super) fn can_branch(recipe: &Recipe, from: &[RunBranch]) -> Result<()> {
    taken::choose_run(recipe, &method::phases(recipe)?, from).map(drop)
}

impl Run {
    /// Whether this process writes the files.
    pub(super) fn writes(&self) -> bool {
        self.options.world.writes()
    }

    /// Runs one phase to its end, or skips it if it is finished. `None` if the user stopped it.
    fn phase(&self, phase: &Phase) -> Result<Option<Option<PhaseResult>>> {
        let from = || phase.from.with_context(|| format!("phase {} starts from no phase", phase.name));
        Ok(match phase.work {
            Work::Supervised(declare) => supervised::run(self, phase, declare)?.map(Some),
            Work::Annotate => {
                if self.writes() {
                    annotate::run(self)?;
                }
                Some(None)
            }
            Work::Take(checkpoint) => {
                let name = checkpoint(&self.recipe);
                let reasoning = |source: &PhaseFolder| source.reasoning(&name);
                Some(Some(measure::measure_if_needed(self, phase.name, from()?, &name, Ok, reasoning)?))
            }
            Work::TakeBest => Some(Some(measure::measure_best(self, phase.name, from()?)?)),
            Work::Decode { model, reasoning } => {
                let model = |weights| model(&self.recipe, weights);
                let reasoning = |_: &PhaseFolder| reasoning(&self.recipe, &self.corpus);
                Some(Some(measure::measure_if_needed(self, phase.name, from()?, "checkpoint", model, reasoning)?))
            }
            Work::Grpo(settings) => switch_grpo::run(self, phase.name, from()?, settings)?.map(Some),
        })
    }
}
