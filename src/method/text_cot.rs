//! Text-CoT: the full visible chain of thought, from nothing, or the pretrained model as it is. Every other method that
//! thinks in steps starts from it.

use anyhow::Result;

use super::objective::CrossEntropy;
use super::phase::{Context, Phase, SupervisedPhase, Work};
use super::schedule::LrSchedule;
use super::{Method, batches::lengths_of};
use crate::corpus::Row;
use crate::latent::Reasoning;
use crate::recipe::Recipe;

pub(crate) struct TextCot;

impl Method for TextCot {
    fn name(&self) -> &'static str {
        "text_cot"
    }

    fn about(&self) -> &'static str {
        "the full visible chain of thought"
    }

    fn phases(&self, _recipe: &Recipe) -> Vec<Phase> {
        vec![BASE]
    }
}

pub(super) const BASE: Phase = Phase { name: "base", work: Work::Supervised(base) };

fn base(Context { recipe, corpus, .. }: Context<'_>) -> Result<SupervisedPhase<'_>> {
    let settings = &recipe.base;
    let (samples, end) = (&corpus.train, corpus.end);
    Ok(SupervisedPhase {
        from: None,
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
