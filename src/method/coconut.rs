//! Coconut (Hao et al. 2024): one block of latents between question and answer; stage k replaces the first k steps of the
//! chain of thought by c·k latents, each fed with the hidden state before it.
//!
//! As in the public code (facebookresearch/coconut): the markers and the latents are not learnt, the optimiser forgets its state at
//! each pass over the data (`coconut.reset`), the stages are laid out by passes (three a stage, those of GSM8K from stage 1 on, where
//! `coconut.stages` names none), and after `max_stage` a last stage drops the text that is left. c counts latents a *step* (the
//! paper's appendix says "per text token"; Coconut's own code and text say per step).
//!
//! It differs in this: stage 0 is text without a block (theirs has both markers with nothing between them); a pass leaves out its odd
//! rest; of their checkpoints the one of best validation accuracy is not sought. `coconut.cosine` is ours, as in SWITCH's phase 2.
//! `coconut.mixing` is not in their code either: their authors say that data of other stages were mixed in (issue 29), and the only
//! rule there is `uniform_prob` (`coconut.smoothing`).

use anyhow::{Context as _, Result};
use rand::Rng;

use super::Method;
use super::batches::{lengths_of, per_epoch, sample_rng};
use super::curriculum::block;
use super::objective::CrossEntropy;
use super::phase::{Context, Export, Phase, SupervisedPhase, Work};
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

fn coconut(context: Context<'_>) -> Result<SupervisedPhase<'_>> {
    curriculum(context, "coconut", context.recipe.coconut.clone(), Source::HiddenState)
}

/// The curriculum under these settings, with this fed at every latent. Samples and stages are drawn as `coconut` draws them.
pub(super) fn curriculum<'a>(
    Context { recipe, corpus, .. }: Context<'a>,
    method: &'static str,
    settings: recipe::Coconut,
    source: Source,
) -> Result<SupervisedPhase<'a>> {
    let lengths = lengths_of(&corpus.train);
    let stages = Stages::new(&settings.schedule(), per_epoch(lengths.len(), settings.batch));
    let (steps, last) = (stages.steps(), stages.last().map_or(0, |stage| stage.k));
    let chains: Vec<Vec<usize>> = corpus.train.iter().map(step_ends).collect::<Result<_>>()?;
    let reasoning = |k| reasoning(&settings, k, method, source);
    let export = |(after, stage): (usize, &Stage)| Export::stage(after, stage, reasoning(stage.k));
    let exports = stages.ends().map(export).collect();
    let resets = stages.resets(settings.reset);
    let cosine_from = if settings.cosine { stages.last_from() } else { steps };
    let (reasoning, drawn) = (reasoning(last), settings.clone());
    let row = move |step: usize, i: usize| {
        let mut rng = sample_rng(recipe.seed, "coconut", step, i);
        let scheduled = stages.at(step).map_or(0, |stage| stage.k);
        let k = stage_of(&mut rng, scheduled, chains[i].len(), &drawn);
        Ok(row_at(corpus, &corpus.train[i], &chains[i], k, &drawn))
    };
    Ok(SupervisedPhase {
        from: Some("base"),
        stream: "coconut",
        steps,
        batch: settings.batch,
        lengths,
        schedule: LrSchedule { peak: settings.learning_rate, warmup: settings.warmup, cosine_from, steps },
        row: Box::new(row),
        objective: Box::new(CrossEntropy { source, gradient: settings.gradient }),
        reasoning,
        exports,
        resets,
        restarts: vec![],
        annotator_accuracy: 0.0,
    })
}

/// The stage that a sample with a chain of so many steps is learnt at.
fn stage_of(rng: &mut impl Rng, scheduled: usize, steps: usize, settings: &recipe::Coconut) -> usize {
    if rng.random::<f64>() < settings.smoothing {
        return rng.random_range(0..=steps);
    }
    if settings.mixing > 0.0 && scheduled > 0 && rng.random::<f64>() < settings.mixing {
        // Stage i has i + 1 of scheduled · (scheduled + 1) / 2 parts.
        let mut part = rng.random_range(0..scheduled * (scheduled + 1) / 2);
        return (0..scheduled)
            .find(|&i| {
                let here = part <= i;
                part = part.saturating_sub(i + 1);
                here
            })
            .unwrap_or(0);
    }
    scheduled
}

/// How a checkpoint of stage `k` reasons.
fn reasoning(settings: &recipe::Coconut, k: usize, method: &str, source: Source) -> Reasoning {
    let steps = latents(settings, k);
    let text = Reasoning::text(method);
    if steps == 0 {
        return text;
    }
    Reasoning { source, blocks: Blocks::AfterPrompt { steps }, trained_dwell: vec![steps], ..text }
}

/// Every sample has as many, however short its chain (`pad_latent_to_max`).
fn latents(settings: &recipe::Coconut, k: usize) -> usize {
    settings.c * if settings.all_latents { settings.max_stage } else { k.min(settings.max_stage) }
}

/// Where each step of the chain ends in the response.
pub(super) fn step_ends(sample: &Sample) -> Result<Vec<usize>> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::keyed;

    fn shares(scheduled: usize, settings: &recipe::Coconut) -> Vec<f64> {
        let mut counts = vec![0.0; 6];
        for i in 0..20_000 {
            counts[stage_of(&mut keyed([7, 0, 0, i]), scheduled, 4, settings)] += 1.0 / 20_000.0;
        }
        counts
    }

    fn near(found: &[f64], expected: &[f64]) {
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 0.015), "{found:?}, not {expected:?}");
    }

    #[test]
    fn stages_are_mixed_in_proportion_and_smoothed_over_a_samples_own_steps() {
        let plain = recipe::Coconut::default();
        near(&shares(3, &plain), &[0.0, 0.0, 0.0, 1.0, 0.0, 0.0]);
        let mixed = recipe::Coconut { mixing: 0.6, ..plain.clone() };
        near(&shares(3, &mixed), &[0.1, 0.2, 0.3, 0.4, 0.0, 0.0]);
        near(&shares(0, &mixed), &[1.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        let smooth = recipe::Coconut { smoothing: 0.5, ..plain };
        near(&shares(3, &smooth), &[0.1, 0.1, 0.1, 0.6, 0.1, 0.0]);
    }

    /// The public run of GSM8K: three passes for each of the stages 1 to 3, and what is left of 25 less the three of stage 0.
    #[test]
    fn stages_without_a_name_are_laid_out_by_passes() {
        let all = |settings: recipe::Coconut| settings.schedule().iter().map(|s| (s.k, s.epochs)).collect::<Vec<_>>();
        assert_eq!(all(recipe::Coconut::default()), [(1, 3.0), (2, 3.0), (3, 3.0), (4, 13.0)]);
        let short = recipe::Coconut { epochs: 4.0, ..recipe::Coconut::default() };
        assert_eq!(all(short), [(1, 3.0), (2, 1.0)]);
        assert!(all(recipe::Coconut { epochs: 0.0, ..recipe::Coconut::default() }).is_empty());
    }
}
