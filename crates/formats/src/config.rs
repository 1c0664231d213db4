//! A decoder's settings: Hugging Face's `config.json`, checked.
//!
//! Every [`ModelConfig`] can be run by the decoder: settings that it does not support (other rotary scalings, other biases, …) are
//! refused by name on reading, never ignored. Knows no weights or tensors.

mod extras;
mod family;
mod gpt2;
pub(crate) mod keys;
mod read;
mod rope;

use std::path::Path;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use extras::{Experts, Extras, SlidingWindow};
pub use family::{ActivationFunction, Family, FamilyFacts, NormPlace};
pub use rope::{Llama3Scaling, RopeScaling, YarnScaling};

/// A decoder of one of the families. Names follow `config.json`; axes follow the glossary:
/// `vocab_size` V, `hidden_size` D, `intermediate_size` F, heads H and Hkv, `head_dim` dh.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    pub family: Family,
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: usize,
    pub head_dim: usize,
    /// Epsilon of every norm.
    pub rms_norm_eps: f64,
    pub rope_theta: f64,
    pub rope_scaling: Option<RopeScaling>,
    /// Copied from the family.
    pub qk_norm: bool,
    pub tie_word_embeddings: bool,
    pub max_position_embeddings: usize,
    pub bos_token_id: Option<u32>,
    pub eos_token_ids: Vec<u32>,
    pub pad_token_id: Option<u32>,
    #[serde(default)]
    pub extras: Extras,
}

/// Upper bound of a dimension, so that products of two cannot overflow.
const MAX_DIM: usize = 1 << 28;
const MAX_LAYERS: usize = 4096;
/// More than the longest context of any model.
const MAX_POSITIONS: usize = 1 << 24;

impl ModelConfig {
    /// Neutral settings: all sizes are 1, positions 2048; only `qk_norm` follows the family.
    pub fn new(family: Family) -> Self {
        Self {
            family,
            vocab_size: 1,
            hidden_size: 1,
            intermediate_size: 1,
            num_hidden_layers: 1,
            num_attention_heads: 1,
            num_key_value_heads: 1,
            head_dim: 1,
            rms_norm_eps: 1e-6,
            rope_theta: 10_000.0,
            rope_scaling: None,
            qk_norm: family.qk_norm,
            tie_word_embeddings: true,
            max_position_embeddings: 2048,
            bos_token_id: None,
            eos_token_ids: vec![],
            pad_token_id: None,
            extras: Extras::default(),
        }
    }

    /// Reads and checks a `config.json`.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        read::read(path.as_ref())
    }

    /// Reads and checks the parsed form; `origin` is the file named in errors.
    pub fn from_json(value: &Value, origin: &str) -> Result<Self> {
        read::from_json(value, origin)
    }

    /// Weights of the blocks that a token is multiplied with; of experts, the router and the token's experts.
    pub fn block_weights(&self) -> usize {
        let attention = 2 * self.head_dim * (self.num_attention_heads + self.num_key_value_heads);
        let matrices = 2 + usize::from(self.family.is_gated);
        let inside = |layer| match self.experts(layer) {
            Some(experts) => experts.count + matrices * experts.width * experts.per_token,
            None => matrices * self.intermediate_size,
        };
        let all = attention * self.num_hidden_layers + (0..self.num_hidden_layers).map(inside).sum::<usize>();
        self.hidden_size * all
    }

    /// The mixture of experts of a layer, if it has one.
    pub fn experts(&self, layer: usize) -> Option<&Experts> {
        self.extras.experts.as_ref().filter(|experts| experts.layers.get(layer).is_some_and(|&routed| routed))
    }

    /// Weights that a token is multiplied with: the blocks' and the head's.
    pub fn token_weights(&self) -> usize {
        self.block_weights() + self.vocab_size * self.hidden_size
    }

    /// Checks that a sequence fits the model's positions. `what` names the sequence.
    pub fn ensure_context(&self, positions: usize, what: impl FnOnce() -> String) -> Result<()> {
        ensure!(
            positions <= self.max_position_embeddings,
            "{} has {positions} tokens, but the model has {} positions (max_position_embeddings): use a shorter one",
            what(),
            self.max_position_embeddings
        );
        Ok(())
    }

    /// Bytes that a forward of so many positions allocates in a float type of `size` bytes: KV cache of all layers and the activations of
    /// one layer, without attention's mask and scores.
    pub fn bytes_of(&self, positions: usize, size: usize) -> u64 {
        let (d, dh, kv) = (self.hidden_size, self.head_dim, self.num_key_value_heads);
        let layer = 6 * d + 2 * (self.num_attention_heads + 2 * kv) * dh + 3 * self.intermediate_size;
        let cache = self.num_hidden_layers * 2 * kv * dh;
        positions as u64 * ((layer + cache) * size) as u64
    }

    /// Inverse rotary frequencies, `[dh / 2]`, scaling included.
    pub fn inv_freqs(&self) -> Vec<f64> {
        let plain = |i: usize| self.rope_theta.powf(-((2 * i) as f64) / self.head_dim as f64);
        let base = (0..self.head_dim / 2).map(plain).collect();
        match self.rope_scaling {
            Some(scaling) => scaling.apply(base, self.rope_theta),
            None => base,
        }
    }

    /// Scale of rotated queries and keys: 1 except with YaRN.
    pub fn rope_attention_factor(&self) -> f64 {
        self.rope_scaling.map_or(1.0, |scaling| scaling.attention_factor())
    }

    /// Scale of a token's embedding before the first block: √D in Gemma, else 1. The head uses the unscaled table.
    pub fn embed_scale(&self) -> f64 {
        if self.family.scaled_embeddings { (self.hidden_size as f64).sqrt() } else { 1.0 }
    }

    /// Number of positions that a position of this layer attends to, itself included; `None`: all before it.
    pub fn window(&self, layer: usize) -> Option<usize> {
        let sliding = self.extras.sliding.as_ref()?;
        sliding.layers.get(layer).is_some_and(|&slides| slides).then_some(sliding.window)
    }

    /// Scale of queries in addition to `1 / √dh`.
    pub fn query_scale(&self) -> f64 {
        self.extras.query_pre_attn_scalar.map_or(1.0, |scalar| (self.head_dim as f64 / scalar).sqrt())
    }

    /// Query heads per KV head.
    pub fn group(&self) -> usize {
        self.num_attention_heads / self.num_key_value_heads
    }

    /// Checks the sizes and numbers that the decoder relies on; every reader calls it last.
    pub fn validate(&self, origin: &str) -> Result<()> {
        let dims = [
            ("vocab_size", self.vocab_size, MAX_DIM),
            ("hidden_size", self.hidden_size, MAX_DIM),
            ("intermediate_size", self.intermediate_size, MAX_DIM),
            ("num_hidden_layers", self.num_hidden_layers, MAX_LAYERS),
            ("num_attention_heads", self.num_attention_heads, MAX_DIM),
            ("num_key_value_heads", self.num_key_value_heads, MAX_DIM),
            ("head_dim", self.head_dim, MAX_DIM),
            ("max_position_embeddings", self.max_position_embeddings, MAX_POSITIONS),
        ];
        for (key, found, max) in dims {
            ensure!((1..=max).contains(&found), "{origin}: `{key}` must be between 1 and {max}, found {found}");
        }
        let (heads, kv) = (self.num_attention_heads, self.num_key_value_heads);
        ensure!(
            heads * self.head_dim <= MAX_DIM,
            "{origin}: `num_attention_heads` x `head_dim` is too large, found {heads} x {}",
            self.head_dim
        );
        ensure!(
            heads.is_multiple_of(kv),
            "{origin}: `num_attention_heads` must be a multiple of `num_key_value_heads`, found {heads} and {kv}"
        );
        ensure!(
            self.family.learned_positions || self.head_dim.is_multiple_of(2),
            "{origin}: `head_dim` must be even (RoPE rotates pairs), found {}",
            self.head_dim
        );
        ensure!(
            self.qk_norm == self.family.qk_norm,
            "{origin}: `qk_norm` must be {} for {}, found {}",
            self.family.qk_norm,
            self.family.name(),
            self.qk_norm
        );
        for (key, found) in [("rms_norm_eps", self.rms_norm_eps), ("rope_theta", self.rope_theta)] {
            ensure!(found.is_finite() && found > 0.0, "{origin}: `{key}` must be a positive number, found {found}");
        }
        if let Some(s) = &self.rope_scaling {
            s.validate(origin)?;
        }
        self.extras.validate(self.num_hidden_layers, origin)
    }

    /// The `config.json` that `transformers` 4.45+ and 5 load: both dtype keys and both rotary forms, with equal values.
    pub fn to_json(&self, dtype: &str) -> Value {
        if self.family.is_gpt2 {
            return self.gpt2_json(dtype);
        }
        let mut rope = json!({ "rope_type": "default", "rope_theta": self.rope_theta });
        let mut scaling = Value::Null;
        if let Some(s) = &self.rope_scaling {
            scaling = s.to_json();
            rope = scaling.clone();
            rope["rope_theta"] = json!(self.rope_theta);
        }
        let mut out = json!({
            "architectures": [self.family.classes[0]],
            "model_type": self.family.name(),
            "attention_bias": false,
            "attention_dropout": 0.0,
            "bos_token_id": self.bos_token_id,
            "eos_token_id": self.eos_json(),
            "pad_token_id": self.pad_token_id,
            "dtype": dtype,
            "torch_dtype": dtype,
            "head_dim": self.head_dim,
            "hidden_act": match self.family.activation {
                ActivationFunction::Silu => "silu",
                ActivationFunction::GeluTanh => "gelu_pytorch_tanh",
            },
            "hidden_size": self.hidden_size,
            "initializer_range": 0.02,
            "intermediate_size": self.intermediate_size,
            "max_position_embeddings": self.max_position_embeddings,
            "num_attention_heads": self.num_attention_heads,
            "num_hidden_layers": self.num_hidden_layers,
            "num_key_value_heads": self.num_key_value_heads,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "rope_scaling": scaling,
            "rope_parameters": rope,
            "tie_word_embeddings": self.tie_word_embeddings,
            "use_cache": true,
            "vocab_size": self.vocab_size,
        });
        (self.family.write)(self, &mut out);
        if let (true, Some(keys)) = (self.family.qkv_bias, out.as_object_mut()) {
            keys.shift_remove("attention_bias"); // it would apply to all four projections, but only o has this value
        }
        out
    }

    fn gpt2_json(&self, dtype: &str) -> Value {
        json!({
            "architectures": [self.family.classes[0]],
            "model_type": self.family.name(),
            "activation_function": "gelu_new",
            "bos_token_id": self.bos_token_id,
            "eos_token_id": self.eos_json(),
            "pad_token_id": self.pad_token_id,
            "dtype": dtype,
            "torch_dtype": dtype,
            "initializer_range": 0.02,
            "layer_norm_epsilon": self.rms_norm_eps,
            "n_ctx": self.max_position_embeddings,
            "n_embd": self.hidden_size,
            "n_head": self.num_attention_heads,
            "n_inner": self.intermediate_size,
            "n_layer": self.num_hidden_layers,
            "n_positions": self.max_position_embeddings,
            "attn_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "resid_pdrop": 0.0,
            "tie_word_embeddings": self.tie_word_embeddings,
            "use_cache": true,
            "vocab_size": self.vocab_size,
        })
    }

    /// One id as a number, several as a list, none as null.
    pub(crate) fn eos_json(&self) -> Value {
        match self.eos_token_ids.as_slice() {
            [] => Value::Null,
            [one] => json!(one),
            many => json!(many),
        }
    }
}
