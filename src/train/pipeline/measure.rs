//! A phase's finished weights: exported, evaluated, its result kept.

use anyhow::{Context, Result};
use burn::module::Module;

use super::Run;
use super::summary::PhaseResult;
use crate::evaluation::evaluate;
use crate::latent::source::LatentSource;
use crate::latent::{Reasoning, Switching};
use crate::model::Decoder;
use crate::progress::say;
use crate::store::write_atomic;
use crate::train::state::{PhaseFolder, Trained};

/// A phase that takes over a checkpoint inside another: measured like any other.
pub(super) fn take(run: &Run, phase: &str, from: &str) -> Result<PhaseResult> {
    let folder = PhaseFolder::open(run.path(), phase)?;
    if let Some(done) = folder.result()? {
        return Ok(done);
    }
    let source = PhaseFolder::open(run.path(), from)?;
    let model = source.import(phase, &run.device.clone().inner())?;
    let result = run.measure(&folder, phase, &model, &source.reasoning(phase)?, source.trained(phase)?)?;
    folder.finish(&result)?;
    Ok(result)
}

impl Run {
    /// Exports the finished weights and evaluates them. Until [`PhaseFolder::finish`] a killed run does this again.
    pub(super) fn measure(
        &self,
        folder: &PhaseFolder,
        phase: &str,
        model: &Decoder,
        reasoning: &Reasoning,
        trained: Trained,
    ) -> Result<PhaseResult> {
        let model = model.clone().materialize();
        folder.export("checkpoint", &model, self.vocabulary(), reasoning, trained)?;
        let model = self.recipe.optimizer.dtype.apply(model);
        let evaluated = |switching| {
            evaluate(&model, &self.corpus, &self.recipe.evaluation, reasoning, switching, self.options.threads)
        };
        let (scores, traces) = evaluated(Switching::Free)?;
        let text_only = if reasoning.has_blocks() { Some(evaluated(Switching::Suppressed)?.0) } else { None };
        let traces: Result<String> = traces.iter().map(|t| Ok(serde_json::to_string(t)? + "\n")).collect();
        write_atomic(&folder.path.join("traces.jsonl"), traces?.as_bytes()).context("writing the traces")?;
        let result = PhaseResult {
            phase: phase.to_owned(),
            source: reasoning.source.name(),
            trained,
            scores,
            text_only,
            notes: vec![],
            stages: vec![],
        };
        say(&format!("{phase}: accuracy {}, switch rate {}", result.scores.accuracy, result.scores.switch_rate));
        Ok(result)
    }
}
