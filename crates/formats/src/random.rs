//! Randomness with the same bits on every machine and in every release: a hash of names, keyed generators, normal values. Generated
//! problems, initial weights and samples depend on these bits: they must not change.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// FNV-1a: the same in every process, unlike the standard library's hasher.
pub fn fnv1a(bytes: impl IntoIterator<Item = u8>) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// A generator for one key: its values do not depend on the order of calls.
pub fn keyed(parts: [u64; 4]) -> ChaCha8Rng {
    let mut key = [0_u8; 32];
    for (chunk, value) in key.chunks_mut(8).zip(parts) {
        chunk.copy_from_slice(&value.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}

/// A standard normal value (Box and Muller 1958); 1 - u is in (0, 1].
pub fn normal(rng: &mut ChaCha8Rng) -> f64 {
    let (u, v): (f64, f64) = (1.0 - rng.random::<f64>(), rng.random());
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bits_are_those_that_were_published() {
        // From the authors' test suite of FNV-1a.
        assert_eq!(fnv1a([]), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(*b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(*b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn normal_values_have_mean_zero_and_variance_one() {
        let mut rng = keyed([1, 2, 3, 4]);
        let values: Vec<f64> = (0..20_000).map(|_| normal(&mut rng)).collect();
        let mean = values.iter().sum::<f64>() / 20_000.0;
        let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 20_000.0;
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
    }
}
