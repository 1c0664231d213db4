//! Soft-Thinking (Zhang et al. 2025): the text checkpoint as it is, thinking in mixtures of its most probable tokens until
//! thinking ends. Training-free.
//!
//! As in the public code (eric-ai-lab/Soft-Thinking): thinking ends by the token that weighs most in the mixture; entropies of the cold
//! stop are those after the temperature, and at the stop the token that ends thinking is written; top-p before top-k.
//!
//! It differs in this: top-p is of the full softmax (theirs: of the 30 most probable tokens, and tokens below .001 of the first are cut);
//! the answer is drawn as `[evaluation]` says (theirs: temperature .6, top-p .95, top-k 30); a cold stop in the answer does not end it.

use anyhow::{Context as _, Result};

use super::phase::{Panel, Phase, TableRow, Work, as_it_is};
use super::text_cot::BASE;
use super::{Method, Recipe};
use crate::corpus::Corpus;
use crate::latent::gumbel::Density;
use crate::latent::{Blocks, Reasoning, Source, rules};
use crate::recipe::POSITIONS;
use crate::recipe::Range::{Count, NotNegative, Positive, PositiveShare, Typed};
use crate::text::Sample;

settings! {
    /// Soft-Thinking (Zhang et al. 2025), training-free: on the checkpoint of `base`.
    pub struct Settings {
        /// Tokens that are mixed at most.
        pub top_k: usize = 10 => Count(1, POSITIONS),
        /// Of these, the smallest set with this total probability; 1 for all.
        pub top_p: f64 = 0.95 => PositiveShare,
        pub temperature: f64 = 0.6 => Positive,
        /// Nats below which the model counts as certain.
        pub certain: f64 = 0.01 => NotNegative,
        /// Positions in a row at which it must be certain to go over to text; 0 never.
        pub patience: usize = 256 => Count(0, POSITIONS),
        /// `soft_grpo`'s τ, the temperature of the Gumbel-softmax that draws its mixtures.
        pub gumbel: f64 = 0.1 => NotNegative,
        /// `soft_grpo`'s log-density of a mixture: `mean`, the public code's, or `sum`, the equation's.
        pub density: Density = Density::Mean => Typed,
    }
}

pub(super) const METHODS: &[Method] = &[Method {
    name: "soft_thinking",
    about: "training-free: mixtures of the most probable tokens until thinking ends (Zhang et al. 2025)",
    phases: &[BASE, SOFT_THINKING],
    ..Method::PLAIN
}];

pub(super) const SOFT_THINKING: Phase = Phase {
    name: "soft_thinking",
    from: Some(BASE.name),
    reads: &["soft_thinking", "evaluation"],
    row: TableRow::Ours("Soft-Thinking (training-free)"),
    panel: Panel::Text,
    work: Work::Decode { model: as_it_is, reasoning },
};

fn reasoning(recipe: &Recipe, corpus: &Corpus) -> Result<Reasoning> {
    let Settings { top_k, top_p, temperature, certain, patience, .. } = recipe.soft_thinking;
    let (limit, end) = (recipe.evaluation.max_new_tokens, end_of_thinking(corpus)?);
    Ok(Reasoning {
        source: Source::VocabularyMixture { top_k, top_p, temperature },
        blocks: Blocks::SoftThinking(rules::SoftThinking { certain, patience, temperature, limit, end }),
        ..Reasoning::text("soft_thinking")
    })
}

/// What ends thinking, in this order of preference: reasoning models write the first, worked solutions one of the others
/// before the answer.
const ENDS: [&str; 3] = ["</think>", "####", "#"];

/// The token with which a solution begins its answer, where it is one of [`ENDS`].
fn mark(sample: &Sample) -> Option<u32> {
    let first = sample.answer.clone()?.start;
    ENDS.contains(&sample.token(first).trim()).then(|| sample.response[first])
}

/// The token that ends thinking, as the corpus' solutions have it: behind a blank it may be another one than alone.
///
/// # Errors
/// A vocabulary with none of them.
pub(super) fn end_of_thinking(corpus: &Corpus) -> Result<u32> {
    let alone = |words: &[&str]| words.iter().find_map(|word| corpus.vocabulary.id(word));
    let written = || {
        let held_out = |p| Sample::new(p, &corpus.vocabulary, &corpus.template).ok();
        corpus.train.iter().find_map(mark).or_else(|| corpus.test.iter().find_map(|p| mark(&held_out(p)?)))
    };
    let found = alone(&ENDS[..1]).or_else(written).or_else(|| alone(&ENDS));
    found.with_context(|| format!("the vocabulary has none of {ENDS:?}: nothing tells where thinking ends"))
}
