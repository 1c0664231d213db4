//! Decodes several steps on the device without synchronising with the host. On a GPU every read is a synchronisation: one read per
//! token leaves the device idle in between. Here the device draws tokens, closes blocks and feeds rows for several steps, and the host
//! then reads all decisions at once.
//!
//! Positions, cache slots and the random value of each draw are known in advance: every row is fed one position per step, also rows
//! that have ended (their outputs are discarded). The token, and whether the position is a latent, are known only on the device. The
//! host then repeats the decisions from what it reads ([`Reading`]), so that traces are written in one place.

use anyhow::{Context, Result, ensure};
use burn::tensor::{Bool, DType, Int, Tensor, TensorData};

use super::controller::{Bounds, Exit};
use super::decode::Decode;
use super::reading::{PositionView, Reading};
use super::row::{DecodingRow, text_masked};
use super::stream::{Piece, Stream};
use crate::model::Step;
use crate::ops::MASKED;
use crate::ops::wide::{self, GROUP, grouped};

/// Default number of steps between two reads: with more, the wait is already a small share, and rows that have ended are fed in vain.
const STEPS: usize = 16;

/// Number of values read per row and step.
const WIDTH: usize = 7;

/// Inputs of the device's decisions, the same for all rows and steps.
pub(super) struct Ahead<'a> {
    decoding: Decode<'a>,
    bounds: Bounds,
    steps: usize,
    draws_swi: bool,
    /// `[1, P]`: tokens that text mode never draws.
    masked: Tensor<2, Bool>,
}

/// State of a row in text mode.
const TEXT: f32 = -1.0;

impl<'a> Ahead<'a> {
    /// `None` if the host decides every step: on the CPU, and for methods, sources and samplings that need it.
    pub fn new(decoding: Decode<'a>, rows: &[DecodingRow]) -> Result<Option<Self>> {
        let device = decoding.model.device();
        let steps = decoding.ahead.unwrap_or(if crate::ops::is_cpu(&device) { 0 } else { STEPS });
        let sampling = &decoding.settings.sampling;
        let cut = sampling.top_k > 0 || sampling.top_p < 1.0;
        let bounds = decoding.controller.bounds(decoding.settings.k_min, decoding.settings.k_cap);
        let (Some(bounds), Some(row)) = (bounds, rows.first()) else { return Ok(None) };
        if steps == 0
            || cut
            || !decoding.settings.mask_tags
            || !decoding.source.stays_on_device()
            || decoding.model.looks_up_on_host()
        {
            return Ok(None);
        }
        let draws_swi = row.draws_swi(&decoding);
        let vocab = decoding.model.config().vocab_size;
        let mut masked = vec![false; vocab.next_multiple_of(GROUP)];
        for token in text_masked(&decoding, draws_swi) {
            // A latent's placeholder may lie outside the vocabulary.
            masked.get_mut(token as usize).into_iter().for_each(|place| *place = true);
        }
        let padded = masked.len();
        let masked = Tensor::from_data(TensorData::new(masked, [1, padded]), &device);
        Ok(Some(Self { decoding, bounds, steps, draws_swi, masked }))
    }

    /// Whether the next steps of all these rows can be decided on the device.
    pub fn takes<'r>(&self, mut rows: impl Iterator<Item = &'r DecodingRow>) -> bool {
        rows.all(|row| row.is_plain() && row.draws_swi(&self.decoding) == self.draws_swi)
    }

    /// Feeds every row of the stream several positions, and writes the decisions into the rows. The host decides which rows end.
    ///
    /// # Errors
    /// Failures of the decoder; a step at which host and device decide differently.
    pub fn run(&self, stream: &mut Stream, rows: &mut [&mut DecodingRow]) -> Result<()> {
        let (b, device) = (rows.len(), self.decoding.model.device());
        // No row exceeds its budget; latents do not count against it.
        let left = rows.iter().map(|row| row.left(&self.decoding)).max().unwrap_or(0);
        let steps = self.steps.min(left.max(1));
        let uniforms: Vec<f32> =
            rows.iter().flat_map(|row| row.uniforms(&self.decoding, steps)).map(|u| u as f32).collect();
        let uniforms = Tensor::<2>::from_data(TensorData::new(uniforms, [b, steps]), (&device, DType::F32));
        let states: Vec<f32> = rows.iter().map(|row| row.latents().map_or(TEXT, |step| step as f32)).collect();
        let mut state = Tensor::<2>::from_data(TensorData::new(states, [b, 1]), (&device, DType::F32));
        let mut read = vec![];
        for step in 0..steps {
            let uniform = uniforms.clone().narrow(1, step, 1);
            let (values, next) = self.step(stream, state, uniform).with_context(|| format!("{step} steps ahead"))?;
            state = next;
            read.push(values);
        }
        let read = Tensor::cat(read, 0).try_into_vec_as::<f32>().context("reading the device's decisions")?;
        for (at, values) in read.chunks(WIDTH).enumerate() {
            let row = &mut *rows[at % b];
            if row.is_live() {
                let piece = row.choose(&seen(values), &self.decoding);
                ensure!(!row.is_live() || is_fed(&piece, values), "{}", disagreement(row, &piece, values));
            }
        }
        Ok(())
    }

    /// One step of all rows: the state `[B, 1]` of each row ([`TEXT`], or the number of latents fed in its block) and its uniform value
    /// `[B, 1]` → the values for the host `[B, WIDTH]`, and the next state.
    fn step(&self, stream: &mut Stream, state: Tensor<2>, uniform: Tensor<2>) -> Result<(Tensor<2>, Tensor<2>)> {
        let Decode { model, settings, switch, .. } = self.decoding;
        let (b, device) = (state.dims()[0], state.device());
        // Padded to whole groups with values of probability 0.
        let logits = wide::padded(stream.plain_logits()?.cast(DType::F32), MASKED);
        let dims = logits.dims();
        let constant = |x: f32| Tensor::<2>::full([b, 1], x, (&device, DType::F32));
        let text = state.clone().equal_elem(TEXT);
        let inside = state.clone().greater_equal_elem(1.0);

        // Not finite where any logit is not.
        let sum = wide::sum(logits.clone());
        let masked = self.masked.clone().expand(dims).bool_and(inside.clone().bool_not().expand(dims));
        let logits = logits.mask_fill(masked, MASKED);
        let plain = Distribution::new(logits.clone());
        let scale = settings.sampling.scale();
        let scaled = (scale != 1.0).then(|| Distribution::new(logits.clone().div_scalar(scale)));
        let tempered = scaled.as_ref().unwrap_or(&plain);
        let drawn = match settings.sampling.temperature == 0.0 {
            true => argmax(logits),
            false => {
                let drawn = draw(tempered.exp.clone(), uniform);
                match self.decoding.controller.learnt().exit {
                    Exit::Sampled => drawn,
                    Exit::Argmax => drawn.mask_where(inside.clone(), argmax(logits)),
                }
            }
        };
        // Without finite logits comparisons are meaningless; the row continues until the next read.
        let drawn = drawn.clamp(0, model.config().vocab_size as i64 - 1);
        let (marker, exits) = match switch {
            Some(ids) => {
                let [swi, end] = [ids.swi, ids.swi_end].map(i64::from);
                let marker = Tensor::<2, Int>::full([b, 1], swi, &device).mask_fill(inside.clone(), end);
                (Some(marker), inside.clone().bool_and(self.closes(&state, drawn.clone().equal_elem(end))))
            }
            None => (None, inside.clone()),
        };
        let of_marker = |of: &Distribution| marker.as_ref().map(|at| of.log_prob(at.clone()));
        let p_marker = of_marker(&plain).map_or_else(|| constant(0.0), Tensor::exp);
        let marker_logprob = of_marker(tempered).unwrap_or_else(|| constant(MASKED));

        // The input: the drawn token in text, a latent in a block, `</swi>` at its end.
        let end = i64::from(switch.map_or(0, |ids| ids.swi_end));
        let token = drawn.clone().mask_fill(exits.clone(), end);
        let is_latent = text.clone().bool_or(exits.clone()).bool_not();
        // The next state: one latent more in a block; text in text and after a block; 0 latents where a block opens.
        let mut next = (state + 1.0).mask_fill(text.clone().bool_or(exits), TEXT);
        if let Some(ids) = switch.filter(|_| self.draws_swi) {
            next = next.mask_fill(text.bool_and(drawn.clone().equal_elem(i64::from(ids.swi))), 0.0);
        }
        let fed = token.clone().float().cast(DType::F32).mask_fill(is_latent.clone(), LATENT);
        let logprob = tempered.log_prob(drawn.clone());
        let drawn = drawn.float().cast(DType::F32);
        let values = vec![sum, drawn, logprob, marker_logprob, p_marker, plain.entropy(), fed];
        // A latent has no token to look up: the first row of the table is a placeholder.
        let token = token.mask_fill(is_latent.clone(), 0).reshape([b]);
        stream.feed(model.embed_on_device(token)?, is_latent)?;
        Ok((Tensor::cat(values, 1), next))
    }

    /// Whether each block ends after this number of latents, `[B, 1]`.
    fn closes(&self, state: &Tensor<2>, drawn: Tensor<2, Bool>) -> Tensor<2, Bool> {
        let forced = state.clone().greater_equal_elem(self.bounds.closes_at as f32);
        match self.bounds.leaves_from {
            Some(from) => forced.bool_or(drawn.bool_and(state.clone().greater_equal_elem(from as f32))),
            None => forced,
        }
    }
}

/// Placeholder for the token of a latent.
const LATENT: f32 = -1.0;

/// Parses the values of one row and step.
fn seen<'s>(values: &[f32]) -> PositionView<'s> {
    let [sum, drawn, logprob, marker_logprob, p_marker, entropy, _] = *values else { return PositionView::NotFinite };
    if !sum.is_finite() {
        return PositionView::NotFinite;
    }
    let log = |x: f32| if x <= MASKED / 2.0 { f64::NEG_INFINITY } else { f64::from(x) };
    PositionView::Read(Reading {
        drawn: drawn as u32,
        logprob: log(logprob),
        marker_logprob: log(marker_logprob),
        p_marker: f64::from(p_marker),
        entropy: f64::from(entropy),
        lead: None,
    })
}

/// Whether the host's piece equals the device's input.
fn is_fed(piece: &Piece, values: &[f32]) -> bool {
    let host = match (piece.ids.as_slice(), piece.steps.as_slice()) {
        ([_], [Step::Latent { .. }]) => LATENT,
        ([id], [_]) => *id as f32,
        _ => return false,
    };
    values.last() == Some(&host)
}

fn disagreement(row: &DecodingRow, piece: &Piece, values: &[f32]) -> String {
    let fed = values.last().copied().unwrap_or(f32::NAN);
    format!(
        "problem {}, response position {}: the host feeds {:?} (a latent: {LATENT}), the device fed {fed}; this is a fault of \
         the program",
        row.trace.problem,
        row.trace.positions.len(),
        piece.ids
    )
}

/// The values of one group of each row: `[B, G, GROUP]`, `[B, 1]` → `[B, GROUP]`.
fn of_group(x: Tensor<3>, group: &Tensor<2, Int>) -> Tensor<2> {
    let b = group.dims()[0];
    x.gather(1, group.clone().reshape([b, 1, 1]).expand([b, 1, GROUP])).squeeze_dim(1)
}

/// Index of the largest value, the first of equals: `[B, P]` → `[B, 1]`.
fn argmax(x: Tensor<2>) -> Tensor<2, Int> {
    let x = grouped(x);
    let group = x.clone().max_dim(2).squeeze_dim::<2>(2).argmax(1);
    group.clone().mul_scalar(GROUP as i64) + of_group(x, &group).argmax(1)
}

/// Shared terms of a softmax over `[B, P]`.
struct Distribution {
    /// Logits minus the largest.
    x: Tensor<2>,
    exp: Tensor<2>,
    /// `[B, 1]`: Σ exp(x).
    total: Tensor<2>,
}

impl Distribution {
    fn new(logits: Tensor<2>) -> Self {
        let x = logits.clone() - wide::largest(logits);
        let exp = x.clone().exp();
        Self { total: wide::sum(exp.clone()), x, exp }
    }

    /// Log-probability of one token per row, `[B, 1]` → `[B, 1]`.
    fn log_prob(&self, token: Tensor<2, Int>) -> Tensor<2> {
        self.x.clone().gather(1, token) - self.total.clone().log()
    }

    /// Entropy, `[B, 1]`, nats.
    fn entropy(&self) -> Tensor<2> {
        self.total.clone().log() - wide::sum(self.exp.clone() * self.x.clone()) / self.total.clone()
    }
}

/// The first token at which the cumulative weight `[B, P]` exceeds `uniform` `[B, 1]` of the total, `[B, 1]`: as [`super::sampling::draw`],
/// in f32. A token of weight 0 is never drawn.
fn draw(weights: Tensor<2>, uniform: Tensor<2>) -> Tensor<2, Int> {
    let weights = grouped(weights);
    let groups = weights.dims()[1];
    let sums = weights.clone().sum_dim(2).squeeze_dim::<2>(2);
    let up_to = sums.clone().cumsum(1);
    let total = up_to.clone().narrow(1, groups - 1, 1);
    let target = below(uniform * total.clone(), total);
    let group = passed(up_to.clone(), target.clone());
    // The remaining target within the group.
    let rest = target - (up_to.gather(1, group.clone()) - sums.gather(1, group.clone()));
    let up_to = of_group(weights, &group).cumsum(1);
    let rest = below(rest.clamp_min(0.0), up_to.clone().narrow(1, GROUP - 1, 1));
    group.mul_scalar(GROUP as i64) + passed(up_to, rest)
}

/// Clamps a target below the end of the cumulative sum, so that some token exceeds it in spite of rounding.
fn below(target: Tensor<2>, end: Tensor<2>) -> Tensor<2> {
    target.min_pair(end.mul_scalar(1.0 - f64::from(f32::EPSILON)))
}

/// Index of the first entry of a cumulative sum `[B, N]` above the target `[B, 1]`: `[B, 1]`.
fn passed(up_to: Tensor<2>, target: Tensor<2>) -> Tensor<2, Int> {
    let dims = up_to.dims();
    up_to.lower_equal(target.expand(dims)).int().sum_dim(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latent::sampling::{self, Key, Sampling};

    fn values(n: usize, seed: u64) -> impl Iterator<Item = f64> {
        (0..n as u64).map(move |position| Key { problem: 1, rollout: 2, position }.uniform(seed))
    }

    /// [`draw`] of one row of weights for many uniform values.
    fn drawn(weights: &[f32], uniforms: &[f32]) -> Vec<u32> {
        let device = Default::default();
        let (n, vocab) = (uniforms.len(), weights.len());
        let wide = vocab.next_multiple_of(GROUP);
        let filled = weights.iter().copied().chain(std::iter::repeat(0.0)).take(wide).collect::<Vec<_>>();
        let weights = Tensor::<2>::from_data(TensorData::new(filled, [1, wide]), &device);
        let uniforms = Tensor::<2>::from_data(TensorData::new(uniforms.to_vec(), [n, 1]), &device);
        let drawn = draw(weights.expand([n, wide]), uniforms).try_into_vec_as::<i64>().expect("tokens");
        drawn.into_iter().map(|token| token as u32).collect()
    }

    #[test]
    fn the_device_draws_the_hosts_tokens() {
        for (vocab, seed) in [(7, 1), (256, 2), (257, 3), (700, 4), (1024, 5)] {
            let logits: Vec<f32> = values(vocab, seed).map(|u| (8.0 * u) as f32).collect();
            let masked = [0, vocab as u32 / 2, vocab as u32 - 1];
            let log_probs = sampling::log_softmax(&logits, 1.0, &masked);
            let weights: Vec<f32> = log_probs.iter().map(|p| p.exp() as f32).collect();
            let keys = (0..2000).map(|position| Key { problem: 3, rollout: 4, position });
            let sampling = Sampling { temperature: 1.0, seed, ..Sampling::default() };
            let host: Vec<u32> = keys.clone().map(|key| sampling::draw(&log_probs, &sampling, key)).collect();
            let uniforms: Vec<f32> = keys.map(|key| key.uniform(seed) as f32).collect();
            let device = drawn(&weights, &uniforms);
            // Two draws of f32 against f64 may fall on two sides of a step.
            let other = host.iter().zip(&device).filter(|(host, device)| host != device).count();
            assert!(other <= 1, "{other} of 2000 draws from {vocab} tokens differ");
            assert!(host.iter().any(|&token| token as usize > vocab / 2), "the test sees both halves");
        }
    }

    #[test]
    fn a_token_of_weight_zero_is_never_drawn() {
        let ends = [0.0, f32::MIN_POSITIVE, 0.25, 0.5, 0.75, 1.0 - f32::EPSILON, 1.0];
        for (vocab, there) in
            [(3, vec![1]), (600, vec![299]), (600, vec![255, 256]), (512, vec![1, 300]), (900, vec![5, 512, 898])]
        {
            let mut weights = vec![0.0; vocab];
            there.iter().for_each(|&token: &usize| weights[token] = 0.1);
            for (token, uniform) in drawn(&weights, &ends).into_iter().zip(ends) {
                assert!(there.contains(&(token as usize)), "token {token} of {there:?} at {uniform}");
            }
            let [first, last] = [there[0], there[there.len() - 1]].map(|token| token as u32);
            assert_eq!((drawn(&weights, &[0.0]), drawn(&weights, &[1.0])), (vec![first], vec![last]));
        }
    }
}
