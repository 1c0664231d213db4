//! Coconut (Hao et al. 2024): one block of latents between question and answer; stage k replaces the first k steps of the
//! chain of thought by c·k latents, each fed with the hidden state before it.
//!
//! As in the public code: the markers and the latents are not learnt, stage 0 is text without a block, the optimiser forgets
//! its state at each stage, and after `max_stage` a last stage drops the text that is left. c counts latents a *step* (the
//! paper's appendix says "per text token"; Coconut's own code and text say per step). Ours: the learning rate falls as a cosine
//! in the last stage, as in SWITCH's phase 2, so that both are trained alike.

use anyhow::{Context as _, Result};
use rand::Rng;

use super::Method;
use super::batches::{lengths_of, per_epoch, sample_rng};
use super::curriculum::block;
use super::objective::CrossEntropy;
use super::phase::{Context, Export, Phase, Supervised, Work};
use super::schedule::LrSchedule;
use super::stages::Stages;
use crate::corpus::{Corpus, Row};
use crate::latent::{Blocks, Reasoning, Source};
use crate::recipe::{self, Recipe, Stage};
use crate::text::Sample;
use crate::text::clauses::steps;

pub struct Coconut;

impl Method for Coconut {
    fn name(&self) -> &'static str {
        "coconut"
    }

    fn about(&self) -> &'static str {
        "one block of hidden states after the question, for more and more steps (Hao et al. 2024)"
    }

    fn phases(&self, _recipe: &Recipe) -> Vec<Phase> {
        vec![super::text_cot::BASE, Phase { name: "coconut", work: Work::Supervised(coconut) }]
    }
}

fn coconut(Context { recipe, corpus, .. }: Context<'_>) -> Result<Supervised<'_>> {
    let settings = &recipe.coconut;
    let lengths = lengths_of(&corpus.train);
    let stages = Stages::new(&settings.stages, per_epoch(lengths.len(), settings.batch));
    let (steps, last) = (stages.steps(), stages.last().map_or(0, |stage| stage.k));
    let chains: Vec<Vec<usize>> = corpus.train.iter().map(step_ends).collect::<Result<_>>()?;
    let export = |(after, stage): (usize, &Stage)| Export::stage(after, stage, reasoning(settings, stage.k));
    let (exports, resets) = (stages.ends().map(export).collect(), stages.ends().map(|(after, _)| after).collect());
    let cosine_from = stages.last_from();
    let row = move |step: usize, i: usize| {
        let mut rng = sample_rng(recipe.seed, "coconut", step, i);
        let smooth = rng.random::<f64>() < settings.smoothing;
        let k = if smooth { rng.random_range(0..=last) } else { stages.at(step).map_or(0, |stage| stage.k) };
        Ok(row_at(corpus, &corpus.train[i], &chains[i], k, settings))
    };
    Ok(Supervised {
        from: Some("base"),
        stream: "coconut",
        steps,
        batch: settings.batch,
        lengths,
        schedule: LrSchedule { peak: settings.learning_rate, warmup: settings.warmup, cosine_from, steps },
        row: Box::new(row),
        objective: Box::new(CrossEntropy { source: Source::HiddenState, gradient: settings.gradient }),
        reasoning: reasoning(settings, last),
        exports,
        resets,
        annotator_accuracy: 0.0,
    })
}

/// How a checkpoint of stage `k` reasons.
fn reasoning(settings: &recipe::Coconut, k: usize) -> Reasoning {
    let steps = latents(settings, k);
    let text = Reasoning::text("coconut");
    if steps == 0 {
        return text;
    }
    Reasoning { blocks: Blocks::AfterPrompt { steps }, trained_dwell: vec![steps], ..text }
}

/// Every sample has as many, however short its chain (`pad_latent_to_max`).
fn latents(settings: &recipe::Coconut, k: usize) -> usize {
    settings.c * k.min(settings.max_stage)
}

/// Where each step of the chain ends in the response.
fn step_ends(sample: &Sample) -> Result<Vec<usize>> {
    let steps = steps(sample).with_context(|| {
        format!("problem {}: no final answer is marked in its solution, so Coconut cannot be trained", sample.id)
    })?;
    Ok(steps.iter().map(|step| step.end).collect())
}

fn row_at(corpus: &Corpus, sample: &Sample, ends: &[usize], k: usize, settings: &recipe::Coconut) -> Row {
    let gone = if k > settings.max_stage { ends.len() } else { k.min(ends.len()) };
    let from = gone.checked_sub(1).map_or(0, |last| ends[last]);
    Row::rest(sample, from, corpus.end).after(&block(latents(settings, k), corpus.switch))
}
