//! Safetensors files of activations, as written by `--record` and `probe activations`.
//!
//! One float32 tensor per hook point, `[rows, positions, …]`. The metadata list the positions of the axis (for `pos[-1]` in rows of different
//! lengths a list per row), the kind of each position of each row (`prompt`, `text[3]`, `latent[1,2]`), the ids, the lengths, and the number
//! of layers.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

use switchyard::latent::Sequence;
use switchyard::model::Step;
use switchyard::model::hooks::RecordedTensor;
use switchyard::store::{output_path, write_atomic};

/// A result that could not be written is refused before it is computed.
pub(crate) fn check_out(out: &Path) -> Result<()> {
    ensure!(
        !out.is_dir() && out.file_name().is_some(),
        "--out {}: expected a file name, found a folder",
        out.display()
    );
    let folder = out.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    ensure!(folder.is_dir(), "--out {}: the folder {} does not exist", out.display(), folder.display());
    output_path(out).context("--out").map(drop)
}

/// Refuses values that are not finite; names the first point with one.
pub(crate) fn check_finite(tensors: &[RecordedTensor]) -> Result<()> {
    match tensors.iter().find(|t| t.data.iter().any(|x| !x.is_finite())) {
        Some(bad) => {
            bail!("`{}` is the first point with values that are not finite; nothing was written", bad.name)
        }
        None => Ok(()),
    }
}

/// Tensors whose positions count from the rows' ends, by name: the position in each row.
pub(crate) type FromEnd = BTreeMap<String, Vec<usize>>;

/// Writes the recorded tensors of these rows, with the model's name and number of layers.
pub(crate) fn write(
    out: &Path,
    (model, layers): (&str, usize),
    sequences: &[Sequence],
    tensors: &[RecordedTensor],
    from_end: &FromEnd,
) -> Result<()> {
    let bytes: Vec<Vec<u8>> = tensors.iter().map(|t| t.data.iter().flat_map(|x| x.to_le_bytes()).collect()).collect();
    let mut views = vec![];
    for (tensor, bytes) in tensors.iter().zip(&bytes) {
        let view = TensorView::new(Dtype::F32, tensor.shape.clone(), bytes)
            .with_context(|| format!("tensor `{}`", tensor.name))?;
        views.push((tensor.name.as_str(), view));
    }
    let ids: Vec<&Vec<u32>> = sequences.iter().map(|s| &s.ids).collect();
    let lengths: Vec<usize> = ids.iter().map(|ids| ids.len()).collect();
    let steps = sequences.iter().map(|s| s.steps.iter().map(Step::to_string).collect::<Vec<_>>());
    let steps: Vec<Vec<String>> = steps.collect();
    let positions = tensors.iter().map(|tensor| {
        let of_rows = from_end.get(&tensor.name).map(|at| json!(at.iter().map(|at| [at]).collect::<Vec<_>>()));
        (tensor.name.as_str(), of_rows.unwrap_or_else(|| json!(tensor.positions)))
    });
    let positions: BTreeMap<&str, Value> = positions.collect();
    let metadata = HashMap::from([
        ("model".to_owned(), model.to_owned()),
        ("layers".to_owned(), layers.to_string()),
        ("ids".to_owned(), serde_json::to_string(&ids)?),
        ("lengths".to_owned(), serde_json::to_string(&lengths)?),
        ("positions".to_owned(), serde_json::to_string(&positions)?),
        ("steps".to_owned(), serde_json::to_string(&steps)?),
    ]);
    let file = safetensors::serialize(views, Some(metadata)).context("packing the tensors")?;
    write_atomic(out, &file)
}
