//! A problem's own state, patched onto itself.

use super::{About, Acts, Bank, Intervention};
use crate::model::Step;
use crate::model::hooks::Place;

pub(super) const ABOUT: &[About] = &[About {
    name: "self_patch",
    acts: Acts::OnRun,
    random: false,
    doses: &[],
    make: |m, _| Box::new(SelfPatch { bank: m.bank }),
}];

/// Must change nothing: the control that the machinery itself is inert.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SelfPatch<'a> {
    pub bank: &'a Bank,
}

impl Intervention for SelfPatch<'_> {
    fn input(&self, at: &Place, _h: &[f32]) -> Option<Vec<f32>> {
        let Step::Latent { block, step } = at.step else { return None };
        self.bank.get(at.row, block, step).map(<[f32]>::to_vec)
    }
}
