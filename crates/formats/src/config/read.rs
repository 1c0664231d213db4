//! `config.json` in both its forms (top-level `rope_theta` / `rope_scaling`, and transformers 5's `rope_parameters`). A setting that the
//! decoder does not implement is an error that names it.

use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::Value;

use super::family::WindowRule;
use super::keys::{Keys, brief};
use super::{
    ActivationFunction, Experts, Extras, Family, Llama3Scaling, MAX_LAYERS, ModelConfig, RopeScaling, SlidingWindow,
    YarnScaling,
};
use crate::guard::read_text;

pub(super) fn read(path: &Path) -> Result<ModelConfig> {
    let origin = path.display().to_string();
    // Reading a pipe or a device may block forever.
    ensure!(
        !path.exists() || path.is_file(),
        "{origin}: expected a file, the model's config.json, and found something else"
    );
    let text = read_text(path).with_context(|| format!("{origin}: cannot read the model's config.json"))?;
    let value: Value = serde_json::from_str(&text).map_err(|e| anyhow!("{origin}: not valid JSON: {e}"))?;
    from_json(&value, &origin)
}

pub(super) fn from_json(value: &Value, origin: &str) -> Result<ModelConfig> {
    let map = value.as_object().ok_or_else(|| anyhow!("{origin}: expected a JSON object, found {}", brief(value)))?;
    let keys = Keys { origin, path: "", map };
    let family = family(&keys)?;
    if family.is_gpt2 {
        return super::gpt2::from_keys(&keys);
    }
    refuse_unsupported(&keys, family)?;

    let heads = keys.need_usize("num_attention_heads")?;
    let hidden_size = keys.need_usize("hidden_size")?;
    let layers = keys.need_usize("num_hidden_layers")?;
    ensure!(layers <= MAX_LAYERS, "{origin}: `num_hidden_layers` must be between 1 and {MAX_LAYERS}, found {layers}");
    ensure!(heads > 0, "{origin}: `num_attention_heads` must be positive, found 0");
    let defaults = &family.defaults;
    // As in transformers, a missing key means the family's default, an explicit null means none.
    let missing = |key: &str| !map.contains_key(key);
    let head_dim = defaults.head_dim.filter(|_| missing("head_dim")).unwrap_or(hidden_size / heads);
    ensure!(
        defaults.any_width || hidden_size.is_multiple_of(heads),
        "{origin}: `hidden_size` must be a multiple of `num_attention_heads`, found {hidden_size} and {heads}"
    );
    let (rope_theta, rope_scaling) = rope(&keys)?;
    let kv_heads = defaults.kv_heads.filter(|_| missing("num_key_value_heads")).unwrap_or(heads);
    let or = |key: &str, default: &[u32]| if missing(key) { Ok(default.to_vec()) } else { keys.token_ids(key) };
    let config = ModelConfig {
        family,
        vocab_size: keys.need_usize("vocab_size")?,
        hidden_size,
        intermediate_size: keys.need_usize("intermediate_size")?,
        num_hidden_layers: layers,
        num_attention_heads: heads,
        num_key_value_heads: keys.usize("num_key_value_heads")?.unwrap_or(kv_heads),
        head_dim: keys.usize("head_dim")?.unwrap_or(head_dim),
        rms_norm_eps: keys.f64("rms_norm_eps")?.unwrap_or(defaults.eps),
        rope_theta,
        rope_scaling,
        qk_norm: family.qk_norm,
        tie_word_embeddings: keys.bool("tie_word_embeddings")?.unwrap_or(defaults.tied),
        max_position_embeddings: keys.usize("max_position_embeddings")?.unwrap_or(defaults.positions),
        bos_token_id: first(or("bos_token_id", defaults.bos.as_slice())?),
        eos_token_ids: or("eos_token_id", defaults.eos)?,
        pad_token_id: first(keys.token_ids("pad_token_id")?),
        extras: extras(&keys, family, layers)?,
    };
    config.validate(origin)?;
    Ok(config)
}

pub(super) fn first(ids: Vec<u32>) -> Option<u32> {
    ids.first().copied()
}

fn family(keys: &Keys) -> Result<Family> {
    let found = keys.string("model_type")?.ok_or_else(|| keys.missing("model_type"))?;
    let family = Family::parse(found).map_err(|known| keys.refuse("model_type", &known, &Value::from(found)))?;
    if let Some(found) = keys.get("architectures") {
        let [wanted, base] = family.classes.map(Value::from);
        let list = found.as_array().ok_or_else(|| keys.refuse("architectures", "a list of classes", found))?;
        ensure!(
            list.is_empty() || list.contains(&wanted) || list.contains(&base),
            "{}: `architectures` must contain {wanted}, found {}",
            keys.origin,
            brief(found)
        );
    }
    Ok(family)
}

/// Refuses settings that change the computation and that the decoder does not implement.
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
    for key in EXPERTS.into_iter().filter(|_| !family.has_experts) {
        if let Some(found) = keys.get(key).filter(|v| !matches!(v, Value::Array(a) if a.is_empty())) {
            return Err(keys.refuse(key, "no mixture of experts", found));
        }
    }
    for key in ["attention_bias", "mlp_bias", "use_bidirectional_attention", "is_encoder_decoder"] {
        if keys.bool(key)? == Some(true) {
            return Err(keys.refuse(key, "false", &Value::Bool(true)));
        }
    }
    // The first Gemmas were published with "gelu" but meant the approximation, as transformers reads them.
    let (wanted, known): (_, &[&str]) = match family.activation {
        ActivationFunction::Silu => ("\"silu\"", &["silu", "swish"]),
        ActivationFunction::GeluTanh => ("\"gelu_pytorch_tanh\"", &["gelu_pytorch_tanh", "gelu"]),
    };
    for key in ["hidden_act", "hidden_activation"] {
        // The older key's "gelu" means the approximation; the newer key is literal.
        let known = |name: &str| known.contains(&name) && (key, name) != ("hidden_activation", "gelu");
        if let Some(found) = keys.get(key).filter(|v| !v.as_str().is_some_and(known)) {
            return Err(keys.refuse(key, wanted, found));
        }
    }
    refuse_bidirectional(keys)?;
    refuse_quantised(keys)?;
    if let Some(found) = keys.get("per_layer_config") {
        return Err(keys.refuse("per_layer_config", "the same settings for every layer", found));
    }
    refuse_partial_rotary(keys)
}

/// Refuses RoPE over a part of the head.
fn refuse_partial_rotary(keys: &Keys) -> Result<()> {
    let key = "partial_rotary_factor";
    match keys.f64(key)? {
        Some(factor) if factor != 1.0 => Err(keys.refuse(key, "1 (RoPE over the whole head)", &keys.map[key])),
        _ => Ok(()),
    }
}

/// Refuses bidirectional attention, as in embedding models over causal decoders.
pub(super) fn refuse_bidirectional(keys: &Keys) -> Result<()> {
    match keys.bool("is_causal")? {
        Some(false) => {
            Err(keys.refuse("is_causal", "true (a position sees itself and those before it)", &Value::Bool(false)))
        }
        _ => Ok(()),
    }
}

/// Refuses quantised weights, as declared by transformers' methods and MLX.
pub(super) fn refuse_quantised(keys: &Keys) -> Result<()> {
    for key in ["quantization_config", "quantization"] {
        if let Some(found) = keys.get(key) {
            return Err(keys.refuse(key, "unquantised weights (F32, F16 or BF16), or a GGUF", found));
        }
    }
    Ok(())
}

/// Settings of a few families; a missing key has transformers' value.
fn extras(keys: &Keys, family: Family, layers: usize) -> Result<Extras> {
    let sliding = sliding(keys, family, layers)?;
    let experts = family.has_experts.then(|| Experts::read(keys, layers)).transpose()?;
    if !family.is_capped {
        for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
            if let Some(found) = keys.get(key) {
                return Err(keys.refuse(key, "null (no cap)", found));
            }
        }
        return Ok(Extras { sliding, experts, ..Extras::default() });
    }
    let or = |key: &str, default: f64| {
        Ok::<_, anyhow::Error>(if keys.map.contains_key(key) { keys.f64(key)? } else { Some(default) })
    };
    Ok(Extras {
        sliding,
        experts,
        query_pre_attn_scalar: Some(keys.f64("query_pre_attn_scalar")?.unwrap_or(256.0)),
        attention_cap: or("attn_logit_softcapping", 50.0)?,
        logit_cap: or("final_logit_softcapping", 30.0)?,
    })
}

/// Sliding windows by the family's rule, with transformers' defaults.
fn sliding(keys: &Keys, family: Family, layers: usize) -> Result<Option<SlidingWindow>> {
    const DEFAULT: usize = 4096;
    let size = match keys.usize("sliding_window")? {
        None if !keys.map.contains_key("sliding_window") => Some(DEFAULT),
        size => size,
    };
    let used = keys.bool("use_sliding_window")?.unwrap_or(false);
    let listed = SlidingWindow::listed(keys)?;
    let found = match family.window {
        WindowRule::Alternate => {
            let layers = listed.clone().unwrap_or_else(|| (0..layers).map(|layer| layer % 2 == 0).collect());
            ensure!(
                size.is_some() || !layers.contains(&true),
                "{}: `sliding_window` is null, and layers of \"sliding_attention\" need a number",
                keys.origin
            );
            size.map(|window| (window, layers))
        }
        WindowRule::AllIfUsed | WindowRule::UpperIfUsed if !used => None,
        WindowRule::All | WindowRule::AllIfUsed => size.map(|window| (window, vec![true; layers])),
        WindowRule::UpperIfUsed => {
            let full = keys.usize("max_window_layers")?.unwrap_or(28);
            let upper = || (0..layers).map(|layer| layer >= full).collect();
            size.map(|window| (window, listed.clone().unwrap_or_else(upper)))
        }
        WindowRule::None if used => return Err(keys.refuse("use_sliding_window", "false", &Value::Bool(true))),
        WindowRule::None => {
            if let Some(found) = keys.get("sliding_window") {
                return Err(keys.refuse("sliding_window", "null (full attention)", found));
            }
            None
        }
    };
    let found = found.and_then(|(window, layers)| SlidingWindow::new(window, layers));
    if let (Some(listed), Some(value)) = (listed, keys.get("layer_types"))
        && found.as_ref().map_or(listed.contains(&true), |found| found.layers != listed)
    {
        let wanted =
            if found.is_some() { "\"sliding_attention\"" } else { "\"full_attention\" (no window is set or used)" };
        return Err(keys.refuse("layer_types", &format!("{wanted} for every layer"), value));
    }
    Ok(found)
}

/// `rope_theta` and the scaling, from either form; values in several places must agree.
fn rope(keys: &Keys) -> Result<(f64, Option<RopeScaling>)> {
    let mut theta = keys.f64("rope_theta")?.map(|theta| ("rope_theta".to_owned(), theta));
    let mut found: Option<(&str, Option<RopeScaling>)> = None;
    for place in ["rope_scaling", "rope_parameters"] {
        let Some(own) = keys.object(place)? else { continue };
        if let Some(inside) = own.f64("rope_theta")? {
            let at = format!("{place}.rope_theta");
            if let Some((other, outside)) = &theta {
                ensure!(*outside == inside, "{}: `{other}` is {outside} but `{at}` is {inside}; keep one", keys.origin);
            }
            theta = Some((at, inside));
        }
        let scaling = scaling(&own, keys)?;
        if let Some((other, before)) = found {
            ensure!(
                before == scaling,
                "{}: `{other}` and `{place}` disagree ({before:?} and {scaling:?}); keep one",
                keys.origin
            );
        }
        found = Some((place, scaling));
    }
    Ok((theta.map_or(10_000.0, |(_, theta)| theta), found.and_then(|(_, scaling)| scaling)))
}

/// `whole` is the file's top-level object, which may have the original length.
fn scaling(keys: &Keys, whole: &Keys) -> Result<Option<RopeScaling>> {
    for nested in ["full_attention", "sliding_attention"] {
        if let Some(found) = keys.get(nested) {
            return Err(keys.refuse(nested, "one rotary setting for all layers", found));
        }
    }
    refuse_partial_rotary(keys)?;
    let kind = match keys.string("rope_type")? {
        Some(kind) => Some(kind),
        None => keys.string("type")?,
    };
    // Places and their precedence follow transformers' `standardize_rope_params`.
    let original = || {
        let own = keys.usize("original_max_position_embeddings")?;
        let outside = whole.usize("original_max_position_embeddings")?;
        let most = || whole.need_usize("max_position_embeddings");
        outside.or(own).map_or_else(most, Ok)
    };
    Ok(match kind.unwrap_or("default") {
        "default" => None,
        "linear" => Some(RopeScaling::Linear(keys.need_f64("factor")?)),
        "llama3" => Some(RopeScaling::Llama3(Llama3Scaling {
            factor: keys.need_f64("factor")?,
            low_freq_factor: keys.need_f64("low_freq_factor")?,
            high_freq_factor: keys.need_f64("high_freq_factor")?,
            original_max_position_embeddings: original()?,
        })),
        "yarn" => Some(RopeScaling::Yarn(yarn(keys, original()?)?)),
        other => {
            let known = "\"default\", \"linear\", \"llama3\" or \"yarn\"";
            return Err(keys.refuse("rope_type", known, &Value::from(other)));
        }
    })
}

fn yarn(keys: &Keys, original_max_position_embeddings: usize) -> Result<YarnScaling> {
    let factor = keys.need_f64("factor")?;
    // Both or neither: 0 counts as absent, as in transformers.
    let mscale = |key: &str| Ok::<_, anyhow::Error>(keys.f64(key)?.filter(|m| *m != 0.0));
    let attention = match (keys.f64("attention_factor")?, mscale("mscale")?, mscale("mscale_all_dim")?) {
        (Some(factor), ..) => factor,
        (None, Some(one), Some(all)) => YarnScaling::mscale(factor, one) / YarnScaling::mscale(factor, all),
        _ => YarnScaling::mscale(factor, 1.0),
    };
    let beta = |key: &str, default| Ok::<_, anyhow::Error>(keys.f64(key)?.filter(|b| *b != 0.0).unwrap_or(default));
    Ok(YarnScaling {
        factor,
        original_max_position_embeddings,
        beta_fast: beta("beta_fast", 32.0)?,
        beta_slow: beta("beta_slow", 1.0)?,
        attention_factor: attention,
        truncate: keys.bool("truncate")?.unwrap_or(true),
    })
}
