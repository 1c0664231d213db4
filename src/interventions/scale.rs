//! The state times a factor: dose–response in norm.

use super::{Acts, Intervention, InterventionAbout, LatentPlace};

pub(super) const ABOUT: &[InterventionAbout] =
    &[InterventionAbout::new("scale", Acts::Alone, |_, d| Box::new(scaled(d.dose as f32)))
        .with_doses(&[0.25, 0.5, 0.75, 1.25, 1.5, 2.0])
        .value_wise()
        .positive_at(|dose| dose > 0.0)];

/// Misleads: a pre-norm decoder divides its input by its norm before every block, so a factor acts only through the residual sum, where
/// it changes the share of the state relative to the blocks' outputs. 0 is `zero`, 1 is inert.
fn scaled(factor: f32) -> impl Intervention {
    move |_: &LatentPlace, h: &[f32]| Some(h.iter().map(|x| x * factor).collect())
}
