//! The parameters of a configuration by their Hugging Face names, and the check that a file has exactly these.

use anyhow::{Result, anyhow, bail, ensure};

use super::Weights;
use crate::config::ModelConfig;

pub const EMBED: &str = "model.embed_tokens.weight";
/// The table of learned positions, if the family has one.
pub const POSITIONS: &str = "model.embed_positions.weight";
pub const NORM: &str = "model.norm.weight";
pub const NORM_BIAS: &str = "model.norm.bias";
pub const HEAD: &str = "lm_head.weight";

/// Name and shape of every parameter, in the order of the forward pass. Matrices are `[out, in]`.
/// A tied model has no `lm_head.weight`.
pub fn expected_parameters(config: &ModelConfig) -> Vec<(String, Vec<usize>)> {
    let d = config.hidden_size;
    let f = config.intermediate_size;
    let q = config.num_attention_heads * config.head_dim;
    let kv = config.num_key_value_heads * config.head_dim;
    let family = config.family;
    let mut out = vec![(EMBED.to_string(), vec![config.vocab_size, d])];
    if family.learned_positions {
        out.push((POSITIONS.to_string(), vec![config.max_position_embeddings, d]));
    }
    for layer in 0..config.num_hidden_layers {
        let mut add = |part: &str, shape: Vec<usize>, biased: bool| {
            let bias = biased.then(|| vec![shape[0]]);
            out.push((format!("model.layers.{layer}.{part}.weight"), shape));
            out.extend(bias.map(|shape| (format!("model.layers.{layer}.{part}.bias"), shape)));
        };
        let norms = family.norm_place.names();
        let norm = |nth: usize, add: &mut dyn FnMut(&str, Vec<usize>, bool)| {
            norms[nth].into_iter().for_each(|name| add(name, vec![d], family.layer_norm));
        };
        norm(0, &mut add);
        for (part, rows) in [("q_proj", q), ("k_proj", kv), ("v_proj", kv)] {
            add(&format!("self_attn.{part}"), vec![rows, d], family.qkv_bias);
        }
        add("self_attn.o_proj", vec![d, q], family.other_biases);
        if config.qk_norm {
            let [q, k] = if family.qk_norm_is_joint { [q, kv] } else { [config.head_dim; 2] };
            add("self_attn.q_norm", vec![q], false);
            add("self_attn.k_norm", vec![k], false);
        }
        norm(1, &mut add);
        norm(2, &mut add);
        let mut mlp = |name: &str, f: usize| {
            if family.is_gated {
                add(&format!("{name}.gate_proj"), vec![f, d], false);
            }
            add(&format!("{name}.up_proj"), vec![f, d], family.other_biases);
            add(&format!("{name}.down_proj"), vec![d, f], family.other_biases);
        };
        match config.experts(layer) {
            None => mlp("mlp", f),
            Some(experts) => {
                (0..experts.count).for_each(|number| mlp(&format!("mlp.experts.{number}"), experts.width));
                add("mlp.gate", vec![experts.count, d], false);
            }
        }
        norm(3, &mut add);
    }
    out.push((NORM.to_string(), vec![d]));
    if family.layer_norm {
        out.push((NORM_BIAS.to_string(), vec![d]));
    }
    if !config.tie_word_embeddings {
        out.push((HEAD.to_string(), vec![config.vocab_size, d]));
    }
    out
}

/// Buffers in old checkpoints that any program can compute: rotary frequencies, GPT-2's causal masks.
pub(super) fn is_buffer(name: &str) -> bool {
    [".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias"].iter().any(|buffer| name.ends_with(buffer))
}

/// Checks that every expected parameter exists with its shape, and no other. Reads no values.
pub(super) fn check(weights: &dyn Weights, config: &ModelConfig) -> Result<()> {
    let expected = expected_parameters(config);
    for (name, shape) in &expected {
        let found = weights.shape(name).ok_or_else(|| missing(weights, name, shape, &expected))?;
        ensure!(
            found == shape,
            "{}: `{name}` has the wrong shape: config.json expects {shape:?}, found {found:?}",
            weights.file_of(name).display()
        );
    }
    let known: std::collections::HashSet<&str> = expected.iter().map(|(name, _)| name.as_str()).collect();
    for name in weights.names() {
        // The head of a tied model has the embedding's values ([`super::tied`]).
        let needless = is_buffer(&name) || config.tie_word_embeddings && name == HEAD;
        if !known.contains(name.as_str()) && !needless {
            bail!(
                "{}: unexpected parameter `{name}`: a {} model of {} layers has no such parameter",
                weights.file_of(&name).display(),
                config.family.name(),
                config.num_hidden_layers
            );
        }
    }
    Ok(())
}

fn missing(weights: &dyn Weights, name: &str, shape: &[usize], expected: &[(String, Vec<usize>)]) -> anyhow::Error {
    let names = weights.names();
    let other = names.iter().find(|name| !expected.iter().any(|(known, _)| known == *name) && !is_buffer(name));
    let other = other.map_or_else(String::new, |name| format!(", among them `{name}`"));
    let hint = if names.iter().any(|name| name.contains(".lora_A.")) {
        " (LoRA factors that were not merged: save the model after merge_and_unload, or the adapter by itself)"
    } else if name == HEAD {
        " (a base model without head gives no logits; if the head is tied, set `tie_word_embeddings` to true in config.json)"
    } else {
        ""
    };
    anyhow!(
        "{}: parameter `{name}` is missing: expected shape {shape:?}, found {} other parameters{other}{hint}",
        weights.file_of(name).display(),
        names.len()
    )
}
