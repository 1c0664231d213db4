//! Rows of embedding and head for tokens that are added.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::random::normal;

/// The row of a new token: its source plus normal noise of `jitter` times the source's root mean square. The noise depends only on `seed`
/// and `row`, not on the order of calls; for different noise in embedding and head, pass different seeds.
pub fn jittered(source: &[f32], row: usize, jitter: f32, seed: u64) -> Vec<f32> {
    let rms = (source.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / source.len() as f64).sqrt();
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(row as u64);
    source.iter().map(|s| s + (f64::from(jitter) * rms * normal(&mut random)) as f32).collect()
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
    }
}
