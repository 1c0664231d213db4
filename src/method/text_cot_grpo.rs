//! Text-CoT, then GRPO on text alone: the control that the paper lacks. What reinforcement learning gives without latents.

use super::Method;
use super::phase::{Phase, Work};
use super::text_cot::BASE;
use crate::recipe::Recipe;

pub(crate) struct TextCotGrpo;

impl Method for TextCotGrpo {
    fn name(&self) -> &'static str {
        "text_cot_grpo"
    }

    fn about(&self) -> &'static str {
        "the visible chain of thought, then GRPO without latents"
    }

    fn phases(&self, recipe: &Recipe) -> Vec<Phase> {
        let mut phases = vec![BASE];
        if recipe.grpo.steps > 0 {
            let settings = |recipe: &Recipe| recipe.grpo.clone();
            phases.push(Phase { name: "text_cot_grpo", work: Work::Grpo { from: "base", settings } });
        }
        phases
    }
}
