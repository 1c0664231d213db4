//! The state rotated by an angle at constant norm: dose–response in direction.

use super::{Acts, Intervention, InterventionAbout, LatentPlace, norm};
use crate::random::{keyed, normal};

pub(super) const ABOUT: &[InterventionAbout] =
    &[InterventionAbout::new("rotate", Acts::Alone, |_, d| Box::new(rotated(d.dose, d.seed)))
        .random()
        .with_doses(&[15.0, 30.0, 45.0, 60.0, 90.0, 180.0])];

/// Rotates `h` by `degrees` towards a random orthogonal direction: `cos θ · h + sin θ · ‖h‖ · u`. Misleads: in a wide model a random
/// direction is nearly always one that no state uses, so a flat curve does not show that directions between *states* are safe; and 90°
/// is almost exactly `random_norm`, false alarms included.
fn rotated(degrees: f64, seed: u64) -> impl Intervention {
    move |at: &LatentPlace, h: &[f32]| {
        let mut rng = keyed(at.key(seed));
        let own: Vec<f64> = h.iter().map(|&v| f64::from(v)).collect();
        let length = norm(&own);
        let mut raw: Vec<f64> = h.iter().map(|_| normal(&mut rng)).collect();
        let along = own.iter().zip(&raw).map(|(a, b)| a * b).sum::<f64>() / (length * length).max(1e-30);
        raw.iter_mut().zip(&own).for_each(|(r, o)| *r -= along * o);
        let across = length / norm(&raw).max(1e-30);
        let (sin, cos) = degrees.to_radians().sin_cos();
        Some(own.iter().zip(&raw).map(|(o, r)| (cos * o + sin * across * r) as f32).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_norm_is_kept_and_the_angle_is_the_one_asked_for() {
        let at = LatentPlace { problem: 3, block: 0, step: 1 };
        let h: Vec<f32> = (0..40).map(|i| (i as f32 * 0.7).sin()).collect();
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        for degrees in [0.0, 30.0, 90.0, 180.0] {
            let new = rotated(degrees, 1).input(&at, &h).expect("a latent");
            let cosine = dot(&h, &new) / (dot(&h, &h) * dot(&new, &new)).sqrt();
            assert!((cosine - degrees.to_radians().cos()).abs() < 1e-5, "{degrees}: {cosine}");
            assert!((dot(&new, &new) / dot(&h, &h) - 1.0).abs() < 1e-5);
        }
    }
}
