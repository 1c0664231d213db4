use serde_json::{Value, json};
use switchyard::model::checkpoint::expected_parameters;
use switchyard::model::config::{Extras, Family, ModelConfig, RopeScaling};

use super::support::*;

fn with(mut value: Value, key: &str, found: Value) -> Value {
    value[key] = found;
    value
}

#[test]
fn both_rotary_forms_agree() {
    let new = config(&llama_json());
    let mut old = llama_json();
    let mut rope = old.as_object_mut().and_then(|m| m.remove("rope_parameters")).expect("is there");
    old["rope_theta"] = rope["rope_theta"].take();
    rope.as_object_mut().map(|m| m.remove("rope_theta"));
    old["rope_scaling"] = rope;
    assert_eq!(config(&old), new);
    assert_eq!(new.rope_theta, 500000.0);
    assert_eq!(new.head_dim, 8);
    assert_eq!((new.bos_token_id, new.eos_token_ids.as_slice()), (Some(1), &[2u32][..]));
}

/// `rope_theta` is read from every key where transformers writes it; conflicting values are an error.
#[test]
fn rope_theta_is_read_from_every_place() {
    let mut bare = qwen3_json();
    bare.as_object_mut().map(|keys| keys.remove("rope_theta"));
    assert_eq!(config(&bare).rope_theta, 10_000.0);
    let plain = |theta: f64| json!({ "rope_type": "default", "rope_theta": theta });
    for place in ["rope_scaling", "rope_parameters"] {
        assert_eq!(config(&with(bare.clone(), place, plain(5e5))).rope_theta, 5e5, "{place}");
        assert_eq!(config(&with(bare.clone(), place, json!({ "rope_theta": 5e5 }))).rope_theta, 5e5, "{place}");
        let both = with(qwen3_json(), place, plain(5e5));
        fails(ModelConfig::from_json(&both, "c"), &["rope_theta", place, "500000", "1000000"]);
    }
    let twice = with(with(bare, "rope_scaling", plain(5e5)), "rope_parameters", plain(5e5));
    assert_eq!(config(&twice).rope_theta, 5e5);
}

/// YaRN's original length: the top-level key, the key in `rope_scaling`, or the model's maximum length.
#[test]
fn yarn_finds_its_original_length_as_transformers_does() {
    let rope = json!({ "type": "yarn", "factor": 4.0 });
    let yarn = |value: &Value| match config(value).rope_scaling {
        Some(RopeScaling::Yarn(yarn)) => yarn,
        other => panic!("{other:?}"),
    };
    let own = with(qwen3_json(), "rope_scaling", rope.clone());
    let found = yarn(&own);
    assert_eq!((found.original_max_position_embeddings, found.beta_fast, found.truncate), (256, 32.0, true));
    assert!((found.attention_factor - (0.1 * 4f64.ln() + 1.0)).abs() < 1e-12);
    let mut inside = rope.clone();
    inside["original_max_position_embeddings"] = json!(64);
    let inside = with(qwen3_json(), "rope_scaling", inside);
    assert_eq!(yarn(&inside).original_max_position_embeddings, 64);
    let outside = with(inside, "original_max_position_embeddings", json!(32));
    assert_eq!(yarn(&outside).original_max_position_embeddings, 32);
    let mut scaled = rope;
    (scaled["mscale"], scaled["mscale_all_dim"]) = (json!(2.0), json!(1.0));
    let (one, two) = (0.1 * 4f64.ln() + 1.0, 0.2 * 4f64.ln() + 1.0);
    assert!((yarn(&with(qwen3_json(), "rope_scaling", scaled)).attention_factor - two / one).abs() < 1e-12);
}

#[test]
fn gpt2_has_its_keys_and_defaults() {
    let found = config(&json!({ "model_type": "gpt2" }));
    let shape = (found.hidden_size, found.num_hidden_layers, found.num_attention_heads, found.intermediate_size);
    assert_eq!((shape, found.vocab_size, found.max_position_embeddings), ((768, 12, 12, 3072), 50_257, 1024));
    assert_eq!((found.bos_token_id, found.eos_token_ids.as_slice()), (Some(50_256), &[50_256][..]));
    assert!(found.tie_word_embeddings);
    // transformers accepts the other families' key names.
    let named =
        config(&json!({ "model_type": "gpt2", "hidden_size": 48, "num_attention_heads": 6, "num_hidden_layers": 3,
        "max_position_embeddings": 32 }));
    let shape = (named.hidden_size, named.num_attention_heads, named.head_dim, named.intermediate_size);
    assert_eq!((shape, named.num_hidden_layers, named.max_position_embeddings), ((48, 6, 8, 192), 3, 32));
    let twice = with(gpt2_json(), "num_attention_heads", json!(2));
    fails(ModelConfig::from_json(&twice, "c"), &["c: ", "num_attention_heads", "`n_head`"]);
    for (key, wrong) in [
        ("quantization_config", json!({ "bits": 4 })),
        ("activation_function", json!("relu")),
        ("scale_attn_by_inverse_layer_idx", json!(true)),
        ("scale_attn_weights", json!(false)),
        ("add_cross_attention", json!(true)),
        ("n_head", json!(5)),
        ("architectures", json!(["GPT2ForSequenceClassification"])),
        ("architectures", json!("GPT2LMHeadModel")),
    ] {
        fails(ModelConfig::from_json(&with(gpt2_json(), key, wrong), "c"), &["c: ", key]);
    }
}

#[test]
fn a_base_class_is_the_same_model() {
    for (value, name) in [(qwen3_json(), "Qwen3Model"), (llama_json(), "LlamaModel"), (gpt2_json(), "GPT2Model")] {
        let base = with(value.clone(), "architectures", json!([name]));
        assert_eq!(config(&base), config(&value));
    }
}

#[test]
fn a_written_config_reads_back() {
    let yarn = with(qwen3_json(), "rope_scaling", json!({ "rope_type": "yarn", "factor": 4.0, "truncate": false }));
    let linear = with(qwen3_json(), "rope_scaling", json!({ "rope_type": "linear", "factor": 4.0 }));
    for value in [
        qwen3_json(),
        qwen3_moe_json(),
        qwen2_json(),
        llama_json(),
        gemma_json(),
        gemma2_json(),
        gpt2_json(),
        olmo2_json(),
        yarn,
        linear,
    ] {
        let first = config(&value);
        let written = first.to_json("float32");
        assert_eq!(config(&written), first);
        assert_eq!(written["architectures"][0], first.family.classes[0]);
    }
    assert_eq!(config(&qwen3_json()).family, Family::Qwen3);
    assert!(config(&qwen3_json()).qk_norm);
}

#[test]
fn qwen2_has_biases_and_an_optional_window() {
    let found = config(&qwen2_json());
    assert_eq!((found.family, found.head_dim, found.qk_norm), (Family::Qwen2, 8, false));
    let biases: Vec<_> = expected_parameters(&found).into_iter().filter(|(name, _)| name.ends_with(".bias")).collect();
    let of = |name: &str, rows| (format!("model.layers.0.self_attn.{name}.bias"), vec![rows]);
    assert_eq!(biases[..3], [of("q_proj", 32), of("k_proj", 16), of("v_proj", 16)]);
    assert_eq!(biases.len(), 6);
    // It would imply a bias of o.
    assert_eq!(found.to_json("float32").get("attention_bias"), None);
    let windows = |value: &Value| {
        let found = config(value);
        assert_eq!(config(&found.to_json("float32")), found, "what is written is read as the same");
        [found.window(0), found.window(1)]
    };
    assert_eq!(windows(&qwen2_json()), [None; 2]);
    let on = with(qwen2_json(), "use_sliding_window", json!(true));
    assert_eq!(windows(&on), [None; 2], "all 28 lowest layers are full");
    assert_eq!(windows(&with(on.clone(), "max_window_layers", json!(1))), [None, Some(131_072)]);
    let listed = with(on.clone(), "layer_types", json!(["sliding_attention", "full_attention"]));
    assert_eq!(windows(&listed), [Some(131_072), None]);
    let mut bare = with(on.clone(), "max_window_layers", json!(0));
    bare.as_object_mut().map(|m| m.remove("sliding_window"));
    assert_eq!(windows(&bare), [Some(4096); 2]);
    for (value, parts) in [
        (with(qwen2_json(), "layer_types", listed["layer_types"].clone()), ["layer_types", "no window is set or used"]),
        (with(on.clone(), "layer_types", json!(["sliding_attention"])), ["layer_types", "2 layers"]),
        (
            with(on, "layer_types", json!(["chunked_attention", "chunked_attention"])),
            ["layer_types", "chunked_attention"],
        ),
        (with(with(bare, "max_window_layers", json!(0)), "sliding_window", json!(0)), ["sliding_window", "at least 1"]),
    ] {
        fails(ModelConfig::from_json(&value, "c"), &parts);
    }
    let value = with(qwen2_json(), "hidden_size", json!(34));
    fails(ModelConfig::from_json(&value, "c"), &["hidden_size", "34", "4"]);
}

#[test]
fn gemma_has_its_defaults_and_activation() {
    let found = config(&gemma_json());
    assert_eq!((found.family, found.head_dim, found.tie_word_embeddings), (Family::Gemma, 16, true));
    assert_eq!((found.bos_token_id, found.eos_token_ids.as_slice()), (Some(2), &[1][..]));
    assert_eq!(found.to_json("float32")["hidden_act"], "gelu_pytorch_tanh");
    let mut value = gemma_json();
    value.as_object_mut().map(|m| m.remove("head_dim"));
    assert_eq!(config(&value).head_dim, 256);
    for (key, wrong) in
        [("hidden_act", "silu"), ("hidden_activation", "relu"), ("hidden_activation", "gelu"), ("model_type", "gemma3")]
    {
        let value = with(gemma_json(), key, json!(wrong));
        fails(ModelConfig::from_json(&value, "c"), &["c: ", key, wrong]);
    }
}

#[test]
fn gemma2_has_caps_a_window_and_four_norms_a_block() {
    let found = config(&gemma2_json());
    let windows: Vec<_> = (0..3).map(|layer| found.window(layer)).collect();
    assert_eq!(windows, [Some(4096), None, Some(4096)]);
    let Extras { query_pre_attn_scalar, attention_cap, logit_cap, .. } = found.extras;
    assert_eq!((query_pre_attn_scalar, attention_cap, logit_cap), (Some(224.0), Some(50.0), Some(30.0)));
    assert_eq!(found.to_json("float32")["query_pre_attn_scalar"].to_string(), "224", "no float for a whole number");
    let norms =
        expected_parameters(&found).into_iter().filter(|(name, _)| name.contains("layers.0") && name.contains("norm"));
    assert_eq!(norms.count(), 4);
    let off = with(with(gemma2_json(), "attn_logit_softcapping", json!(null)), "final_logit_softcapping", json!(null));
    let found = config(&with(off, "layer_types", json!(["full_attention", "full_attention", "full_attention"])));
    assert_eq!(found.extras, Extras { query_pre_attn_scalar: Some(224.0), ..Extras::default() });
    assert_eq!(config(&found.to_json("float32")), found);
    for (key, wrong) in [
        ("sliding_window", json!(null)),
        ("attn_logit_softcapping", json!(0.0)),
        ("query_pre_attn_scalar", json!(-1)),
        ("use_bidirectional_attention", json!(true)),
    ] {
        fails(ModelConfig::from_json(&with(gemma2_json(), key, wrong), "c"), &["c: ", key]);
    }
    let value = with(llama_json(), "final_logit_softcapping", json!(30.0));
    fails(ModelConfig::from_json(&value, "c"), &["final_logit_softcapping", "30"]);
}

#[test]
fn olmo2_has_post_norms_and_norms_over_all_heads() {
    let found = config(&olmo2_json());
    let shapes: Vec<(String, Vec<usize>)> = expected_parameters(&found);
    let of_block: Vec<(&str, usize)> = shapes
        .iter()
        .filter_map(|(name, shape)| {
            Some((name.strip_prefix("model.layers.1.")?.strip_suffix("norm.weight")?, shape[0]))
        })
        .collect();
    let wanted =
        [("self_attn.q_", 32), ("self_attn.k_", 16), ("post_attention_layer", 32), ("post_feedforward_layer", 32)];
    assert_eq!(of_block, wanted);
    let mut bare = olmo2_json();
    bare.as_object_mut().map(|m| ["rms_norm_eps", "eos_token_id"].map(|key| m.remove(key)));
    assert_eq!((config(&bare).rms_norm_eps, config(&bare).eos_token_ids), (1e-5, vec![50_279]));
    let value = with(olmo2_json(), "sliding_window", json!(4096));
    fails(ModelConfig::from_json(&value, "c"), &["c: ", "sliding_window", "4096"]);
}

#[test]
fn qwen3_moe_has_experts_in_the_layers_that_its_file_says() {
    let found = config(&qwen3_moe_json());
    let there: Vec<bool> = (0..3).map(|layer| found.experts(layer).is_some()).collect();
    assert_eq!(there, [true, false, true]);
    let shapes: Vec<(String, Vec<usize>)> = expected_parameters(&found);
    let of =
        |name: &str| shapes.iter().find(|(n, _)| *n == format!("model.layers.{name}.weight")).map(|(_, s)| s.clone());
    assert_eq!(of("0.mlp.gate"), Some(vec![6, 32]));
    assert_eq!(of("2.mlp.experts.5.down_proj"), Some(vec![32, 16]));
    assert_eq!((of("1.mlp.up_proj"), of("1.mlp.gate"), of("0.mlp.up_proj")), (Some(vec![48, 32]), None, None));
    let mut local = qwen3_moe_json();
    let count = local.as_object_mut().and_then(|m| m.remove("num_experts")).expect("is there");
    assert_eq!(config(&with(local, "num_local_experts", count)), found, "as transformers 5 writes it");
    let every_second = with(with(qwen3_moe_json(), "decoder_sparse_step", json!(2)), "mlp_only_layers", json!([]));
    assert_eq!(config(&every_second).extras.experts.map(|e| e.layers), Some(vec![false, true, false]));
    let slides = with(with(qwen3_moe_json(), "use_sliding_window", json!(true)), "sliding_window", json!(8));
    assert_eq!(config(&slides).window(1), Some(8));
    for (key, wrong) in [
        ("num_experts_per_tok", json!(7)),
        ("num_local_experts", json!(8)),
        ("decoder_sparse_step", json!(0)),
        ("mlp_only_layers", json!("none")),
        ("moe_intermediate_size", json!(0)),
    ] {
        let said = message(ModelConfig::from_json(&with(qwen3_moe_json(), key, wrong), "c"));
        assert_names(&said, &["c: ", if key == "num_local_experts" { "num_experts" } else { key }]);
    }
    let many = with(with(qwen3_moe_json(), "num_hidden_layers", json!(4096)), "num_experts", json!(65_536));
    assert_names(&message(ModelConfig::from_json(&many, "c")), &["c: 4095 layers of `num_experts` 65536"]);
}

#[test]
fn qwen3_head_width_has_its_own_default() {
    let mut value = qwen3_json();
    value.as_object_mut().map(|m| m.remove("head_dim"));
    assert_eq!(config(&value).head_dim, 128);
}

#[test]
fn mistral_has_its_defaults_and_window() {
    let bare = mistral_json();
    let found = config(&bare);
    assert_eq!((found.family, found.num_key_value_heads, found.head_dim), (Family::Mistral, 8, 4));
    assert_eq!((found.max_position_embeddings, found.bos_token_id, found.eos_token_ids), (131_072, Some(1), vec![2]));
    let found = config(&with(mistral_json(), "num_key_value_heads", json!(null)));
    assert_eq!(found.num_key_value_heads, 16, "a null means as many as heads");
    let found = config(&with(with(mistral_json(), "head_dim", json!(6)), "hidden_size", json!(40)));
    assert_eq!((found.head_dim, found.hidden_size), (6, 40), "heads need not divide the width");
    assert_eq!(config(&found.to_json("float32")), found, "what is written is read as the same");

    let mut value = mistral_json();
    value.as_object_mut().map(|m| m.remove("sliding_window"));
    for (value, window) in
        [(mistral_json(), None), (value, Some(4096)), (with(mistral_json(), "sliding_window", json!(7)), Some(7))]
    {
        let found = config(&value);
        assert_eq!([found.window(0), found.window(1)], [window; 2]);
        assert_eq!(config(&found.to_json("float32")), found);
    }
    let value = with(mistral_json(), "sliding_window", json!(0));
    fails(ModelConfig::from_json(&value, "c"), &["c: ", "sliding_window", "0"]);
    let value = with(mistral_json(), "layer_types", json!(["sliding_attention", "sliding_attention"]));
    fails(ModelConfig::from_json(&value, "c"), &["c: ", "layer_types", "no window"]);
}

#[test]
fn unsupported_settings_are_refused_by_name() {
    let cases = [
        ("model_type", json!("mixtral")),
        ("model_type", json!("qwen2_moe")),
        ("architectures", json!(["Qwen3ForSequenceClassification"])),
        ("layer_types", json!(["full_attention", "sliding_attention"])),
        ("num_experts", json!(8)),
        ("num_local_experts", json!(8)),
        ("attention_bias", json!(true)),
        ("hidden_act", json!("gelu")),
        ("quantization_config", json!({ "bits": 4 })),
        ("quantization", json!({ "group_size": 64, "bits": 4 })),
        ("partial_rotary_factor", json!(0.5)),
        ("rope_type", json!(null)),
        ("num_key_value_heads", json!(3)),
        ("head_dim", json!(15)),
        ("hidden_size", json!("wide")),
        ("vocab_size", json!(null)),
        ("vocab_size", json!(0)),
        ("rms_norm_eps", json!(-1.0)),
        ("eos_token_id", json!("</s>")),
    ];
    for (key, found) in cases {
        let value = match key {
            "rope_type" => with(qwen3_json(), "rope_scaling", json!({ "rope_type": "dynamic", "factor": 4.0 })),
            _ => with(qwen3_json(), key, found),
        };
        fails(ModelConfig::from_json(&value, "some/config.json"), &["some/config.json", key]);
    }
    for kind in ["dynamic", "longrope", "mrope"] {
        let value =
            with(llama_json(), "rope_parameters", json!({ "rope_type": kind, "rope_theta": 1e4, "factor": 2.0 }));
        fails(ModelConfig::from_json(&value, "c"), &["rope_parameters.rope_type", kind]);
    }
    for (kind, key, wrong) in
        [("linear", "factor", 0.5), ("yarn", "beta_slow", 40.0), ("yarn", "attention_factor", -1.0)]
    {
        let mut rope = json!({ "rope_type": kind, "factor": 2.0 });
        rope[key] = json!(wrong);
        let value = with(qwen3_json(), "rope_scaling", rope);
        fails(ModelConfig::from_json(&value, "c"), &["c: ", kind, key]);
    }
    let value = with(llama_json(), "sliding_window", json!(4096));
    fails(ModelConfig::from_json(&value, "c"), &["c: ", "sliding_window", "4096"]);
    let value = with(llama_json(), "mlp_bias", json!(true));
    fails(ModelConfig::from_json(&value, "c"), &["mlp_bias"]);
    let value = with(llama_json(), "rope_theta", json!(1e4));
    fails(ModelConfig::from_json(&value, "c"), &["rope_theta", "10000", "500000"]);
}

#[test]
fn llama3_scaling_leaves_fast_frequencies_and_divides_slow_ones() {
    let config = config(&llama_json());
    let plain = ModelConfig { rope_scaling: None, ..config.clone() };
    let (scaled, plain) = (config.inv_freqs(), plain.inv_freqs());
    assert_eq!(scaled.len(), 4);
    assert_eq!(scaled[0], plain[0]);
    assert_eq!(scaled[3], plain[3] / 8.0);
}

/// Keys of transformers' configuration classes that do not affect the forward pass in evaluation, with the reason.
const NEUTRAL: [(&str, &[&str]); 6] = [
    (
        "names and records",
        &["_name_or_path", "dtype", "id2label", "label2id", "problem_type", "return_dict", "transformers_version"],
    ),
    (
        "what is returned or kept beside",
        &["output_attentions", "output_hidden_states", "output_router_logits", "use_cache"],
    ),
    ("how the same sums are computed", &["chunk_size_feed_forward", "pretraining_tp", "reorder_and_upcast_attn"]),
    (
        "training alone",
        &["attention_dropout", "attn_pdrop", "embd_pdrop", "initializer_range", "resid_pdrop", "router_aux_loss_coef"],
    ),
    (
        "heads of other tasks",
        &["summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"],
    ),
    ("only where a window is used", &["max_window_layers", "sliding_window", "use_sliding_window"]),
];

/// A key with a non-default value is read, rejected by name, or neutral.
#[test]
fn every_key_of_transformers_configurations_is_known() {
    let text = std::fs::read_to_string("fixtures/config_keys.json").expect("the fixture");
    let keys: Value = serde_json::from_str(&text).expect("JSON");
    let bases = [
        qwen3_json(),
        qwen3_moe_json(),
        qwen2_json(),
        llama_json(),
        mistral_json(),
        gemma_json(),
        gemma2_json(),
        gpt2_json(),
        olmo2_json(),
    ];
    let mut unknown = vec![];
    for base in &bases {
        let (family, before) = (base["model_type"].as_str().expect("a family"), config(base));
        let own = keys[family].as_object().unwrap_or_else(|| panic!("{family} is missing: make the fixture again"));
        for (key, default) in own {
            let now = base.get(key).filter(|value| !value.is_null()).unwrap_or(default);
            let others = match now {
                Value::Bool(is) => vec![json!(!is)],
                Value::Number(n) => vec![json!(n.as_f64().unwrap_or_default() * 2.0 + 2.0)],
                Value::Array(_) => vec![json!(vec!["sliding_attention"; 3]), json!([0])],
                Value::Object(_) => vec![json!({ "rope_type": "linear", "rope_theta": 7.0, "factor": 2.0 })],
                _ => vec![json!("other"), json!(true), json!(false), json!(7)],
            };
            let outcomes = others.into_iter().map(|other| ModelConfig::from_json(&with(base.clone(), key, other), "c"));
            let known = outcomes.into_iter().any(|outcome| match outcome {
                Ok(read) => read != before,
                Err(error) => error.to_string().contains(key.as_str()),
            });
            if !known && !NEUTRAL.iter().any(|(_, keys)| keys.contains(&key.as_str())) {
                unknown.push(format!("{family}: {key}"));
            }
        }
    }
    assert!(unknown.is_empty(), "neither read nor refused nor neutral: {unknown:#?}");
    for base in bases {
        fails(ModelConfig::from_json(&with(base.clone(), "is_causal", json!(false)), "c"), &["is_causal"]);
        config(&with(base, "is_causal", json!(true)));
    }
}
