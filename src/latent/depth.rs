//! Opaque serial depth (Brown-Cohen, Lindner and Shah 2026, arXiv:2603.09786): the longest chain of operations between two tokens of text,
//! that is, without a readable intermediate result. An upper bound from the shape of the model; the chain need not be used.
//!
//! 1. Unit, as in the paper: an elementwise operation has depth 1, a sum, maximum or selection over n terms ⌈log₂ n⌉, a product of a
//!    vector of n with a matrix 1 + ⌈log₂ n⌉. Lookups, reshapes and casts have depth 0. What has no common input runs in parallel.
//! 2. One forward ([`SerialDepth::forward`]): every layer's attention and feed-forward in series, and the final norm. All positions run
//!    in parallel, so that a text, however long, adds no depth.
//! 3. A latent appends to the chain: its input is computed from the state before it ([`SerialDepth::input`]). k latents make k + 1
//!    forwards in series, also if text lies between them: later positions attend to latents of earlier blocks. A latent with a constant
//!    input (pause tokens) appends nothing, and HRPO's tokens with mixed-in states count as latents.
//! 4. The readout ends the chain: head and choice of a token.

use anyhow::{Context, Result};

use super::source::Source;
use crate::model::config::{ActivationFunction, ModelConfig};
use crate::model::heads::{self, HeadSizes};

/// Depths of the parts of a chain, in operations, of a model at one length of its context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SerialDepth {
    pub layers: usize,
    /// From the embedding to the final norm.
    pub forward: usize,
    /// From the final norm to a token.
    pub readout: usize,
    /// From the final norm to the input of a latent; `None` if that input is constant.
    pub input: Option<usize>,
}

/// A longest chain, in two units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain {
    pub layers: usize,
    pub operations: usize,
}

impl SerialDepth {
    /// The depths for attention over `positions`.
    ///
    /// # Errors
    /// A source whose head is not in the model.
    pub fn new(config: &ModelConfig, source: &Source, sizes: HeadSizes, positions: usize) -> Result<Self> {
        let layers = config.num_hidden_layers;
        let own = usize::from(config.family.learned_positions);
        let forward = own + (0..layers).map(|layer| block(config, layer, positions)).sum::<usize>();
        let logits = product(config.hidden_size) + capped(config.extras.logit_cap);
        Ok(Self {
            layers,
            forward: forward + norm(config, config.hidden_size),
            readout: logits + sum(config.vocab_size),
            input: input(config, source, sizes, logits)?,
        })
    }

    /// The chain through `latents`, from a token of text to the next.
    pub fn chain(&self, latents: usize) -> Chain {
        let (latents, input) = self.input.map_or((0, 0), |input| (latents, input));
        Chain {
            layers: (latents + 1) * self.layers,
            operations: latents * (self.forward + input) + self.forward + self.readout,
        }
    }
}

fn sum(terms: usize) -> usize {
    terms.max(1).next_power_of_two().trailing_zeros() as usize
}

fn product(terms: usize) -> usize {
    1 + sum(terms)
}

/// Maximum, difference, exponential, sum, quotient.
fn softmax(terms: usize) -> usize {
    2 * sum(terms) + 3
}

/// c · tanh(x / c).
fn capped(cap: Option<f64>) -> usize {
    if cap.is_some() { 3 } else { 0 }
}

/// LayerNorm with weight and bias: the mean, the difference, its square, their mean, ε, the root, three elementwise operations.
fn layer_norm(width: usize) -> usize {
    2 * sum(width) + 9
}

fn norm(config: &ModelConfig, width: usize) -> usize {
    // RMSNorm: square, mean, ε, root, quotient, weight.
    if config.family.layer_norm { layer_norm(width) } else { sum(width) + 6 }
}

/// Attention and feed-forward of a layer, in series, with their norms and the two sums of the residual stream.
fn block(config: &ModelConfig, layer: usize, positions: usize) -> usize {
    let norms = config.family.norm_place.names().into_iter().flatten().count() * norm(config, config.hidden_size);
    norms + attention(config, layer, positions) + 1 + feed_forward(config, layer) + 1
}

fn attention(config: &ModelConfig, layer: usize, positions: usize) -> usize {
    let (family, dh) = (config.family, config.head_dim);
    let heads = config.num_attention_heads * dh;
    let attended = config.window(layer).map_or(positions, |window| window.min(positions));
    let [bias, bias_out] = [family.qkv_bias, family.other_biases].map(usize::from);
    let qk_norm = if family.qk_norm_is_joint { heads } else { dh };
    let qk_norm = if config.qk_norm { norm(config, qk_norm) } else { 0 };
    let rotation = if family.learned_positions { 0 } else { 2 };
    // Scale and mask of the scores.
    let scores = product(dh) + 1 + capped(config.extras.attention_cap) + 1 + softmax(attended);
    product(config.hidden_size) + bias + qk_norm + rotation + scores + product(attended) + product(heads) + bias_out
}

fn feed_forward(config: &ModelConfig, layer: usize) -> usize {
    let (d, bias) = (config.hidden_size, usize::from(config.family.other_biases));
    let activation = match config.family.activation {
        ActivationFunction::Silu => 2,
        ActivationFunction::GeluTanh => 7,
    };
    let dense = |width| product(d) + bias + activation + usize::from(config.family.is_gated) + product(width) + bias;
    let Some(experts) = config.experts(layer) else { return dense(config.intermediate_size) };
    // Experts run in parallel with the router: a circuit computes all of them, and selects.
    let kept = sum(experts.per_token);
    let router = product(d) + softmax(experts.count) + sum(experts.count);
    let router = router + if experts.normalised { kept + 1 } else { 0 };
    router.max(dense(experts.width)) + 1 + kept
}

/// From the final norm to a latent's input.
fn input(config: &ModelConfig, source: &Source, sizes: HeadSizes, logits: usize) -> Result<Option<usize>> {
    let (d, v) = (config.hidden_size, config.vocab_size);
    // LayerNorm(down(gelu(up))), GELU with an error function.
    let body = |inside: usize, out: usize| product(d) + 1 + 5 + product(inside) + 1 + layer_norm(out);
    let missing = || format!("the source `{source:?}` needs a head that is not in {}", heads::FILE);
    Ok(Some(match *source {
        Source::HiddenState => 0,
        // Square, sum, root, reciprocal, and two factors.
        Source::ScaledState { .. } => 1 + sum(d) + 4,
        Source::FixedEmbedding { .. } => return Ok(None),
        Source::Projection => body(sizes.projection.with_context(missing)?, d),
        Source::LatentHead => {
            let inside = sizes.latent.with_context(missing)?;
            body(inside, inside) + product(inside) + 1 + 1
        }
        Source::VocabularyMixture { top_k, top_p, .. } => {
            let k = top_k.min(v);
            // The nucleus: softmax, cumulative sum, difference, comparison.
            let select = if top_p < 1.0 { sum(v).max(softmax(v)) + sum(k) + 2 } else { sum(v) };
            logits + 1 + select + softmax(k) + product(k)
        }
        // Probabilities, the norm of their mean embedding, and the gate's product, product and sum.
        Source::Hybrid(_) => logits + 1 + softmax(v) + 2 + sum(v) + 1 + 3,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latent::hybrid::Hybrid;
    use crate::model::config::{Experts, Extras, Family};

    fn config(family: Family) -> ModelConfig {
        ModelConfig {
            vocab_size: 30,
            hidden_size: 64,
            intermediate_size: 192,
            num_hidden_layers: 4,
            num_attention_heads: 4,
            num_key_value_heads: 2,
            head_dim: 16,
            ..ModelConfig::new(family)
        }
    }

    fn depth(config: &ModelConfig, source: Source, positions: usize) -> SerialDepth {
        let sizes = HeadSizes { projection: Some(64), latent: Some(100), ..HeadSizes::default() };
        SerialDepth::new(config, &source, sizes, positions).expect("a depth")
    }

    /// `micro`, a Qwen3, at 256 positions: log₂ 64 = 6, 192 → 8, 16 → 4, 256 → 8, 30 → 5.
    #[test]
    fn a_qwen3_counted_by_hand() {
        let of = depth(&config(Family::Qwen3), Source::HiddenState, 256);
        // Norm 6 + 6; query 7, its norm 4 + 6, rotation 2; scores 5 + 1 + 1, softmax 8 + 8 + 3; values 9, output 7; sum 1.
        let attention = 12 + 7 + 10 + 2 + 7 + 19 + 9 + 7 + 1;
        // Norm 12; gate 7, SiLU 2, product 1; down 9; sum 1.
        let feed_forward = 12 + 7 + 2 + 1 + 9 + 1;
        assert_eq!(of.forward, 4 * (attention + feed_forward) + 12);
        assert_eq!((of.forward, of.readout, of.input), (436, 7 + 5, Some(0)));
        assert_eq!(of.chain(0), Chain { layers: 4, operations: 436 + 12 });
        // A block of five latents: six forwards, one readout.
        assert_eq!(of.chain(5), Chain { layers: 24, operations: 6 * 436 + 12 });
    }

    /// GPT-2: LayerNorms, biases, no gate, learned positions.
    #[test]
    fn a_gpt2_counted_by_hand() {
        let of = depth(&config(Family::Gpt2), Source::FixedEmbedding { token: 3 }, 1024);
        // Norm 12 + 9; query 7 + 1; scores 5 + 1 + 1, softmax 10 + 10 + 3; values 11; output 7 + 1; sum 1.
        let attention = 21 + 8 + 7 + 23 + 11 + 8 + 1;
        // Norm 21; up 7 + 1, GELU 7; down 9 + 1; sum 1.
        let feed_forward = 21 + 8 + 7 + 10 + 1;
        assert_eq!(of.forward, 1 + 4 * (attention + feed_forward) + 21);
        assert_eq!(of.chain(9), of.chain(0), "a pause token's input is constant: its chain goes up, not on");
    }

    /// A mixture of experts with normalised weights, and a mixture of the vocabulary as latents.
    #[test]
    fn experts_and_a_vocabulary_mixture_counted_by_hand() {
        let experts = Experts { count: 16, per_token: 4, width: 32, normalised: true, layers: vec![true; 4] };
        let moe = config(Family::Qwen3Moe);
        let moe = ModelConfig { extras: Extras { experts: Some(experts), ..Extras::default() }, ..moe };
        let source = Source::VocabularyMixture { top_k: 8, top_p: 1.0, temperature: 1.0 };
        let of = depth(&moe, source, 256);
        let attention = 12 + 7 + 10 + 2 + 7 + 19 + 9 + 7 + 1;
        // Router 7, softmax 4 + 4 + 3, selection 4, weights 2 + 1: 25. An expert 7 + 2 + 1 + 6: 16. Then product 1 and sum 2.
        let feed_forward = 12 + 25 + 3 + 1;
        assert_eq!(of.forward, 4 * (attention + feed_forward) + 12);
        // Head 7, temperature 1, selection 5, softmax 3 + 3 + 3, product 4.
        assert_eq!(of.input, Some(26));
        assert_eq!(of.chain(2), Chain { layers: 12, operations: 3 * of.forward + 2 * 26 + 12 });
    }

    #[test]
    fn every_source_that_recurs_lengthens_the_chain() {
        let qwen = config(Family::Qwen3);
        let hybrid = Source::Hybrid(Hybrid { temperature: 0.5, end: 2 });
        let scaled = Source::ScaledState { norm: 3.0 };
        for source in [Source::HiddenState, scaled, Source::Projection, Source::LatentHead, hybrid] {
            let of = depth(&qwen, source, 256);
            assert_eq!(of.chain(3).layers, 16, "{source:?}");
            assert!(of.chain(3).operations >= 4 * of.forward + of.readout, "{source:?}");
        }
        // Up 7 + 1, GELU 5, down 7 + 1, LayerNorm 12 + 9.
        // Square, sum of 64, root, reciprocal, two factors.
        assert_eq!(depth(&qwen, scaled, 256).input, Some(1 + 6 + 4));
        assert_eq!(depth(&qwen, Source::Projection, 256).input, Some(42));
        let error = SerialDepth::new(&qwen, &Source::Projection, HeadSizes::default(), 256).expect_err("no head");
        assert!(error.to_string().contains(heads::FILE), "{error}");
        let windowed = depth(&qwen, Source::HiddenState, 1 << 11);
        assert_eq!(windowed.forward - 436, 4 * 3 * 3, "eight times the positions: three reductions per layer");
    }
}
