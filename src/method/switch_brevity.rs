//! SWITCH with a second round of GRPO that also pays for short answers (the paper's brevity variant, `r_brev`).

use super::Method;
use super::phase::{Phase, Work};
use super::switch::Switch;
use crate::recipe::{Grpo, Recipe, Reward};

/// The weight that the paper's appendix gives the brevity term.
const WEIGHT: f64 = 0.1;

pub(crate) struct SwitchBrevity;

impl Method for SwitchBrevity {
    fn name(&self) -> &'static str {
        "switch_brevity"
    }

    fn about(&self) -> &'static str {
        "SWITCH, then GRPO with a reward for brevity"
    }

    fn phases(&self, recipe: &Recipe) -> Vec<Phase> {
        let mut phases = Switch.phases(recipe);
        if phases.iter().any(|phase| phase.name == "grpo") {
            phases.push(Phase { name: "brevity", work: Work::Grpo { from: "grpo", settings: brevity } });
        }
        phases
    }
}

fn brevity(recipe: &Recipe) -> Grpo {
    Grpo { reward: Reward { brevity: WEIGHT, ..recipe.grpo.reward.clone() }, ..recipe.grpo.clone() }
}
