//! Text-CoT: the full visible chain of thought, from nothing, or the pretrained model as it is. Every other method that
//! thinks in steps starts from it.

use anyhow::Result;

use super::objective::CrossEntropy;
use super::phase::{Context, Panel, Phase, SupervisedPhase, TableRow, Work};
use super::schedule::LrSchedule;
use super::{Method, batches::lengths_of};
use crate::corpus::Row;
use crate::latent::Reasoning;

pub(super) const METHODS: &[Method] =
    &[Method { name: "text_cot", about: "the full visible chain of thought", phases: &[BASE], ..Method::PLAIN }];

pub(super) const BASE: Phase = Phase {
    name: "base",
    from: None,
    reads: &["base"],
    row: TableRow::Paper("text_cot"),
    panel: Panel::Text,
    work: Work::Supervised(base),
};

fn base(Context { recipe, corpus, .. }: Context<'_>) -> Result<SupervisedPhase<'_>> {
    let settings = &recipe.base;
    let (samples, end) = (&corpus.train, corpus.end);
    Ok(SupervisedPhase {
        stream: "base",
        steps: settings.steps,
        batch: settings.batch,
        lengths: lengths_of(samples),
        schedule: LrSchedule {
            peak: settings.learning_rate,
            warmup: settings.warmup,
            cosine_from: 0,
            steps: settings.steps,
        },
        row: Box::new(move |_, i| Ok(Row::text(&samples[i], end))),
        objective: Box::new(CrossEntropy::text()),
        reasoning: Reasoning::text("text_cot"),
        exports: vec![],
        resets: vec![],
        restarts: vec![],
        annotator_accuracy: settings.annotator_accuracy,
    })
}
