//! GPT-2's `config.json`, with its own keys and defaults.

use anyhow::{Result, ensure};
use serde_json::Value;

use super::keys::Keys;
use super::read::{first, refuse_bidirectional, refuse_quantised};
use super::{Family, ModelConfig};

/// Both the first and the last token of a text: `<|endoftext|>`.
const END_OF_TEXT: u32 = 50_256;

/// Names of the approximation by tanh.
const ACTIVATIONS: [&str; 3] = ["gelu_new", "gelu_pytorch_tanh", "gelu_fast"];

/// Settings that change the computation, and their only supported values.
const FLAGS: [(&str, bool); 5] = [
    ("scale_attn_weights", true),
    ("scale_attn_by_inverse_layer_idx", false),
    ("add_cross_attention", false),
    ("is_encoder_decoder", false),
    ("use_bidirectional_attention", false),
];

/// Sizes, by GPT-2's names and by those of the other families, which transformers accepts too.
const OTHER_NAMES: [(&str, &str); 4] = [
    ("n_embd", "hidden_size"),
    ("n_head", "num_attention_heads"),
    ("n_layer", "num_hidden_layers"),
    ("n_positions", "max_position_embeddings"),
];

fn size(keys: &Keys, key: &str, default: usize) -> Result<usize> {
    let found = match OTHER_NAMES.iter().find(|(name, _)| *name == key) {
        Some((_, other)) => keys.either(key, other)?,
        None => keys.usize(key)?,
    };
    Ok(found.unwrap_or(default))
}

pub(super) fn from_keys(keys: &Keys) -> Result<ModelConfig> {
    for (key, wanted) in FLAGS {
        if let Some(found) = keys.bool(key)?.filter(|found| *found != wanted) {
            return Err(keys.refuse(key, &wanted.to_string(), &Value::from(found)));
        }
    }
    let activation = keys.string("activation_function")?.unwrap_or("gelu_new");
    if !ACTIVATIONS.contains(&activation) {
        return Err(keys.refuse("activation_function", "\"gelu_new\"", &Value::from(activation)));
    }
    refuse_bidirectional(keys)?;
    refuse_quantised(keys)?;
    let or = |key: &str, default| size(keys, key, default);
    let (hidden_size, heads) = (or("n_embd", 768)?, or("n_head", 12)?);
    ensure!(
        heads > 0 && hidden_size.is_multiple_of(heads),
        "{}: `n_embd` must be a multiple of `n_head`, found {hidden_size} and {heads}",
        keys.origin
    );
    let ids = |key: &str| match keys.map.contains_key(key) {
        true => keys.token_ids(key),
        false => Ok(vec![END_OF_TEXT]),
    };
    let vocab_size = or("vocab_size", 50_257)?;
    // Default ids beyond a smaller vocabulary are dropped.
    let there = |ids: Vec<u32>, key: &str| -> Vec<u32> {
        let said = keys.map.contains_key(key);
        ids.into_iter().filter(|id| said || (*id as usize) < vocab_size).collect()
    };
    let config = ModelConfig {
        vocab_size,
        hidden_size,
        intermediate_size: or("n_inner", 4 * hidden_size)?,
        num_hidden_layers: or("n_layer", 12)?,
        num_attention_heads: heads,
        num_key_value_heads: heads,
        head_dim: hidden_size / heads,
        rms_norm_eps: keys.f64("layer_norm_epsilon")?.unwrap_or(1e-5),
        tie_word_embeddings: keys.bool("tie_word_embeddings")?.unwrap_or(true),
        max_position_embeddings: or("n_positions", 1024)?,
        bos_token_id: first(there(ids("bos_token_id")?, "bos_token_id")),
        eos_token_ids: there(ids("eos_token_id")?, "eos_token_id"),
        pad_token_id: first(keys.token_ids("pad_token_id")?),
        ..ModelConfig::new(Family::Gpt2)
    };
    config.validate(keys.origin)?;
    Ok(config)
}
