//! Writes safetensors: plans the layout from names and shapes alone, then writes tensors at their offsets as they arrive, in any
//! order, one at a time.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Map, Value, json};

use super::host::{Dtype, HostTensor, count};
use super::safetensors::{INDEX, SINGLE};
use super::save::write_json;

/// Destination of each tensor: (shard, byte offset in that shard's file).
struct ShardPlan {
    headers: Vec<Vec<u8>>,
    place: BTreeMap<String, (usize, u64, Vec<usize>)>,
    total: usize,
}

fn plan(expected: &[(String, Vec<usize>)], dtype: Dtype, limit: usize) -> Result<ShardPlan> {
    let mut shards: Vec<Vec<(&str, &[usize], usize)>> = vec![vec![]];
    let (mut used, mut total) = (0, 0);
    for (name, shape) in expected {
        let bytes = count(shape)
            .and_then(|n| n.checked_mul(dtype.size()))
            .ok_or_else(|| anyhow!("`{name}`: shape {shape:?} is too large"))?;
        if used > 0 && used + bytes > limit {
            shards.push(vec![]);
            used = 0;
        }
        if let Some(last) = shards.last_mut() {
            last.push((name, shape, bytes));
        }
        used += bytes;
        total += bytes;
    }
    let mut out = ShardPlan { headers: vec![], place: BTreeMap::new(), total };
    for (i, shard) in shards.iter().enumerate() {
        let mut header = Map::from_iter([("__metadata__".to_string(), json!({ "format": "pt" }))]);
        let mut offset = 0;
        for (name, shape, bytes) in shard {
            header.insert(
                name.to_string(),
                json!({ "dtype": dtype.tag(), "shape": shape, "data_offsets": [offset, offset + bytes] }),
            );
            out.place.insert(name.to_string(), (i, offset as u64, shape.to_vec()));
            offset += bytes;
        }
        let mut text = Value::Object(header).to_string().into_bytes();
        // Padded with spaces to a multiple of eight, so that the data are aligned for memory maps.
        text.resize(text.len().next_multiple_of(8), b' ');
        let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
        bytes.extend(text);
        for (shard, offset, _) in out.place.values_mut() {
            if *shard == i {
                *offset += bytes.len() as u64;
            }
        }
        out.headers.push(bytes);
    }
    Ok(out)
}

/// Writes the tensors named in `expected` as `model.safetensors`, or as shards with an index.
pub(super) fn write_weights(
    dir: &Path,
    expected: &[(String, Vec<usize>)],
    tensors: impl IntoIterator<Item = Result<(String, HostTensor)>>,
    dtype: Dtype,
    limit: usize,
) -> Result<()> {
    let plan = plan(expected, dtype, limit)?;
    let shards = plan.headers.len();
    let shard_name = |i: usize| {
        if shards == 1 { SINGLE.to_string() } else { format!("model-{:05}-of-{shards:05}.safetensors", i + 1) }
    };
    if shards > 1 {
        let map: Map<String, Value> =
            plan.place.iter().map(|(name, (i, ..))| (name.clone(), shard_name(*i).into())).collect();
        write_json(&dir.join(INDEX), &json!({ "metadata": { "total_size": plan.total }, "weight_map": map }))?;
    }
    let paths: Vec<PathBuf> = (0..shards).map(|i| dir.join(shard_name(i))).collect();
    write_planned(&plan, &paths, tensors, dtype)
}

/// One file of named tensors, for folders with a single file.
pub(super) fn write_single(
    path: &Path,
    expected: &[(String, Vec<usize>)],
    tensors: impl IntoIterator<Item = Result<(String, HostTensor)>>,
    dtype: Dtype,
) -> Result<()> {
    write_planned(&plan(expected, dtype, usize::MAX)?, &[path.to_path_buf()], tensors, dtype)
}

fn write_planned(
    plan: &ShardPlan,
    paths: &[PathBuf],
    tensors: impl IntoIterator<Item = Result<(String, HostTensor)>>,
    dtype: Dtype,
) -> Result<()> {
    let mut files = Vec::new();
    for (path, header) in paths.iter().zip(&plan.headers) {
        let mut file = File::create_new(path).with_context(|| format!("{}: cannot create", path.display()))?;
        file.write_all(header).with_context(|| format!("{}: cannot write", path.display()))?;
        files.push(file);
    }
    let mut left = plan.place.clone();
    for item in tensors {
        let (name, tensor) = item?;
        let (shard, offset, shape) = left.remove(&name).ok_or_else(|| {
            anyhow!("cannot save `{name}`: the configuration has no such parameter, or it came twice")
        })?;
        ensure!(
            tensor.shape == shape && count(&shape) == Some(tensor.data.len()),
            "cannot save `{name}`: expected shape {shape:?}, found {:?} with {} values",
            tensor.shape,
            tensor.data.len()
        );
        let file = &mut files[shard];
        file.seek(SeekFrom::Start(offset))
            .and_then(|_| file.write_all(&dtype.encode(&tensor.data)))
            .with_context(|| format!("{}: cannot write `{name}`", paths[shard].display()))?;
    }
    if let Some((name, (.., shape))) = left.first_key_value() {
        bail!("cannot save: parameter `{name}` {shape:?} was not given ({} missing in all)", left.len());
    }
    for (file, path) in files.iter().zip(paths) {
        file.sync_all().with_context(|| format!("{}: cannot flush", path.display()))?;
    }
    Ok(())
}
