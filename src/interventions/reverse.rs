//! The states of the same block in reverse order.

use super::{About, Acts, Bank, Intervention, LatentPlace};

pub(super) const ABOUT: &[About] =
    &[About::new("reverse", Acts::OnRun, |m, _| Box::new(reversed(m.bank))).positive_at(|_| true)];

/// Same content, other order: tests whether a state must enter at its own step. The middle step of an odd block keeps its state and does
/// not fire. Misleads where a step reads any state of the block: no loss then says nothing about content.
fn reversed(bank: &Bank) -> impl Intervention {
    move |at: &LatentPlace, _: &[f32]| {
        let steps = bank.of_problem(at.problem).filter(|(block, ..)| *block == at.block).count();
        let mirrored = steps.checked_sub(at.step + 1).filter(|step| *step != at.step)?;
        bank.get(at.problem, at.block, mirrored).map(<[f32]>::to_vec)
    }
}
