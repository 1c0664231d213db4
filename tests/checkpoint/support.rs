//! Small models with consecutive numbers as weights.

use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};
use switchyard::model::checkpoint::{HostTensor, SaveOptions, expected_parameters, save_hf_folder};
use switchyard::model::config::ModelConfig;

pub fn qwen3_json() -> Value {
    json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu", "vocab_size": 40,
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "rope_scaling": null,
        "tie_word_embeddings": true, "max_position_embeddings": 256, "eos_token_id": [3, 4], "bos_token_id": 1,
        "attention_bias": false, "use_sliding_window": false, "sliding_window": null, "max_window_layers": 2
    })
}

/// Like Qwen2.5's config: window off, no head width, no key for biases.
pub fn qwen2_json() -> Value {
    json!({
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu", "vocab_size": 40,
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": false,
        "max_position_embeddings": 256, "eos_token_id": 3, "bos_token_id": 1, "use_sliding_window": false,
        "sliding_window": 131072, "max_window_layers": 28, "use_mrope": false
    })
}

/// Like Qwen3-30B-A3B's config, with one dense layer.
pub fn qwen3_moe_json() -> Value {
    json!({
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_act": "silu", "vocab_size": 40,
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": false,
        "max_position_embeddings": 256, "attention_bias": false, "use_sliding_window": false, "sliding_window": null,
        "decoder_sparse_step": 1, "mlp_only_layers": [1], "num_experts": 6, "num_experts_per_tok": 2,
        "moe_intermediate_size": 16, "norm_topk_prob": true, "router_aux_loss_coef": 0.001
    })
}

/// Like Gemma 1's config: "gelu" means the approximation, and half the keys are missing.
pub fn gemma_json() -> Value {
    json!({
        "architectures": ["GemmaForCausalLM"], "model_type": "gemma", "hidden_act": "gelu", "hidden_activation": null,
        "vocab_size": 40, "hidden_size": 36, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 1, "head_dim": 16, "rms_norm_eps": 1e-6, "rope_theta": 1e4, "max_position_embeddings": 256
    })
}

/// Like Gemma 2's config, with default caps and window.
pub fn gemma2_json() -> Value {
    json!({
        "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh", "vocab_size": 40, "hidden_size": 36, "intermediate_size": 48,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-6,
        "rope_theta": 1e4, "max_position_embeddings": 256, "query_pre_attn_scalar": 224
    })
}

/// Like Mistral's config from v0.2 on, without optional keys.
pub fn mistral_json() -> Value {
    json!({
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_act": "silu", "vocab_size": 40,
        "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 16,
        "rms_norm_eps": 1e-5, "rope_theta": 1e6, "sliding_window": null, "tie_word_embeddings": false
    })
}

/// Like GPT-2's config, without optional keys.
pub fn gpt2_json() -> Value {
    json!({
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new", "vocab_size": 40,
        "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 64, "n_ctx": 64, "layer_norm_epsilon": 1e-5,
        "bos_token_id": 39, "eos_token_id": 39
    })
}

/// Like OLMo 2's config: norms after attention and feed-forward, and over all query heads and all key heads.
pub fn olmo2_json() -> Value {
    json!({
        "architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "hidden_act": "silu", "vocab_size": 40,
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "rope_theta": 5e5, "tie_word_embeddings": false,
        "max_position_embeddings": 256, "attention_bias": false, "pad_token_id": 0, "eos_token_id": 2
    })
}

pub fn llama_json() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "vocab_size": 40,
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "tie_word_embeddings": false, "max_position_embeddings": 256,
        "rope_parameters": { "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64 }
    })
}

pub fn config(value: &Value) -> ModelConfig {
    ModelConfig::from_json(value, "config.json").expect("a valid configuration")
}

/// Quarter steps below 64: exact in all three formats up to F16, and coarse enough to see rounding in BF16.
pub fn values(n: usize, salt: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7 + salt * 13) % 509) as f32 / 4.0 - 60.0).collect()
}

pub fn tensors(config: &ModelConfig) -> Vec<Result<(String, HostTensor)>> {
    let list = expected_parameters(config).into_iter().enumerate();
    list.map(|(i, (name, shape))| {
        let n = shape.iter().product();
        HostTensor::new(shape, values(n, i)).map(|t| (name, t))
    })
    .collect()
}

pub fn save(dir: &Path, config: &ModelConfig, options: &SaveOptions) {
    save_hf_folder(dir, config, tensors(config), options).expect("saves");
}

/// The message that a user sees: one line.
pub fn message<T>(result: Result<T>) -> String {
    let text = match result {
        Ok(_) => panic!("expected an error"),
        Err(e) => format!("{e:#}"),
    };
    assert!(!text.contains('\n'), "not one line: {text}");
    text
}

/// A one-line error that contains all of `parts`.
#[track_caller]
pub fn fails<T>(result: Result<T>, parts: &[&str]) {
    assert_names(&message(result), parts);
}

#[track_caller]
pub fn assert_names(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
}
