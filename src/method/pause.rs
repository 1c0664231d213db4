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
use super::phase::{Context, Panel, Phase, SupervisedPhase, TableRow, Work};
use super::text_cot::BASE;
use crate::latent::{Blocks, Gradient, Reasoning, Source};
use crate::recipe::Range::Count;
use crate::recipe::{POSITIONS, fits};

settings! {
    /// Pause tokens (Goyal et al. 2024). Start and steps are those of `no_cot`, batch and learning rate those of `base`: the pauses are
    /// the only difference from `no_cot`.
    pub struct Settings {
        /// M: pause tokens after the prompt.
        pub tokens: usize = 10 => Count(0, POSITIONS),
    }
}

pub(super) const METHODS: &[Method] = &[Method {
    name: "pause",
    about: "the answer alone, after M pause tokens (Goyal et al. 2024)",
    phases: &[BASE, PAUSE],
    adjust: no_cot::start,
    lacks: |recipe| (recipe.no_cot.steps == 0).then_some("no_cot.steps must be at least 1"),
    check: |recipe| fits("pause.tokens", recipe.pause.tokens),
}];

pub(super) const PAUSE: Phase = Phase {
    name: "pause",
    from: Some(BASE.name),
    reads: &["pause", "no_cot", "base"],
    row: TableRow::Paper("pause"),
    panel: Panel::Latent,
    work: Work::Supervised(pause),
};

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
