//! Without thought, a control of Coconut (Hao et al. 2024): its curriculum with c = 0. Steps of the chain go stage by stage, and
//! nothing stands in their place.

use anyhow::Result;

use super::Method;
use super::coconut::curriculum;
use super::phase::{Context, Phase, SupervisedPhase, Work};
use crate::latent::Source;
use crate::recipe::{Coconut, Recipe};

pub(crate) struct CoconutNoThought;

impl Method for CoconutNoThought {
    fn name(&self) -> &'static str {
        "coconut_no_thought"
    }

    fn about(&self) -> &'static str {
        "Coconut's curriculum without latents: steps go and nothing takes their place (control)"
    }

    fn phases(&self, _recipe: &Recipe) -> Vec<Phase> {
        vec![super::text_cot::BASE, Phase { name: "coconut_no_thought", work: Work::Supervised(coconut_no_thought) }]
    }
}

fn coconut_no_thought(context: Context<'_>) -> Result<SupervisedPhase<'_>> {
    let settings = Coconut { c: 0, ..context.recipe.coconut.clone() };
    curriculum(context, "coconut_no_thought", settings, Source::HiddenState)
}
