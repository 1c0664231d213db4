//! SWITCH: base, annotation, phase 1 (where to switch), phase 2 (text in the blocks becomes latents), Switch-GRPO.

use std::collections::BTreeSet;
use std::ops::Range;

use anyhow::{Result, ensure};
use rand::Rng;

use super::Method;
use super::batches::{lengths_of, per_epoch, sample_rng};
use super::curriculum::{At, latents, staged};
use super::objective::CrossEntropy;
use super::phase::{Context, Export, Phase, RowAt, SupervisedPhase, Work, stage_name};
use super::schedule::LrSchedule;
use super::stages::Stages;
use super::text_cot::BASE;
use crate::corpus::Row;
use crate::latent::{Blocks, Reasoning, Source};
use crate::recipe::{FromStage, Latent, Recipe, Reset, Strongest};
use crate::text::tagging::TaggedLine;

pub struct Switch;

impl Method for Switch {
    fn name(&self) -> &'static str {
        "switch"
    }

    fn about(&self) -> &'static str {
        "switchable latent reasoning: Switch-SFT phases 1 and 2, Switch-GRPO (the paper)"
    }

    fn phases(&self, recipe: &Recipe) -> Vec<Phase> {
        let mut phases = up_to_boundary();
        if recipe.latent.stages.is_empty() {
            return phases;
        }
        phases.push(Phase { name: "sft", work: Work::Supervised(sft) });
        if recipe.grpo.steps > 0 {
            let start = match recipe.grpo.from_stage {
                Some(FromStage::Named(Strongest::Best)) => Some(Work::TakeBest { from: "sft" }),
                Some(FromStage::Stage(_)) => Some(Work::Take { from: "sft", checkpoint: from_stage }),
                None if recipe.grpo.from_step > 0 => {
                    Some(Work::Take { from: "sft", checkpoint: |recipe| last_step(recipe.grpo.from_step) })
                }
                None => None,
            };
            let from = if start.is_some() { GRPO_START } else { "sft" };
            phases.extend(start.map(|work| Phase { name: GRPO_START, work }));
            phases.push(Phase { name: "grpo", work: Work::Grpo { from, settings: |recipe| recipe.grpo.clone() } });
        }
        phases
    }
}

/// The checkpoint inside phase 2 that GRPO starts from, where it does not start from the finished one.
const GRPO_START: &str = "grpo_start";

/// The checkpoint of phase 2 at the end of the stage that the recipe names.
fn from_stage(recipe: &Recipe) -> String {
    let last = recipe.latent.stages.last().map(|stage| stage.k);
    match recipe.grpo.from_stage {
        Some(FromStage::Stage(k)) if Some(k) != last => stage_name(k, None),
        _ => "checkpoint".into(),
    }
}

/// The name inside phase 2 of what it had learnt after a step of its last stage.
pub(super) fn last_step(step: usize) -> String {
    format!("last_step{step}")
}

/// The steps of the last stage whose weights are kept.
pub(super) fn kept(recipe: &Recipe) -> BTreeSet<usize> {
    recipe.latent.keep_steps.iter().copied().chain([recipe.grpo.from_step]).filter(|step| *step > 0).collect()
}

/// What SWITCH and its control share.
pub(super) fn up_to_boundary() -> Vec<Phase> {
    vec![
        BASE,
        Phase { name: "annotate", work: Work::Annotate },
        Phase { name: "boundary", work: Work::Supervised(boundary) },
    ]
}

/// Phase 1: cross-entropy on tagged responses. Its blocks hold text: it is decoded without switching.
fn boundary(context: Context<'_>) -> Result<SupervisedPhase<'_>> {
    let Context { recipe, corpus, tagged } = context;
    let settings = &recipe.boundary;
    let lengths = lengths_of(&corpus.train);
    let per_epoch = per_epoch(lengths.len(), settings.batch);
    let steps = settings.steps.max((settings.epochs * per_epoch as f64).ceil() as usize);
    let row: RowAt = Box::new(move |step, i| {
        let mut rng = sample_rng(recipe.seed, "boundary", step, i);
        let plain = rng.random::<f64>() < settings.untagged;
        Ok(row_at(context, i, if plain { &[] } else { &tagged[i].spans }, &[], At::TEXT))
    });
    Ok(SupervisedPhase {
        from: Some("base"),
        stream: "boundary",
        steps,
        batch: settings.batch,
        lengths,
        schedule: LrSchedule { peak: settings.learning_rate, warmup: settings.warmup, cosine_from: 0, steps },
        row,
        objective: Box::new(CrossEntropy::text()),
        reasoning: Reasoning::text("switch"),
        exports: vec![],
        resets: vec![],
        restarts: vec![],
        annotator_accuracy: 0.0,
    })
}

/// Phase 2, and what is kept of it: the end of each stage, and where GRPO starts.
fn sft(context: Context<'_>) -> Result<SupervisedPhase<'_>> {
    curriculum_phase(context, "switch", Source::HiddenState)
}

/// Phase 2 with this source at latent positions: text in the blocks becomes latents, stage by stage.
pub(super) fn curriculum_phase<'a>(context: Context<'a>, method: &str, source: Source) -> Result<SupervisedPhase<'a>> {
    let Context { recipe, corpus, tagged } = context;
    let settings = &recipe.latent;
    let lengths = lengths_of(&corpus.train);
    let stages = Stages::new(&settings.stages, per_epoch(lengths.len(), settings.batch));
    let (steps, last, last_from) = (stages.steps(), At::stage(stages.last(), settings), stages.last_from());
    let reasoning = |at: At| Reasoning {
        method: method.into(),
        source,
        blocks: Blocks::Learnt(recipe.blocks),
        k_min: recipe.evaluation.k_min,
        k_cap: recipe.evaluation.k_cap,
        trained_dwell: dwell(tagged, at, settings),
    };
    let export = |(after, stage)| Export::stage(after, stage, reasoning(At::stage(Some(stage), settings)));
    let mut exports: Vec<Export> = stages.ends().map(export).collect();
    for step in kept(recipe) {
        let after = last_from + step;
        ensure!(
            after <= steps,
            "grpo.from_step and latent.keep_steps name steps of the last stage, which has {}; found {step}",
            steps - last_from
        );
        exports.push(Export { after, name: last_step(step), stage: None, reasoning: None });
    }
    let finished = reasoning(last);
    let resets = stages.resets(if settings.fresh_stages { Reset::Stage } else { Reset::Never });
    let row: RowAt = Box::new(move |step, i| {
        let mut rng = sample_rng(recipe.seed, "latent", step, i);
        if rng.random::<f64>() < settings.untagged {
            return Ok(row_at(context, i, &[], &[], At::TEXT));
        }
        let smooth = rng.random::<f64>() < settings.smoothing;
        let mut at = At::stage(stages.at(step), settings);
        if smooth {
            at.k = rng.random_range(0..=last.k);
        }
        let keep: Vec<bool> = tagged[i].spans.iter().map(|_| rng.random::<f64>() < settings.keep_text).collect();
        Ok(row_at(context, i, &tagged[i].spans, &keep, at))
    });
    Ok(SupervisedPhase {
        from: Some("boundary"),
        stream: "latent",
        steps,
        batch: settings.batch,
        lengths,
        schedule: LrSchedule { peak: settings.learning_rate, warmup: settings.warmup, cosine_from: last_from, steps },
        row,
        objective: Box::new(CrossEntropy { source, gradient: settings.gradient }),
        reasoning: finished,
        exports,
        restarts: resets.clone(),
        resets,
        annotator_accuracy: 0.0,
    })
}

/// Lengths of the blocks at a point of the curriculum, ascending.
fn dwell(tagged: &[TaggedLine], at: At, settings: &Latent) -> Vec<usize> {
    let lengths: BTreeSet<usize> = tagged.iter().flat_map(|t| &t.spans).map(|s| latents(s, at, settings)).collect();
    lengths.into_iter().collect()
}

/// Training row `i` with its spans at a point of the curriculum.
fn row_at(context: Context, i: usize, spans: &[Range<usize>], keep_text: &[bool], at: At) -> Row {
    let Context { recipe, corpus, .. } = context;
    let sample = &corpus.train[i];
    let response = staged(&sample.response, spans, keep_text, at, &recipe.latent, corpus.switch);
    Row::new(&sample.prompt, &response, corpus.end)
}
