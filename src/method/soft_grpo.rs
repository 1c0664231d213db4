//! SofT-GRPO (Zheng & Lee 2025, arXiv:2511.06411): Soft-Thinking, trained by GRPO. In rollouts each latent is a mixture of the
//! vocabulary drawn with Gumbel noise, whose density enters the ratio as a token's probability does (`latent::gumbel`); what the
//! mixture was is kept, so that the rows are known when they are read again.
//!
//! As in the public code (zz1358m/SofT-GRPO-master): `soft_thinking.density = "mean"`, the noise of rollouts, thinking that ends by the
//! token that weighs most in the mixture, and the log-probability of the token that ends it. `"sum"` is the equation of the paper.
//!
//! It differs in this: a mixture's tokens that top-p cuts are left out of it (theirs keep a weight of about 1e-6); noise that the
//! clamp cut always has a gradient, where theirs has one as its rounding falls; temperature, top-k, top-p, group and rate are the
//! recipe's ([`Grpo`]; theirs: temperature 1, top-k 5, top-p .95, τ .1, groups of 8, 1e-6, β 1e-3); the answer is drawn from the full
//! softmax; measured without noise, as Soft-Thinking (theirs: with noise at τ .5, 32 samples).

use super::Method;
use super::phase::{Phase, Work};
use super::soft_thinking::SoftThinking;
use crate::recipe::{self, Grpo, Recipe, ReplayMode};

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
    let recipe::SoftThinking { gumbel, density, .. } = recipe.soft_thinking;
    Grpo { gumbel, density, replay: ReplayMode::FullBptt, cosine_every: 0, ..recipe.grpo.clone() }
}
