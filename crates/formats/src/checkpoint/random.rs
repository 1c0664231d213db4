//! Writes models of any shape with random weights, tensor by tensor, for measurements of machines and kernels.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use super::gguf::write_q8_0;
use super::params::expected_parameters;
use super::{Dtype, HostTensor, SaveOptions, save_hf_folder};
use crate::config::ModelConfig;
use crate::output::write_with;
use crate::random::fnv1a;

/// Standard deviation of a parameter's entries: embedding (and head) `d^-½`, matrices `in^-½`, those that write into the stream
/// divided by `√(2·layers)` (GPT-2's rule); 0 for biases (as in Hugging Face), `None` for norms, which are 1.
pub fn spread(name: &str, shape: &[usize], layers: usize) -> Option<f64> {
    if name.ends_with(".bias") {
        return Some(0.0);
    }
    let &[_, width] = shape else { return None };
    let into_stream = name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight");
    let residual = if into_stream { 1.0 / (2.0 * layers as f64).sqrt() } else { 1.0 };
    Some(residual / (width as f64).sqrt())
}

/// Writes a model of these settings: a `.gguf` in Q8_0, or a Hugging Face folder in bf16. No tokenizer: it takes token ids. Entries are
/// uniform (fast to draw) with the standard deviation of [`spread`], keyed by seed, name and row.
pub fn write_random(config: &ModelConfig, out: &Path, seed: u64) -> Result<()> {
    let shapes = expected_parameters(config);
    let get = |name: &str, shape: &[usize]| uniform(name, shape, config, seed);
    if out.extension().is_none_or(|extension| !extension.eq_ignore_ascii_case("gguf")) {
        let tensors = shapes.iter().map(|(name, shape)| Ok((name.clone(), get(name, shape)?)));
        let options = SaveOptions { dtype: Dtype::BF16, ..SaveOptions::default() };
        return save_hf_folder(out, config, tensors, &options);
    }
    config.validate("the configuration to save")?;
    let there = fs::symlink_metadata(out).is_ok();
    anyhow::ensure!(!there, "{}: already exists: remove it or choose another name", out.display());
    write_with(out, |file| {
        write_q8_0(file, config, &shapes, get).with_context(|| format!("{}: cannot write", out.display()))
    })
}

/// Values of one parameter; rows are drawn on several threads.
fn uniform(name: &str, shape: &[usize], config: &ModelConfig, seed: u64) -> Result<HostTensor> {
    let count = shape.iter().product();
    let Some(spread) = spread(name, shape, config.num_hidden_layers) else {
        return HostTensor::new(shape.to_vec(), vec![1.0 - config.family.norm_offset as f32; count]);
    };
    // Uniform in ±√3 has variance 1.
    let most = (spread * 3.0_f64.sqrt()) as f32;
    let mut data = vec![0.0; count];
    data.par_chunks_mut(shape[shape.len() - 1]).enumerate().for_each(|(row, values)| {
        let mut rng = ChaCha8Rng::seed_from_u64(seed ^ fnv1a(name.bytes()));
        rng.set_stream(row as u64);
        values.iter_mut().for_each(|x| *x = (rng.random::<f32>() * 2.0 - 1.0) * most);
    });
    HostTensor::new(shape.to_vec(), data)
}
