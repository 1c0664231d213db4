//! The architectures that the decoder implements. Everything that distinguishes a family is in its [`FamilyFacts`]: a new family is one
//! more of them and a line of [`Family`].

use std::collections::BTreeMap;
use std::ops::Deref;

use anyhow::Result;
use serde_json::{Value, json};

use super::extras::plain;
use super::{Experts, Extras, ModelConfig, SlidingWindow};
use crate::checkpoint::gguf::parse::Info;
use crate::checkpoint::gguf::settings;

names! {
    /// The architectures that the decoder implements. Names are those of `model_type` in `config.json`.
    pub enum Family {
        Qwen3 = "qwen3",
        Qwen3Moe = "qwen3_moe",
        Qwen2 = "qwen2",
        Llama = "llama",
        Mistral = "mistral",
        Gemma = "gemma",
        Gemma2 = "gemma2",
        Gpt2 = "gpt2",
        Olmo2 = "olmo2",
    }
}

impl Deref for Family {
    type Target = FamilyFacts;

    fn deref(&self) -> &FamilyFacts {
        match self {
            Family::Qwen3 => &QWEN3,
            Family::Qwen3Moe => &QWEN3_MOE,
            Family::Qwen2 => &QWEN2,
            Family::Llama => &LLAMA,
            Family::Mistral => &MISTRAL,
            Family::Gemma => &GEMMA,
            Family::Gemma2 => &GEMMA2,
            Family::Gpt2 => &GPT2,
            Family::Olmo2 => &OLMO2,
        }
    }
}

/// Placement of a layer's norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormPlace {
    /// Before attention and before the feed-forward.
    Before,
    /// After both: their outputs are normalised before they are added to the stream.
    After,
    /// Before and after both.
    Both,
}

impl NormPlace {
    /// Hugging Face's names of the norms before and after attention, before and after the feed-forward.
    pub fn names(self) -> [Option<&'static str>; 4] {
        let [input, attention, before_feedforward, feedforward] =
            ["input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"]
                .map(Some);
        match self {
            NormPlace::Before => [input, None, attention, None],
            NormPlace::After => [None, attention, None, feedforward],
            NormPlace::Both => [input, attention, before_feedforward, feedforward],
        }
    }
}

/// Activation of the feed-forward's gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivationFunction {
    Silu,
    /// GELU by its tanh approximation.
    GeluTanh,
}

/// Layers with a sliding window, as `config.json` has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WindowRule {
    None,
    /// Every layer, unless `sliding_window` is null.
    All,
    /// Every other layer, the first among them.
    Alternate,
    /// If `use_sliding_window` is set: every layer.
    AllIfUsed,
    /// If `use_sliding_window` is set: the layers from `max_window_layers` on.
    UpperIfUsed,
}

/// Facts of a family.
pub struct FamilyFacts {
    /// Names of its classes in `transformers`: with a head, and without, a name that is also written for causal models.
    pub classes: [&'static str; 2],
    /// Whether queries and keys pass through an RMSNorm before RoPE.
    pub qk_norm: bool,
    /// Whether that norm is joint over all heads instead of per head.
    pub qk_norm_is_joint: bool,
    pub norm_place: NormPlace,
    /// Whether the projections to queries, keys and values have a bias.
    pub qkv_bias: bool,
    /// Whether all other projections of a block have one.
    pub other_biases: bool,
    pub activation: ActivationFunction,
    /// Whether the feed-forward has a gate.
    pub is_gated: bool,
    /// Whether layers may have a mixture of experts.
    pub has_experts: bool,
    /// Whether norms are LayerNorms, with a mean and a bias, instead of RMSNorms.
    pub layer_norm: bool,
    /// Whether positions are learned embeddings instead of rotations of queries and keys.
    pub learned_positions: bool,
    /// Offset added to the weight of a norm: Gemma stores weights around 0.
    pub norm_offset: f64,
    /// Whether embeddings are scaled by √D before the first block.
    pub scaled_embeddings: bool,
    /// Whether attention scores and logits are capped.
    pub is_capped: bool,
    /// Whether files use GPT-2's names and layouts.
    pub is_gpt2: bool,
    pub(super) defaults: Defaults,
    pub(super) window: WindowRule,
    /// Writes the keys of `config.json` that other families do not have.
    pub(super) write: fn(&ModelConfig, &mut Value),
    pub(crate) gguf: GgufFacts,
}

/// Values of keys that `config.json` lacks.
pub(super) struct Defaults {
    /// The head width, instead of D / H.
    pub head_dim: Option<usize>,
    /// Whether D may be no multiple of H.
    pub any_width: bool,
    /// KV heads, instead of H.
    pub kv_heads: Option<usize>,
    pub positions: usize,
    pub eps: f64,
    pub bos: Option<u32>,
    pub eos: &'static [u32],
    pub tied: bool,
}

/// How llama.cpp stores the family.
pub(crate) struct GgufFacts {
    /// `general.architecture`, if it is not the family's name.
    pub name: Option<&'static str>,
    /// The family under whose name llama.cpp stores this one.
    pub stored_as: Option<Family>,
    /// Whether the rows of q and k are permuted for interleaved RoPE.
    pub interleaved: bool,
    /// Whether a file of random weights can be written.
    pub writable: bool,
    /// Starts of the keys that `extras` reads; otherwise their values must be neutral.
    pub keys: &'static [&'static str],
    pub extras: fn(&settings::Keys, &BTreeMap<String, Info>, &ModelConfig) -> Result<Extras>,
}

const LLAMA: FamilyFacts = FamilyFacts {
    classes: ["LlamaForCausalLM", "LlamaModel"],
    qk_norm: false,
    qk_norm_is_joint: false,
    norm_place: NormPlace::Before,
    qkv_bias: false,
    other_biases: false,
    activation: ActivationFunction::Silu,
    is_gated: true,
    has_experts: false,
    layer_norm: false,
    learned_positions: false,
    norm_offset: 0.0,
    scaled_embeddings: false,
    is_capped: false,
    is_gpt2: false,
    defaults: Defaults {
        head_dim: None,
        any_width: false,
        kv_heads: None,
        positions: 2048,
        eps: 1e-6,
        bos: Some(1),
        eos: &[2],
        tied: false,
    },
    window: WindowRule::None,
    write: |_, out| out["mlp_bias"] = json!(false),
    gguf: GgufFacts {
        name: None,
        stored_as: None,
        interleaved: true,
        writable: true,
        keys: &[],
        extras: |_, _, _| Ok(Extras::default()),
    },
};

/// Without Llama's own settings.
const PLAIN: FamilyFacts = FamilyFacts {
    defaults: Defaults { bos: None, eos: &[], ..LLAMA.defaults },
    write: |_, _| (),
    gguf: GgufFacts { interleaved: false, ..LLAMA.gguf },
    ..LLAMA
};

const QWEN3: FamilyFacts = FamilyFacts {
    classes: ["Qwen3ForCausalLM", "Qwen3Model"],
    qk_norm: true,
    qkv_bias: false,
    defaults: Defaults { head_dim: Some(128), any_width: true, ..PLAIN.defaults },
    ..QWEN2
};

/// Qwen3 with a mixture of experts.
const QWEN3_MOE: FamilyFacts = FamilyFacts {
    classes: ["Qwen3MoeForCausalLM", "Qwen3MoeModel"],
    qk_norm: true,
    has_experts: true,
    defaults: Defaults { any_width: true, kv_heads: Some(4), positions: 32_768, ..PLAIN.defaults },
    window: WindowRule::AllIfUsed,
    write: |config, out| {
        out["use_sliding_window"] = json!(config.extras.sliding.is_some());
        out["sliding_window"] = window(config);
        for (key, value) in config.extras.experts.iter().flat_map(Experts::to_json) {
            out[key] = value;
        }
    },
    gguf: GgufFacts {
        name: Some("qwen3moe"),
        writable: false,
        keys: &["expert_"],
        extras: settings::experts,
        ..PLAIN.gguf
    },
    ..PLAIN
};

/// Also Qwen2.5.
const QWEN2: FamilyFacts = FamilyFacts {
    classes: ["Qwen2ForCausalLM", "Qwen2Model"],
    qkv_bias: true,
    window: WindowRule::UpperIfUsed,
    write: |config, out| {
        let sliding = config.extras.sliding.as_ref();
        out["use_sliding_window"] = json!(sliding.is_some());
        out["sliding_window"] = window(config);
        out["max_window_layers"] = json!(sliding.map_or(config.num_hidden_layers, SlidingWindow::full_before));
        if let Some(sliding) = sliding {
            out["layer_types"] = sliding.to_json();
        }
    },
    ..PLAIN
};

/// A Llama with other defaults and, up to v0.1, a sliding window.
const MISTRAL: FamilyFacts = FamilyFacts {
    classes: ["MistralForCausalLM", "MistralModel"],
    defaults: Defaults { any_width: true, kv_heads: Some(8), positions: 131_072, ..LLAMA.defaults },
    window: WindowRule::All,
    // Without the key it would be 4096.
    write: |config, out| out["sliding_window"] = window(config),
    gguf: GgufFacts { stored_as: Some(Family::Llama), writable: false, ..PLAIN.gguf },
    ..PLAIN
};

/// The first Gemma (Gemma Team 2024, arXiv:2403.08295).
const GEMMA: FamilyFacts = FamilyFacts {
    classes: ["GemmaForCausalLM", "GemmaModel"],
    activation: ActivationFunction::GeluTanh,
    norm_offset: 1.0,
    scaled_embeddings: true,
    defaults: Defaults { head_dim: Some(256), any_width: true, bos: Some(2), eos: &[1], tied: true, ..PLAIN.defaults },
    gguf: GgufFacts { writable: false, ..PLAIN.gguf },
    ..PLAIN
};

/// Gemma Team 2024, arXiv:2408.00118. Gemma 3 is another architecture.
const GEMMA2: FamilyFacts = FamilyFacts {
    classes: ["Gemma2ForCausalLM", "Gemma2Model"],
    norm_place: NormPlace::Both,
    is_capped: true,
    defaults: Defaults { kv_heads: Some(4), positions: 8192, ..GEMMA.defaults },
    window: WindowRule::Alternate,
    write: |config, out| {
        let full = SlidingWindow { window: 1, layers: vec![false; config.num_hidden_layers] };
        out["layer_types"] = config.extras.sliding.as_ref().unwrap_or(&full).to_json();
        out["sliding_window"] = window(config);
        out["hidden_activation"] = out["hidden_act"].clone();
        out["query_pre_attn_scalar"] = json!(config.extras.query_pre_attn_scalar.map(plain));
        out["attn_logit_softcapping"] = json!(config.extras.attention_cap);
        out["final_logit_softcapping"] = json!(config.extras.logit_cap);
    },
    gguf: GgufFacts { keys: &["attention.sliding_window"], extras: settings::gemma2, ..GEMMA.gguf },
    ..GEMMA
};

/// Radford et al. 2019.
const GPT2: FamilyFacts = FamilyFacts {
    classes: ["GPT2LMHeadModel", "GPT2Model"],
    qkv_bias: true,
    other_biases: true,
    activation: ActivationFunction::GeluTanh,
    is_gated: false,
    layer_norm: true,
    learned_positions: true,
    is_gpt2: true,
    gguf: GgufFacts { writable: false, ..PLAIN.gguf },
    ..PLAIN
};

/// OLMo Team 2024, arXiv:2501.00656.
const OLMO2: FamilyFacts = FamilyFacts {
    classes: ["Olmo2ForCausalLM", "Olmo2Model"],
    qk_norm: true,
    qk_norm_is_joint: true,
    norm_place: NormPlace::After,
    defaults: Defaults { eps: 1e-5, eos: &[50_279], ..PLAIN.defaults },
    ..PLAIN
};

/// `sliding_window` of `config.json`.
fn window(config: &ModelConfig) -> Value {
    json!(config.extras.sliding.as_ref().map(|sliding| sliding.window))
}

impl Family {
    /// llama.cpp's name.
    pub(crate) fn gguf_name(self) -> &'static str {
        self.gguf.name.unwrap_or(self.name())
    }

    /// The family of a `model_type`; the error lists the known ones.
    pub fn parse(model_type: &str) -> Result<Self, String> {
        let known = || Self::ALL.map(|family| format!("{:?}", family.name())).join(" or ");
        Self::ALL.into_iter().find(|family| family.name() == model_type).ok_or_else(known)
    }
}
