//! Sampled mixtures of the vocabulary (SofT-GRPO, Zheng & Lee 2025, arXiv:2511.06411). Gumbel noise on log-probabilities gives a mixture a
//! density, so that it has a policy gradient:
//!
//! `g = log p + ε`, `ε ~ Gumbel(0, 1)`, the input is `Σ softmax(g / τ)_v E[v]`, and a token's log-density is `−z − exp(−z)` with
//! `z = g − log p`. The tokens are selected by `top_k` and `top_p`, at the temperature of the rollouts.
//!
//! [`Density`] defines `p` and the combination of the tokens' densities: the paper's equation; its public code, on the scale of one token
//! instead of `top_k`; or Latent-GRPO's one-sided noise (Deng et al. 2026, arXiv:2604.27998).

use anyhow::{Context, Result, ensure};
use burn::tensor::{FloatDType, Int, Tensor, TensorData};
use rand::Rng;
use serde::{Deserialize, Serialize};

use super::drawn::{DrawLog, DrawnInput};
use super::sampling::{self, Key};
use super::source::LatentSource;
use crate::model::{Decoder, Span, Step};
use crate::ops::{self, wide::log_softmax};

/// The log-density of a mixture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Density {
    /// The public code: `p` is renormalised among the tokens of the mixture, with 1e-6 added; noise and `z` are clamped to
    /// [−1.5, 3]; the mean over the tokens with `log p > −3`. (Without such a token the log-density is 0; theirs is 0/0.)
    #[default]
    Mean,
    /// The equation: `p` is the full softmax, noise is not clamped, the sum over the tokens.
    Sum,
    /// Latent-GRPO: `p` is the full softmax at temperature 1; noise is clamped as in `mean` and shifted by 1.5, so that it is never negative
    /// and the density grows with every `log p` of the mixture; the mean over the tokens. The tokens are the `top_k` with the largest `g`
    /// among the `top_k` most probable and the nucleus of `top_p`.
    OneSided,
}

impl Density {
    /// Temperature of the log-probabilities, given the rollouts'.
    fn temperature(self, of_rollouts: f64) -> f64 {
        if self == Density::OneSided { 1.0 } else { of_rollouts }
    }

    /// The noise added to log-probabilities, from a Gumbel variable.
    fn noise(self, gumbel: f64) -> f64 {
        let clamped = gumbel.clamp(CLAMP[0], CLAMP[1]);
        match self {
            Density::Sum => gumbel,
            Density::Mean => clamped,
            Density::OneSided => clamped - CLAMP[0],
        }
    }
}

/// Added to the probabilities of a mixture's tokens.
const LEAST: f64 = 1e-6;
/// Range to which noise is clamped.
const CLAMP: [f64; 2] = [-1.5, 3.0];
/// Tolerance of the clamp: `z` of clamped noise equals it up to rounding, and must have a gradient.
const ROUNDING: f64 = 1e-5;
/// Log-probability above which a token's density counts.
const COUNTS: f64 = -3.0;

/// A sampled mixture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mixture {
    pub tokens: Vec<u32>,
    /// `g`: log-probability and noise of each token.
    pub perturbed: Vec<f32>,
    /// `softmax(g / τ)`: weight of each token's embedding.
    pub weights: Vec<f32>,
    #[serde(default)]
    pub density: Density,
}

/// `−z − exp(−z)`.
fn log_density(z: f64) -> f64 {
    -z - (-z).exp()
}

/// Domain separation of the noise from the uniform value that draws a token at the same position ("gumbel").
const NOISE: u64 = 0x6775_6d62_656c;

/// Settings of sampled mixtures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Noise {
    pub top_k: usize,
    pub top_p: f64,
    /// Temperature of the rollouts' log-probabilities.
    pub temperature: f64,
    /// τ.
    pub gumbel: f64,
    pub density: Density,
    /// A token that noise does not demote: if it is the most probable, it gets the largest weight.
    pub end: Option<u32>,
}

impl Noise {
    /// Draws the mixture at a position; returns it with its log-density.
    pub fn draw(&self, logits: &[f32], seed: u64, key: Key) -> (Mixture, f64) {
        let log_probs = sampling::log_softmax(logits, self.density.temperature(self.temperature), &[]);
        let mut order = self.order(&log_probs);
        let mut base: Vec<f64> = match self.density {
            Density::Sum | Density::OneSided => order.iter().map(|&token| log_probs[token]).collect(),
            Density::Mean => {
                let total: f64 = order.iter().map(|&token| log_probs[token].exp()).sum();
                order.iter().map(|&token| (log_probs[token].exp() / total + LEAST).ln()).collect()
            }
        };
        let mut rng = key.rng(seed ^ NOISE);
        let mut noise: Vec<f64> = order.iter().map(|_| self.density.noise(gumbel(rng.random()))).collect();
        if self.density == Density::OneSided {
            let mut best: Vec<usize> = (0..order.len()).collect();
            best.sort_by(|&a, &b| (base[b] + noise[b]).total_cmp(&(base[a] + noise[a])));
            best.truncate(self.top_k);
            let of = |values: &[f64]| best.iter().map(|&i| values[i]).collect();
            (order, base, noise) = (best.iter().map(|&i| order[i]).collect(), of(&base), of(&noise));
        }
        let perturbed: Vec<f64> = base.iter().zip(&noise).map(|(base, noise)| base + noise).collect();
        let scaled: Vec<f32> = perturbed.iter().map(|g| (g / self.gumbel) as f32).collect();
        let weights = sampling::log_softmax(&scaled, 1.0, &[]).iter().map(|p| p.exp() as f32).collect();
        let counted = |(base, noise): (&f64, &f64)| (*base > COUNTS).then(|| log_density(*noise));
        let density = match self.density {
            Density::Sum => noise.iter().copied().map(log_density).sum(),
            Density::OneSided => noise.iter().copied().map(log_density).sum::<f64>() / noise.len() as f64,
            Density::Mean => {
                let counted: Vec<f64> = base.iter().zip(&noise).filter_map(counted).collect();
                counted.iter().sum::<f64>() / counted.len().max(1) as f64
            }
        };
        let tokens = order.into_iter().map(|token| token as u32).collect();
        let perturbed = perturbed.into_iter().map(|g| g as f32).collect();
        (Mixture { tokens, perturbed, weights, density: self.density }, density)
    }

    /// The candidate tokens of a mixture, the most probable first.
    fn order(&self, log_probs: &[f64]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..log_probs.len()).collect();
        // Ties go to the first token, on every machine. The rest of the vocabulary is not sorted.
        let by_probability = |a: &usize, b: &usize| log_probs[*b].total_cmp(&log_probs[*a]).then(a.cmp(b));
        let drawn_from = self.density == Density::OneSided;
        if self.top_k < order.len() && !drawn_from {
            order.select_nth_unstable_by(self.top_k, by_probability);
            order.truncate(self.top_k);
        }
        order.sort_unstable_by(by_probability);
        let mut before = 0.0;
        let kept = order.iter().take_while(|&&token| {
            let kept = self.top_p >= 1.0 || before < self.top_p;
            before += log_probs[token].exp();
            kept
        });
        let kept = kept.count();
        order.truncate(if drawn_from { kept.max(self.top_k) } else { kept });
        order
    }
}

/// Draws a mixture at every latent position of a decode, and records it.
pub(crate) struct GumbelMixture {
    pub noise: Noise,
    pub seed: u64,
    pub log: DrawLog,
}

impl GumbelMixture {
    /// # Errors
    /// A setting out of range.
    pub fn new(noise: Noise, seed: u64, rows: Vec<(usize, usize)>) -> Result<Self> {
        let Noise { top_k, top_p, temperature, gumbel, .. } = noise;
        ensure!(top_k > 0 && top_p > 0.0, "a drawn mixture needs tokens: top_k is {top_k}, top_p {top_p}");
        ensure!(temperature > 0.0 && gumbel > 0.0, "temperatures must be above 0, found {temperature} and {gumbel}");
        Ok(Self { noise, seed, log: DrawLog::new(rows) })
    }

    /// The mixture of one row.
    fn draw(&self, logits: &[f32], row: usize, position: usize) -> Result<(Mixture, f64)> {
        Ok(self.noise.draw(logits, self.seed, self.log.key((row, position))?))
    }
}

/// Gumbel noise between the clamps.
pub(crate) fn clamped(scale: f64, rng: &mut impl Rng) -> f64 {
    (scale * gumbel(rng.random())).clamp(CLAMP[0], CLAMP[1])
}

/// `−log(−log u)`, finite also at the ends of [0, 1).
fn gumbel(u: f64) -> f64 {
    -(-u.clamp(1e-300, 1.0 - 1e-16).ln()).ln()
}

impl LatentSource for GumbelMixture {
    fn inject(&self, h: Tensor<3>, at: &Span, model: &Decoder) -> Result<Tensor<3>> {
        let logits = model.unembed(h);
        let vocab = logits.dims()[2];
        let logits = logits.try_into_vec_as::<f32>().context("reading logits")?;
        let mut mixtures = vec![];
        for (row, logits) in logits.chunks(vocab).enumerate() {
            let Some(Step::Latent { .. }) = at.steps[row][0] else {
                mixtures.push(None);
                continue;
            };
            let place = (at.rows[row], at.positions[row][0]);
            let (mixture, density) = self.draw(logits, place.0, place.1)?;
            mixtures.push(Some(mixture.clone()));
            self.log.record(place, DrawnInput::Mixture(mixture), density);
        }
        mixed(&mixtures.iter().map(Option::as_ref).collect::<Vec<_>>(), model)
    }

    fn name(&self) -> String {
        let Noise { top_k, temperature, gumbel, .. } = self.noise;
        format!("gumbel_mixture({top_k}, {temperature}, {gumbel})")
    }

    fn top(&self, logits: &[f32], at: Key) -> Option<u32> {
        if self.noise.end.is_some_and(|end| sampling::argmax(logits) == end) {
            return self.noise.end;
        }
        let (drawn, _) = self.noise.draw(logits, self.seed, at);
        let heaviest = drawn.tokens.iter().zip(&drawn.perturbed).max_by(|a, b| a.1.total_cmp(b.1));
        heaviest.map(|(&token, _)| token)
    }
}

/// The mixed embeddings `[B, 1, D]`; zeros for a row without a mixture. Weights are constants, embeddings carry gradients.
pub(super) fn mixed(mixtures: &[Option<&Mixture>], model: &Decoder) -> Result<Tensor<3>> {
    let (b, d) = (mixtures.len(), model.config().hidden_size);
    let k = mixtures.iter().flatten().map(|m| m.tokens.len()).max().unwrap_or(1);
    let (mut ids, mut weights) = (vec![0; b * k], vec![0.0_f32; b * k]);
    for (row, mixture) in mixtures.iter().enumerate() {
        let Some(mixture) = mixture else { continue };
        for (i, (&token, &weight)) in mixture.tokens.iter().zip(&mixture.weights).enumerate() {
            ensure!(
                (token as usize) < model.config().vocab_size,
                "token {token} of a mixture is not in the vocabulary"
            );
            (ids[row * k + i], weights[row * k + i]) = (token as usize, weight);
        }
    }
    let rows = model.embed_rows(&ids)?.reshape([b, k, d]);
    let weights = TensorData::new(weights, [b, 1, k]);
    Ok(ops::matmul(Tensor::from_data(weights, (&rows.device(), rows.dtype())), rows))
}

/// Log-densities in f32 under a model, in its graph, of mixtures drawn at this temperature: hidden states after the final norm `[n, D]` →
/// `[n]`.
pub(crate) fn log_densities(
    model: &Decoder,
    hidden: Tensor<2>,
    temperature: f64,
    mixtures: &[&Mixture],
) -> Result<Tensor<1>> {
    let temperature = mixtures.first().map_or(temperature, |mixture| mixture.density.temperature(temperature));
    let logits = model.unembed_at(hidden.unsqueeze_dim(0), temperature).squeeze_dim::<2>(0);
    densities(log_softmax(logits.cast(FloatDType::F32)), mixtures)
}

/// Log-densities of mixtures, from log-probabilities `[n, V]`.
pub(crate) fn densities(log_probs: Tensor<2>, mixtures: &[&Mixture]) -> Result<Tensor<1>> {
    let (n, device) = (mixtures.len(), log_probs.device());
    let k = mixtures.iter().map(|mixture| mixture.tokens.len()).max().unwrap_or(0);
    let density = mixtures.first().map_or(Density::default(), |mixture| mixture.density);
    ensure!(mixtures.iter().all(|m| m.tokens.len() == m.perturbed.len()), "a mixture without the noise of its tokens");
    ensure!(mixtures.iter().all(|m| m.density == density), "mixtures of different densities");
    let filled = |values: &mut dyn FnMut(&Mixture, usize) -> f32| {
        let all = mixtures.iter().flat_map(|mixture| (0..k).map(move |i| (mixture, i)));
        let all: Vec<f32> = all.map(|(m, i)| if i < m.tokens.len() { values(m, i) } else { 0.0 }).collect();
        Tensor::<2>::from_data(TensorData::new(all, [n, k]), &device)
    };
    let there = filled(&mut |_, _| 1.0);
    let perturbed = filled(&mut |mixture, i| mixture.perturbed[i]);
    let id = |(mixture, i): (&&Mixture, usize)| mixture.tokens.get(i).copied().map_or(0, i64::from);
    let ids: Vec<i64> = mixtures.iter().flat_map(|m| (0..k).map(move |i| (m, i))).map(id).collect();
    let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [n, k]), &device);
    let log_p = log_probs.gather(1, ids);
    let of = |z: Tensor<2>| z.clone().neg() - z.neg().exp();
    let summed = |x: Tensor<2>| x.sum_dim(1).squeeze_dim::<1>(1);
    if density == Density::Sum {
        return Ok(summed(of(perturbed - log_p) * there));
    }
    if density == Density::OneSided {
        return Ok(summed(of(perturbed - log_p) * there.clone()) / summed(there));
    }
    let p = log_p.exp() * there.clone();
    let base = (p.clone() / p.sum_dim(1) + LEAST).log();
    let counted = base.clone().detach().greater_elem(COUNTS).float() * there;
    let z = perturbed - base;
    let (low, high) = (z.clone().lower_elem(CLAMP[0] - ROUNDING), z.clone().greater_elem(CLAMP[1] + ROUNDING));
    let z = z.mask_fill(low, CLAMP[0]).mask_fill(high, CLAMP[1]);
    Ok(summed(of(z) * counted.clone()) / summed(counted).clamp_min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(top_k: usize, gumbel: f64, density: Density) -> Noise {
        Noise { top_k, top_p: 1.0, temperature: 1.0, gumbel, density, end: None }
    }

    fn log_probs(probabilities: [f64; 4]) -> Vec<f32> {
        probabilities.iter().map(|p| p.ln() as f32).collect()
    }

    /// Gumbel's trick: the largest `log p + ε` is token v with probability `p_v`.
    #[test]
    fn the_largest_of_a_mixture_is_a_draw_from_the_softmax() {
        let probabilities = [0.5_f64, 0.3, 0.15, 0.05];
        let logits = log_probs(probabilities);
        let n = 4000;
        let rows = || (0..n).map(|i| (i, 0)).collect();
        let source = GumbelMixture::new(noise(4, 0.1, Density::Sum), 7, rows()).expect("a source");
        let (mut counts, mut densities) = ([0.0; 4], 0.0);
        for row in 0..n {
            let (drawn, density) = source.draw(&logits, row, 5).expect("drawn");
            let best = (0..4).max_by(|&a, &b| drawn.weights[a].total_cmp(&drawn.weights[b])).expect("one");
            assert!((drawn.weights.iter().sum::<f32>() - 1.0).abs() < 1e-5);
            counts[drawn.tokens[best] as usize] += 1.0;
            densities += density / n as f64;
            let key = Key { problem: row as u64, rollout: 0, position: 5 };
            assert_eq!(source.top(&logits, key), Some(drawn.tokens[best]), "what thinking ends by");
        }
        let chi2: f64 =
            counts.iter().zip(probabilities).map(|(c, p)| (c - n as f64 * p).powi(2) / (n as f64 * p)).sum();
        assert!(chi2 < 16.27, "χ² of 3 degrees of freedom is above 16.27 in one of a thousand: {chi2}, {counts:?}");
        // The entropy of a Gumbel variable is γ + 1 nats.
        assert!((densities + 4.0 * 1.577_215_664_9).abs() < 0.15, "{densities}");
        assert!(gumbel(0.0).is_finite() && gumbel(1.0 - f64::EPSILON / 2.0).is_finite());
    }

    /// The public code's density has the scale of one token, however many are mixed, and leaves out those below e^−3.
    #[test]
    fn the_mean_density_is_that_of_one_token() {
        let (logits, seed) = (log_probs([0.6, 0.3, 0.08, 0.02]), 3);
        let key = |position| Key { problem: 1, rollout: 0, position };
        let (mut mean, mut edge, n) = (0.0, 0, 2000);
        for position in 0..n {
            let (drawn, density) = noise(4, 0.1, Density::Mean).draw(&logits, seed, key(position));
            let z = |i: usize| f64::from(drawn.perturbed[i]) - ([0.6, 0.3, 0.08, 0.02][i] + 1e-6_f64).ln();
            assert!((0..4).all(|i| (-1.5001..3.0001).contains(&z(i))), "{drawn:?}");
            edge += (0..4).filter(|&i| z(i) > 2.9999 || z(i) < -1.4999).count();
            let by_hand = (0..3).map(|i| log_density(z(i))).sum::<f64>() / 3.0;
            assert!((density - by_hand).abs() < 1e-4, "{density}, by hand {by_hand}");
            mean += density / n as f64;
        }
        // p(ε < −1.5) + p(ε > 3) = .0113 + .0486
        assert!((edge as f64 / (4.0 * n as f64) - 0.0599).abs() < 0.01, "{edge}");
        assert!((mean + 1.52).abs() < 0.05, "{mean}");
        let two = Noise { top_p: 0.7, ..noise(4, 0.1, Density::Mean) };
        assert_eq!(two.draw(&logits, seed, key(0)).0.tokens, [0, 1], "the first that have .7 together");
    }

    #[test]
    fn a_mixture_depends_on_its_place_alone() {
        let noise = noise(2, 0.5, Density::Mean);
        let source = GumbelMixture::new(noise, 7, vec![(3, 0), (3, 1)]).expect("a source");
        let logits = [0.0, 1.0, 2.0];
        let draw = |row, position| source.draw(&logits, row, position).expect("drawn").0;
        assert_eq!(draw(0, 4).tokens, [2, 1]);
        assert_eq!(draw(0, 4), draw(0, 4));
        assert!(draw(0, 4).perturbed != draw(1, 4).perturbed && draw(0, 4).perturbed != draw(0, 5).perturbed);
        assert!(source.draw(&logits, 2, 4).is_err());
        assert!(GumbelMixture::new(Noise { gumbel: 0.0, ..noise }, 7, vec![]).is_err());
    }
}
