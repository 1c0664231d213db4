//! Rows of embedding and head for tokens that are added.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::random::normal;

/// The row of a new token: its source plus normal noise of `jitter` times the source's root mean square. The noise depends only on `seed`
/// and `row`, not on the order of calls; for different noise in embedding and head, pass different seeds.
pub fn jittered(source: &[f32], row: usize, jitter: f32, seed: u64) -> Vec<f32> {
    let rms = (source.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / source.len() as f64).sqrt();
    let noise = drawn(source.len(), row, f64::from(jitter) * rms, seed);
    source.iter().zip(noise).map(|(source, noise)| source + noise).collect()
}

/// The row of a new token from N(0, std²), by `seed` and `row` as in [`jittered`].
pub fn drawn(width: usize, row: usize, std: f64, seed: u64) -> Vec<f32> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(row as u64);
    (0..width).map(|_| (std * normal(&mut random)) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_starts_from_its_source_and_repeats_with_its_seed() {
        let source = [5.0, 12.0];
        assert_eq!(jittered(&source, 2, 0.0, 7), source);
        assert_eq!(jittered(&source, 2, 0.1, 7), jittered(&source, 2, 0.1, 7));
        assert_ne!(jittered(&source, 2, 0.1, 7), jittered(&source, 2, 0.1, 8));
        assert_ne!(jittered(&source, 2, 0.1, 7), jittered(&source, 3, 0.1, 7));
        assert!((jittered(&source, 2, 0.1, 7)[0] - 5.0).abs() < 4.0);
        let row = drawn(4000, 2, 0.02, 7);
        let rms = (row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / 4000.0).sqrt();
        assert!((rms - 0.02).abs() < 0.002 && row == drawn(4000, 2, 0.02, 7), "{rms}");
    }
}
