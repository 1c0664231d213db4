//! GGUF files of the families that llama.cpp also has: settings, weights under Hugging Face names, tokenizer.
//!
//! Three differences from a Hugging Face folder are undone here: names are llama.cpp's (`blk.0.attn_q`); the rows of q and k of the
//! llama family are permuted for interleaved RoPE; Gemma's norms include the added 1.

pub(crate) mod parse;
pub(super) mod parts;
mod quant;
pub(crate) mod settings;
mod tokenizer;
mod write;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, anyhow, bail, ensure};
use memmap2::Mmap;

use super::layout::FUSED;
use super::params::{EMBED, HEAD, NORM, NORM_BIAS, POSITIONS};
use super::{HostTensor, Weights, release};
use crate::config::{Family, ModelConfig};
use crate::tokenizer::{Templates, TextSide};
use parse::{Contents, Info, Value};
use parts::Parts;
use switchyard_ops::stored::{Format, StoredMatrix};
pub(super) use write::write_q8_0;

pub struct GgufFile {
    /// The opened file, then the other parts of a split model.
    paths: Vec<PathBuf>,
    maps: Vec<Mmap>,
    meta: BTreeMap<String, Value>,
    config: ModelConfig,
    /// By Hugging Face name.
    tensors: BTreeMap<String, Info>,
}

impl GgufFile {
    pub fn open(path: &Path) -> Result<Self> {
        let Parts { paths, maps, contents: Contents { meta, tensors: stored } } = Parts::open(path)?;
        let origin = path.display().to_string();
        let keys = settings::Keys { origin: &origin, meta: &meta };
        let config = settings::config(&keys, &stored, |info| &maps[info.part][info.range.clone()])?;
        let mut tensors = BTreeMap::new();
        for (name, info) in stored {
            if name == ROPE_FREQS {
                continue; // already in the configuration
            }
            if let Some((layer, module)) = stacked(config.family, &name) {
                let slices = split_experts(&info, config.experts(layer).map_or(0, |experts| experts.count));
                let slices = slices.map_err(|e| anyhow!("{origin}: tensor `{name}`: {e}"))?;
                let expert = |(number, slice)| (format!("model.layers.{layer}.mlp.experts.{number}.{module}"), slice);
                tensors.extend(slices.into_iter().enumerate().map(expert));
                continue;
            }
            let Some(hf) = hf_name(config.family, &name) else {
                bail!("{origin}: unexpected tensor `{name}`: a {} model has no such tensor", config.family.name())
            };
            tensors.insert(hf, info);
        }
        Ok(Self { paths, maps, meta, config, tensors })
    }

    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Tokenizer and templates, equal to those of the Hugging Face model; `None` if the metadata have no tokenizer.
    pub fn text_side(&self) -> Result<Option<TextSide>> {
        tokenizer::build(&self.keys(&self.origin()))
    }

    /// Whether the file has a complete tokenizer.
    pub(super) fn has_exact_tokenizer(&self) -> bool {
        tokenizer::is_exact(&self.keys(&self.origin()))
    }

    /// `tokenizer_config.json` for a folder written from this file.
    pub fn tokenizer_config(&self) -> Result<serde_json::Value> {
        tokenizer::config_json(&self.keys(&self.origin()))
    }

    pub fn templates(&self) -> Result<Option<Templates>> {
        let config = self.tokenizer_config()?;
        Templates::from_object(&config.as_object().cloned().unwrap_or_default(), "tokenizer.chat_template")
    }

    pub(super) fn license(&self) -> Result<Option<String>> {
        Ok(self.keys(&self.origin()).text("general.license")?.map(str::to_owned))
    }

    pub(super) fn path(&self) -> &Path {
        &self.paths[0]
    }

    fn origin(&self) -> String {
        self.path().display().to_string()
    }

    fn keys<'a>(&'a self, origin: &'a str) -> settings::Keys<'a> {
        settings::Keys { origin, meta: &self.meta }
    }

    /// A tensor, and the map from a row to the row at which it is stored.
    fn find(&self, name: &str) -> Result<(&Info, impl Fn(usize) -> usize + Sync + use<>)> {
        let origin = self.path().display();
        let info = self.tensors.get(name).ok_or_else(|| anyhow!("{origin}: no tensor for `{name}`"))?;
        let dh = match self.permuted_heads(name) {
            None => None,
            Some(heads) => {
                let (rows, dh) = (info.shape[0], self.config.head_dim);
                ensure!(rows == heads * dh, "{origin}: `{name}` must have {heads} x {dh} rows, found {rows}");
                Some(dh)
            }
        };
        Ok((info, move |row| dh.map_or(row, |dh| stored_row(row, dh))))
    }

    /// Number of heads of a tensor whose rows are interleaved.
    fn permuted_heads(&self, name: &str) -> Option<usize> {
        if !self.config.family.gguf.interleaved {
            return None;
        }
        if name.ends_with(".self_attn.q_proj.weight") {
            Some(self.config.num_attention_heads)
        } else if name.ends_with(".self_attn.k_proj.weight") {
            Some(self.config.num_key_value_heads)
        } else {
            None
        }
    }
}

/// Divisors of the rotary frequencies (llama3 scaling), stored as a tensor.
const ROPE_FREQS: &str = "rope_freqs.weight";

/// Tensors outside the layers: llama.cpp's name and Hugging Face's.
const OUTSIDE: [(&str, &str); 5] = [
    ("token_embd.weight", EMBED),
    ("position_embd.weight", POSITIONS),
    ("output_norm.weight", NORM),
    ("output_norm.bias", NORM_BIAS),
    ("output.weight", HEAD),
];

/// Tensors of a layer: `blk.0.<first>.weight` is `model.layers.0.<second>.weight`, and biases likewise.
const IN_LAYER: [(&str, &str); 11] = [
    ("attn_qkv", FUSED),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate_inp", "mlp.gate"),
];

/// The norms before and after attention, before and after the feed-forward: as in [`NormPlace::names`](crate::config::NormPlace::names).
const NORMS: [&str; 4] = ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"];

/// llama.cpp's name of a module of a layer, and Hugging Face's.
fn in_layer(family: Family) -> impl Iterator<Item = (&'static str, &'static str)> {
    let norms = NORMS.into_iter().zip(family.norm_place.names());
    IN_LAYER.into_iter().chain(norms.filter_map(|(gguf, hf)| Some((gguf, hf?))))
}

/// The experts' matrices of a layer: one tensor `[E, out, in]` for all experts.
const STACKED: [(&str, &str); 3] =
    [("ffn_gate_exps", "gate_proj.weight"), ("ffn_up_exps", "up_proj.weight"), ("ffn_down_exps", "down_proj.weight")];

/// The layer and the parameter of a tensor that stacks all experts.
fn stacked(family: Family, name: &str) -> Option<(usize, &'static str)> {
    let (layer, part) = name.strip_prefix("blk.")?.strip_suffix(".weight")?.split_once('.')?;
    let (_, module) = STACKED.iter().find(|(gguf, _)| family.has_experts && *gguf == part)?;
    Some((layer_number(layer)?, module))
}

/// The number of a layer as llama.cpp writes it: `01` and `+1` would be second names of layer 1.
fn layer_number(text: &str) -> Option<usize> {
    text.parse::<usize>().ok().filter(|number| number.to_string() == text)
}

/// The matrix of each expert: contiguous slices of the stacked tensor.
fn split_experts(info: &Info, count: usize) -> Result<Vec<Info>> {
    let &[experts, rows, width] = &info.shape[..] else {
        bail!("must have three axes (expert, row, column), found {:?}", info.shape)
    };
    ensure!(experts == count && count > 0, "must have {count} experts, found {experts}");
    let bytes = info.range.len() / experts;
    let one = |number| {
        let start = info.range.start + number * bytes;
        Info { shape: vec![rows, width], range: start..start + bytes, ..info.clone() }
    };
    Ok((0..experts).map(one).collect())
}

/// Tensors with a bias in a family with `qkv_bias`.
const BIASED: [&str; 3] = ["attn_q", "attn_k", "attn_v"];

/// llama.cpp's name to Hugging Face's; `None` for a tensor that the family does not have.
fn hf_name(family: Family, name: &str) -> Option<String> {
    if let Some((_, hf)) = OUTSIDE.iter().find(|(gguf, _)| *gguf == name) {
        return Some((*hf).to_owned());
    }
    let (layer, part) = name.strip_prefix("blk.")?.split_once('.')?;
    let layer = layer_number(layer)?;
    let (part, kind) = part.split_once('.')?;
    let has_bias = family.other_biases || family.qkv_bias && BIASED.contains(&part);
    let has = kind == "weight" || kind == "bias" && has_bias;
    let (_, hf) = in_layer(family).find(|(gguf, _)| has && *gguf == part)?;
    Some(format!("model.layers.{layer}.{hf}.{kind}"))
}

/// Hugging Face's name to llama.cpp's.
fn gguf_name(family: Family, name: &str) -> Option<String> {
    if let Some((gguf, _)) = OUTSIDE.iter().find(|(_, hf)| *hf == name) {
        return Some((*gguf).to_owned());
    }
    let (layer, part) = name.strip_prefix("model.layers.")?.split_once('.')?;
    let (part, kind) = part.rsplit_once('.')?;
    let (gguf, _) = in_layer(family).find(|(_, hf)| *hf == part)?;
    Some(format!("blk.{layer}.{gguf}.{kind}"))
}

/// Within a head of `dh` rows, Hugging Face's row j·dh/2 + i (half j, frequency i) is stored as row 2·i + j.
fn stored_row(row: usize, dh: usize) -> usize {
    let (head, r) = (row / dh, row % dh);
    let (half, freq) = (r / (dh / 2), r % (dh / 2));
    head * dh + 2 * freq + half
}

impl Weights for Arc<GgufFile> {
    fn names(&self) -> Vec<String> {
        self.tensors.keys().cloned().collect()
    }

    fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|t| t.shape.as_slice())
    }

    fn tensor(&self, name: &str) -> Result<HostTensor> {
        let (info, row) = self.find(name)?;
        let width = info.shape.last().copied().unwrap_or(1);
        let map = &self.maps[info.part];
        let mut data = quant::dequantise(info.kind, &map[info.range.clone()], width, row);
        if name.ends_with("norm.weight") {
            let offset = self.config.family.norm_offset as f32;
            data.iter_mut().for_each(|x| *x -= offset);
        }
        release(map, &info.range);
        HostTensor::new(info.shape.clone(), data)
    }

    fn stored(&self, name: &str, floats: bool) -> Result<Option<StoredMatrix>> {
        let (info, source) = self.find(name)?;
        let (&[rows, width], true) = (&info.shape[..], floats || info.kind != Format::F32) else { return Ok(None) };
        let Some(row_bytes) = info.kind.row_bytes(width) else { return Ok(None) };
        let map = &self.maps[info.part];
        let stored = &map[info.range.clone()];
        let mut bytes = Vec::with_capacity(stored.len());
        (0..rows).for_each(|row| bytes.extend_from_slice(&stored[source(row) * row_bytes..][..row_bytes]));
        release(map, &info.range);
        StoredMatrix::new(info.kind, [rows, width], bytes).map(Some)
    }

    fn file_of(&self, name: &str) -> &Path {
        &self.paths[self.tensors.get(name).map_or(0, |info| info.part)]
    }
}

#[cfg(test)]
mod tests {
    /// llama.cpp stores `reshape(heads, 2, dh / 2).swap(1, 2)`: for dh = 4, rows 0 1 2 3 are stored as 0 2 1 3.
    #[test]
    fn the_halves_of_a_head_are_interleaved() {
        let rows: Vec<usize> = (0..8).map(|r| super::stored_row(r, 4)).collect();
        assert_eq!(rows, [0, 2, 1, 3, 4, 6, 5, 7]);
        let rows: Vec<usize> = (0..6).map(|r| super::stored_row(r, 6)).collect();
        assert_eq!(rows, [0, 2, 4, 1, 3, 5]);
    }
}
