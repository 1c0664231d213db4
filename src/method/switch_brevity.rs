//! SWITCH with a second round of GRPO that also pays for short answers (the paper's compression-oriented operating point, `r_brev`),
//! under the settings of `[brevity]`.

use super::Method;
use super::phase::{Phase, Work};
use super::switch::Switch;
use crate::recipe::{Grpo, Recipe, Reward};

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

fn brevity(Recipe { grpo, brevity, evaluation, .. }: &Recipe) -> Grpo {
    Grpo {
        steps: if brevity.steps > 0 { brevity.steps } else { grpo.steps },
        temperature: brevity.temperature,
        k_min: brevity.k_min.min(evaluation.k_cap),
        reward: Reward { brevity: brevity.weight, lengths: Some(brevity.lengths), ..grpo.reward.clone() },
        ..grpo.clone()
    }
}
