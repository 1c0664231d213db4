//! A model's configuration from GGUF metadata (`llama.*`, `qwen3.*`, …). Refuses by name what the decoder does not implement.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow, bail, ensure};

use super::super::params::HEAD;
use super::parse::{Info, Value};
use super::{ROPE_FREQS, hf_name, quant};
use crate::config::{Experts, Extras, Family, Llama3Scaling, ModelConfig, RopeScaling, SlidingWindow, YarnScaling};

/// Typed look-ups in the metadata, whose errors name the file and the key.
pub struct Keys<'a> {
    pub origin: &'a str,
    pub meta: &'a BTreeMap<String, Value>,
}

impl<'a> Keys<'a> {
    fn wrong(&self, key: &str, expected: &str, found: &Value) -> anyhow::Error {
        let found = match found {
            Value::Numbers(list) => format!("a list of {}", list.len()),
            Value::Texts(list) => format!("a list of {} strings", list.len()),
            other => format!("{other:?}"),
        };
        anyhow!("{}: metadata `{key}` must be {expected}, found {found}", self.origin)
    }

    pub fn missing(&self, key: &str) -> anyhow::Error {
        anyhow!("{}: metadata `{key}` is missing", self.origin)
    }

    fn typed<T>(&self, key: &str, expected: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        self.meta.get(key).map(|value| read(value).ok_or_else(|| self.wrong(key, expected, value))).transpose()
    }

    pub fn text(&self, key: &str) -> Result<Option<&'a str>> {
        self.typed(key, "a string", |value| if let Value::Text(text) = value { Some(text.as_str()) } else { None })
    }

    pub fn texts(&self, key: &str) -> Result<Option<&'a [String]>> {
        self.typed(
            key,
            "a list of strings",
            |value| if let Value::Texts(list) = value { Some(&list[..]) } else { None },
        )
    }

    pub fn numbers(&self, key: &str) -> Result<Option<&'a [f64]>> {
        self.typed(
            key,
            "a list of numbers",
            |value| if let Value::Numbers(list) = value { Some(&list[..]) } else { None },
        )
    }

    pub fn number(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a number", |value| match value {
            Value::Number(n) => Some(*n),
            // The shortest decimal of the 32-bit value: the number in config.json before conversion.
            Value::Float(f) => f.to_string().parse().ok(),
            _ => None,
        })
    }

    pub fn usize(&self, key: &str) -> Result<Option<usize>> {
        let Some(n) = self.number(key)? else {
            return Ok(None);
        };
        ensure!(
            (0.0..1e15).contains(&n) && n.fract() == 0.0,
            "{}: metadata `{key}` must be a whole number, found {n}",
            self.origin
        );
        Ok(Some(n as usize))
    }

    pub fn token_id(&self, name: &str) -> Result<Option<u32>> {
        let key = format!("tokenizer.ggml.{name}_token_id");
        let id = match self.usize(&key)? {
            None if self.text("tokenizer.ggml.model")? == Some("llama") => {
                PIECES_IDS.iter().find(|(role, _)| *role == name).map(|(_, id)| *id)
            }
            id => id,
        };
        id.map(|n| {
            u32::try_from(n).map_err(|_| anyhow!("{}: metadata `{key}` must be a token id, found {n}", self.origin))
        })
        .transpose()
    }

    fn need(&self, key: &str) -> Result<usize> {
        self.usize(key)?.ok_or_else(|| self.missing(key))
    }
}

/// llama.cpp's default ids of special tokens in a SentencePiece vocabulary.
const PIECES_IDS: [(&str, usize); 3] = [("bos", 1), ("eos", 2), ("unknown", 0)];

/// `data` returns a tensor's stored bytes.
pub fn config<'d>(
    keys: &Keys,
    tensors: &BTreeMap<String, Info>,
    data: impl Fn(&Info) -> &'d [u8],
) -> Result<ModelConfig> {
    let origin = keys.origin;
    let arch = keys.text("general.architecture")?.ok_or_else(|| keys.missing("general.architecture"))?;
    let stored = Family::ALL.into_iter().find(|family| family.gguf.name == Some(arch));
    let family = stored
        .map_or_else(|| Family::parse(arch), Ok)
        .map_err(|known| anyhow!("{origin}: metadata `general.architecture` must be {known}, found {arch:?}"))?;
    if let Some(other) = family.gguf.stored_as {
        bail!(
            "{origin}: metadata `general.architecture` is {arch:?}; llama.cpp writes such a model as {:?}: convert it again",
            other.name()
        );
    }
    ensure!(!tensors.is_empty(), "{origin}: has no tensors: a vocabulary without weights, not a model");
    let key = |name: &str| format!("{arch}.{name}");
    refuse_unsupported(keys, family, &key)?;

    let hidden_size = keys.need(&key("embedding_length"))?;
    let heads = keys.need(&key("attention.head_count"))?;
    ensure!(heads > 0, "{origin}: metadata `{arch}.attention.head_count` must be positive, found 0");
    let head_dim = match keys.usize(&key("attention.key_length"))? {
        Some(dh) => dh,
        None => {
            ensure!(
                hidden_size.is_multiple_of(heads),
                "{origin}: metadata `{arch}.embedding_length` must be a multiple of `{arch}.attention.head_count`, found {hidden_size} and {heads}"
            );
            hidden_size / heads
        }
    };
    for name in ["attention.value_length", "rope.dimension_count"] {
        let found = keys.usize(&key(name))?.unwrap_or(head_dim);
        ensure!(
            found == head_dim,
            "{origin}: metadata `{arch}.{name}` must equal the head width {head_dim}, found {found}"
        );
    }
    let vocab_size = tensors.get("token_embd.weight").and_then(|t| t.shape.first().copied());
    let mut config = ModelConfig {
        family,
        vocab_size: vocab_size.ok_or_else(|| anyhow!("{origin}: tensor `token_embd.weight` is missing"))?,
        hidden_size,
        intermediate_size: keys.need(&key("feed_forward_length"))?,
        num_hidden_layers: keys.need(&key("block_count"))?,
        num_attention_heads: heads,
        num_key_value_heads: keys.usize(&key("attention.head_count_kv"))?.unwrap_or(heads),
        head_dim,
        rms_norm_eps: match family.layer_norm {
            true => keys.number(&key("attention.layer_norm_epsilon"))?.unwrap_or(1e-5),
            false => keys.number(&key("attention.layer_norm_rms_epsilon"))?.unwrap_or(1e-6),
        },
        rope_theta: keys.number(&key("rope.freq_base"))?.unwrap_or(10_000.0),
        rope_scaling: None,
        qk_norm: family.qk_norm,
        tie_word_embeddings: !tensors.keys().any(|name| hf_name(family, name).as_deref() == Some(HEAD)),
        max_position_embeddings: keys.usize(&key("context_length"))?.unwrap_or(2048),
        bos_token_id: keys.token_id("bos")?,
        eos_token_ids: stops(keys)?,
        pad_token_id: keys.token_id("padding")?,
        extras: Extras::default(),
    };
    config.validate(origin)?; // before `extras` allocates a list over layers
    config.extras = (family.gguf.extras)(keys, tensors, &config)?;
    config.rope_scaling = scaling(keys, &key, config.max_position_embeddings)?;
    config.validate(origin)?;
    if let Some(info) = tensors.get(ROPE_FREQS) {
        ensure!(
            config.rope_scaling.is_none(),
            "{origin}: metadata `{arch}.rope.scaling.type` and tensor `{ROPE_FREQS}` both scale the rotary frequencies: not supported"
        );
        let divisors = quant::dequantise(info.kind, data(info), info.shape.last().copied().unwrap_or(1), |row| row);
        let recovered = recover_llama3(&divisors, &config).map_err(|e| anyhow!("{origin}: {e}"))?;
        config.rope_scaling = Some(RopeScaling::Llama3(recovered));
    }
    Ok(config)
}

/// Extra settings of Gemma 2, with llama.cpp's defaults. The format does not record which layers slide or the scale of queries: every
/// other layer slides, and the scale uses the head width, but `D / H` in the 27B model (46 layers).
pub fn gemma2(keys: &Keys, _: &BTreeMap<String, Info>, config: &ModelConfig) -> Result<Extras> {
    const LAYERS_OF_27B: usize = 46;
    let number =
        |name: &str, default: f64| Ok::<_, anyhow::Error>(keys.number(&format!("gemma2.{name}"))?.unwrap_or(default));
    let large = config.num_hidden_layers == LAYERS_OF_27B;
    let scalar = if large { config.hidden_size / config.num_attention_heads } else { config.head_dim };
    Ok(Extras {
        sliding: Some(SlidingWindow {
            window: keys.usize("gemma2.attention.sliding_window")?.unwrap_or(4096),
            layers: (0..config.num_hidden_layers).map(|layer| layer % 2 == 0).collect(),
        }),
        query_pre_attn_scalar: Some(scalar as f64),
        attention_cap: Some(number("attn_logit_softcapping", 50.0)?),
        logit_cap: Some(number("final_logit_softcapping", 30.0)?),
        experts: None,
    })
}

/// The mixture of experts. The format does not record that a position's weights are normalised: llama.cpp always does it here.
pub fn experts(keys: &Keys, tensors: &BTreeMap<String, Info>, config: &ModelConfig) -> Result<Extras> {
    let need = |name: &str| keys.need(&format!("{}.{name}", config.family.gguf_name()));
    let routed = |layer: usize| tensors.contains_key(&format!("blk.{layer}.ffn_gate_inp.weight"));
    let experts = Experts {
        count: need("expert_count")?,
        per_token: need("expert_used_count")?,
        width: need("expert_feed_forward_length")?,
        normalised: true,
        layers: (0..config.num_hidden_layers).map(routed).collect(),
    };
    Ok(Extras { experts: Some(experts), ..Extras::default() })
}

fn refuse_unsupported(keys: &Keys, family: Family, key: &dyn Fn(&str) -> String) -> Result<()> {
    let origin = keys.origin;
    for (name, neutral, what) in [
        ("expert_count", 0.0, "no mixture of experts"),
        ("expert_used_count", 0.0, "no mixture of experts"),
        ("attention.sliding_window", 0.0, "full attention"),
        ("logit_scale", 1.0, "unscaled logits"),
        ("embedding_scale", 1.0, "unscaled embeddings"),
        ("residual_scale", 1.0, "unscaled residuals"),
        ("attention.scale", 0.0, "the usual attention scale"),
        ("attention.causal", 1.0, "causal attention"),
        ("rope.scaling.yarn_log_multiplier", 0.0, "no multiplier of YaRN's logarithm"),
        ("rope.scaling.yarn_ext_factor", 1.0, "YaRN's whole ramp"),
    ] {
        if family.gguf.keys.iter().any(|read| name.starts_with(read)) {
            continue;
        }
        let name = key(name);
        let found = keys.number(&name)?.unwrap_or(neutral);
        ensure!(found == neutral, "{origin}: metadata `{name}` is not supported: expected {what}, found {found}");
    }
    Ok(())
}

/// Scaling of the rotary frequencies beyond `trained` positions, as llama.cpp reads it: a factor without a type is linear, and old
/// files store the factor as `rope.scale_linear`.
fn scaling(keys: &Keys, key: &dyn Fn(&str) -> String, trained: usize) -> Result<Option<RopeScaling>> {
    let origin = keys.origin;
    let number = |name: &str| keys.number(&key(name));
    let factor = match number("rope.scaling.factor")? {
        Some(factor) => Some(factor),
        None => number("rope.scale_linear")?,
    };
    let name = key("rope.scaling.type");
    let attention = number("rope.scaling.attn_factor")?.unwrap_or(1.0);
    let kind = keys.text(&name)?.unwrap_or(if factor.is_some() { "linear" } else { "none" });
    let factor = factor.unwrap_or(1.0);
    ensure!(
        attention == 1.0 || kind == "yarn",
        "{origin}: metadata `{}` is not supported: expected 1 without YaRN, found {attention}",
        key("rope.scaling.attn_factor")
    );
    match kind {
        "none" => {
            ensure!(
                factor == 1.0,
                "{origin}: metadata `{}` is {factor} and `{name}` is \"none\": one of them is wrong",
                key("rope.scaling.factor")
            );
            Ok(None)
        }
        "linear" => Ok((factor != 1.0).then_some(RopeScaling::Linear(factor))),
        "yarn" => Ok(Some(RopeScaling::Yarn(YarnScaling {
            factor,
            original_max_position_embeddings: keys
                .usize(&key("rope.scaling.original_context_length"))?
                .unwrap_or(trained),
            beta_fast: number("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
            beta_slow: number("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
            attention_factor: attention * YarnScaling::mscale(factor, 1.0),
            truncate: true,
        }))),
        other => bail!(
            "{origin}: metadata `{name}` is not supported: expected \"none\", \"linear\" or \"yarn\", found {other:?}"
        ),
    }
}

/// Tokens that end a generation in llama.cpp, by their text: old files record only the end of text. llama.cpp treats them as control
/// tokens, whatever type the file declares.
pub(super) const ENDS: [&str; 31] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "</s>",
    "<｜end▁of▁sentence｜>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<end_of_utterance>",
    "<turn|>",
    "_<EOT>",
    "<eos>",
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
];

/// Every id that ends a generation: end of text, of turn, of message, of a piece of a file, and the tokens of [`ENDS`].
fn stops(keys: &Keys) -> Result<Vec<u32>> {
    let mut ids = vec![];
    let mut add = |id: u32| {
        if !ids.contains(&id) {
            ids.push(id);
        }
    };
    for role in ["eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep"] {
        keys.token_id(role)?.into_iter().for_each(&mut add);
    }
    let tokens = keys.texts("tokenizer.ggml.tokens")?.unwrap_or(&[]);
    for (id, token) in tokens.iter().enumerate() {
        if ENDS.contains(&token.as_str()) {
            add(u32::try_from(id)?);
        }
    }
    Ok(ids)
}

/// GGUF stores llama3 scaling as one divisor per frequency, not as its four settings. `factor` is the largest divisor; with the other
/// three, which all released models share, it must reproduce every divisor.
fn recover_llama3(divisors: &[f32], config: &ModelConfig) -> Result<Llama3Scaling> {
    let wanted = config.head_dim / 2;
    ensure!(divisors.len() == wanted, "tensor `{ROPE_FREQS}` must have {wanted} values, found {}", divisors.len());
    let plain = config.inv_freqs();
    let factor = divisors.iter().copied().fold(1.0f32, f32::max);
    ensure!(factor.is_finite(), "tensor `{ROPE_FREQS}` has a value that is not finite");
    let guess = Llama3Scaling {
        factor: f64::from(factor),
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 8192,
    };
    let fits = divisors.iter().zip(&plain).all(|(d, f)| {
        let wanted = guess.divisor(*f);
        (f64::from(*d) - wanted).abs() <= 1e-4 * wanted
    });
    ensure!(
        fits,
        "tensor `{ROPE_FREQS}` is not llama3 scaling (low 1, high 4, original length 8192): its rotary scaling is not supported"
    );
    Ok(guess)
}
