//! Names and layouts of parameters in files; ours are Llama's. A base-class model omits `model.`. GPT-2 has its own names, one fused
//! matrix for queries, keys and values, and matrices `[in, out]` (its `Conv1D`). Each of our parameters is mapped to its place in the
//! file; nothing is copied before it is requested.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, anyhow, bail, ensure};

use super::{HostTensor, Weights, expected_parameters};
use crate::config::ModelConfig;
use switchyard_ops::stored::StoredMatrix;

/// One of our modules inside a module of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub module: String,
    /// Index among the contiguous modules in the file's outputs, and their number.
    pub nth: usize,
    pub of: usize,
    /// Whether the file's matrix is `[in, out]`.
    pub is_conv: bool,
}

impl Part {
    fn whole(module: String) -> Self {
        Self { module, nth: 0, of: 1, is_conv: false }
    }
}

/// Modules of a GPT-2 block: its names, ours, and whether it is a `Conv1D`.
const GPT2: [(&str, &[&str], bool); 6] = [
    ("ln_1", &["input_layernorm"], false),
    ("attn.c_attn", &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], true),
    ("attn.c_proj", &["self_attn.o_proj"], true),
    ("ln_2", &["post_attention_layernorm"], false),
    ("mlp.c_fc", &["mlp.up_proj"], true),
    ("mlp.c_proj", &["mlp.down_proj"], true),
];

/// The name under which the fused module of a GGUF is read.
pub(super) const FUSED: &str = "self_attn.attn_qkv";

/// GPT-2's names outside the blocks, and ours.
const GPT2_OUTSIDE: [(&str, &str); 3] =
    [("wte", "model.embed_tokens"), ("wpe", "model.embed_positions"), ("ln_f", "model.norm")];

/// Our modules inside the file's module of this path; the path itself if it is one of our names or unknown.
pub fn parts(path: &str) -> Vec<Part> {
    let inner = path.strip_prefix("transformer.").unwrap_or(path);
    if let Some((_, ours)) = GPT2_OUTSIDE.iter().find(|(theirs, _)| *theirs == inner) {
        return vec![Part::whole((*ours).to_owned())];
    }
    if let Some((layer, part)) = inner.strip_prefix("h.").and_then(|rest| rest.split_once('.'))
        && let Some((_, ours, is_conv)) = GPT2.iter().find(|(theirs, ..)| *theirs == part)
    {
        let of = ours.len();
        let part = |(nth, ours)| Part { module: format!("model.layers.{layer}.{ours}"), nth, of, is_conv: *is_conv };
        return ours.iter().enumerate().map(part).collect();
    }
    // Queries, keys and values of a GPT-2 in GGUF.
    if let Some(block) = path.strip_suffix(FUSED) {
        let part = |(nth, name)| Part { module: format!("{block}self_attn.{name}"), nth, of: 3, is_conv: false };
        return ["q_proj", "k_proj", "v_proj"].into_iter().enumerate().map(part).collect();
    }
    let base_class = path.starts_with("layers.") || ["embed_tokens", "norm"].contains(&path);
    vec![Part::whole(if base_class { format!("model.{path}") } else { path.to_owned() })]
}

/// The module of a GPT-2 file that contains ours.
pub fn gpt2_module(ours: &str) -> Option<String> {
    if let Some((theirs, _)) = GPT2_OUTSIDE.iter().find(|(_, own)| *own == ours) {
        return Some(format!("transformer.{theirs}"));
    }
    let (layer, part) = ours.strip_prefix("model.layers.")?.split_once('.')?;
    let (theirs, ..) = GPT2.iter().find(|(_, own, _)| own.contains(&part))?;
    Some(format!("transformer.h.{layer}.{theirs}"))
}

/// A name without prefixes from training: parallel, sharded, compiled and recomputed modules wrap the model or its blocks, and a
/// trainer's module stores it as `model`.
pub(super) fn bare(name: &str) -> String {
    const WRAPPERS: [&str; 3] = ["_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"];
    let parts: Vec<&str> = name.split('.').filter(|part| !WRAPPERS.contains(part)).collect();
    let parts = &parts[parts.iter().take_while(|part| **part == "module").count()..];
    let inner = matches!(parts, ["model", "model" | "lm_head" | "transformer", ..]);
    parts[usize::from(inner)..].join(".")
}

type Tensors<'t> = Box<dyn Iterator<Item = Result<(String, HostTensor)>> + 't>;

/// Names and shapes of a model's parameters in its family's file layout, and the tensors in that layout: contiguous ones are joined once
/// the last of them has arrived.
pub(super) fn to_file_layout<'t>(
    config: &ModelConfig,
    tensors: impl IntoIterator<Item = Result<(String, HostTensor)>> + 't,
) -> (Vec<(String, Vec<usize>)>, Tensors<'t>) {
    let expected = expected_parameters(config);
    if !config.family.is_gpt2 {
        return (expected, Box::new(tensors.into_iter()));
    }
    let filed = expected.into_iter().filter_map(|(name, mut shape)| {
        let Some((theirs, part)) = filed(&name) else { return Some((name, shape)) };
        shape[0] *= part.of;
        if let ([_, _], true) = (&shape[..], part.is_conv) {
            shape.swap(0, 1);
        }
        (part.nth == 0).then_some((theirs, shape))
    });
    (filed.collect(), Box::new(JoinedTensors { inner: tensors.into_iter(), held: BTreeMap::new() }))
}

/// GPT-2's name of one of our parameters, and the part of it.
pub(super) fn filed(name: &str) -> Option<(String, Part)> {
    let (module, kind) = name.rsplit_once('.')?;
    let theirs = gpt2_module(module)?;
    let part = parts(&theirs).into_iter().find(|part| part.module == module)?;
    Some((format!("{theirs}.{kind}"), part))
}

struct JoinedTensors<I> {
    inner: I,
    /// Parts received so far, by the file's name.
    held: BTreeMap<String, BTreeMap<usize, HostTensor>>,
}

impl<I: Iterator<Item = Result<(String, HostTensor)>>> Iterator for JoinedTensors<I> {
    type Item = Result<(String, HostTensor)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (name, tensor) = match self.inner.next()? {
                Ok(named) => named,
                Err(error) => return Some(Err(error)),
            };
            let Some((theirs, part)) = filed(&name) else { return Some(Ok((name, tensor))) };
            let held = self.held.entry(theirs.clone()).or_default();
            held.insert(part.nth, tensor);
            if held.len() == part.of {
                let parts = self.held.remove(&theirs).unwrap_or_default().into_values();
                return Some(joined(parts, part.is_conv).map(|whole| (theirs, whole)));
            }
        }
    }
}

/// Parts `[out, in]` contiguous, and then as the file has them.
fn joined(parts: impl Iterator<Item = HostTensor>, is_conv: bool) -> Result<HostTensor> {
    let (mut shape, mut data) = (vec![], vec![]);
    for part in parts {
        if shape.is_empty() {
            shape.clone_from(&part.shape);
            shape[0] = 0;
        }
        shape[0] += part.shape[0];
        data.extend(part.data);
    }
    let whole = HostTensor::new(shape, data)?;
    Ok(if is_conv && whole.shape.len() == 2 { whole.transposed() } else { whole })
}

/// Place of one of our parameters in a file.
struct ParameterPlace {
    stored: String,
    shape: Vec<usize>,
    part: Part,
}

/// A file's weights under our names.
pub(super) struct RenamedWeights {
    inner: Box<dyn Weights>,
    places: BTreeMap<String, ParameterPlace>,
}

impl RenamedWeights {
    /// The weights under our names; unchanged if they have these names already.
    pub(super) fn rename(inner: Box<dyn Weights>) -> Result<Box<dyn Weights>> {
        let mut places = BTreeMap::new();
        let mut is_ours = true;
        for stored in inner.names() {
            let own = bare(&stored);
            let (path, kind) = own.rsplit_once('.').unwrap_or((&own, ""));
            for part in parts(path) {
                let name = if kind.is_empty() { part.module.clone() } else { format!("{}.{kind}", part.module) };
                is_ours &= name == stored;
                let shape = shape_of(inner.shape(&stored).unwrap_or_default(), &part).ok_or_else(|| {
                    let found = inner.shape(&stored).unwrap_or_default();
                    anyhow!(
                        "{}: `{stored}` has the wrong shape: expected {} concatenated parts, found {found:?}",
                        inner.file_of(&stored).display(),
                        part.of
                    )
                })?;
                let twice = places.insert(name.clone(), ParameterPlace { stored: stored.clone(), shape, part });
                if let Some(twice) = twice {
                    let file = inner.file_of(&stored).display().to_string();
                    bail!("{file}: `{name}` occurs twice, as `{}` and as `{stored}`", twice.stored);
                }
            }
        }
        Ok(if is_ours { inner } else { Box::new(Self { inner, places }) })
    }

    /// The weights with one tensor under another name.
    pub(super) fn with_name(inner: Box<dyn Weights>, from: &str, to: &str) -> Self {
        let place = |stored: String| {
            let name = if stored == from { to.to_owned() } else { stored.clone() };
            let shape = inner.shape(&stored).unwrap_or_default().to_vec();
            (name, ParameterPlace { stored, shape, part: Part::whole(String::new()) })
        };
        let places = inner.names().into_iter().map(place).collect();
        Self { inner, places }
    }

    fn place(&self, name: &str) -> Result<&ParameterPlace> {
        let path = self.inner.file_of(name).display();
        self.places.get(name).ok_or_else(|| anyhow!("{path}: no tensor for `{name}`"))
    }
}

/// Shape `[out, in]` of one part.
fn shape_of(stored: &[usize], part: &Part) -> Option<Vec<usize>> {
    let mut shape = stored.to_vec();
    if let ([d_in, d_out], true) = (stored, part.is_conv) {
        shape = vec![*d_out, *d_in];
    }
    if part.of > 1 {
        let out = shape.first_mut()?;
        if !out.is_multiple_of(part.of) {
            return None;
        }
        *out /= part.of;
    }
    Some(shape)
}

impl Weights for RenamedWeights {
    fn names(&self) -> Vec<String> {
        self.places.keys().cloned().collect()
    }

    fn shape(&self, name: &str) -> Option<&[usize]> {
        self.places.get(name).map(|place| place.shape.as_slice())
    }

    fn tensor(&self, name: &str) -> Result<HostTensor> {
        let ParameterPlace { stored, shape, part } = self.place(name)?;
        let mut tensor = self.inner.tensor(stored)?;
        if part.is_conv && tensor.shape.len() == 2 {
            tensor = tensor.transposed();
        }
        if part.of == 1 {
            return Ok(tensor);
        }
        let size = tensor.data.len() / part.of;
        HostTensor::new(shape.clone(), tensor.data[part.nth * size..][..size].to_vec())
    }

    fn stored(&self, name: &str, floats: bool) -> Result<Option<StoredMatrix>> {
        let ParameterPlace { stored, shape, part } = self.place(name)?;
        let Some(matrix) = self.inner.stored(stored, floats)? else { return Ok(None) };
        if !part.is_conv && part.of == 1 {
            return Ok(Some(matrix));
        }
        let (&[rows, width], d_out) = (&shape[..], matrix.width()) else { return Ok(None) };
        let Some((_, whole)) = matrix.parts().next() else { return Ok(None) };
        if !part.is_conv {
            let bytes = whole.bytes(part.nth * rows..(part.nth + 1) * rows).to_vec();
            return StoredMatrix::new(whole.format, [rows, width], bytes).map(Some);
        }
        let size = whole.format.block_bytes();
        ensure!(whole.format.block_len() == 1, "a matrix in quantised blocks cannot be transposed or split");
        let mut bytes = Vec::with_capacity(rows * width * size);
        for out in part.nth * rows..(part.nth + 1) * rows {
            (0..width).for_each(|input| bytes.extend_from_slice(&whole.bytes[(input * d_out + out) * size..][..size]));
        }
        StoredMatrix::new(whole.format, [rows, width], bytes).map(Some)
    }

    fn file_of(&self, name: &str) -> &Path {
        self.inner.file_of(self.places.get(name).map_or(name, |place| &place.stored))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_go_both_ways() {
        for path in ["transformer.wte", "transformer.wpe", "transformer.ln_f", "transformer.h.3.mlp.c_proj"] {
            let there = parts(path);
            assert_eq!(there.iter().filter_map(|part| gpt2_module(&part.module)).collect::<Vec<_>>(), [path]);
            assert_eq!(parts(path.trim_start_matches("transformer.")), there);
        }
        let fused = parts("h.0.attn.c_attn");
        assert_eq!(
            fused.iter().map(|part| (part.nth, part.of, part.is_conv)).collect::<Vec<_>>(),
            [(0, 3, true), (1, 3, true), (2, 3, true)]
        );
        assert_eq!(fused[1].module, "model.layers.0.self_attn.k_proj");
        for (path, ours) in [("norm", "model.norm"), ("layers.1.mlp.up_proj", "model.layers.1.mlp.up_proj")] {
            assert_eq!(parts(path)[0].module, ours);
        }
        for same in ["lm_head", "model.norm", "model.layers.0.mlp.up_proj", "score"] {
            assert_eq!(parts(same)[0].module, same);
        }
    }
}
