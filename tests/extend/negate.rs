//! A third-party intervention: negates every latent input.

use super::{Acts, Intervention, InterventionAbout, LatentPlace};

pub(super) const ABOUT: &[InterventionAbout] =
    &[InterventionAbout::new("negate", Acts::Alone, |_, _| Box::new(Negate))];

#[derive(Clone, Copy, Debug)]
struct Negate;

impl Intervention for Negate {
    fn input(&self, _at: &LatentPlace, h: &[f32]) -> Option<Vec<f32>> {
        Some(h.iter().map(|x| -x).collect())
    }
}
