//! GGUF files of the llama and qwen3 families: settings, weights under Hugging Face names, tokenizer.
//!
//! Two things differ from a Hugging Face folder beyond the container. Names are llama.cpp's (`blk.0.attn_q`), and for
//! the llama family the rows of q and k are stored permuted for interleaved RoPE; both are undone here.

mod parse;
mod quant;
mod settings;
mod tokenizer;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail, ensure};
use memmap2::Mmap;

use super::params::{EMBED, HEAD, NORM};
use super::{HostTensor, Weights, map_file};
use crate::model::config::{Family, ModelConfig};
use parse::{Contents, Info, Value};

/// An opened GGUF.
pub struct GgufFile {
    path: PathBuf,
    map: Mmap,
    meta: BTreeMap<String, Value>,
    config: ModelConfig,
    /// By Hugging Face name.
    tensors: BTreeMap<String, Info>,
}

impl GgufFile {
    pub fn open(path: &Path) -> Result<Self> {
        let map = map_file(path)?;
        let origin = path.display().to_string();
        let Contents { meta, tensors: stored } = parse::parse(&map).map_err(|e| anyhow!("{origin}: {e}"))?;
        let keys = settings::Keys { origin: &origin, meta: &meta };
        let config = settings::config(&keys, &stored, &map)?;
        let mut tensors = BTreeMap::new();
        for (name, info) in stored {
            if name == ROPE_FREQS {
                continue; // already in the configuration
            }
            let Some(hf) = hf_name(&name) else {
                bail!(
                    "{origin}: unexpected tensor `{name}`: a {} model has none of that name",
                    config.family.model_type()
                )
            };
            tensors.insert(hf, info);
        }
        Ok(Self { path: path.to_path_buf(), map, meta, config, tensors })
    }

    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The tokenizer in the metadata, equal to the Hugging Face one it was converted from; `None` if there is none.
    pub fn tokenizer(&self) -> Result<Option<tokenizers::Tokenizer>> {
        tokenizer::build(&self.keys(&self.origin()))
    }

    /// `tokenizer_config.json` for a folder written from this file.
    pub fn tokenizer_config(&self) -> Result<serde_json::Value> {
        tokenizer::config_json(&self.keys(&self.origin()))
    }

    /// The chat template (Jinja), where the file has one.
    pub fn chat_template(&self) -> Result<Option<String>> {
        Ok(self.keys(&self.origin()).text("tokenizer.chat_template")?.map(str::to_string))
    }

    fn origin(&self) -> String {
        self.path.display().to_string()
    }

    fn keys<'a>(&'a self, origin: &'a str) -> settings::Keys<'a> {
        settings::Keys { origin, meta: &self.meta }
    }

    /// Heads whose rows are interleaved in this tensor, if any.
    fn permuted_heads(&self, name: &str) -> Option<usize> {
        if self.config.family != Family::Llama {
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

/// llama.cpp's name to Hugging Face's; `None` for a tensor that neither family has.
fn hf_name(name: &str) -> Option<String> {
    match name {
        "token_embd.weight" => return Some(EMBED.to_string()),
        "output_norm.weight" => return Some(NORM.to_string()),
        "output.weight" => return Some(HEAD.to_string()),
        _ => {}
    }
    let (layer, part) = name.strip_prefix("blk.")?.split_once('.')?;
    let layer: usize = layer.parse().ok()?;
    let part = match part.strip_suffix(".weight")? {
        "attn_norm" => "input_layernorm",
        "attn_q" => "self_attn.q_proj",
        "attn_k" => "self_attn.k_proj",
        "attn_v" => "self_attn.v_proj",
        "attn_output" => "self_attn.o_proj",
        "attn_q_norm" => "self_attn.q_norm",
        "attn_k_norm" => "self_attn.k_norm",
        "ffn_norm" => "post_attention_layernorm",
        "ffn_gate" => "mlp.gate_proj",
        "ffn_up" => "mlp.up_proj",
        "ffn_down" => "mlp.down_proj",
        _ => return None,
    };
    Some(format!("model.layers.{layer}.{part}.weight"))
}

/// Within a head of `dh` rows, Hugging Face's row j·dh/2 + i (half j, frequency i) is stored as row 2·i + j.
fn stored_row(row: usize, dh: usize) -> usize {
    let (head, r) = (row / dh, row % dh);
    let (half, freq) = (r / (dh / 2), r % (dh / 2));
    head * dh + 2 * freq + half
}

impl Weights for GgufFile {
    fn names(&self) -> Vec<String> {
        self.tensors.keys().cloned().collect()
    }

    fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|t| t.shape.as_slice())
    }

    fn tensor(&self, name: &str) -> Result<HostTensor> {
        let info = self.tensors.get(name).ok_or_else(|| anyhow!("{}: no tensor for `{name}`", self.path.display()))?;
        let width = info.shape.last().copied().unwrap_or(1);
        let bytes = &self.map[info.range.clone()];
        let data = match self.permuted_heads(name) {
            None => info.kind.dequantise(bytes, width, |row| row),
            Some(heads) => {
                let (rows, dh) = (info.shape[0], self.config.head_dim);
                ensure!(
                    rows == heads * dh,
                    "{}: `{name}` must have {heads} x {dh} rows, found {rows}",
                    self.path.display()
                );
                info.kind.dequantise(bytes, width, |row| stored_row(row, dh))
            }
        };
        HostTensor::new(info.shape.clone(), data)
    }

    fn file_of(&self, _name: &str) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    /// llama.cpp stores `reshape(heads, 2, dh / 2).swap(1, 2)`: for dh = 4, rows 0 1 2 3 are kept as 0 2 1 3.
    #[test]
    fn halves_are_taken_apart_again() {
        let rows: Vec<usize> = (0..8).map(|r| super::stored_row(r, 4)).collect();
        assert_eq!(rows, [0, 2, 1, 3, 4, 6, 5, 7]);
        let rows: Vec<usize> = (0..6).map(|r| super::stored_row(r, 6)).collect();
        assert_eq!(rows, [0, 2, 4, 1, 3, 5]);
    }
}
