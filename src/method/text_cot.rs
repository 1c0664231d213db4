//! Text-CoT: the full visible chain of thought, from nothing, or the pretrained model as it is. Every other method that
//! thinks in steps starts from it.

use anyhow::Result;

use super::phase::{Context, Panel, Phase, SupervisedPhase, TableRow, Work};
use super::schedule::LrSchedule;
use super::{Method, batches::lengths_of};
use crate::corpus::Row;
use crate::latent::Reasoning;
use crate::recipe::BaseTraining;

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
    let BaseTraining { steps, batch, learning_rate: peak, warmup, annotator_accuracy } = recipe.base;
    let (samples, end) = (&corpus.train, corpus.end);
    let schedule = LrSchedule { peak, warmup, cosine_from: 0, steps };
    let row = move |_, i: usize| Ok(Row::text(&samples[i], end));
    Ok(SupervisedPhase {
        reasoning: Reasoning::text("text_cot"),
        annotator_accuracy,
        ..SupervisedPhase::new("base", batch, lengths_of(samples), schedule, row)
    })
}
