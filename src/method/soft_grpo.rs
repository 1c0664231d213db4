//! SofT-GRPO (Zheng & Lee 2025, arXiv:2511.06411): Soft-Thinking, trained by GRPO. In rollouts each latent is a mixture of the
//! vocabulary drawn with Gumbel noise, whose density enters the ratio as a token's probability does (`latent::gumbel`); what the
//! mixture was is kept, so that the rows are known when they are read again.
//!
//! Left out: their top-p. Of Latent-SFT (mixtures as targets of supervised training) and Latent-GRPO (one-sided noise with margins)
//! nothing is here beyond this source, its density and its gradient. Measured without noise, as Soft-Thinking.

use super::Method;
use super::phase::{Phase, Work};
use super::soft_thinking::SoftThinking;
use crate::recipe::{Grpo, Recipe, ReplayMode};

pub struct SoftGrpo;

impl Method for SoftGrpo {
    fn name(&self) -> &'static str {
        "soft_grpo"
    }

    fn about(&self) -> &'static str {
        "Soft-Thinking, then GRPO through mixtures drawn with Gumbel noise (Zheng & Lee 2025)"
    }

    fn phases(&self, recipe: &Recipe) -> Vec<Phase> {
        let mut phases = SoftThinking.phases(recipe);
        if recipe.grpo.steps > 0 {
            phases.push(Phase { name: "soft_grpo", work: Work::Grpo { from: "soft_thinking", settings: noisy } });
        }
        phases
    }
}

/// Inputs of latents are constants here, and their states choose the next one: all positions have a gradient.
fn noisy(recipe: &Recipe) -> Grpo {
    Grpo { gumbel: recipe.soft_thinking.gumbel, replay: ReplayMode::FullBptt, cosine_every: 0, ..recipe.grpo.clone() }
}
