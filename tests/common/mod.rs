//! Tiny random models and helpers that the tests share.
#![allow(dead_code)]

pub mod circuit_models;
pub mod explorer;
pub mod known;
pub mod programs;
pub mod run_files;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use burn::tensor::{Device, Tensor};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use switchyard::model::checkpoint::{Dtype, HostTensor};
use switchyard::model::config::{Family, ModelConfig};
use switchyard::model::{Decoder, Hooks, Span};
use switchyard::parity::sft_settings;
use switchyard::store::RowWriter;
use switchyard::text::Vocabulary;
use switchyard::train::sft::Sft;

/// Paths in tests are relative to the checkout; cargo starts them in `programs/`.
#[ctor::ctor]
fn start_in_checkout() {
    std::env::set_current_dir(switchyard::store::CHECKOUT).expect("the checkout exists");
}

/// The folder of real benchmark files, `SWITCHYARD_DATA` or `shared/data` next to the checkout; without it, prints what is skipped.
pub fn real_data(what: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("SWITCHYARD_DATA").map_or_else(|| "../shared/data".into(), PathBuf::from);
    if folder.is_dir() {
        return Some(folder);
    }
    println!("skipped {what}: no {}; set SWITCHYARD_DATA", folder.display());
    None
}

/// SmolLM2-135M-Instruct as a GGUF file: `SWITCHYARD_SMOLLM2_GGUF`, or `assets` next to the checkout; without it, prints what is skipped.
pub fn smollm2() -> Option<PathBuf> {
    let default = || "../assets/SmolLM2-135M-Instruct.Q4_1.gguf".into();
    let path = std::env::var_os("SWITCHYARD_SMOLLM2_GGUF").map_or_else(default, PathBuf::from);
    if path.is_file() {
        return Some(path);
    }
    println!("skipped: no {}; set SWITCHYARD_SMOLLM2_GGUF", path.display());
    None
}

/// The message of an error contains this text.
#[track_caller]
pub fn says<T>(result: anyhow::Result<T>, what: &str) {
    let message = format!("{:#}", result.err().expect("an error"));
    assert!(message.contains(what), "`{what}` is not in: {message}");
}

/// Fails if `run` is still working after a minute of CPU time: for inputs on which an endless or exponential algorithm
/// would not return, and a right one takes a small part of a second.
pub fn assert_ends(what: &str, run: impl FnOnce()) {
    let used = || {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
        text.split(' ').next()?.parse().ok().map(Duration::from_nanos)
    };
    let (start, before) = (Instant::now(), used());
    run();
    let took = used().zip(before).map_or(start.elapsed(), |(after, before)| after.saturating_sub(before));
    assert!(took < Duration::from_secs(60), "{took:?} for {what}");
}

pub fn tiny_config(family: Family, tied: bool) -> ModelConfig {
    ModelConfig {
        vocab_size: 24,
        hidden_size: 16,
        intermediate_size: 24,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 6,
        tie_word_embeddings: tied,
        max_position_embeddings: 512,
        ..ModelConfig::new(family)
    }
}

pub fn tiny(seed: u64) -> Decoder {
    tiny_on(&Device::flex(), seed)
}

pub fn tiny_on(device: &Device, seed: u64) -> Decoder {
    Decoder::random(&tiny_config(Family::Qwen3, true), seed, device).expect("a valid tiny model")
}

/// Settings of one supervised step with gradients through the latents.
pub fn one_step(latent_token: u32, threads: usize) -> Sft<'static> {
    Sft { threads, ..sft_settings(latent_token, 1) }
}

/// Shapes and values of the tensors of a safetensors file in f32.
pub fn load_tensors(path: &Path) -> BTreeMap<String, (Vec<usize>, Vec<f32>)> {
    let bytes = std::fs::read(path).expect("the file was written");
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let one = |(name, view): (&str, TensorView)| {
        assert_eq!(view.dtype(), safetensors::Dtype::F32);
        (name.to_owned(), (view.shape().to_vec(), Dtype::F32.decode(view.data())))
    };
    file.iter().map(one).collect()
}

/// Writes a safetensors file in f32.
pub fn save_tensors<'t>(path: &Path, tensors: impl IntoIterator<Item = (String, &'t HostTensor)>) {
    let tensors: Vec<_> =
        tensors.into_iter().map(|(name, t)| (name, t.shape.clone(), Dtype::F32.encode(&t.data))).collect();
    let views = tensors.iter().map(|(name, shape, bytes)| {
        (name.clone(), TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes).expect("a view"))
    });
    safetensors::serialize_to_file(views, None, path).expect("writes");
}

/// Writes a file of rows.
pub fn save_rows<R: serde::Serialize>(folder: &Path, name: &str, rows: &[R]) {
    let mut writer = RowWriter::create(folder, name).expect("a file");
    rows.iter().for_each(|row| writer.push(row).expect("a row"));
    writer.finish().expect("rows");
}

pub fn values<const R: usize>(x: &Tensor<R>) -> Vec<f32> {
    x.clone().try_into_vec_as::<f32>().expect("values on the host")
}

/// max |a − b| ÷ max |b|.
pub fn relative(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "lengths differ");
    let scale = b.iter().fold(1e-30_f32, |m, x| m.max(x.abs()));
    a.iter().zip(b).fold(0.0_f32, |m, (x, y)| m.max((x - y).abs())) / scale
}

/// Hidden states of one row by definition: no cache, no batch, a full forward of the prefix for every position.
pub fn naive(model: &Decoder, ids: &[u32], latent: u32) -> Vec<Vec<f32>> {
    let mut inputs: Vec<Tensor<3>> = vec![];
    let mut hidden: Vec<Tensor<3>> = vec![];
    for &id in ids {
        let input = if id == latent {
            hidden.last().expect("a state before the latent").clone()
        } else {
            model.embed(&[vec![id]]).expect("an id in the table")
        };
        inputs.push(input);
        let n = inputs.len();
        let x = Tensor::cat(inputs.clone(), 1);
        let h = model.hidden(x, &Span::single_row(0, n), &mut model.cache(1), &mut Hooks::none()).expect("a forward");
        hidden.push(h.narrow(1, n - 1, 1));
    }
    hidden.iter().map(values).collect()
}

/// Twenty words and the switch tokens.
pub fn word_vocabulary() -> Vocabulary {
    let mut vocabulary = Vocabulary::from_words((0..20).map(|i| format!("w{i}"))).expect("words");
    vocabulary.add_switch_tokens().expect("switch tokens");
    vocabulary
}
