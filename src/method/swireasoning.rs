//! SwiReasoning (Shi et al. 2026): the text checkpoint as it is, decoded with mixtures of the vocabulary where its entropy
//! rises. Training-free; also the source of SWITCH's idea of where to switch.

use anyhow::Result;

use super::Method;
use super::phase::{Phase, Work};
use super::soft_thinking::end_of_thinking;
use super::text_cot::BASE;
use crate::corpus::Corpus;
use crate::latent::{Blocks, Reasoning, Source, rules};
use crate::recipe::{self, Recipe};

pub struct SwiReasoning;

impl Method for SwiReasoning {
    fn name(&self) -> &'static str {
        "swireasoning"
    }

    fn about(&self) -> &'static str {
        "training-free: mixtures of the vocabulary while entropy is high (Shi et al. 2026)"
    }

    fn phases(&self, _recipe: &Recipe) -> Vec<Phase> {
        vec![BASE, Phase { name: "swireasoning", work: Work::Decode { from: "base", reasoning } }]
    }
}

/// The mixture is of the whole vocabulary, at temperature 1.
fn reasoning(recipe: &Recipe, corpus: &Corpus) -> Result<Reasoning> {
    let recipe::SwiReasoning { window, budget } = recipe.swireasoning;
    let (limit, end) = (recipe.evaluation.max_new_tokens, end_of_thinking(corpus)?);
    Ok(Reasoning {
        source: Source::VocabularyMixture { top_k: corpus.vocabulary.size(), temperature: 1.0 },
        blocks: Blocks::SwiReasoning(rules::SwiReasoning { window, budget, limit, end }),
        ..Reasoning::text("swireasoning")
    })
}
