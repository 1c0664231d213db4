//! A control of CODI: the same distillation with one learnt embedding, that of `<latent>`, at every latent, and no projection. Nothing
//! is handed on from latent to latent but keys and values.

use anyhow::Result;

use super::Method;
use super::codi::distilled;
use super::phase::{Context, Phase, SupervisedPhase, Work};
use crate::latent::Source;
use crate::recipe::Recipe;

pub(crate) struct CodiFixed;

impl Method for CodiFixed {
    fn name(&self) -> &'static str {
        "codi_fixed"
    }

    fn about(&self) -> &'static str {
        "CODI with the same learnt embedding at every latent: distillation without recurrence (control)"
    }

    fn phases(&self, _recipe: &Recipe) -> Vec<Phase> {
        vec![super::text_cot::BASE, Phase { name: "codi_fixed", work: Work::Supervised(codi_fixed) }]
    }
}

fn codi_fixed(context: Context<'_>) -> Result<SupervisedPhase<'_>> {
    distilled(context, "codi_fixed", Source::FixedEmbedding { token: context.corpus.switch.latent })
}
