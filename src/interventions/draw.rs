//! Keyed randomness: a draw belongs to its place, not to the order in which places come by.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A generator for one place.
pub(super) fn keyed(parts: [u64; 4]) -> ChaCha8Rng {
    let mut key = [0_u8; 32];
    for (chunk, value) in key.chunks_mut(8).zip(parts) {
        chunk.copy_from_slice(&value.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}

/// A standard normal value (Box and Muller 1958).
pub(super) fn normal(rng: &mut ChaCha8Rng) -> f64 {
    let (u, v): (f64, f64) = (1.0 - rng.random::<f64>(), rng.random());
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

pub(super) fn norm(x: &[f64]) -> f64 {
    x.iter().map(|v| v * v).sum::<f64>().sqrt()
}
