//! Latent-GRPO (Deng et al. 2026, arXiv:2604.27998): the checkpoint of Latent-SFT, trained by GRPO through superpositions that are drawn.
//! Three things keep that stable:
//!
//! - *One-sided noise.* Gumbel noise on log-probabilities never lowers one, so that the density of a mixture grows with each of them
//!   and a positive advantage raises all its tokens ([`Density::OneSided`]).
//! - *Masking of invalid samples.* A rollout that ran into a limit teaches nothing (`latent_grpo.invalid`).
//! - *Selection of a first token.* Of several right rollouts of a group one alone, the most probable, teaches the first latent; their mean
//!   would be a mixture that nobody drew. The wrong ones do not teach it either (`latent_grpo.first`).
//!
//! As in the public code (DJC-GO-SOLO/Latent-GRPO; `invalid` "mask" is that of its run on GSM8K, "exclude" its option): noise clamped to
//! [−1.5, 3] and raised by 1.5; log-probabilities of latents at temperature 1 and of text at that of the rollouts; the tokens of a
//! mixture are the k largest with their noise; its log-density is the mean over them of `−z − exp(−z)`, as if the noise were not raised;
//! thinking ends where `</swi>` is the most probable token or weighs most, and its log-probability counts; probable is who has the
//! highest mean log-probability over the whole response; masked decisions stay in the number that the loss is divided by; no KL term;
//! embeddings are not trained, nor a head that is tied to them; measured without noise, as Latent-SFT.
//!
//! It differs in this:
//! - Where a policy has moved so far that noise would have been negative, the density has its own gradient, `1 − exp(−z)` (theirs: for
//!   advantages of at most 0 `exp(z) − 1`, which has the same sign).
//! - Invalid is also who was led out of a block at its limit (theirs: one limit of all tokens). It is never the most probable right one.
//! - `exclude` skips a group with fewer than two valid rollouts (theirs: its one has its reward as advantage).
//! - Groups without variance are skipped, not drawn anew (theirs: up to 50 times); the surrogate of a negative advantage has no upper bound
//!   of its own (theirs: at a ratio of 3); all rollouts of a step are one batch (theirs: four).
//! - The floor of the deviation, group, rate, temperature and reward are the recipe's (theirs: 1e-6 added, 8, 1e-6, .6, 1 where it is
//!   right); the answer is drawn from the full softmax (theirs: top-p .95 and top-k 30).
//! - The norm that is clipped counts the gradients of the embeddings too.

use super::latent_sft::LATENT_SFT;
use super::phase::{Panel, Phase, TableRow, Work};
use super::text_cot::BASE;
use super::{Method, Recipe};
use crate::latent::gumbel::Density;
use crate::model::checkpoint::EMBED;
use crate::recipe::Range::{NotNegative, Positive, PositiveShare, Typed};
use crate::recipe::{Grpo, Invalid, ReplayMode};

settings! {
    /// Latent-GRPO (Deng et al. 2026): the checkpoint of `latent_sft`, trained by GRPO. Steps, group, rate, temperature and reward are those
    /// of `grpo`.
    pub struct Settings {
        /// τ, the temperature of the Gumbel-softmax that weighs the tokens of a mixture.
        pub gumbel: f64 = 1.0 => Positive,
        /// A mixture's tokens are drawn from those that have this probability together.
        pub top_p: f64 = 0.95 => PositiveShare,
        /// What rollouts that ran into a limit teach: `mask` (nothing), `exclude` (nothing, and the others are compared without them) or
        /// `learn` (as the others).
        pub invalid: Invalid = Invalid::Mask => Typed,
        /// In a group with right answers, the first latent is trained on the most probable of these alone.
        pub first: bool = true => Typed,
        /// The embeddings are not trained, nor a head that is tied to them.
        pub freeze_embeddings: bool = true => Typed,
        /// Weight of the KL term; instead of `grpo.beta`.
        pub beta: f64 = 0.0 => NotNegative,
    }
}

pub(super) const METHODS: &[Method] = &[Method {
    name: "latent_grpo",
    about: "Latent-SFT, then GRPO through superpositions drawn with one-sided noise (Deng et al. 2026)",
    phases: &[BASE, LATENT_SFT, LATENT_GRPO],
    lacks: |recipe| (recipe.latent_sft.steps == 0).then_some("latent_sft.steps must be at least 1"),
    ..Method::PLAIN
}];

pub(super) const LATENT_GRPO: Phase = Phase {
    name: "latent_grpo",
    from: Some(LATENT_SFT.name),
    reads: &["grpo", "latent_grpo", "evaluation"],
    row: TableRow::Ours("superpositions of the vocabulary, then GRPO with one-sided noise (Latent-GRPO)"),
    panel: Panel::Latent,
    work: Work::Grpo(settings),
};

/// Inputs of latents are constants here, and their states choose the next one: all positions have a gradient.
fn settings(recipe: &Recipe) -> Grpo {
    let Settings { gumbel, top_p, invalid, first, freeze_embeddings, beta } = recipe.latent_grpo;
    Grpo {
        gumbel,
        latent_noise: 0.0,
        top_p,
        density: Density::OneSided,
        invalid,
        first,
        beta,
        replay: ReplayMode::FullBptt,
        cosine_every: 0,
        own_rates: if freeze_embeddings { vec![(EMBED, 0.0)] } else { vec![] },
        ..recipe.grpo.clone()
    }
}
