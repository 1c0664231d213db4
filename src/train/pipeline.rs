//! The phases of a run in order, each from the checkpoint of the one before; and what is left behind.

mod phases;
mod setup;
mod summary;
mod switch_grpo;

use std::path::PathBuf;

use anyhow::{Result, bail};
use burn::tensor::Device;

pub use setup::Options;
pub use summary::PhaseResult;

use crate::corpus::Corpus;
use crate::recipe::Recipe;

/// The phases in order.
pub const PHASES: [&str; 7] = ["base", "annotate", "boundary", "sft", "grpo", "no_cot", "fixed_embedding"];

/// A run in progress.
pub struct Run {
    pub recipe: Recipe,
    pub options: Options,
    pub root: PathBuf,
    pub corpus: Corpus,
    /// With autodiff.
    pub device: Device,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Ended {
    Finished(Vec<PhaseResult>),
    /// The user stopped it; `--resume` goes on.
    Stopped,
}

/// Runs the recipe's phases (those of `options.only`, if any) and writes the summary.
///
/// # Errors
/// Bad settings before any work; later, a disk that cannot be written or training that diverged.
pub fn run(recipe: Recipe, options: Options) -> Result<Ended> {
    for phase in &options.only {
        if !PHASES.contains(&phase.as_str()) {
            bail!("unknown phase `{phase}`: expected some of {PHASES:?}");
        }
    }
    let run = setup::open(recipe, options)?;
    let mut results = vec![];
    for phase in PHASES {
        if !run.wants(phase) {
            continue;
        }
        match run.phase(phase)? {
            Some(result) => results.extend(result),
            None => return Ok(Ended::Stopped),
        }
    }
    summary::write(&run, &results)?;
    Ok(Ended::Finished(results))
}

impl Run {
    fn wants(&self, phase: &str) -> bool {
        let asked = self.options.only.is_empty() || self.options.only.iter().any(|p| p == phase);
        let exists = match phase {
            "grpo" => self.recipe.grpo.steps > 0,
            "no_cot" => self.recipe.controls.no_cot_steps > 0 && self.recipe.model.is_some(),
            "fixed_embedding" => self.recipe.controls.fixed_embedding,
            "sft" => !self.recipe.latent.stages.is_empty(),
            _ => true,
        };
        asked && exists
    }

    /// Runs one phase to its end, or skips it where it is done. `None` when the user stopped it.
    fn phase(&self, phase: &str) -> Result<Option<Option<PhaseResult>>> {
        Ok(match phase {
            "base" => phases::base(self)?.map(Some),
            "annotate" => phases::annotate(self)?.map(|()| None),
            "boundary" => phases::boundary(self)?.map(Some),
            "sft" => phases::latent(self, "sft", false)?.map(Some),
            "fixed_embedding" => phases::latent(self, "fixed_embedding", true)?.map(Some),
            "grpo" => switch_grpo::run(self)?.map(Some),
            _ => phases::no_cot(self)?.map(Some),
        })
    }
}
