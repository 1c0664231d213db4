//! A stranger's method: no chain of thought, and a fixed number of latents after the question.

use anyhow::Result;

use super::Method;
use super::curriculum::block;
use super::objective::CrossEntropy;
use super::phase::{Context, Phase, SupervisedPhase, Work};
use super::schedule::LrSchedule;
use crate::corpus::Row;
use crate::latent::{Blocks, Gradient, Reasoning, Source};
use crate::recipe::Recipe;

const LATENTS: usize = 2;

pub struct Dots;

impl Method for Dots {
    fn name(&self) -> &'static str {
        "dots"
    }

    fn about(&self) -> &'static str {
        "the answer alone, after a fixed number of latents"
    }

    fn phases(&self, _recipe: &Recipe) -> Vec<Phase> {
        vec![Phase { name: "dots", work: Work::Supervised(dots) }]
    }
}

fn dots(Context { recipe, corpus, .. }: Context<'_>) -> Result<SupervisedPhase<'_>> {
    let block = block(LATENTS, corpus.switch);
    let row = |sample| Ok(Row::answer_only(sample, corpus.end)?.after(&block));
    let rows: Vec<Row> = corpus.train.iter().map(row).collect::<Result<_>>()?;
    let steps = recipe.base.steps;
    Ok(SupervisedPhase {
        from: None,
        stream: "dots",
        steps,
        batch: recipe.base.batch,
        lengths: rows.iter().map(|row| row.ids.len()).collect(),
        schedule: LrSchedule { peak: recipe.base.learning_rate, warmup: 10, cosine_from: 0, steps },
        row: Box::new(move |_, i| Ok(rows[i].clone())),
        objective: Box::new(CrossEntropy { source: Source::HiddenState, gradient: Gradient::Through }),
        reasoning: Reasoning {
            method: "dots".into(),
            blocks: Blocks::AfterPrompt { steps: LATENTS },
            trained_dwell: vec![LATENTS],
            ..Reasoning::default()
        },
        exports: vec![],
        resets: vec![],
        restarts: vec![],
        annotator_accuracy: 0.0,
    })
}
