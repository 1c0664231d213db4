//! Pause tokens (Goyal et al. 2024): the answer after M tokens that say nothing. As many steps of computation as latents
//! have, and nothing handed on from one to the next but keys and values.
//!
//! Our reading: the M tokens are one learnt embedding, that of `<latent>`, with no marker around them; the loss is on the
//! answer alone. All else is `no_cot`'s, start and order of the samples too. Theirs are also there in pretraining, which a base of
//! ours has not had.

use anyhow::Result;

use super::Method;
use super::no_cot;
use super::objective::CrossEntropy;
use super::phase::{Context, Phase, SupervisedPhase, Work};
use super::text_cot::BASE;
use crate::latent::{Blocks, Gradient, Reasoning, Source};
use crate::recipe::Recipe;

pub struct Pause;

impl Method for Pause {
    fn name(&self) -> &'static str {
        "pause"
    }

    fn about(&self) -> &'static str {
        "the answer alone, after M pause tokens (Goyal et al. 2024)"
    }

    fn phases(&self, recipe: &Recipe) -> Vec<Phase> {
        let own = Phase { name: "pause", work: Work::Supervised(pause) };
        no_cot::start(recipe).map(|_| BASE).into_iter().chain([own]).collect()
    }
}

fn pause(context: Context<'_>) -> Result<SupervisedPhase<'_>> {
    let Context { recipe, corpus, .. } = context;
    let (m, latent) = (recipe.pause.tokens, corpus.switch.latent);
    let source = Source::FixedEmbedding { token: latent };
    let pauses = vec![latent; m];
    let answer = no_cot::no_cot(context)?;
    Ok(SupervisedPhase {
        row: Box::new(move |step, i| Ok((answer.row)(step, i)?.after(&pauses))),
        objective: Box::new(CrossEntropy { source, gradient: Gradient::Through }),
        reasoning: Reasoning {
            source,
            blocks: Blocks::Pause { steps: m },
            trained_dwell: if m == 0 { vec![] } else { vec![m] },
            ..Reasoning::text("pause")
        },
        ..answer
    })
}
