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

use super::phase::{Panel, Phase, TableRow, Work};
use super::soft_thinking::{self, SOFT_THINKING};
use super::text_cot::BASE;
use super::{Method, Recipe};
use crate::recipe::{Grpo, ReplayMode};

pub(super) const METHODS: &[Method] = &[Method {
    name: "soft_grpo",
    about: "Soft-Thinking, then GRPO through mixtures drawn with Gumbel noise (Zheng & Lee 2025)",
    phases: &[BASE, SOFT_THINKING, SOFT_GRPO],
    ..Method::PLAIN
}];

pub(super) const SOFT_GRPO: Phase = Phase {
    name: "soft_grpo",
    from: Some(SOFT_THINKING.name),
    reads: &["grpo", "soft_thinking.gumbel", "soft_thinking.density", "evaluation"],
    row: TableRow::Ours("Soft-Thinking, then GRPO with Gumbel noise (SofT-GRPO)"),
    panel: Panel::Text,
    work: Work::Grpo(noisy),
};

/// Inputs of latents are constants here, and their states choose the next one: all positions have a gradient.
fn noisy(recipe: &Recipe) -> Grpo {
    let soft_thinking::Settings { gumbel, density, .. } = recipe.soft_thinking;
    let replay = ReplayMode::FullBptt;
    Grpo { gumbel, latent_noise: 0.0, density, replay, cosine_every: 0, ..recipe.grpo.clone() }
}
