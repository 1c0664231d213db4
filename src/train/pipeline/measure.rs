//! Finishes a phase: exports its weights, evaluates them, stores the result.

use anyhow::{Context, Result};

use super::Run;
use super::setup::PhaseStart;
use super::summary::PhaseResult;
use crate::corpus::Corpus;
use crate::evaluation::{EvaluationSetup, Scores, decode_batches, evaluate, requests, score};
use crate::latent::source::LatentSource;
use crate::latent::{Reasoning, Request, Switching, Trace};
use crate::method::stage_name;
use crate::model::Decoder;
use crate::progress::{Interruption, say};
use crate::recipe::{Evaluation, Lora};
use crate::store::write_atomic;
use crate::train::state::{PhaseFolder, TrainingHistory};

/// A phase that measures the stage checkpoint of another phase with the most correct validation answers, the later of equals.
pub(super) fn measure_best(run: &Run, phase: &str, from: &str) -> Result<PhaseResult> {
    let folder = PhaseFolder::open(&run.root, phase)?;
    if let Some(done) = folder.result()? {
        return Ok(done);
    }
    let source = PhaseFolder::open(&run.root, from)?;
    let done: PhaseResult = source.result()?.with_context(|| {
        format!("{}: phase `{from}` is not finished, and {phase} starts from one of its stages", source.path.display())
    })?;
    let corpus = Corpus::validation(&run.recipe, &run.corpus.vocabulary)?;
    let stages = done.stages.iter().map(|stage| stage_name(stage.k, stage.c));
    let (mut best, mut tried) = (None, vec![]);
    for name in stages.chain(["checkpoint".to_owned()]) {
        let model = source.import(&name, run.recipe.optimizer.dtype, &run.device.clone().inner())?;
        let (scores, _) = run.evaluate(&corpus, &model, &source.reasoning(&name)?, Switching::Free)?;
        tried.push(format!("{name} {:.3}", scores.accuracy.value));
        if best.as_ref().is_none_or(|(_, most)| scores.accuracy.value >= *most) {
            best = Some((name, scores.accuracy.value));
        }
    }
    let (name, _) = best.context("a phase without a checkpoint")?;
    let note = format!(
        "{phase}: {from}/{name}, the best of its stages on {} validation problems ({})",
        corpus.test.len(),
        tried.join(", ")
    );
    say(&note);
    let mut result = measured_as(run, &folder, (phase, from, &name), Ok, |source| source.reasoning(&name))?;
    result.notes.push(note);
    run.finish(&folder, &result)?;
    Ok(result)
}

/// Measures weights `name` of the phase `from`, changed by `begun`, as this phase, unless it is finished.
pub(super) fn measure_if_needed(
    run: &Run,
    phase: &str,
    from: &str,
    name: &str,
    begun: impl Fn(Decoder) -> Result<Decoder>,
    reasoning: impl Fn(&PhaseFolder) -> Result<Reasoning>,
) -> Result<PhaseResult> {
    let folder = PhaseFolder::open(&run.root, phase)?;
    if let Some(done) = folder.result()? {
        return Ok(done);
    }
    let result = measured_as(run, &folder, (phase, from, name), begun, reasoning)?;
    run.finish(&folder, &result)?;
    Ok(result)
}

/// Measures weights `name` of the phase `from` as a phase that is not finished.
fn measured_as(
    run: &Run,
    folder: &PhaseFolder,
    (phase, from, name): (&str, &str, &str),
    begun: impl Fn(Decoder) -> Result<Decoder>,
    reasoning: impl Fn(&PhaseFolder) -> Result<Reasoning>,
) -> Result<PhaseResult> {
    let source = PhaseFolder::open(&run.root, from)?;
    // The weights are also written as this phase's checkpoint, with tables in their stored type.
    let (model, start) = run.start(Some((&source, name)))?;
    let model =
        if run.recipe.lora.as_ref().is_some_and(Lora::trains_tables) { model.with_float_tables()? } else { model };
    let model = begun(model)?;
    run.measure(folder, phase, (&model, &start), &reasoning(&source)?, source.trained(name)?)
}

impl Run {
    /// Marks a phase as finished.
    pub(super) fn finish(&self, folder: &PhaseFolder, result: &PhaseResult) -> Result<()> {
        if self.writes() { folder.finish(result) } else { Ok(()) }
    }

    /// Scores and traces of a corpus' held-out problems: every process decodes its share of the batches.
    pub(super) fn evaluate(
        &self,
        corpus: &Corpus,
        model: &Decoder,
        reasoning: &Reasoning,
        switching: Switching,
    ) -> Result<(Scores, Vec<Trace>)> {
        let evaluation = &Evaluation { batch: self.together, ..self.recipe.evaluation.clone() };
        let (threads, world) = (self.options.threads, self.options.world);
        if world.size == 1 {
            return evaluate(model, corpus, evaluation, reasoning, switching, threads);
        }
        let setup = EvaluationSetup { model, corpus, evaluation, reasoning, switching };
        let requests = requests(corpus)?;
        let batches: Vec<&[Request]> = requests.chunks(evaluation.batch).collect();
        let own = world.own(&batches);
        let decoded = decode_batches(&setup, &own, threads, &|_| Ok(()));
        // If one process was stopped and another was not, all stop.
        if world.any(decoded.as_ref().is_err_and(|error| error.is::<Interruption>())) {
            return Err(Interruption.into());
        }
        let mut traces = decoded?.into_iter();
        let by_batch: Vec<Vec<Trace>> = own.iter().map(|batch| traces.by_ref().take(batch.len()).collect()).collect();
        let traces: Vec<Trace> = world.all(by_batch)?.into_iter().flatten().collect();
        Ok((score(&traces, corpus)?, traces))
    }

    /// Exports the finished weights and evaluates them. A run killed before [`PhaseFolder::finish`] repeats this.
    pub(super) fn measure(
        &self,
        folder: &PhaseFolder,
        phase: &str,
        (model, start): (&Decoder, &PhaseStart),
        reasoning: &Reasoning,
        trained: TrainingHistory,
    ) -> Result<PhaseResult> {
        if self.writes() {
            self.export(folder, "checkpoint", (model, start), reasoning, trained)?;
        }
        let dtype = self.recipe.optimizer.dtype;
        let mut read = None;
        if self.writes_adapter(start) && !dtype.is_stored() {
            // Reading an adapter merges its factors in another order: evaluate what every program will read.
            self.options.world.barrier();
            read = Some(folder.import("checkpoint", dtype, &self.device.clone().inner())?);
        }
        self.measured(folder, phase, read.as_ref().unwrap_or(model), reasoning, trained)
    }

    /// Evaluates exported weights.
    pub(super) fn measured(
        &self,
        folder: &PhaseFolder,
        phase: &str,
        model: &Decoder,
        reasoning: &Reasoning,
        trained: TrainingHistory,
    ) -> Result<PhaseResult> {
        let model = model.merged(self.recipe.optimizer.dtype.dtype());
        let evaluated = |switching| self.evaluate(&self.corpus, &model, reasoning, switching);
        let decoding = &self.recipe.evaluation;
        if let Some(warning) = reasoning.untrained_dwell(decoding.k_min, decoding.k_cap) {
            say(&format!("{phase}: {warning}"));
        }
        let (scores, traces) = evaluated(Switching::Free)?;
        let text_only =
            if reasoning.has_blocks() && decoding.text_only { Some(evaluated(Switching::Suppressed)?.0) } else { None };
        let traces: Result<String> = traces.iter().map(|t| Ok(serde_json::to_string(t)? + "\n")).collect();
        if self.writes() {
            write_atomic(&folder.path.join("traces.jsonl"), traces?.as_bytes()).context("writing the traces")?;
        }
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
