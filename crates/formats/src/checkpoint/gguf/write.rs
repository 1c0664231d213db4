//! Writing a GGUF of random weights, as llama.cpp's converter lays a file out: matrices in Q8_0, norms in floats, no tokenizer.

use std::io::Write;

use anyhow::{Context, Result, ensure};
use half::f16;
use rayon::prelude::*;

use super::super::HostTensor;
use super::gguf_name;
use crate::config::ModelConfig;
use switchyard_ops::stored::Format;

/// Numbers of the types that are written.
const F32: u32 = 0;
const Q8_0: u32 = 8;

/// Alignment of tensors in bytes.
const ALIGNMENT: usize = 32;

/// Writes a model in the order of `shapes`; `get` returns one parameter at a time. The rows of q and k are not permuted, unlike in a
/// llama file.
pub fn write_q8_0(
    out: &mut impl Write,
    config: &ModelConfig,
    shapes: &[(String, Vec<usize>)],
    get: impl Fn(&str, &[usize]) -> Result<HostTensor>,
) -> Result<()> {
    ensure!(config.rope_scaling.is_none(), "rope_scaling is not written to GGUF: write a folder instead");
    ensure!(config.family.gguf.writable, "a {} is not written to GGUF: write a folder instead", config.family.name());
    let kind = |shape: &[usize]| match shape {
        [_, width] if Format::Q8_0.row_bytes(*width).is_some() => (Q8_0, Format::Q8_0),
        _ => (F32, Format::F32),
    };
    let size = |shape: &[usize]| {
        let (width, rows) = shape.split_last().map_or((1, &[][..]), |(width, rows)| (*width, rows));
        kind(shape).1.row_bytes(width).unwrap_or(0) * rows.iter().product::<usize>()
    };
    let mut head = Head::new(config);
    let mut offset = 0;
    for (name, shape) in shapes {
        let gguf = gguf_name(config.family, name).with_context(|| format!("GGUF has no name for `{name}`"))?;
        head.tensor(&gguf, shape, kind(shape).0, offset);
        offset += size(shape).next_multiple_of(ALIGNMENT) as u64;
    }
    out.write_all(&head.bytes())?;
    for (name, shape) in shapes {
        let tensor = get(name, shape)?;
        let mut bytes: Vec<u8> = if kind(shape).0 == Q8_0 {
            tensor.data.par_chunks(32).flat_map_iter(block).collect()
        } else {
            tensor.data.iter().flat_map(|x| x.to_le_bytes()).collect()
        };
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
        out.write_all(&bytes)?;
    }
    Ok(out.flush()?)
}

/// One block: the scale that maps the largest value to 127, and the rounded multiples of it.
fn block(values: &[f32]) -> impl Iterator<Item = u8> + use<> {
    let scale = f16::from_f32(values.iter().fold(0.0_f32, |most, x| most.max(x.abs())) / 127.0);
    let by = if scale.to_f32() == 0.0 { 0.0 } else { 1.0 / scale.to_f32() };
    let quants: Vec<u8> = values.iter().map(|x| (x * by).round().clamp(-127.0, 127.0) as i8 as u8).collect();
    scale.to_le_bytes().into_iter().chain(quants)
}

/// The head of a file: metadata, then the table of tensors.
struct Head {
    keys: u64,
    meta: Vec<u8>,
    tensors: u64,
    table: Vec<u8>,
}

impl Head {
    fn new(config: &ModelConfig) -> Self {
        let arch = config.family.name();
        let mut head = Self { keys: 0, meta: vec![], tensors: 0, table: vec![] };
        let mut name = vec![];
        text(&mut name, arch);
        head.key("general.architecture", 8, &name);
        let numbers = [
            ("block_count", config.num_hidden_layers),
            ("context_length", config.max_position_embeddings),
            ("embedding_length", config.hidden_size),
            ("feed_forward_length", config.intermediate_size),
            ("attention.head_count", config.num_attention_heads),
            ("attention.head_count_kv", config.num_key_value_heads),
            ("attention.key_length", config.head_dim),
        ];
        for (key, value) in numbers {
            head.key(&format!("{arch}.{key}"), 4, &(value as u32).to_le_bytes());
        }
        let floats = [("rope.freq_base", config.rope_theta), ("attention.layer_norm_rms_epsilon", config.rms_norm_eps)];
        for (key, value) in floats {
            head.key(&format!("{arch}.{key}"), 6, &(value as f32).to_le_bytes());
        }
        head
    }

    fn key(&mut self, key: &str, kind: u32, value: &[u8]) {
        self.keys += 1;
        text(&mut self.meta, key);
        self.meta.extend(kind.to_le_bytes());
        self.meta.extend(value);
    }

    fn tensor(&mut self, name: &str, shape: &[usize], kind: u32, offset: u64) {
        self.tensors += 1;
        text(&mut self.table, name);
        self.table.extend((shape.len() as u32).to_le_bytes());
        shape.iter().rev().for_each(|axis| self.table.extend((*axis as u64).to_le_bytes()));
        self.table.extend(kind.to_le_bytes());
        self.table.extend(offset.to_le_bytes());
    }

    fn bytes(self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3_u32.to_le_bytes());
        out.extend(self.tensors.to_le_bytes());
        out.extend(self.keys.to_le_bytes());
        out.extend(self.meta);
        out.extend(self.table);
        out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
        out
    }
}

fn text(out: &mut Vec<u8>, value: &str) {
    out.extend((value.len() as u64).to_le_bytes());
    out.extend(value.as_bytes());
}
