//! The zero vector (the paper's *zero*).

use super::{Acts, Intervention, InterventionAbout, LatentPlace};

pub(super) const ABOUT: &[InterventionAbout] =
    &[InterventionAbout::new("zero", Acts::Alone, |_, _| Box::new(Zero)).value_wise()];

/// Misleads: zero is far off the distribution of states, so a loss shows that something is read there, not what.
#[derive(Clone, Copy, Debug)]
pub struct Zero;

impl Intervention for Zero {
    fn input(&self, _at: &LatentPlace, h: &[f32]) -> Option<Vec<f32>> {
        Some(vec![0.0; h.len()])
    }
}
