//! No-CoT: the answer alone, on the checkpoint of `base` as every other method, or on the initial model
//! (`no_cot.from_base = false`). What a model knows without a chain of thought.

use anyhow::Result;

use super::Method;
use super::objective::CrossEntropy;
use super::phase::{Context, Phase, SupervisedPhase, Work};
use super::schedule::LrSchedule;
use super::text_cot::BASE;
use crate::corpus::Row;
use crate::latent::Reasoning;
use crate::recipe::Recipe;

pub struct NoCot;

impl Method for NoCot {
    fn name(&self) -> &'static str {
        "no_cot"
    }

    fn about(&self) -> &'static str {
        "the answer alone, without a chain of thought"
    }

    fn phases(&self, recipe: &Recipe) -> Vec<Phase> {
        let own = Phase { name: "no_cot", work: Work::Supervised(no_cot) };
        start(recipe).map(|_| BASE).into_iter().chain([own]).collect()
    }
}

/// The phase that the answer alone is learnt after.
pub(super) fn start(recipe: &Recipe) -> Option<&'static str> {
    recipe.no_cot.from_base.then_some(BASE.name)
}

pub(super) fn no_cot(Context { recipe, corpus, .. }: Context<'_>) -> Result<SupervisedPhase<'_>> {
    let (base, steps) = (&recipe.base, recipe.no_cot.steps);
    let rows: Vec<Row> = corpus.train.iter().map(|s| Row::answer_only(s, corpus.end)).collect::<Result<_>>()?;
    Ok(SupervisedPhase {
        from: start(recipe),
        stream: "no_cot",
        steps,
        batch: base.batch,
        lengths: rows.iter().map(|r| r.ids.len()).collect(),
        schedule: LrSchedule { peak: base.learning_rate, warmup: base.warmup, cosine_from: 0, steps },
        row: Box::new(move |_, i| Ok(rows[i].clone())),
        objective: Box::new(CrossEntropy::text()),
        reasoning: Reasoning::text("no_cot"),
        exports: vec![],
        resets: vec![],
        restarts: vec![],
        annotator_accuracy: 0.0,
    })
}
