//! A latent block that holds s_j exchanged for one that holds s_j′: the answer must then follow from s_j′.

use std::collections::BTreeMap;

use super::{About, Acts, Bank, Intervention, LatentPlace};

pub(super) const ABOUT: &[About] =
    &[About::new("known_value", Acts::OnLatents, |m, d| Box::new(known_value(m.bank, &m.swaps[d.number]))).random()];

/// Which block of a problem is exchanged, and for which of another problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swap {
    pub block: usize,
    pub donor: usize,
    pub donor_block: usize,
}

/// Replaces the states of one block by those of another problem's block at the same steps. Who is exchanged for whom, and
/// what the answer should be, is worked out where the problems are known. The strongest evidence here: not that something
/// breaks, but that the answer becomes a particular other one. Misleads: the donor's block carries whatever else it holds
/// (operands, its place in the chain), so a miss does not show that the value is absent; and a hit by luck has a chance
/// level, which is reported beside it.
fn known_value(bank: &Bank, swaps: &BTreeMap<usize, Swap>) -> impl Intervention {
    move |at: &LatentPlace, _: &[f32]| {
        let swap = swaps.get(&at.problem).filter(|swap| swap.block == at.block)?;
        bank.get(swap.donor, swap.donor_block, at.step).map(<[f32]>::to_vec)
    }
}
