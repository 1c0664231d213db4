//! The supervised phases: base, annotation, boundary (phase 1), latent (phase 2) and the controls.

use anyhow::{Context, Result, bail};
use burn::module::Module;
use rand::Rng;

use super::Run;
use super::summary::{PhaseResult, Stage};
use crate::corpus::Row;
use crate::curriculum::staged;
use crate::evaluation::{evaluate, response_entropies};
use crate::latent::{FixedEmbedding, Gradient, HiddenState, LatentSource, Switching};
use crate::model::Decoder;
use crate::progress::Progress;
use crate::store::write_atomic;
use crate::text::Sample;
use crate::text::annotate::annotate as annotate_corpus;
use crate::text::tagging::{Tagged, read_tagged};
use crate::train::batches::{Batches, sample_rng};
use crate::train::sft::{self, Sft};
use crate::train::state::PhaseFolder;
use crate::train::trainer::{LrSchedule, Trainer};

/// Steps of the window over which the annotator's token accuracy is averaged.
const ANNOTATOR_WINDOW: usize = 25;

/// Text chain of thought from nothing; or the pretrained model as it is.
pub(super) fn base(run: &Run) -> Result<Option<PhaseResult>> {
    let folder = PhaseFolder::open(run.path(), "base")?;
    if let Some(done) = folder.result()? {
        return Ok(Some(done));
    }
    let settings = &run.recipe.base;
    let rows: Vec<Row> = run.corpus.train.iter().map(|s| Row::text(s, run.corpus.end)).collect();
    let batches = Batches::new(rows.iter().map(|r| r.ids.len()).collect(), settings.batch, run.recipe.seed, "base");
    let schedule =
        LrSchedule { peak: settings.learning_rate, warmup: settings.warmup, cosine_from: 0, steps: settings.steps };
    let mut trainer = Trainer::new(run.trainable(&run.initial_model()?)?, &run.recipe.optimizer);
    let mut window: Vec<f64> = window_of(&folder)?;
    let wanted = settings.annotator_accuracy;
    let finished = sft::run(
        &run.sft("base", settings.steps, schedule, &HiddenState, Gradient::Through),
        &mut trainer,
        &folder,
        |step| Ok(batches.indices(step).into_iter().map(|i| rows[i].clone()).collect()),
        |_, stats, trainer| {
            window.push(stats.accuracy);
            let recent = &window[window.len().saturating_sub(ANNOTATOR_WINDOW)..];
            let reached = recent.len() == ANNOTATOR_WINDOW
                && recent.iter().sum::<f64>() / recent.len() as f64 >= wanted
                && wanted > 0.0;
            if reached && !folder.path.join("annotator").exists() {
                folder.export("annotator", &trainer.frozen(), run.vocabulary())?;
            }
            Ok(())
        },
    )?;
    if !finished {
        return Ok(None);
    }
    run.close(&folder, "base", &trainer.frozen(), &HiddenState, Switching::Suppressed).map(Some)
}

/// Token accuracies of the steps that will not be run again.
fn window_of(folder: &PhaseFolder) -> Result<Vec<f64>> {
    let rows = sft::metrics_before(folder, folder.step()?)?;
    Ok(rows.iter().filter_map(|row| row.get("token_accuracy")?.as_f64()).collect())
}

/// Scores the corpus with the annotator and tags it.
pub(super) fn annotate(run: &Run) -> Result<Option<()>> {
    let folder = run.path().join("annotate");
    if folder.join("tagged.jsonl").exists() {
        return Ok(Some(()));
    }
    let base = PhaseFolder::open(run.path(), "base")?;
    let name = if base.path.join("annotator").exists() { "annotator" } else { "checkpoint" };
    if run.recipe.base.annotator_accuracy > 0.0 && name == "checkpoint" {
        eprintln!(
            "annotate: the base never reached token accuracy {} over {ANNOTATOR_WINDOW} steps; the finished base scores the corpus",
            run.recipe.base.annotator_accuracy
        );
    }
    let model = base.import(name, &run.device.clone().inner())?;
    let source = format!("base/{name}, {}, seed {}", run.recipe.name, run.recipe.seed);
    let mut progress = Progress::new("annotate", run.corpus.train.len(), 0);
    let annotation = annotate_corpus(
        &run.corpus.train,
        &run.recipe.annotate,
        &folder,
        &source,
        |batch| response_entropies(&model, batch),
        |done, _| progress.update(done, ""),
    )?;
    progress.finish();
    let summary = &annotation.summary;
    eprintln!(
        "annotate: {} spans in {} samples ({} without), threshold {:.3} nats",
        summary.spans, summary.samples, summary.samples_without_span, summary.threshold
    );
    if summary.spans == 0 {
        bail!("annotate: no span was tagged in {} samples; loosen annotate.spans", summary.samples);
    }
    write_atomic(&folder.join("sample.txt"), annotation.excerpt(8).as_bytes())?;
    Ok(Some(()))
}

/// Phase 1: cross-entropy on tagged responses.
pub(super) fn boundary(run: &Run) -> Result<Option<PhaseResult>> {
    let folder = PhaseFolder::open(run.path(), "boundary")?;
    if let Some(done) = folder.result()? {
        return Ok(Some(done));
    }
    let settings = &run.recipe.boundary;
    let tagged = run.tagged()?;
    let batches = run.batches(settings.batch, "boundary");
    let steps = settings.steps.max((settings.epochs * batches.per_epoch() as f64).ceil() as usize);
    let schedule = LrSchedule { peak: settings.learning_rate, warmup: settings.warmup, cosine_from: 0, steps };
    let model = PhaseFolder::open(run.path(), "base")?.import("checkpoint", &run.device.clone().inner())?;
    let mut trainer = Trainer::new(run.trainable(&model)?, &run.recipe.optimizer);
    let rows_of = |step| {
        let row = |i: usize| {
            let mut rng = sample_rng(run.recipe.seed, "boundary", step, i);
            let plain = rng.random::<f64>() < settings.untagged;
            run.row(i, if plain { &[] } else { &tagged[i].spans }, &[], 0)
        };
        Ok(batches.indices(step).into_iter().map(row).collect())
    };
    let sft = run.sft("boundary", steps, schedule, &HiddenState, Gradient::Through);
    if !sft::run(&sft, &mut trainer, &folder, rows_of, |_, _, _| Ok(()))? {
        return Ok(None);
    }
    run.close(&folder, "boundary", &trainer.frozen(), &HiddenState, Switching::Suppressed).map(Some)
}

/// Phase 2: text in the blocks becomes latents, stage by stage. `fixed` is the control without recurrence.
pub(super) fn latent(run: &Run, phase: &'static str, fixed: bool) -> Result<Option<PhaseResult>> {
    let folder = PhaseFolder::open(run.path(), phase)?;
    if let Some(done) = folder.result()? {
        return Ok(Some(done));
    }
    let settings = &run.recipe.latent;
    let tagged = run.tagged()?;
    let batches = run.batches(settings.batch, "latent");
    let mut stages = vec![];
    for stage in &settings.stages {
        let steps = stage.steps.max((stage.epochs * batches.per_epoch() as f64).ceil() as usize);
        stages.extend(std::iter::repeat_n(stage.k, steps));
    }
    let last = settings.stages.last().map_or(0, |s| s.k);
    let last_from = stages.iter().rposition(|&k| k != last).map_or(0, |i| i + 1);
    let schedule = LrSchedule {
        peak: settings.learning_rate,
        warmup: settings.warmup,
        cosine_from: last_from,
        steps: stages.len(),
    };
    let fixed_source = FixedEmbedding { token: run.switch().latent };
    let source: &dyn LatentSource = if fixed { &fixed_source } else { &HiddenState };
    let model = PhaseFolder::open(run.path(), "boundary")?.import("checkpoint", &run.device.clone().inner())?;
    let mut trainer = Trainer::new(run.trainable(&model)?, &run.recipe.optimizer);
    let rows_of = |step: usize| {
        let row = |i: usize| {
            let mut rng = sample_rng(run.recipe.seed, "latent", step, i);
            if rng.random::<f64>() < settings.untagged {
                return run.row(i, &[], &[], 0);
            }
            let smooth = rng.random::<f64>() < settings.smoothing;
            let k = if smooth { rng.random_range(0..=last) } else { stages[step] };
            let keep: Vec<bool> = tagged[i].spans.iter().map(|_| rng.random::<f64>() < settings.keep_text).collect();
            run.row(i, &tagged[i].spans, &keep, k)
        };
        Ok(batches.indices(step).into_iter().map(row).collect())
    };
    let from_step = last_from + run.recipe.grpo.from_step;
    let ends: Vec<usize> = (1..stages.len()).filter(|&i| stages[i] != stages[i - 1]).collect();
    let sft = run.sft(phase, stages.len(), schedule, source, settings.gradient);
    let after = |done: usize, _: &sft::StepStats, trainer: &Trainer| {
        if !fixed && run.recipe.grpo.from_step > 0 && done == from_step {
            folder.export("grpo-start", &trainer.frozen(), run.vocabulary())?;
        }
        if !fixed && ends.contains(&done) {
            folder.export(&format!("stage-{}", stages[done - 1]), &trainer.frozen(), run.vocabulary())?;
        }
        Ok(())
    };
    if !sft::run(&sft, &mut trainer, &folder, rows_of, after)? {
        return Ok(None);
    }
    let mut result = run.measure(&folder, phase, &trainer.frozen(), source, Switching::Free)?;
    if !fixed {
        for k in ends.iter().map(|&at| stages[at - 1]) {
            let model = folder.import(&format!("stage-{k}"), &run.device.clone().inner())?;
            let model = run.recipe.optimizer.dtype.apply(model);
            let (settings, threads) = (&run.recipe.evaluation, run.options.threads);
            let (scores, _) = evaluate(&model, &run.corpus, settings, source, Switching::Free, threads)?;
            result.stages.push(Stage { k, scores });
        }
    }
    folder.finish(&result)?;
    Ok(Some(result))
}

/// The control without a chain of thought: the answer alone, from nothing.
pub(super) fn no_cot(run: &Run) -> Result<Option<PhaseResult>> {
    let folder = PhaseFolder::open(run.path(), "no_cot")?;
    if let Some(done) = folder.result()? {
        return Ok(Some(done));
    }
    let settings = &run.recipe.base;
    let rows: Result<Vec<Row>> = run.corpus.train.iter().map(|s| Row::answer_only(s, run.corpus.end)).collect();
    let rows = rows?;
    let steps = run.recipe.controls.no_cot_steps;
    let batches = Batches::new(rows.iter().map(|r| r.ids.len()).collect(), settings.batch, run.recipe.seed, "no_cot");
    let schedule = LrSchedule { peak: settings.learning_rate, warmup: settings.warmup, cosine_from: 0, steps };
    let mut trainer = Trainer::new(run.trainable(&run.initial_model()?)?, &run.recipe.optimizer);
    let rows_of = |step| Ok(batches.indices(step).into_iter().map(|i| rows[i].clone()).collect());
    let sft = run.sft("no_cot", steps, schedule, &HiddenState, Gradient::Through);
    if !sft::run(&sft, &mut trainer, &folder, rows_of, |_, _, _| Ok(()))? {
        return Ok(None);
    }
    run.close(&folder, "no_cot", &trainer.frozen(), &HiddenState, Switching::Suppressed).map(Some)
}

impl Run {
    fn sft<'a>(
        &self,
        name: &'a str,
        steps: usize,
        schedule: LrSchedule,
        source: &'a dyn LatentSource,
        gradient: Gradient,
    ) -> Sft<'a> {
        Sft {
            name,
            steps,
            schedule,
            latent_token: self.switch().latent,
            source,
            gradient,
            accumulate: self.recipe.optimizer.accumulate,
            threads: self.options.threads,
            checkpoint_every: self.recipe.checkpoint.every,
        }
    }

    fn batches(&self, batch: usize, phase: &str) -> Batches {
        Batches::new(self.corpus.train.iter().map(Sample::length).collect(), batch, self.recipe.seed, phase)
    }

    /// Training row `i` with its spans at stage `k`.
    fn row(&self, i: usize, spans: &[std::ops::Range<usize>], keep_text: &[bool], k: usize) -> Row {
        let sample = &self.corpus.train[i];
        let response = staged(&sample.response, spans, keep_text, k, &self.recipe.latent, self.switch());
        Row::new(&sample.prompt, &response, self.corpus.end)
    }

    /// The annotation, in the order of the corpus.
    fn tagged(&self) -> Result<Vec<Tagged>> {
        let file = self.path().join("annotate").join("tagged.jsonl");
        let tagged = read_tagged(&file)?;
        let same =
            tagged.len() == self.corpus.train.len() && tagged.iter().zip(&self.corpus.train).all(|(t, s)| t.id == s.id);
        if !same {
            bail!("{}: annotates other problems than this run's; delete the folder to annotate again", file.display());
        }
        Ok(tagged)
    }

    /// Exports the finished weights, evaluates them, and marks the phase done.
    fn close(
        &self,
        folder: &PhaseFolder,
        phase: &str,
        model: &Decoder,
        source: &dyn LatentSource,
        switching: Switching,
    ) -> Result<PhaseResult> {
        let result = self.measure(folder, phase, model, source, switching)?;
        folder.finish(&result)?;
        Ok(result)
    }

    /// Exports the finished weights and evaluates them. Until [`PhaseFolder::finish`] a killed run does this again.
    pub(super) fn measure(
        &self,
        folder: &PhaseFolder,
        phase: &str,
        model: &Decoder,
        source: &dyn LatentSource,
        switching: Switching,
    ) -> Result<PhaseResult> {
        let model = model.clone().materialize();
        folder.export("checkpoint", &model, self.vocabulary())?;
        let model = self.recipe.optimizer.dtype.apply(model);
        let free = evaluate(&model, &self.corpus, &self.recipe.evaluation, source, switching, self.options.threads)?;
        let text_only = if switching == Switching::Suppressed {
            None
        } else {
            let off = Switching::Suppressed;
            Some(evaluate(&model, &self.corpus, &self.recipe.evaluation, source, off, self.options.threads)?.0)
        };
        let traces: Result<String> = free.1.iter().map(|t| Ok(serde_json::to_string(t)? + "\n")).collect();
        write_atomic(&folder.path.join("traces.jsonl"), traces?.as_bytes()).context("writing the traces")?;
        let result = PhaseResult {
            phase: phase.to_owned(),
            source: source.name(),
            scores: free.0,
            text_only,
            notes: vec![],
            stages: vec![],
        };
        eprintln!("{phase}: accuracy {}, switch rate {}", result.scores.accuracy, result.scores.switch_rate);
        Ok(result)
    }
}
