//! A random direction of the same norm (the paper's *random-norm*).

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::Intervention;
use crate::model::Step;
use crate::model::hooks::Place;

/// Misleads: it keeps the norm only; a direction that no state ever takes is off the distribution too. One draw per
/// place, keyed by seed, problem, block and step.
#[derive(Clone, Copy, Debug)]
pub struct RandomNorm {
    pub seed: u64,
}

impl Intervention for RandomNorm {
    fn name(&self) -> &'static str {
        "random_norm"
    }

    fn input(&self, at: &Place, h: &[f32]) -> Option<Vec<f32>> {
        let Step::Latent { block, step } = at.step else { return None };
        let mut key = [0_u8; 32];
        let parts = [self.seed, at.row as u64, block as u64, step as u64];
        for (chunk, value) in key.chunks_mut(8).zip(parts) {
            chunk.copy_from_slice(&value.to_le_bytes());
        }
        let mut rng = ChaCha8Rng::from_seed(key);
        let mut normal = || {
            let (u, v): (f64, f64) = (1.0 - rng.random::<f64>(), rng.random());
            (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
        };
        let raw: Vec<f64> = h.iter().map(|_| normal()).collect();
        let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|v| v * v).sum::<f64>().sqrt();
        let scale = norm(&mut h.iter().map(|&v| f64::from(v))) / norm(&mut raw.iter().copied()).max(1e-30);
        Some(raw.into_iter().map(|v| (v * scale) as f32).collect())
    }
}
