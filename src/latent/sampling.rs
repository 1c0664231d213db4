//! From logits to a token: masks, temperature, top-k, top-p, and random values keyed by position.

use anyhow::{Result, ensure};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

settings! {
    /// How a token is drawn.
    #[derive(Copy)]
    pub struct Sampling {
        /// 0 is greedy.
        pub temperature: f64 = 0.0,
        /// 0: no limit.
        pub top_k: usize = 0,
        /// 1: no limit. Share of the probability that `top_k` leaves, as in transformers.
        pub top_p: f64 = 1.0,
        pub seed: u64 = 0,
    }
}

impl Sampling {
    /// # Errors
    /// A value out of range, by name.
    pub fn check(&self) -> Result<()> {
        let t = self.temperature;
        ensure!(t.is_finite() && t >= 0.0, "temperature must be 0 (greedy) or above, found {t}");
        ensure!(self.top_p > 0.0 && self.top_p <= 1.0, "top_p must be in (0, 1], found {}", self.top_p);
        Ok(())
    }

    /// Divisor of logits for log-probabilities: the temperature, or 1 when greedy.
    pub fn scale(&self) -> f64 {
        if self.temperature == 0.0 { 1.0 } else { self.temperature }
    }
}

/// Key of a draw, so that results do not depend on batch order or size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    pub problem: u64,
    pub rollout: u64,
    pub position: u64,
}

impl Key {
    /// Uniform in [0, 1), a function of seed and key alone.
    pub(crate) fn uniform(self, seed: u64) -> f64 {
        self.rng(seed).random()
    }

    /// The generator of this draw.
    pub(super) fn rng(self, seed: u64) -> ChaCha8Rng {
        let mut state = [0_u8; 32];
        for (chunk, value) in state.chunks_mut(8).zip([seed, self.problem, self.rollout, self.position]) {
            chunk.copy_from_slice(&value.to_le_bytes());
        }
        ChaCha8Rng::from_seed(state)
    }
}

/// `log softmax(logits / scale)` with the masked tokens at −∞, in f64.
pub(crate) fn log_softmax(logits: &[f32], scale: f64, masked: &[u32]) -> Vec<f64> {
    log_softmax_and_entropy(logits, scale, masked).0
}

/// The largest value, in eight lanes: a single chain would make each comparison wait for the last.
fn greatest(values: &[f64]) -> f64 {
    let mut lanes = [f64::NEG_INFINITY; 8];
    let (eights, rest) = values.as_chunks::<8>();
    for values in eights {
        for (lane, &x) in lanes.iter_mut().zip(values) {
            *lane = if x > *lane { x } else { *lane };
        }
    }
    lanes.iter().chain(rest).copied().fold(f64::NEG_INFINITY, f64::max)
}

/// Exponentials per thread: they take about ten times as long as waking a thread.
const SHARE: usize = 1 << 13;

/// [`log_softmax`] and its Shannon entropy in nats, from one pass of exponentials.
pub(crate) fn log_softmax_and_entropy(logits: &[f32], scale: f64, masked: &[u32]) -> (Vec<f64>, f64) {
    let mut out: Vec<f64> = logits.iter().map(|&x| f64::from(x) / scale).collect();
    for &token in masked {
        if let Some(x) = out.get_mut(token as usize) {
            *x = f64::NEG_INFINITY;
        }
    }
    let max = greatest(&out);
    let weight = |x: &f64| (x - max).exp();
    let weights: Vec<f64> = if out.len() < 2 * SHARE {
        out.iter().map(weight).collect()
    } else {
        out.par_iter().with_min_len(SHARE).map(weight).collect()
    };
    let (mut total, mut weighted) = (0.0, 0.0);
    for (x, weight) in out.iter().zip(weights).filter(|(x, _)| x.is_finite()) {
        total += weight;
        weighted += weight * (x - max);
    }
    let log_total = total.ln();
    out.iter_mut().for_each(|x| *x -= max + log_total);
    (out, log_total - weighted / total)
}

/// Shannon entropy in nats of log-probabilities.
pub fn entropy(log_probs: &[f64]) -> f64 {
    -log_probs.iter().filter(|p| p.is_finite()).map(|p| p.exp() * p).sum::<f64>()
}

/// Margin of `token` over the best other one, in logits (the normaliser cancels); `None` if it cannot be drawn.
pub fn lead(log_probs: &[f64], token: u32) -> Option<f64> {
    let own = log_probs.get(token as usize).copied().filter(|p| p.is_finite())?;
    let others = log_probs.iter().enumerate().filter(|(t, _)| *t != token as usize).map(|(_, p)| *p);
    Some(own - others.fold(f64::NEG_INFINITY, f64::max)).filter(|lead| lead.is_finite())
}

/// The token of the largest logit or log-probability, the first of equals.
pub(crate) fn argmax<T: PartialOrd>(values: &[T]) -> u32 {
    let larger = |best: usize, (token, x): (usize, &T)| if *x > values[best] { token } else { best };
    values.iter().enumerate().fold(0, larger) as u32
}

/// Draws a token; greedy at temperature 0. `log_probs` are already at the temperature.
pub fn draw(log_probs: &[f64], sampling: &Sampling, key: Key) -> u32 {
    if sampling.temperature == 0.0 {
        return argmax(log_probs);
    }
    let u = key.uniform(sampling.seed);
    if sampling.top_k == 0 && sampling.top_p >= 1.0 {
        return walk((0..log_probs.len()).map(|t| (t, log_probs[t].exp())), u);
    }
    let mut order: Vec<usize> = (0..log_probs.len()).filter(|&t| log_probs[t].is_finite()).collect();
    order.sort_by(|&a, &b| log_probs[b].total_cmp(&log_probs[a]).then(a.cmp(&b)));
    if sampling.top_k > 0 {
        order.truncate(sampling.top_k);
    }
    let nucleus = if sampling.top_k > 0 {
        sampling.top_p * order.iter().map(|&token| log_probs[token].exp()).sum::<f64>()
    } else {
        sampling.top_p
    };
    let mut kept = vec![];
    let mut mass = 0.0;
    for token in order {
        let p = log_probs[token].exp();
        kept.push((token, p));
        mass += p;
        if mass >= nucleus {
            break;
        }
    }
    walk(kept.into_iter(), u * mass)
}

fn walk(weights: impl Iterator<Item = (usize, f64)>, target: f64) -> u32 {
    let (mut sum, mut last) = (0.0, 0);
    for (token, p) in weights {
        if p > 0.0 {
            last = token;
        }
        sum += p;
        if sum > target {
            return token as u32;
        }
    }
    // Rounding can leave the sum slightly below 1.
    last as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nucleus_is_a_share_of_what_top_k_leaves() {
        let log_probs: Vec<f64> = [0.5, 0.3, 0.1, 0.06, 0.04_f64].iter().map(|p| p.ln()).collect();
        let drawn = |top_k| {
            let sampling = Sampling { temperature: 1.0, top_k, top_p: 0.6, seed: 0 };
            let tokens = (0..200).map(|position| draw(&log_probs, &sampling, Key { problem: 0, rollout: 0, position }));
            tokens.collect::<std::collections::BTreeSet<u32>>()
        };
        assert_eq!(drawn(0), [0, 1].into());
        // Of the two that are left, the first has .625.
        assert_eq!(drawn(2), [0].into());
    }
}
