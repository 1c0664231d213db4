//! A latent block with value s_j exchanged for one with s_j′: the answer must then follow from s_j′.

use std::collections::BTreeMap;

use super::{Acts, Bank, Intervention, InterventionAbout, LatentPlace};

pub(super) const ABOUT: &[InterventionAbout] =
    &[InterventionAbout::new("known_value", Acts::OnLatents, |m, d| Box::new(known_value(m.bank, &m.swaps[d.number])))
        .random()];

/// The exchanged block of a problem, and its donor block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swap {
    pub block: usize,
    pub donor: usize,
    pub donor_block: usize,
}

/// Replaces the states of one block by those of another problem's block at the same steps; the plan of donors and predicted answers is
/// made by the study. The strongest evidence here: not that the answer breaks, but that it becomes a particular other one. Misleads: the
/// donor's block also carries other information (operands, its place in the chain), so that a miss does not show that the value is
/// absent; and a hit by chance has a rate, which is reported next to it.
fn known_value(bank: &Bank, swaps: &BTreeMap<usize, Swap>) -> impl Intervention {
    move |at: &LatentPlace, _: &[f32]| {
        let swap = swaps.get(&at.problem).filter(|swap| swap.block == at.block)?;
        bank.get(swap.donor, swap.donor_block, at.step).map(<[f32]>::to_vec)
    }
}
