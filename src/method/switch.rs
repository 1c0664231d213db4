//! SWITCH: base, annotation, phase 1 (where to switch), phase 2 (text in the blocks becomes latents), Switch-GRPO.

use std::collections::BTreeSet;
use std::ops::Range;

use anyhow::{Result, ensure};
use rand::Rng;

use super::batches::{lengths_of, per_epoch, sample_rng, steps_of};
use super::curriculum::{At, latents, staged};
use super::objective::CrossEntropy;
use super::phase::{Context, Export, Panel, Phase, SupervisedPhase, TableRow, Work, stage_name};
use super::schedule::LrSchedule;
use super::stages::{Reset, Stages};
use super::text_cot::BASE;
use super::{Method, Recipe};
use crate::corpus::Row;
use crate::latent::{Blocks, Reasoning, Source};
use crate::recipe::Range::{Count, Each, Positive};
use crate::recipe::{FromStage, Grpo, Latent, POSITIONS, Reward, STEPS, Strongest};
use crate::text::tagging::TaggedLine;

settings! {
    /// The second round of GRPO of `switch_brevity`, from the checkpoint that the first one ended in (the paper's compression-oriented
    /// operating point). What is not named here is as `grpo` says.
    pub struct Settings {
        /// 0: as many as `grpo.steps`.
        pub steps: usize = 0 => Count(0, STEPS),
        pub temperature: f64 = 0.7 => Positive,
        pub k_min: usize = 2 => Count(0, POSITIONS),
        /// Of the term `brevity`.
        pub weight: f64 = 0.1 => Positive,
        /// `grpo.reward.lengths` of this round: the paper's 800 and 2000 tokens are 0.42 and 1.04 of the 1919 that its start needs.
        pub lengths: [f64; 2] = [0.42, 1.04] => Each(&Positive),
    }
}

pub(super) const METHODS: &[Method] = &[
    Method {
        name: "switch",
        about: "switchable latent reasoning: Switch-SFT phases 1 and 2, Switch-GRPO (the paper)",
        phases: &[BASE, ANNOTATE, BOUNDARY, SFT, START, GRPO],
        adjust,
        lacks,
        ..Method::PLAIN
    },
    // The paper's compression-oriented operating point.
    Method {
        name: "switch_brevity",
        about: "SWITCH, then GRPO with a reward for brevity",
        phases: &[BASE, ANNOTATE, BOUNDARY, SFT, START, GRPO, BREVITY],
        adjust,
        lacks,
        check: |recipe| {
            let [lo, hi] = recipe.brevity.lengths;
            ensure!(lo < hi, "brevity.lengths must ascend, found [{lo}, {hi}]");
            Ok(())
        },
    },
    // The same sequential compute, and nothing handed on from step to step but keys and values (method §6).
    Method {
        name: "fixed_embedding",
        about: "SWITCH with the same embedding at every latent: compute without recurrence",
        phases: &[BASE, ANNOTATE, BOUNDARY, FIXED_EMBEDDING],
        lacks,
        ..Method::PLAIN
    },
];

/// The annotation has no checkpoint: what starts from it starts from the checkpoint of `base`.
pub(super) const ANNOTATE: Phase = Phase {
    name: "annotate",
    from: Some(BASE.name),
    reads: &["annotate"],
    row: TableRow::None,
    panel: Panel::None,
    work: Work::Annotate,
};

pub(super) const BOUNDARY: Phase = Phase {
    name: "boundary",
    from: Some(ANNOTATE.name),
    reads: &["boundary"],
    work: Work::Supervised(boundary),
    ..ANNOTATE
};

/// Phase 2. It saves a checkpoint at the end of each stage and where GRPO starts.
pub(super) const SFT: Phase = Phase {
    name: "sft",
    from: Some(BOUNDARY.name),
    reads: &["latent"],
    row: TableRow::Paper("switch_sft"),
    panel: Panel::Text,
    work: Work::Supervised(|context| curriculum_phase(context, "switch", context.recipe.latent.source)),
};

/// The checkpoint inside phase 2 that GRPO starts from, where it does not start from the finished one.
const START: Phase = Phase {
    name: "grpo_start",
    from: Some(SFT.name),
    reads: &["grpo.from_step", "grpo.from_stage", "evaluation"],
    row: TableRow::None,
    panel: Panel::None,
    work: Work::Take(start),
};

pub(super) const GRPO: Phase = Phase {
    name: "grpo",
    from: Some(START.name),
    reads: &["grpo", "evaluation"],
    row: TableRow::Paper("switch_grpo"),
    panel: Panel::Text,
    work: Work::Grpo(|recipe| recipe.grpo.clone()),
};

/// A second round of GRPO that also pays for short answers (`r_brev`).
const BREVITY: Phase = Phase {
    name: "brevity",
    from: Some(GRPO.name),
    reads: &["grpo", "brevity", "evaluation"],
    row: TableRow::None,
    panel: Panel::None,
    work: Work::Grpo(brevity),
};

const FIXED_EMBEDDING: Phase = Phase {
    name: "fixed_embedding",
    row: TableRow::Ours("fixed embedding at the latent steps (control)"),
    panel: Panel::Latent,
    work: Work::Supervised(fixed_embedding),
    ..SFT
};

/// GRPO starts at `grpo.from_step` or `grpo.from_stage`.
fn adjust(recipe: &Recipe, phases: &mut Vec<Phase>) {
    let best = recipe.grpo.from_stage == Some(FromStage::Named(Strongest::Best));
    let from_start = recipe.grpo.from_stage.is_some() || recipe.grpo.from_step > 0;
    phases.retain(|phase| phase.name != START.name || from_start && recipe.grpo.steps > 0);
    for phase in phases {
        if best && phase.name == START.name {
            phase.work = Work::TakeBest;
        }
        if !from_start && phase.name == GRPO.name {
            phase.from = Some(SFT.name);
        }
    }
}

fn lacks(recipe: &Recipe) -> Option<&'static str> {
    recipe.latent.stages.is_empty().then_some("latent.stages must not be empty")
}

/// The checkpoint of phase 2 after the step, or at the end of the stage, that the recipe names.
fn start(recipe: &Recipe) -> String {
    let last = recipe.latent.stages.last().map(|stage| stage.k);
    match recipe.grpo.from_stage {
        Some(FromStage::Stage(k)) if Some(k) != last => {
            let stage = recipe.latent.stages.iter().rfind(|stage| stage.k == k);
            stage_name(k, stage.and_then(|stage| stage.c))
        }
        None => last_step(recipe.grpo.from_step),
        _ => "checkpoint".into(),
    }
}

/// Name, inside phase 2, of the checkpoint after a step of its last stage.
pub(super) fn last_step(step: usize) -> String {
    format!("last_step{step}")
}

/// Steps of the last stage after which a checkpoint is saved.
pub(super) fn kept(recipe: &Recipe) -> BTreeSet<usize> {
    recipe.latent.keep_steps.iter().copied().chain([recipe.grpo.from_step]).filter(|step| *step > 0).collect()
}

/// Phase 1: cross-entropy on tagged responses. Its blocks hold text: it is decoded without switching.
fn boundary(context: Context<'_>) -> Result<SupervisedPhase<'_>> {
    let Context { recipe, corpus, tagged } = context;
    let settings = &recipe.boundary;
    let lengths = lengths_of(&corpus.train);
    let per_epoch = per_epoch(lengths.len(), settings.batch);
    let steps = steps_of(settings.steps, settings.epochs, per_epoch);
    let schedule = LrSchedule { peak: settings.learning_rate, warmup: settings.warmup, cosine_from: 0, steps };
    let row = move |step: usize, i: usize| {
        let mut rng = sample_rng(recipe.seed, "boundary", step, i);
        let plain = rng.random::<f64>() < settings.untagged;
        Ok(row_at(context, i, if plain { &[] } else { &tagged[i].spans }, &[], At::TEXT))
    };
    Ok(SupervisedPhase {
        reasoning: Reasoning::text("switch"),
        ..SupervisedPhase::new("boundary", settings.batch, lengths, schedule, row)
    })
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
    let Latent { learning_rate: peak, warmup, .. } = *settings;
    let schedule = LrSchedule { peak, warmup, cosine_from: last_from, steps };
    let row = move |step: usize, i: usize| {
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
    };
    Ok(SupervisedPhase {
        objective: Box::new(CrossEntropy { source, gradient: settings.gradient }),
        reasoning: finished,
        exports,
        restarts: resets.clone(),
        resets,
        ..SupervisedPhase::new("latent", settings.batch, lengths, schedule, row)
    })
}

fn fixed_embedding(context: Context<'_>) -> Result<SupervisedPhase<'_>> {
    let source = Source::FixedEmbedding { token: context.corpus.switch.latent };
    Ok(SupervisedPhase { exports: vec![], ..curriculum_phase(context, "fixed_embedding", source)? })
}

fn brevity(recipe: &Recipe) -> Grpo {
    let (brevity, grpo) = (&recipe.brevity, &recipe.grpo);
    Grpo {
        steps: if brevity.steps > 0 { brevity.steps } else { grpo.steps },
        temperature: brevity.temperature,
        k_min: brevity.k_min.min(recipe.evaluation.k_cap),
        reward: Reward { brevity: brevity.weight, lengths: Some(brevity.lengths), ..grpo.reward.clone() },
        ..grpo.clone()
    }
}

/// Lengths of the blocks at a point of the curriculum, ascending.
fn dwell(tagged: &[TaggedLine], at: At, settings: &Latent) -> Vec<usize> {
    let spans = tagged.iter().flat_map(|t| t.spans.iter().enumerate());
    let lengths: BTreeSet<usize> = spans.map(|(m, span)| latents(m, span, at, settings)).collect();
    lengths.into_iter().collect()
}

/// Training row `i` with its spans at a point of the curriculum.
fn row_at(context: Context, i: usize, spans: &[Range<usize>], keep_text: &[bool], at: At) -> Row {
    let Context { recipe, corpus, .. } = context;
    let sample = &corpus.train[i];
    let response = staged(&sample.response, spans, keep_text, at, &recipe.latent, corpus.switch);
    Row::new(&sample.prompt, &response, corpus.end)
}
