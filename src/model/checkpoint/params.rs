//! Which parameters a configuration has, by their Hugging Face names, and the check that a file holds exactly these.

use anyhow::{Result, anyhow, bail, ensure};

use super::Weights;
use crate::model::config::ModelConfig;

pub const EMBED: &str = "model.embed_tokens.weight";
pub(crate) const NORM: &str = "model.norm.weight";
pub const HEAD: &str = "lm_head.weight";

/// Name and shape of every parameter, in the order of the forward pass. Matrices are `[out, in]`.
/// A tied model has no `lm_head.weight`.
pub fn expected_parameters(config: &ModelConfig) -> Vec<(String, Vec<usize>)> {
    let d = config.hidden_size;
    let f = config.intermediate_size;
    let q = config.num_attention_heads * config.head_dim;
    let kv = config.num_key_value_heads * config.head_dim;
    let mut out = vec![(EMBED.to_string(), vec![config.vocab_size, d])];
    for layer in 0..config.num_hidden_layers {
        let mut add = |part: &str, shape: Vec<usize>| out.push((format!("model.layers.{layer}.{part}"), shape));
        add("input_layernorm.weight", vec![d]);
        for (part, rows) in [("q_proj", q), ("k_proj", kv), ("v_proj", kv)] {
            add(&format!("self_attn.{part}.weight"), vec![rows, d]);
            if config.family.qkv_bias() {
                add(&format!("self_attn.{part}.bias"), vec![rows]);
            }
        }
        add("self_attn.o_proj.weight", vec![d, q]);
        if config.qk_norm {
            add("self_attn.q_norm.weight", vec![config.head_dim]);
            add("self_attn.k_norm.weight", vec![config.head_dim]);
        }
        add("post_attention_layernorm.weight", vec![d]);
        add("mlp.gate_proj.weight", vec![f, d]);
        add("mlp.up_proj.weight", vec![f, d]);
        add("mlp.down_proj.weight", vec![d, f]);
    }
    out.push((NORM.to_string(), vec![d]));
    if !config.tie_word_embeddings {
        out.push((HEAD.to_string(), vec![config.vocab_size, d]));
    }
    out
}

/// Names that files carry and nobody needs: rotary buffers of old checkpoints, and the head of a tied model
/// (`transformers` ties it over whatever is stored).
pub(crate) fn is_tolerated(name: &str, config: &ModelConfig) -> bool {
    name.ends_with(".rotary_emb.inv_freq") || (config.tie_word_embeddings && name == HEAD)
}

/// Every expected parameter is there with its shape, and nothing else is. Reads no values.
pub(super) fn check(weights: &dyn Weights, config: &ModelConfig) -> Result<()> {
    let expected = expected_parameters(config);
    for (name, shape) in &expected {
        let found = weights.shape(name).ok_or_else(|| missing(weights, name, shape))?;
        ensure!(
            found == shape,
            "{}: `{name}` has the wrong shape: config.json expects {shape:?}, found {found:?}",
            weights.file_of(name).display()
        );
    }
    let known: std::collections::HashSet<&str> = expected.iter().map(|(name, _)| name.as_str()).collect();
    for name in weights.names() {
        if !known.contains(name.as_str()) && !is_tolerated(&name, config) {
            bail!(
                "{}: unexpected parameter `{name}`: a {} model of {} layers has none of that name",
                weights.file_of(&name).display(),
                config.family.model_type(),
                config.num_hidden_layers
            );
        }
    }
    Ok(())
}

fn missing(weights: &dyn Weights, name: &str, shape: &[usize]) -> anyhow::Error {
    let hint =
        if name == HEAD { " (if the head is tied, set `tie_word_embeddings` to true in config.json)" } else { "" };
    anyhow!(
        "{}: parameter `{name}` is missing: expected shape {shape:?}, found {} other parameters{hint}",
        weights.file_of(name).display(),
        weights.names().len()
    )
}
