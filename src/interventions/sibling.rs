//! The state of the same block and step in another, sampled rollout of the same problem.

use super::{About, Acts, Bank, Intervention};
use crate::model::Step;
use crate::model::hooks::Place;

pub(super) const ABOUT: &[About] = &[About {
    name: "sibling",
    acts: Acts::OnLatents,
    random: true,
    doses: &[],
    make: |m, d| Box::new(Sibling { bank: &m.siblings[d.number] }),
}];

/// The gentlest swap: same problem, same place, other noise. Where `resample` breaks the answer and this does not, it is
/// the content of the problem that is carried. Misleads where rollouts part early: the same block number may then work on
/// another step of the solution. Where the sibling has no such block or step it does not fire.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sibling<'a> {
    /// The states of the sibling rollout of every problem.
    pub bank: &'a Bank,
}

impl Intervention for Sibling<'_> {
    fn input(&self, at: &Place, _h: &[f32]) -> Option<Vec<f32>> {
        let Step::Latent { block, step } = at.step else { return None };
        self.bank.get(at.row, block, step).map(<[f32]>::to_vec)
    }
}
