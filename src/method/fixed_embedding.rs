//! The control without recurrence: SWITCH's phase 2 with the embedding of `<latent>` at every latent position. The same
//! sequential compute, and nothing handed on from step to step but keys and values (method §6).

use anyhow::Result;

use super::Method;
use super::phase::{Context, Phase, SupervisedPhase, Work};
use super::switch::{self, curriculum_phase};
use crate::latent::Source;
use crate::recipe::Recipe;

pub(crate) struct FixedEmbedding;

impl Method for FixedEmbedding {
    fn name(&self) -> &'static str {
        "fixed_embedding"
    }

    fn about(&self) -> &'static str {
        "SWITCH with the same embedding at every latent: compute without recurrence"
    }

    fn phases(&self, recipe: &Recipe) -> Vec<Phase> {
        let mut phases = switch::up_to_boundary();
        if !recipe.latent.stages.is_empty() {
            phases.push(Phase { name: "fixed_embedding", work: Work::Supervised(fixed_embedding) });
        }
        phases
    }
}

fn fixed_embedding(context: Context<'_>) -> Result<SupervisedPhase<'_>> {
    let source = Source::FixedEmbedding { token: context.corpus.switch.latent };
    Ok(SupervisedPhase { exports: vec![], ..curriculum_phase(context, "fixed_embedding", source)? })
}
