//! Runs a supervised phase from its declaration: samples → steps → exports → evaluation.

use anyhow::{Result, bail};

use super::Run;
use super::summary::{PhaseResult, StageResult, WARNING};
use super::taken;
use crate::latent::{Reasoning, Switching};
use crate::method::batches::Batches;
use crate::method::{Context, Phase, SupervisedPhase};
use crate::schema::METRICS;
use crate::store::read_flat;
use crate::text::tagging::{TaggedLine, read_tagged};
use crate::train::sft::{self, Sft, StepStats};
use crate::train::state::{PhaseFolder, TrainingHistory};
use crate::train::trainer::Trainer;

/// Window of steps over which the annotator's token accuracy is averaged.
pub(super) const ANNOTATOR_WINDOW: usize = 25;

/// Trains a phase to its end; `None` when the user stopped it.
pub(super) fn run(
    run: &Run,
    phase: &Phase,
    declare: for<'a> fn(Context<'a>) -> Result<SupervisedPhase<'a>>,
) -> Result<Option<PhaseResult>> {
    let (phase, from) = (phase.name, phase.checkpoint_from());
    let folder = PhaseFolder::open(&run.root, phase)?;
    if let Some(done) = folder.result()? {
        return Ok(Some(done));
    }
    let tagged = run.tagged()?;
    let what = declare(Context { recipe: &run.recipe, corpus: &run.corpus, tagged: &tagged })?;
    if taken::awaits_measurement(&folder)? {
        return taken_over(run, &folder, phase, &what).map(Some);
    }
    let from = from.map(|phase| PhaseFolder::open(&run.root, phase)).transpose()?;
    let before = from.as_ref().map_or(Ok(TrainingHistory::default()), |from| from.trained("checkpoint"))?;
    let (model, start) = run.start(from.as_ref().map(|from| (from, "checkpoint")))?;
    let heads = what.objective.heads(model.config().hidden_size);
    let model = model.with_new_heads(heads, run.recipe.seed)?;
    let mut trainer = run.trainer(model)?;
    let batches = Batches::new(what.lengths.clone(), what.batch, run.recipe.seed, what.stream);
    let sft = Sft {
        name: phase,
        steps: what.schedule.steps,
        schedule: what.schedule,
        latent_token: run.corpus.switch.latent,
        objective: what.objective.as_ref(),
        resets: &what.resets,
        restarts: &what.restarts,
        accumulate: run.recipe.optimizer.accumulate,
        threads: run.options.threads,
        checkpoint_every: run.recipe.checkpoint.every,
    };
    let rows_of = |step| batches.indices(step).into_iter().map(|i| (what.row)(step, i)).collect();
    // Only the writing process reads the metrics: the file is locked.
    let (mut window, mut positions) = if run.writes() { completed_steps(&folder)? } else { (vec![], 0) };
    let after = |done: usize, stats: &StepStats, trainer: &Trainer| {
        window.push(stats.accuracy);
        positions += stats.positions;
        if !run.writes() {
            return Ok(());
        }
        let trained = before.and(done, positions);
        let export = |name: &str, reasoning: &Reasoning| {
            run.export(&folder, name, (&trainer.decoder(), &start), reasoning, trained)
        };
        if is_accurate(&window, what.annotator_accuracy) && !folder.path.join("annotator").exists() {
            export("annotator", &what.reasoning)?;
        }
        for on_the_way in what.exports.iter().filter(|export| export.after == done) {
            export(&on_the_way.name, on_the_way.reasoning.as_ref().unwrap_or(&what.reasoning))?;
        }
        Ok(())
    };
    if !sft::run(&sft, &mut trainer, &folder, run.options.stop, rows_of, after)? {
        return Ok(None);
    }
    let trained = before.and(what.schedule.steps, positions);
    let mut result = run.measure(&folder, phase, (&trainer.decoder(), &start), &what.reasoning, trained)?;
    result.notes.extend(describe_skips(phase, what.schedule.steps, trainer.health.skipped));
    with_stages(run, &folder, &what, result).map(Some)
}

/// The note for a phase with fewer updates than requested. `base.steps = 0` uses a model as it is.
fn describe_skips(phase: &str, steps: usize, skipped: usize) -> Option<String> {
    let why = "had no finite loss or gradient";
    match (steps, skipped) {
        (0, _) if phase == "base" => None,
        (0, _) => Some(format!("{WARNING}: {phase} learnt nothing: its number of steps is 0")),
        (_, 0) => None,
        (steps, skipped) if skipped >= steps => {
            Some(format!("{WARNING}: {phase} learnt nothing: all of its {steps} steps {why}"))
        }
        (steps, skipped) => Some(format!("{phase}: {skipped} of its {steps} steps {why} and were skipped")),
    }
}

/// Measures a phase of another run with this run's evaluation and ways of reasoning.
fn taken_over(run: &Run, folder: &PhaseFolder, phase: &str, what: &SupervisedPhase) -> Result<PhaseResult> {
    let on_the_way = what.exports.iter().map(|e| (e.name.as_str(), e.reasoning.as_ref().unwrap_or(&what.reasoning)));
    for (name, reasoning) in on_the_way.chain([("annotator", &what.reasoning), ("checkpoint", &what.reasoning)]) {
        if run.writes() && folder.path.join(name).is_dir() {
            folder.write_reasoning(name, reasoning)?;
        }
    }
    run.options.world.barrier();
    let model = folder.import_to_train("checkpoint", run.base_dtype(), &run.device.clone().inner())?;
    let trained = folder.trained("checkpoint")?;
    let mut result = run.measured(folder, phase, &model, &what.reasoning, trained)?;
    let metrics = folder.path.join(format!("{METRICS}.parquet"));
    let rows = if metrics.is_file() { read_flat(&metrics)? } else { vec![] };
    let skipped = rows.last().and_then(|row| row.get("skipped")?.as_u64()).unwrap_or_default();
    result.notes.extend(describe_skips(phase, what.schedule.steps, skipped as usize));
    with_stages(run, folder, what, result)
}

/// Also measures the stages of a curriculum, and marks the phase as finished.
fn with_stages(
    run: &Run,
    folder: &PhaseFolder,
    what: &SupervisedPhase,
    mut result: PhaseResult,
) -> Result<PhaseResult> {
    for export in what.exports.iter().filter(|_| run.recipe.evaluation.stages) {
        let Some(stage) = &export.stage else { continue };
        let model = folder.import(&export.name, run.recipe.optimizer.dtype, &run.device.clone().inner())?;
        let (reasoning, trained) = (folder.reasoning(&export.name)?, folder.trained(&export.name)?);
        let (scores, _) = run.evaluate(&run.corpus, &model, &reasoning, Switching::Free)?;
        result.stages.push(StageResult { k: stage.k, c: stage.c, trained, scores });
    }
    run.finish(folder, &result)?;
    Ok(result)
}

/// Token accuracies of the completed steps, and the positions fed in them.
fn completed_steps(folder: &PhaseFolder) -> Result<(Vec<f64>, usize)> {
    let rows = sft::metrics_before(folder, folder.step()?)?;
    let accuracies = rows.iter().filter_map(|row| row.get("token_accuracy")?.as_f64()).collect();
    Ok((accuracies, sft::sum(&rows, "positions")))
}

/// Whether the last steps were accurate enough for an annotator.
fn is_accurate(window: &[f64], wanted: f64) -> bool {
    let recent = &window[window.len().saturating_sub(ANNOTATOR_WINDOW)..];
    wanted > 0.0 && recent.len() == ANNOTATOR_WINDOW && recent.iter().sum::<f64>() / recent.len() as f64 >= wanted
}

impl Run {
    /// The annotation, in the order of the corpus; empty before there is one.
    fn tagged(&self) -> Result<Vec<TaggedLine>> {
        let file = self.root.join("annotate").join("tagged.jsonl");
        if !file.exists() {
            return Ok(vec![]);
        }
        let tagged = read_tagged(&file)?;
        let same =
            tagged.len() == self.corpus.train.len() && tagged.iter().zip(&self.corpus.train).all(|(t, s)| t.id == s.id);
        if !same {
            bail!("{}: annotates other problems than this run's; delete the folder to annotate again", file.display());
        }
        Ok(tagged)
    }
}
