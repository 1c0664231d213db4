//! The states of the same block in reverse order.

use super::{Acts, Bank, Intervention, InterventionAbout, LatentPlace};

pub(super) const ABOUT: &[InterventionAbout] =
    &[InterventionAbout::new("reverse", Acts::OnRun, |m, _| Box::new(reversed(m.bank))).positive_at(|_| true)];

/// Same content, other order: tests whether a state must enter at its own step. The middle step of an odd block keeps its state and does
/// not fire. Misleads where a step reads any state of the block: no loss then says nothing about content.
fn reversed(bank: &Bank) -> impl Intervention {
    move |at: &LatentPlace, _: &[f32]| {
        let block: Vec<_> = bank.states_of_problem(at.problem).filter(|(block, ..)| *block == at.block).collect();
        let own = block.iter().position(|(_, step, _)| *step == at.step)?;
        let (_, step, state) = block[block.len() - 1 - own];
        (step != at.step).then(|| state.to_vec())
    }
}
