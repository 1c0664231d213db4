//! Mixtures of the vocabulary that are drawn (SofT-GRPO, Zheng & Lee 2025, arXiv:2511.06411). Gumbel noise on log-probabilities makes
//! a mixture a random choice with a density, so that a policy gradient can be taken through it:
//!
//! `g = log p + ε`, `ε ~ Gumbel(0, 1)`, the input is `Σ softmax(g / τ)_v E[v]`, and `log f(g) = Σ_v −(g_v − log p_v) − exp(−(g_v − log p_v))`.
//!
//! Our readings: the sums run over the `top_k` tokens that were most probable when the mixture was drawn, and `log p` is the full
//! softmax at the temperature of the rollouts.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use burn::tensor::{Int, Tensor, TensorData};
use rand::Rng;
use serde::{Deserialize, Serialize};

use super::sampling::{self, Key};
use super::source::LatentSource;
use super::trace::{PositionRole, Trace};
use crate::model::{Decoder, Span, Step};
use crate::ops::{self, wide::log_softmax};

/// A mixture that was drawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Drawn {
    pub tokens: Vec<u32>,
    /// `g`: log-probability and noise of each token.
    pub perturbed: Vec<f32>,
    /// `softmax(g / τ)`: what each token's embedding is multiplied by.
    pub weights: Vec<f32>,
}

/// `log f(g)` of one token: `−z − exp(−z)`, where `z = g − log p` is the noise that makes `g` of `p`.
fn log_density(z: f64) -> f64 {
    -z - (-z).exp()
}

/// Keeps the noise of a place apart from the uniform value that draws a token there ("gumbel").
const NOISE: u64 = 0x6775_6d62_656c;

/// Draws a mixture at every latent position of a decode, and remembers it.
pub(crate) struct GumbelMixture {
    pub top_k: usize,
    /// Of the log-probabilities: that of the rollouts.
    pub temperature: f64,
    /// τ.
    pub gumbel: f64,
    pub seed: u64,
    /// Problem and rollout of each row, by its name in the decode.
    pub rows: Vec<(usize, usize)>,
    /// By row and position: what was drawn, and its log-density.
    drawn: Mutex<HashMap<(usize, usize), (Drawn, f64)>>,
}

impl GumbelMixture {
    /// # Errors
    /// A setting out of range.
    pub fn new(top_k: usize, [temperature, gumbel]: [f64; 2], seed: u64, rows: Vec<(usize, usize)>) -> Result<Self> {
        ensure!(top_k > 0, "a drawn mixture needs tokens: top_k is 0");
        ensure!(temperature > 0.0 && gumbel > 0.0, "temperatures must be above 0, found {temperature} and {gumbel}");
        Ok(Self { top_k, temperature, gumbel, seed, rows, drawn: Mutex::default() })
    }

    /// The mixture of one row.
    fn draw(&self, logits: &[f32], row: usize, position: usize) -> Result<(Drawn, f64)> {
        let &(problem, rollout) = self.rows.get(row).with_context(|| format!("no rollout is named {row}"))?;
        let log_probs = sampling::log_softmax(logits, self.temperature, &[]);
        let mut order: Vec<usize> = (0..log_probs.len()).collect();
        // Of equal ones the first: the same tokens on every machine. The rest of the vocabulary is not sorted.
        let by_probability = |a: &usize, b: &usize| log_probs[*b].total_cmp(&log_probs[*a]).then(a.cmp(b));
        if self.top_k < order.len() {
            order.select_nth_unstable_by(self.top_k, by_probability);
            order.truncate(self.top_k);
        }
        order.sort_unstable_by(by_probability);
        let key = Key { problem: problem as u64, rollout: rollout as u64, position: position as u64 };
        let mut rng = key.rng(self.seed ^ NOISE);
        let noise: Vec<f64> = order.iter().map(|_| gumbel(rng.random())).collect();
        let perturbed: Vec<f64> = order.iter().zip(&noise).map(|(&token, noise)| log_probs[token] + noise).collect();
        let scaled: Vec<f32> = perturbed.iter().map(|g| (g / self.gumbel) as f32).collect();
        let weights = sampling::log_softmax(&scaled, 1.0, &[]).iter().map(|p| p.exp() as f32).collect();
        let density = noise.iter().copied().map(log_density).sum();
        let tokens = order.into_iter().map(|token| token as u32).collect();
        Ok((Drawn { tokens, perturbed: perturbed.into_iter().map(|g| g as f32).collect(), weights }, density))
    }

    /// Writes what was drawn into the traces of the decode, the `i`-th being the row named `i`.
    pub fn remember_in(&self, traces: &mut [Trace]) {
        let mut drawn = self.drawn.lock().unwrap_or_else(PoisonError::into_inner);
        for (row, trace) in traces.iter_mut().enumerate() {
            let before = trace.prompt.len();
            for (at, position) in trace.positions.iter_mut().enumerate() {
                if position.kind == PositionRole::Latent {
                    // The last position of a row that ended there was never fed.
                    let Some((mixture, density)) = drawn.remove(&(row, before + at)) else { continue };
                    position.logprob = Some(density);
                    position.drawn = Some(mixture);
                }
            }
        }
    }
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
            let (name, position) = (at.rows[row], at.positions[row][0]);
            let (mixture, density) = self.draw(logits, name, position)?;
            mixtures.push(Some(mixture.clone()));
            let mut drawn = self.drawn.lock().unwrap_or_else(PoisonError::into_inner);
            drawn.insert((name, position), (mixture, density));
        }
        mixed(&mixtures.iter().map(Option::as_ref).collect::<Vec<_>>(), model)
    }

    fn name(&self) -> String {
        format!("gumbel_mixture({}, {}, {})", self.top_k, self.temperature, self.gumbel)
    }
}

/// The mixtures of traces, fed again: rows are named by their number.
pub(crate) struct StoredMixtures<'t> {
    by_place: HashMap<(usize, usize), &'t Drawn>,
    /// Positions of each row.
    lengths: Vec<usize>,
}

impl<'t> StoredMixtures<'t> {
    /// `None` where the traces hold no mixtures.
    pub fn of(traces: &'t [Trace]) -> Option<Self> {
        let mut all = HashMap::new();
        for (row, trace) in traces.iter().enumerate() {
            for (at, position) in trace.positions.iter().enumerate() {
                if let Some(drawn) = &position.drawn {
                    all.insert((row, trace.prompt.len() + at), drawn);
                }
            }
        }
        let lengths = traces.iter().map(Trace::length).collect();
        (!all.is_empty()).then_some(Self { by_place: all, lengths })
    }
}

impl LatentSource for StoredMixtures<'_> {
    fn inject(&self, _h: Tensor<3>, at: &Span, model: &Decoder) -> Result<Tensor<3>> {
        let of = |row: usize| {
            let Some(Step::Latent { .. }) = at.steps[row][0] else { return Ok(None) };
            let (name, position) = (at.rows[row], at.positions[row][0]);
            let drawn = self.by_place.get(&(name, position)).copied();
            // A row that ended with a latent was never fed it, and nothing is decided after it.
            let is_last = self.lengths.get(name).is_some_and(|length| position + 1 == *length);
            ensure!(drawn.is_some() || is_last, "row {name}: no mixture was drawn at position {position}");
            Ok(drawn)
        };
        mixed(&(0..at.rows.len()).map(of).collect::<Result<Vec<_>>>()?, model)
    }

    fn name(&self) -> String {
        "stored_mixtures".into()
    }
}

/// `[B, 1, D]`; zeros where a row has no mixture. The weights are constants, the embeddings are not.
fn mixed(mixtures: &[Option<&Drawn>], model: &Decoder) -> Result<Tensor<3>> {
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

/// `log f(g)` of drawn mixtures under a model, in its graph: hidden states after the final norm `[n, D]`, already divided by the
/// temperature → `[n]`.
pub(super) fn log_densities(model: &Decoder, hidden: Tensor<2>, mixtures: &[&Drawn]) -> Result<Tensor<1>> {
    let (n, device) = (mixtures.len(), hidden.device());
    let k = mixtures.first().map_or(0, |mixture| mixture.tokens.len());
    ensure!(
        mixtures.iter().all(|m| m.tokens.len() == k && m.perturbed.len() == k),
        "mixtures of different numbers of tokens"
    );
    let ids: Vec<i64> = mixtures.iter().flat_map(|m| m.tokens.iter().map(|&token| i64::from(token))).collect();
    let perturbed: Vec<f32> = mixtures.iter().flat_map(|m| m.perturbed.iter().copied()).collect();
    let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [n, k]), &device);
    let perturbed = Tensor::<2>::from_data(TensorData::new(perturbed, [n, k]), &device);
    let logits = model.unembed(hidden.unsqueeze_dim(0)).squeeze_dim::<2>(0);
    let z = perturbed - log_softmax(logits).gather(1, ids);
    Ok((z.clone().neg() - z.neg().exp()).sum_dim(1).squeeze_dim(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gumbel's trick: the largest `log p + ε` is token v with probability `p_v`.
    #[test]
    fn the_largest_of_a_mixture_is_a_draw_from_the_softmax() {
        let probabilities = [0.5_f64, 0.3, 0.15, 0.05];
        let logits: Vec<f32> = probabilities.iter().map(|p| p.ln() as f32).collect();
        let n = 4000;
        let source = GumbelMixture::new(4, [1.0, 0.1], 7, (0..n).map(|i| (i, 0)).collect()).expect("a source");
        let (mut counts, mut densities) = ([0.0; 4], 0.0);
        for row in 0..n {
            let (drawn, density) = source.draw(&logits, row, 5).expect("drawn");
            let best = (0..4).max_by(|&a, &b| drawn.weights[a].total_cmp(&drawn.weights[b])).expect("one");
            assert!((drawn.weights.iter().sum::<f32>() - 1.0).abs() < 1e-5);
            counts[drawn.tokens[best] as usize] += 1.0;
            densities += density / n as f64;
        }
        let chi2: f64 =
            counts.iter().zip(probabilities).map(|(c, p)| (c - n as f64 * p).powi(2) / (n as f64 * p)).sum();
        assert!(chi2 < 16.27, "χ² of 3 degrees of freedom is above 16.27 in one of a thousand: {chi2}, {counts:?}");
        // The entropy of a Gumbel variable is γ + 1 nats.
        assert!((densities + 4.0 * 1.577_215_664_9).abs() < 0.15, "{densities}");
        assert!(gumbel(0.0).is_finite() && gumbel(1.0 - f64::EPSILON / 2.0).is_finite());
    }

    #[test]
    fn a_mixture_depends_on_its_place_alone() {
        let source = GumbelMixture::new(2, [1.0, 0.5], 7, vec![(3, 0), (3, 1)]).expect("a source");
        let logits = [0.0, 1.0, 2.0];
        let draw = |row, position| source.draw(&logits, row, position).expect("drawn").0;
        assert_eq!(draw(0, 4).tokens, [2, 1]);
        assert_eq!(draw(0, 4), draw(0, 4));
        assert!(draw(0, 4).perturbed != draw(1, 4).perturbed && draw(0, 4).perturbed != draw(0, 5).perturbed);
        assert!(source.draw(&logits, 2, 4).is_err());
        assert!(GumbelMixture::new(2, [1.0, 0.0], 7, vec![]).is_err());
    }
}
