//! `config.json` in both its forms (top-level `rope_theta` / `rope_scaling`, and transformers 5's `rope_parameters`),
//! with every setting that the decoder does not implement refused by name.

use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::Value;

use super::keys::{Keys, brief};
use super::{Activation, Family, Llama3Scaling, ModelConfig};

pub(super) fn read(path: &Path) -> Result<ModelConfig> {
    let origin = path.display().to_string();
    // A pipe or a device would be waited for without end.
    ensure!(
        !path.exists() || path.is_file(),
        "{origin}: expected a file, the model's config.json, and found something else"
    );
    let text =
        std::fs::read_to_string(path).with_context(|| format!("{origin}: cannot read the model's config.json"))?;
    let value: Value = serde_json::from_str(&text).map_err(|e| anyhow!("{origin}: not valid JSON: {e}"))?;
    from_json(&value, &origin)
}

pub(super) fn from_json(value: &Value, origin: &str) -> Result<ModelConfig> {
    let map = value.as_object().ok_or_else(|| anyhow!("{origin}: expected a JSON object, found {}", brief(value)))?;
    let keys = Keys { origin, path: "", map };
    let family = family(&keys)?;
    refuse_unsupported(&keys, family)?;

    let heads = keys.need_usize("num_attention_heads")?;
    let hidden_size = keys.need_usize("hidden_size")?;
    ensure!(heads > 0, "{origin}: `num_attention_heads` must be positive, found 0");
    // The head widths of Qwen3 and Gemma are defaults of their own, not D / H.
    let head_dim = match (keys.usize("head_dim")?, family) {
        (Some(dh), _) => dh,
        (None, Family::Qwen3) if !map.contains_key("head_dim") => 128,
        (None, Family::Gemma) => 256,
        _ => hidden_size / heads,
    };
    ensure!(
        matches!(family, Family::Qwen3 | Family::Gemma) || hidden_size.is_multiple_of(heads),
        "{origin}: `hidden_size` must be a multiple of `num_attention_heads`, found {hidden_size} and {heads}"
    );
    let (rope_theta, rope_scaling) = rope(&keys)?;
    // A missing key means the family's default, an explicit null means none: as transformers has it.
    let (default_bos, default_eos) = match family {
        Family::Llama => (Some(1), vec![2]),
        Family::Gemma => (Some(2), vec![1]),
        Family::Qwen3 | Family::Qwen2 => (None, vec![]),
    };
    let eos = keys.token_ids("eos_token_id")?;
    let config = ModelConfig {
        family,
        vocab_size: keys.need_usize("vocab_size")?,
        hidden_size,
        intermediate_size: keys.need_usize("intermediate_size")?,
        num_hidden_layers: keys.need_usize("num_hidden_layers")?,
        num_attention_heads: heads,
        num_key_value_heads: keys.usize("num_key_value_heads")?.unwrap_or(heads),
        head_dim,
        rms_norm_eps: keys.f64("rms_norm_eps")?.unwrap_or(1e-6),
        rope_theta,
        rope_scaling,
        qk_norm: family.qk_norm(),
        tie_word_embeddings: keys.bool("tie_word_embeddings")?.unwrap_or(family == Family::Gemma),
        max_position_embeddings: keys.usize("max_position_embeddings")?.unwrap_or(2048),
        bos_token_id: if map.contains_key("bos_token_id") {
            first(keys.token_ids("bos_token_id")?)
        } else {
            default_bos
        },
        eos_token_ids: if map.contains_key("eos_token_id") { eos } else { default_eos },
        pad_token_id: first(keys.token_ids("pad_token_id")?),
    };
    config.validate(origin)?;
    Ok(config)
}

fn first(ids: Vec<u32>) -> Option<u32> {
    ids.first().copied()
}

fn family(keys: &Keys) -> Result<Family> {
    let found = keys.string("model_type")?.ok_or_else(|| keys.missing("model_type"))?;
    let family = Family::named(found).map_err(|known| keys.refuse("model_type", &known, &Value::from(found)))?;
    if let Some(Value::Array(list)) = keys.get("architectures") {
        let wanted = Value::from(family.architecture());
        ensure!(
            list.is_empty() || list.contains(&wanted),
            "{}: `architectures` must contain {wanted}, found {}",
            keys.origin,
            brief(&Value::Array(list.clone()))
        );
    }
    Ok(family)
}

/// Settings that change what the model computes and that the decoder does not have.
fn refuse_unsupported(keys: &Keys, family: Family) -> Result<()> {
    const EXPERTS: [&str; 7] = [
        "num_experts",
        "num_local_experts",
        "num_experts_per_tok",
        "n_routed_experts",
        "moe_intermediate_size",
        "decoder_sparse_step",
        "mlp_only_layers",
    ];
    for key in EXPERTS {
        if let Some(found) = keys.get(key).filter(|v| !matches!(v, Value::Array(a) if a.is_empty())) {
            return Err(keys.refuse(key, "no mixture of experts", found));
        }
    }
    for key in ["attention_bias", "mlp_bias", "use_sliding_window", "use_bidirectional_attention", "is_encoder_decoder"]
    {
        if keys.bool(key)? == Some(true) {
            return Err(keys.refuse(key, "false", &Value::Bool(true)));
        }
    }
    // Both Qwens carry a window that `use_sliding_window` turns on; elsewhere a window means what it says.
    if let Some(found) = keys.get("sliding_window").filter(|_| matches!(family, Family::Llama | Family::Gemma)) {
        return Err(keys.refuse("sliding_window", "null (full attention)", found));
    }
    if let Some(found) = keys.get("layer_types") {
        let full = found.as_array().is_some_and(|list| list.iter().all(|v| v == "full_attention"));
        if !full {
            return Err(keys.refuse("layer_types", "\"full_attention\" for every layer", found));
        }
    }
    // The first Gemmas were published as "gelu" and meant the approximation: transformers reads them so.
    let (wanted, known): (_, &[&str]) = match family.activation() {
        Activation::Silu => ("\"silu\"", &["silu", "swish"]),
        Activation::GeluTanh => ("\"gelu_pytorch_tanh\"", &["gelu_pytorch_tanh", "gelu"]),
    };
    for key in ["hidden_act", "hidden_activation"] {
        if let Some(found) = keys.get(key).filter(|v| !v.as_str().is_some_and(|name| known.contains(&name))) {
            return Err(keys.refuse(key, wanted, found));
        }
    }
    if let Some(found) = keys.get("quantization_config") {
        return Err(keys.refuse("quantization_config", "unquantised weights (F32, F16 or BF16), or a GGUF", found));
    }
    if let Some(found) = keys.get("per_layer_config") {
        return Err(keys.refuse("per_layer_config", "the same settings for every layer", found));
    }
    if keys.f64("partial_rotary_factor")?.is_some_and(|f| f != 1.0) {
        return Err(keys.refuse(
            "partial_rotary_factor",
            "1 (all of the head is turned)",
            &keys.map["partial_rotary_factor"],
        ));
    }
    Ok(())
}

/// `rope_theta` and the scaling, from either form; where a file has both they must agree.
fn rope(keys: &Keys) -> Result<(f64, Option<Llama3Scaling>)> {
    let top_theta = keys.f64("rope_theta")?;
    let old = keys.object("rope_scaling")?.map(|o| scaling(&o)).transpose()?;
    let new_map = keys.object("rope_parameters")?;
    let new = new_map.as_ref().map(scaling).transpose()?;
    let new_theta = new_map.as_ref().map(|o| o.f64("rope_theta")).transpose()?.flatten();
    if let (Some(a), Some(b)) = (top_theta, new_theta) {
        ensure!(a == b, "{}: `rope_theta` is {a} but `rope_parameters.rope_theta` is {b}; keep one", keys.origin);
    }
    if let (Some(a), Some(b)) = (&old, &new) {
        ensure!(a == b, "{}: `rope_scaling` and `rope_parameters` disagree ({a:?} and {b:?}); keep one", keys.origin);
    }
    let theta = new_theta.or(top_theta).unwrap_or(10_000.0);
    Ok((theta, new.or(old).flatten()))
}

fn scaling(keys: &Keys) -> Result<Option<Llama3Scaling>> {
    for nested in ["full_attention", "sliding_attention"] {
        if let Some(found) = keys.get(nested) {
            return Err(keys.refuse(nested, "one rotary setting for all layers", found));
        }
    }
    if keys.f64("partial_rotary_factor")?.is_some_and(|f| f != 1.0) {
        return Err(keys.refuse(
            "partial_rotary_factor",
            "1 (all of the head is turned)",
            &keys.map["partial_rotary_factor"],
        ));
    }
    let kind = match keys.string("rope_type")? {
        Some(kind) => Some(kind),
        None => keys.string("type")?,
    };
    match kind.unwrap_or("default") {
        "default" => Ok(None),
        "llama3" => Ok(Some(Llama3Scaling {
            factor: keys.need_f64("factor")?,
            low_freq_factor: keys.need_f64("low_freq_factor")?,
            high_freq_factor: keys.need_f64("high_freq_factor")?,
            original_max_position_embeddings: keys.need_usize("original_max_position_embeddings")?,
        })),
        other => Err(keys.refuse("rope_type", "\"default\" or \"llama3\"", &Value::from(other))),
    }
}
