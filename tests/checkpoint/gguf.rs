use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use half::f16;
use proptest::prelude::*;
use switchyard::model::checkpoint::{Checkpoint, Dtype, GgufFile, HostTensor};
use switchyard::model::config::{Family, ModelConfig};

use crate::support::*;

/// A GGUF put together by hand: metadata bytes, then tensors with their ggml type and data.
struct Writer {
    keys: u64,
    meta: Vec<u8>,
    tensors: Vec<(String, Vec<usize>, u32, Vec<u8>)>,
}

fn text(out: &mut Vec<u8>, s: &str) {
    out.extend((s.len() as u64).to_le_bytes());
    out.extend(s.as_bytes());
}

impl Writer {
    fn new() -> Self {
        Self {
            keys: 0,
            meta: vec![],
            tensors: vec![],
        }
    }

    fn key(&mut self, key: &str, kind: u32, value: &[u8]) -> &mut Self {
        self.keys += 1;
        text(&mut self.meta, key);
        self.meta.extend(kind.to_le_bytes());
        self.meta.extend(value);
        self
    }

    fn u32(&mut self, key: &str, value: u32) -> &mut Self {
        self.key(key, 4, &value.to_le_bytes())
    }

    fn text(&mut self, key: &str, value: &str) -> &mut Self {
        let mut bytes = vec![];
        text(&mut bytes, value);
        self.key(key, 8, &bytes)
    }

    fn texts<S: AsRef<str>>(&mut self, key: &str, list: &[S]) -> &mut Self {
        let mut bytes = 8u32.to_le_bytes().to_vec();
        bytes.extend((list.len() as u64).to_le_bytes());
        list.iter().for_each(|s| text(&mut bytes, s.as_ref()));
        self.key(key, 9, &bytes)
    }

    fn kinds(&mut self, key: &str, list: &[i32]) -> &mut Self {
        let mut bytes = 5u32.to_le_bytes().to_vec();
        bytes.extend((list.len() as u64).to_le_bytes());
        list.iter().for_each(|v| bytes.extend(v.to_le_bytes()));
        self.key(key, 9, &bytes)
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend(self.keys.to_le_bytes());
        out.extend(&self.meta);
        let mut offset = 0u64;
        for (name, shape, kind, data) in &self.tensors {
            text(&mut out, name);
            out.extend((shape.len() as u32).to_le_bytes());
            shape
                .iter()
                .rev()
                .for_each(|d| out.extend((*d as u64).to_le_bytes()));
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

    fn save(&self, path: &Path) {
        fs::write(path, self.bytes()).expect("writes");
    }
}

fn gguf_name(name: &str) -> String {
    [
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
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
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

fn model(config: &ModelConfig, q8: bool) -> Writer {
    let arch = config.family.model_type();
    let mut w = Writer::new();
    w.text("general.architecture", arch)
        .u32(
            &format!("{arch}.block_count"),
            config.num_hidden_layers as u32,
        )
        .u32(
            &format!("{arch}.context_length"),
            config.max_position_embeddings as u32,
        )
        .u32(
            &format!("{arch}.embedding_length"),
            config.hidden_size as u32,
        )
        .u32(
            &format!("{arch}.feed_forward_length"),
            config.intermediate_size as u32,
        )
        .u32(
            &format!("{arch}.attention.head_count"),
            config.num_attention_heads as u32,
        )
        .u32(
            &format!("{arch}.attention.head_count_kv"),
            config.num_key_value_heads as u32,
        )
        .u32(
            &format!("{arch}.attention.key_length"),
            config.head_dim as u32,
        )
        .key(
            &format!("{arch}.rope.freq_base"),
            6,
            &(config.rope_theta as f32).to_le_bytes(),
        )
        .key(
            &format!("{arch}.attention.layer_norm_rms_epsilon"),
            6,
            &(config.rms_norm_eps as f32).to_le_bytes(),
        )
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
        w.tensors.push((gguf_name(&name), t.shape, kind, bytes));
    }
    w
}

#[test]
fn both_families_read_back_exactly() {
    let root = tempfile::tempdir().expect("temp");
    let path = root.path().join("m.gguf");
    for value in [qwen3_json(), llama_json()] {
        let mut wanted = config(&value);
        wanted.rope_scaling = None;
        wanted.bos_token_id = Some(1);
        wanted.eos_token_ids = vec![2];
        model(&wanted, false).save(&path);
        let read = Checkpoint::open_gguf(&path).expect("opens");
        assert_eq!(read.config, wanted);
        for item in tensors(&wanted) {
            let (name, t) = item.expect("made");
            assert_eq!(read.tensor(&name).expect("reads"), t, "{name}");
        }
        assert!(
            read.tokenizer()
                .expect("no tokenizer is no error")
                .is_none()
        );
    }
}

#[test]
fn quantised_rows_are_unpermuted_too() {
    let root = tempfile::tempdir().expect("temp");
    let path = root.path().join("m.gguf");
    let mut config = config(&llama_json());
    config.rope_scaling = None;
    model(&config, true).save(&path);
    let read = Checkpoint::open_gguf(&path).expect("opens");
    for item in tensors(&config) {
        let (name, t) = item.expect("made");
        let found = read.tensor(&name).expect("reads");
        let worst = found
            .data
            .iter()
            .zip(&t.data)
            .map(|(a, b)| (a - b).abs())
            .fold(0f32, f32::max);
        assert!(worst <= 0.3, "{name}: off by {worst}");
    }
}

#[test]
fn llama3_divisors_become_settings_again() {
    let root = tempfile::tempdir().expect("temp");
    let path = root.path().join("m.gguf");
    let mut wanted = config(&llama_json());
    if let Some(s) = &mut wanted.rope_scaling {
        s.original_max_position_embeddings = 8192;
    }
    let plain = ModelConfig {
        rope_scaling: None,
        ..wanted.clone()
    };
    let divisors: Vec<f32> = plain
        .inv_freqs()
        .iter()
        .zip(wanted.inv_freqs())
        .map(|(p, s)| (p / s) as f32)
        .collect();
    let mut w = model(&wanted, false);
    w.tensors.push((
        "rope_freqs.weight".into(),
        vec![divisors.len()],
        0,
        Dtype::F32.encode(&divisors),
    ));
    w.save(&path);
    assert_eq!(
        GgufFile::open(&path).expect("opens").config().rope_scaling,
        wanted.rope_scaling
    );
    if let Some(last) = w.tensors.last_mut() {
        last.3 = Dtype::F32.encode(&[1.0, 3.0, 2.0, 1.0]);
    }
    w.save(&path);
    assert_names(
        &message(GgufFile::open(&path)),
        &["m.gguf", "rope_freqs.weight", "not llama3"],
    );
}

#[test]
fn what_is_not_supported_is_named() {
    let root = tempfile::tempdir().expect("temp");
    let path = root.path().join("m.gguf");
    let config = config(&qwen3_json());
    let check = |change: fn(&mut Writer), parts: &[&str]| {
        let mut w = model(&config, false);
        change(&mut w);
        w.save(&path);
        assert_names(&message(Checkpoint::open_gguf(&path)), parts);
    };
    check(
        |w| w.tensors[3].2 = 14,
        &["m.gguf", "blk.0.attn_k.weight", "Q6_K", "Q8_0"],
    );
    check(
        |w| w.tensors[3].2 = 77,
        &["blk.0.attn_k.weight", "unknown", "77"],
    );
    check(
        |w| {
            w.u32("qwen3.expert_count", 8);
        },
        &["qwen3.expert_count", "8"],
    );
    check(
        |w| {
            w.text("qwen3.rope.scaling.type", "yarn");
        },
        &["qwen3.rope.scaling.type", "yarn"],
    );
    check(
        |w| drop(w.tensors.remove(3)),
        &["m.gguf", "self_attn.k_proj.weight", "missing"],
    );
    check(
        |w| w.tensors[3].0 = "blk.0.attn_k.bias".into(),
        &["unexpected tensor `blk.0.attn_k.bias`"],
    );
    check(
        |w| w.tensors[3].1 = vec![8, 128],
        &["k_proj", "[32, 32]", "[8, 128]"],
    );
    check(
        |w| {
            w.u32("general.architecture", 1);
        },
        &["general.architecture", "twice"],
    );
    let mut w = Writer::new();
    w.text("general.architecture", "gemma3").save(&path);
    assert_names(
        &message(Checkpoint::open_gguf(&path)),
        &["general.architecture", "gemma3", "qwen3"],
    );
    fs::write(&path, b"GGML....").expect("writes");
    assert_names(
        &message(Checkpoint::open_gguf(&path)),
        &["m.gguf", "not a GGUF file"],
    );
}

/// Byte-level alphabet plus a few merges, with a trailing run of special tokens.
fn with_tokenizer(w: &mut Writer, pre: &str) {
    let mut tokens: Vec<String> = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet()
        .into_iter()
        .map(String::from)
        .collect();
    tokens.sort();
    tokens.extend(["12", "th", "the", "Ġthe"].map(String::from));
    let normal = tokens.len();
    tokens.extend(["<|im_start|>", "<think>", "[PAD]"].map(String::from));
    let kinds: Vec<i32> = (0..tokens.len())
        .map(|i| if i < normal { 1 } else { [3, 4, 5][i - normal] })
        .collect();
    w.text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", pre)
        .texts("tokenizer.ggml.tokens", &tokens)
        .kinds("tokenizer.ggml.token_type", &kinds)
        .texts("tokenizer.ggml.merges", &["1 2", "t h", "th e", "Ġ the"])
        .text("tokenizer.chat_template", "{{ messages }}");
}

#[test]
fn the_tokenizer_splits_as_its_name_says() {
    let root = tempfile::tempdir().expect("temp");
    let path = root.path().join("m.gguf");
    let mut value = qwen3_json();
    value["vocab_size"] = 263.into();
    for (pre, pieces) in [
        (
            "qwen2",
            vec!["<|im_start|>", "the", "Ġthe", "1", "2", "<think>", "Ċ"],
        ),
        (
            "smollm",
            vec!["<|im_start|>", "the", "Ġthe", "1", "2", "<think>", "Ċ"],
        ),
        (
            "llama-bpe",
            vec!["<|im_start|>", "the", "Ġthe", "12", "<think>", "Ċ"],
        ),
        (
            "default",
            vec!["<|im_start|>", "the", "Ġthe", "12", "<think>", "Ċ"],
        ),
    ] {
        let mut w = model(&config(&value), false);
        with_tokenizer(&mut w, pre);
        w.key("tokenizer.ggml.add_bos_token", 7, &[0]).save(&path);
        let read = Checkpoint::open_gguf(&path).expect("opens");
        let tokenizer = read.tokenizer().expect("builds").expect("is there");
        let encoded = tokenizer
            .encode("<|im_start|>the the12<think>\n", true)
            .expect("encodes");
        assert_eq!(encoded.get_tokens(), pieces, "{pre}");
        assert_eq!(
            tokenizer.decode(encoded.get_ids(), false).expect("decodes"),
            "<|im_start|>the the12<think>\n"
        );
        assert_eq!(
            tokenizer.decode(encoded.get_ids(), true).expect("decodes"),
            "the the12<think>\n"
        );
        assert_eq!(
            read.chat_template().expect("reads").as_deref(),
            Some("{{ messages }}")
        );
        let names: Vec<String> = read
            .text_files(None)
            .expect("writes")
            .into_iter()
            .map(|(n, _)| n)
            .collect();
        assert_eq!(names, ["tokenizer.json", "tokenizer_config.json"]);
    }
    let mut w = model(&config(&value), false);
    with_tokenizer(&mut w, "tekken");
    w.save(&path);
    assert_names(
        &message(Checkpoint::open_gguf(&path).expect("opens").tokenizer()),
        &["tokenizer.ggml.pre", "tekken"],
    );
    let mut small = model(&config(&qwen3_json()), false);
    with_tokenizer(&mut small, "qwen2");
    small.save(&path);
    assert_names(
        &message(Checkpoint::open_gguf(&path).expect("opens").tokenizer()),
        &["does not fit", "`vocab_size` is 40"],
    );
}

#[test]
fn a_merge_that_makes_no_token_is_an_error_not_a_panic() {
    let root = tempfile::tempdir().expect("temp");
    let path = root.path().join("m.gguf");
    let mut w = model(&config(&qwen3_json()), false);
    w.text("tokenizer.ggml.model", "gpt2")
        .texts("tokenizer.ggml.tokens", &["a", "b"])
        .texts("tokenizer.ggml.merges", &["a b"]);
    w.save(&path);
    assert_names(
        &message(Checkpoint::open_gguf(&path).expect("opens").tokenizer()),
        &["merges[0]", "a b"],
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..Default::default() })]

    /// Whatever a file holds, opening it and reading everything returns; it never panics.
    #[test]
    fn damaged_files_never_panic(keep in 0.0..1.0f64, hits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4)) {
        let mut w = model(&config(&llama_json()), true);
        with_tokenizer(&mut w, "smollm");
        let whole = w.bytes();
        let data: usize = w.tensors.iter().map(|t| t.3.len()).sum();
        let head = whole.len() - data;
        let mut bytes = whole;
        for (at, value) in hits {
            let i = at.index(head);
            bytes[i] = value;
        }
        if keep < 0.5 {
            bytes.truncate((bytes.len() as f64 * keep * 2.0) as usize);
        }
        let file = tempfile::NamedTempFile::new().expect("temp");
        fs::write(file.path(), &bytes).expect("writes");
        if let Ok(read) = Checkpoint::open_gguf(file.path()) {
            for name in read.names() {
                read.tensor(&name).ok();
            }
            read.tokenizer().ok();
            read.text_files(None).ok();
        }
    }
}

fn smollm2() -> Option<PathBuf> {
    let path = std::env::var_os("SWITCHYARD_SMOLLM2_GGUF").map(PathBuf::from);
    let path = path.unwrap_or_else(|| {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/SmolLM2-135M-Instruct.Q4_1.gguf")
    });
    if !path.is_file() {
        println!("skipped: {} is not there", path.display());
        return None;
    }
    Some(path)
}

#[test]
fn smollm2_loads_in_under_five_seconds() {
    let Some(path) = smollm2() else { return };
    let start = Instant::now();
    let read = Checkpoint::open_gguf(&path).expect("opens");
    let tokenizer = read.tokenizer().expect("builds").expect("is there");
    let text_side = start.elapsed();
    let mut values = 0;
    for item in read.tensors() {
        let (name, t) = item.expect("reads");
        assert!(t.data.iter().all(|v| v.is_finite()), "{name}");
        values += t.data.len();
    }
    let all = start.elapsed();
    println!(
        "SmolLM2: opened with tokenizer in {text_side:?}, {values} values dequantised after {all:?}"
    );
    assert_eq!(values, 134_515_008);
    assert!(all.as_secs_f64() < 5.0, "took {all:?}");
    let c = &read.config;
    assert_eq!(
        (
            c.num_hidden_layers,
            c.hidden_size,
            c.num_attention_heads,
            c.num_key_value_heads
        ),
        (30, 576, 9, 3)
    );
    assert_eq!(
        (c.intermediate_size, c.vocab_size, c.head_dim),
        (1536, 49152, 64)
    );
    assert_eq!(
        (c.rope_theta, c.rms_norm_eps, c.tie_word_embeddings),
        (100_000.0, 1e-5, true)
    );
    let ids = tokenizer
        .encode("<|im_start|>user\nThere are 127 apples.<|im_end|>\n", true)
        .expect("encodes");
    println!("{:?} {:?}", ids.get_ids(), ids.get_tokens());
    assert_eq!(&ids.get_tokens()[..3], ["<|im_start|>", "user", "Ċ"]);
    assert_eq!(
        tokenizer.decode(ids.get_ids(), false).expect("decodes"),
        "<|im_start|>user\nThere are 127 apples.<|im_end|>\n"
    );
}
