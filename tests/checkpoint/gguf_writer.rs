//! A GGUF writer for tests, following llama.cpp's converter.

use std::fs;
use std::path::Path;

use half::f16;
use switchyard::model::checkpoint::{Dtype, HostTensor};
use switchyard::model::config::{Family, ModelConfig};

use super::support::*;

/// A GGUF file: metadata bytes, then tensors with their ggml type and data.
pub struct Writer {
    keys: u64,
    meta: Vec<u8>,
    pub tensors: Vec<(String, Vec<usize>, u32, Vec<u8>)>,
}

fn text(out: &mut Vec<u8>, s: &str) {
    out.extend((s.len() as u64).to_le_bytes());
    out.extend(s.as_bytes());
}

impl Writer {
    pub fn new() -> Self {
        Self { keys: 0, meta: vec![], tensors: vec![] }
    }

    pub fn key(&mut self, key: &str, kind: u32, value: &[u8]) -> &mut Self {
        self.keys += 1;
        text(&mut self.meta, key);
        self.meta.extend(kind.to_le_bytes());
        self.meta.extend(value);
        self
    }

    pub fn u32(&mut self, key: &str, value: u32) -> &mut Self {
        self.key(key, 4, &value.to_le_bytes())
    }

    pub fn text(&mut self, key: &str, value: &str) -> &mut Self {
        let mut bytes = vec![];
        text(&mut bytes, value);
        self.key(key, 8, &bytes)
    }

    pub fn texts<S: AsRef<str>>(&mut self, key: &str, list: &[S]) -> &mut Self {
        let mut bytes = 8u32.to_le_bytes().to_vec();
        bytes.extend((list.len() as u64).to_le_bytes());
        list.iter().for_each(|s| text(&mut bytes, s.as_ref()));
        self.key(key, 9, &bytes)
    }

    pub fn kinds(&mut self, key: &str, list: &[i32]) -> &mut Self {
        let mut bytes = 5u32.to_le_bytes().to_vec();
        bytes.extend((list.len() as u64).to_le_bytes());
        list.iter().for_each(|v| bytes.extend(v.to_le_bytes()));
        self.key(key, 9, &bytes)
    }

    pub fn floats(&mut self, key: &str, list: &[f32]) -> &mut Self {
        let mut bytes = 6u32.to_le_bytes().to_vec();
        bytes.extend((list.len() as u64).to_le_bytes());
        list.iter().for_each(|v| bytes.extend(v.to_le_bytes()));
        self.key(key, 9, &bytes)
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend(self.keys.to_le_bytes());
        out.extend(&self.meta);
        let mut offset = 0u64;
        for (name, shape, kind, data) in &self.tensors {
            text(&mut out, name);
            out.extend((shape.len() as u32).to_le_bytes());
            shape.iter().rev().for_each(|d| out.extend((*d as u64).to_le_bytes()));
            out.extend(kind.to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset += data.len().next_multiple_of(32) as u64;
        }
        for (.., data) in &self.tensors {
            out.resize(out.len().next_multiple_of(32), 0);
            out.extend(data);
        }
        out
    }

    pub fn save(&self, path: &Path) {
        fs::write(path, self.bytes()).expect("writes");
    }
}

fn gguf_name(family: Family, name: &str) -> String {
    let norms = match family {
        Family::Olmo2 => ["none", "post_attention_layernorm", "none", "post_feedforward_layernorm"],
        _ => ["input_layernorm", "none", "post_attention_layernorm", "none"],
    };
    [
        (norms[0], "attn_norm"),
        (norms[1], "post_attention_norm"),
        (norms[2], "ffn_norm"),
        (norms[3], "post_ffw_norm"),
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("model.layers.", "blk."),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ]
    .iter()
    .fold(name.to_string(), |n, (hf, gguf)| n.replace(hf, gguf))
}

/// llama.cpp's `permute`: `reshape(heads, 2, dh / 2, in).swapaxes(1, 2)`.
fn permute(t: &HostTensor, heads: usize) -> Vec<f32> {
    let (rows, width) = (t.shape[0], t.shape[1]);
    let half = rows / heads / 2;
    let mut out = vec![];
    for h in 0..heads {
        for i in 0..half {
            for j in 0..2 {
                let row = h * 2 * half + j * half + i;
                out.extend(&t.data[row * width..(row + 1) * width]);
            }
        }
    }
    out
}

/// 32 values per block; scale chosen as ggml does for Q8_0, exact enough to compare to half a step.
fn q8_0(data: &[f32]) -> Vec<u8> {
    let mut out = vec![];
    for block in data.chunks(32) {
        let d = f16::from_f32(block.iter().fold(0f32, |m, v| m.max(v.abs())) / 127.0);
        out.extend(d.to_le_bytes());
        out.extend(block.iter().map(|v| (v / d.to_f32()).round() as i8 as u8));
    }
    out
}

pub fn model(config: &ModelConfig, q8: bool) -> Writer {
    let arch = config.family.name();
    let mut w = Writer::new();
    w.text("general.architecture", arch)
        .u32(&format!("{arch}.block_count"), config.num_hidden_layers as u32)
        .u32(&format!("{arch}.context_length"), config.max_position_embeddings as u32)
        .u32(&format!("{arch}.embedding_length"), config.hidden_size as u32)
        .u32(&format!("{arch}.feed_forward_length"), config.intermediate_size as u32)
        .u32(&format!("{arch}.attention.head_count"), config.num_attention_heads as u32)
        .u32(&format!("{arch}.attention.head_count_kv"), config.num_key_value_heads as u32)
        .u32(&format!("{arch}.attention.key_length"), config.head_dim as u32)
        .key(&format!("{arch}.rope.freq_base"), 6, &(config.rope_theta as f32).to_le_bytes())
        .key(&format!("{arch}.attention.layer_norm_rms_epsilon"), 6, &(config.rms_norm_eps as f32).to_le_bytes())
        .u32("tokenizer.ggml.bos_token_id", 1)
        .u32("tokenizer.ggml.eos_token_id", 2);
    for item in tensors(config) {
        let (name, t) = item.expect("made");
        let heads = match (config.family, &name) {
            (Family::Llama, n) if n.contains("q_proj") => Some(config.num_attention_heads),
            (Family::Llama, n) if n.contains("k_proj") => Some(config.num_key_value_heads),
            _ => None,
        };
        let data = heads.map_or(t.data.clone(), |h| permute(&t, h));
        let (kind, bytes) = if q8 && t.shape.len() == 2 && t.shape[1].is_multiple_of(32) {
            (8, q8_0(&data))
        } else {
            (0, Dtype::F32.encode(&data))
        };
        w.tensors.push((gguf_name(config.family, &name), t.shape, kind, bytes));
    }
    w
}

/// The byte alphabet, a few merges, and these tokens with their types.
pub fn alphabet<'w>(w: &'w mut Writer, special: &[(&str, i32)]) -> &'w mut Writer {
    let mut tokens: Vec<String> =
        tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet().into_iter().map(String::from).collect();
    tokens.sort();
    tokens.extend(["12", "th", "the", "Ġthe"].map(String::from));
    let mut kinds = vec![1; tokens.len()];
    for (token, kind) in special {
        tokens.push((*token).to_owned());
        kinds.push(*kind);
    }
    w.text("tokenizer.ggml.model", "gpt2")
        .texts("tokenizer.ggml.tokens", &tokens)
        .kinds("tokenizer.ggml.token_type", &kinds)
        .texts("tokenizer.ggml.merges", &["1 2", "t h", "th e", "Ġ the"])
}

/// The same with a splitting rule and a chat template.
pub fn with_tokenizer(w: &mut Writer, pre: &str) {
    alphabet(w, &[("<|im_start|>", 3), ("<think>", 4), ("[PAD]", 5)])
        .text("tokenizer.ggml.pre", pre)
        .text("tokenizer.chat_template", "{{ messages }}");
}
