//! No-CoT: the answer alone, from nothing or from the pretrained model. What a model knows without a chain of thought.

use anyhow::Result;

use super::Method;
use super::objective::CrossEntropy;
use super::phase::{Context, Phase, Supervised, Work};
use super::schedule::LrSchedule;
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

    fn phases(&self, _recipe: &Recipe) -> Vec<Phase> {
        vec![Phase { name: "no_cot", work: Work::Supervised(no_cot) }]
    }
}

pub(super) fn no_cot(Context { recipe, corpus, .. }: Context<'_>) -> Result<Supervised<'_>> {
    let (base, steps) = (&recipe.base, recipe.no_cot.steps);
    let rows: Vec<Row> = corpus.train.iter().map(|s| Row::answer_only(s, corpus.end)).collect::<Result<_>>()?;
    Ok(Supervised {
        from: None,
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
        annotator_accuracy: 0.0,
    })
}
