//! Pause as thought, a control of Coconut (Hao et al. 2024): its curriculum with one learnt embedding, that of `<latent>`, at every
//! latent. As much computation, and nothing handed on from latent to latent but keys and values.
//!
//! A position's input does not depend on a state here, so that all pauses of a row can be fed in one pass (`coconut.one_pass`), or in
//! as many as Coconut has. In a causal decoder the two are one function: a test holds losses and gradients of one to the other's.
//! The pauses are always learnt, whatever `coconut.gradient`.

use anyhow::Result;

use super::Method;
use super::coconut::curriculum;
use super::objective::{LossSums, Objective, losses_at, targets};
use super::phase::{Context, Phase, SupervisedPhase, Work};
use crate::corpus::Row;
use crate::latent::{Gradient, LatentSource, Source};
use crate::model::{Decoder, Hooks};
use crate::recipe::{Coconut, Recipe};

pub(crate) struct CoconutPause;

impl Method for CoconutPause {
    fn name(&self) -> &'static str {
        "coconut_pause"
    }

    fn about(&self) -> &'static str {
        "Coconut's curriculum with the same learnt embedding at every latent: pause as thought (control)"
    }

    fn phases(&self, _recipe: &Recipe) -> Vec<Phase> {
        vec![super::text_cot::BASE, Phase { name: "coconut_pause", work: Work::Supervised(coconut_pause) }]
    }
}

fn coconut_pause(context: Context<'_>) -> Result<SupervisedPhase<'_>> {
    let settings = Coconut { gradient: Gradient::Through, ..context.recipe.coconut.clone() };
    let source = Source::FixedEmbedding { token: context.corpus.switch.latent };
    let one_pass = settings.one_pass;
    let what = curriculum(context, "coconut_pause", settings, source)?;
    Ok(if one_pass { SupervisedPhase { objective: Box::new(OnePass { source }), ..what } } else { what })
}

/// Cross-entropy of the response, `<latent>` fed as any other token.
struct OnePass {
    source: Source,
}

impl Objective for OnePass {
    fn sums(&self, model: &Decoder, rows: &[Row], latent: u32) -> Result<LossSums> {
        let targets = targets(rows, latent);
        let learnt = losses_at(model, rows, None, &self.source, Gradient::Through, targets, &mut Hooks::none())?;
        Ok(LossSums { loss: learnt.losses.sum(), tokens: learnt.targets.len(), correct: learnt.correct })
    }

    fn source(&self) -> String {
        self.source.name()
    }
}
