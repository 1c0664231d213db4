//! Weights written by `torch.save` (`.bin`, `.pt`, `.pth`): state dicts as zip archives, or in the legacy format of concatenated
//! pickles. Nothing in them is executed ([`machine`]); values stay in the mapped file until they are requested.

mod machine;
pub(super) mod write;
mod zip;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use memmap2::Mmap;

use super::host::{Dtype, HostTensor, count};
use super::{Weights, map_file, release};
use crate::guard::recognise;
use machine::{KINDS, PickleMachine, PickleValue, Tensor};
use switchyard_ops::stored::StoredMatrix;

pub(super) const SINGLE: &str = "pytorch_model.bin";
pub(super) const INDEX: &str = "pytorch_model.bin.index.json";

/// Keys under which a training state may store its model.
const WRAPPERS: [&str; 4] = ["state_dict", "model_state_dict", "model", "module"];

/// First bytes of a legacy file: pickle protocol 2, and PyTorch's magic number of ten bytes.
const LEGACY: [u8; 14] = [0x80, 2, 0x8a, 10, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];

struct PickleEntry {
    /// PyTorch's name of its type.
    kind: &'static str,
    shape: Vec<usize>,
    /// In elements.
    stride: Vec<usize>,
    /// Byte range in the file, from the first value to the last.
    range: Range<usize>,
}

/// One opened file.
pub struct PickleFile {
    path: PathBuf,
    map: Mmap,
    entries: BTreeMap<String, PickleEntry>,
}

impl PickleFile {
    /// # Errors
    /// Not a file of `torch.save`, contents other than tensors and plain containers, or a truncated file.
    pub fn open(path: &Path) -> Result<Self> {
        let map = map_file(path)?;
        let entries = entries(&map).map_err(|e| anyhow!("{}: {e:#}", path.display()))?;
        Ok(Self { path: path.to_path_buf(), map, entries })
    }

    /// Opens a Jacobian lens in the format of its authors and TransformerLens: `{"J": {layer: [D, D]}, …}`. Returns tensors by layer and the
    /// whole numbers of the file (`n_prompts`, `d_model`).
    pub fn open_lens(path: &Path) -> Result<(Self, BTreeMap<String, i64>)> {
        let map = map_file(path)?;
        let (entries, numbers) = lens(&map).map_err(|e| anyhow!("{}: {e:#}", path.display()))?;
        Ok((Self { path: path.to_path_buf(), map, entries }, numbers))
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    pub fn tensor(&self, name: &str) -> Result<HostTensor> {
        let entry = self.entry(name)?;
        let dtype = self.dtype(name, entry)?;
        let data = match entry.is_contiguous() {
            true => dtype.decode(&self.map[entry.range.clone()]),
            false => dtype.decode(&entry.bytes(&self.map, dtype.size())),
        };
        release(&self.map, &entry.range);
        HostTensor::new(entry.shape.clone(), data)
    }

    fn entry(&self, name: &str) -> Result<&PickleEntry> {
        self.entries.get(name).ok_or_else(|| anyhow!("{}: no tensor named `{name}`", self.path.display()))
    }

    fn dtype(&self, name: &str, entry: &PickleEntry) -> Result<Dtype> {
        entry.dtype().with_context(|| {
            format!(
                "{}: tensor `{name}`: type {} is not supported: expected Float, Half or BFloat16 (convert it first)",
                self.path.display(),
                entry.kind
            )
        })
    }
}

impl PickleEntry {
    fn dtype(&self) -> Option<Dtype> {
        match self.kind {
            "Float" => Some(Dtype::F32),
            "Half" => Some(Dtype::F16),
            "BFloat16" => Some(Dtype::BF16),
            _ => None,
        }
    }

    fn is_contiguous(&self) -> bool {
        let mut step = 1;
        self.shape.iter().zip(&self.stride).rev().all(|(&size, &stride)| {
            let fits = size <= 1 || stride == step;
            step *= size;
            fits
        })
    }

    /// The bytes of its values, row-major.
    fn bytes(&self, map: &[u8], size: usize) -> Vec<u8> {
        let stored = &map[self.range.clone()];
        if self.is_contiguous() {
            return stored.to_vec();
        }
        let n = self.shape.iter().product::<usize>();
        let mut out = Vec::with_capacity(n * size);
        for mut at in 0..n {
            let mut from = 0;
            for (&axis, &stride) in self.shape.iter().zip(&self.stride).rev() {
                from += at % axis * stride;
                at /= axis;
            }
            out.extend_from_slice(&stored[from * size..][..size]);
        }
        out
    }
}

/// Tensors by name.
fn entries(bytes: &[u8]) -> Result<BTreeMap<String, PickleEntry>> {
    let (machine, value, places) = read_container(bytes)?;
    locate(state_dict(&machine, &value)?, &places, bytes.len())
}

/// The matrices of a lens by their layer, and the numbers next to them.
fn lens(bytes: &[u8]) -> Result<(BTreeMap<String, PickleEntry>, BTreeMap<String, i64>)> {
    let (machine, value, places) = read_container(bytes)?;
    let (mut numbers, mut found) = (BTreeMap::new(), vec![]);
    for (key, value) in machine.pairs(&value).unwrap_or_default() {
        match (key, value) {
            (PickleValue::Text(key), PickleValue::Number(number)) => drop(numbers.insert(key.to_string(), *number)),
            (PickleValue::Text(key), value) if &**key == "J" => {
                let layer = |pair: &(PickleValue, PickleValue)| match pair {
                    (PickleValue::Number(layer), PickleValue::Tensor(tensor)) => {
                        Some((layer.to_string(), Tensor::clone(tensor)))
                    }
                    _ => None,
                };
                found.extend(machine.pairs(value).unwrap_or_default().iter().filter_map(layer));
            }
            _ => {}
        }
    }
    ensure!(!found.is_empty(), "not a Jacobian lens: expected `J`, a dictionary with a matrix per layer");
    Ok((locate(found, &places, bytes.len())?, numbers))
}

fn read_container(bytes: &[u8]) -> Result<(PickleMachine<'_>, PickleValue, Storages)> {
    if bytes.starts_with(&zip::LOCAL) {
        from_archive(bytes)
    } else if bytes.starts_with(&LEGACY) {
        from_pickles(bytes)
    } else {
        let what = recognise(bytes).unwrap_or("safetensors files end in .safetensors");
        bail!("not a file that torch.save wrote ({what})")
    }
}

/// Maximum ratio of the tensors' bytes to the file's: tensors may share a storage, as embedding and head do.
const MOST_SHARED: u64 = 4;

/// Finds the range of each tensor in the file.
fn locate(tensors: Vec<(String, Tensor)>, places: &Storages, file: usize) -> Result<BTreeMap<String, PickleEntry>> {
    let mut out = BTreeMap::new();
    let (mut all, most) = (0_u64, MOST_SHARED * file as u64);
    for (name, tensor) in tensors {
        let (entry, size) = entry(&tensor, places).map_err(|e| anyhow!("tensor `{name}`: {e}"))?;
        all += (entry.shape.iter().product::<usize>() * size) as u64;
        ensure!(
            all <= most,
            "tensor `{name}`: the tensors up to it have {all} bytes, more than {MOST_SHARED} times the {file} of the file: they share \
             storages; save copies of them"
        );
        out.insert(name, entry);
    }
    Ok(out)
}

/// The byte range of each storage.
type Storages = HashMap<String, Range<usize>>;

fn from_archive(bytes: &[u8]) -> Result<(PickleMachine<'_>, PickleValue, Storages)> {
    let records = zip::records(bytes)?;
    let pickle = records.keys().find(|name| *name == "data.pkl" || name.ends_with("/data.pkl"));
    let pickle = pickle.context("an archive without data.pkl, which torch.save writes (TorchScript is not read)")?;
    let folder = pickle.strip_suffix("data.pkl").unwrap_or_default();
    if let Some(order) = records.get(&format!("{folder}byteorder")) {
        ensure!(
            &bytes[order.clone()] == b"little",
            "written on a big-endian machine: save it again on a little-endian one"
        );
    }
    let (machine, value, _) = PickleMachine::run(&bytes[records[pickle].clone()])?;
    let data = format!("{folder}data/");
    let places = records.iter().filter_map(|(name, range)| Some((name.strip_prefix(&data)?.to_owned(), range.clone())));
    Ok((machine, value, places.collect()))
}

/// Four pickles (a magic number, a version, the system, the value), the keys of the storages, and the storages.
fn from_pickles(bytes: &[u8]) -> Result<(PickleMachine<'_>, PickleValue, Storages)> {
    let mut at = 0;
    for _ in 0..3 {
        at += PickleMachine::run(&bytes[at..])?.2;
    }
    let (machine, value, end) = PickleMachine::run(&bytes[at..])?;
    at += end;
    let (keys, list, end) = PickleMachine::run(&bytes[at..])?;
    at += end;
    let sizes: HashMap<&str, usize> = machine.storages().collect();
    let mut places = Storages::new();
    for key in keys.items(&list)? {
        let PickleValue::Text(key) = key else { bail!("a storage key is not a string") };
        let size = sizes.get(&**key).with_context(|| format!("storage {key} belongs to no tensor"))?;
        let (start, n) = (at + 8, bytes.get(at..at + 8).context("truncated file: a storage without its length")?);
        let n = usize::try_from(u64::from_le_bytes(n.try_into()?))?;
        let end = n.checked_mul(*size).and_then(|n| start.checked_add(n)).filter(|end| *end <= bytes.len());
        let end =
            end.with_context(|| format!("truncated file: storage {key} ends beyond its {} bytes", bytes.len()))?;
        places.insert(key.to_string(), start..end);
        at = end;
    }
    drop(sizes);
    Ok((machine, value, places))
}

/// The tensors of a state dict, which may be in a training state.
fn state_dict(machine: &PickleMachine, value: &PickleValue) -> Result<Vec<(String, Tensor)>> {
    let pairs = machine.pairs(value).context("has no dictionary of tensors: expected a state dict")?;
    let wrapped =
        |wrapper: &str| pairs.iter().find(|(key, _)| matches!(key, PickleValue::Text(key) if &**key == wrapper));
    let inner = WRAPPERS.iter().filter_map(|wrapper| machine.pairs(&wrapped(wrapper)?.1));
    let found = inner.chain([pairs]).map(tensors).find(|tensors| !tensors.is_empty());
    found.with_context(|| {
        format!("its dictionary has no tensors: expected a state dict, by itself or under one of {WRAPPERS:?}")
    })
}

fn tensors(pairs: &[(PickleValue, PickleValue)]) -> Vec<(String, Tensor)> {
    let named = |pair: &(PickleValue, PickleValue)| match pair {
        (PickleValue::Text(name), PickleValue::Tensor(tensor)) => Some((name.to_string(), Tensor::clone(tensor))),
        _ => None,
    };
    pairs.iter().filter_map(named).collect()
}

/// The entry, and the bytes per value.
fn entry(tensor: &Tensor, places: &Storages) -> Result<(PickleEntry, usize)> {
    let Tensor { storage, offset, shape, stride } = tensor;
    let size = KINDS.iter().find(|(kind, _)| *kind == storage.kind).map_or(0, |(_, size)| *size);
    let place = places.get(&*storage.key).with_context(|| format!("storage {} is not in the file", storage.key))?;
    let values = place.len() / size.max(1);
    ensure!(
        count(shape).is_some_and(|n| n <= values),
        "shape {shape:?} has more values than its storage of {values}: copy expanded tensors before saving"
    );
    let span = if shape.contains(&0) {
        Some(0)
    } else {
        let last = shape.iter().zip(stride).try_fold(0_usize, |sum, (axis, stride)| {
            (axis - 1).checked_mul(*stride).and_then(|last| sum.checked_add(last))
        });
        last.and_then(|last| last.checked_add(1))
    };
    let start = offset.checked_mul(size).and_then(|from| place.start.checked_add(from));
    let end = span.and_then(|n| n.checked_mul(size)).zip(start).and_then(|(n, start)| start.checked_add(n));
    let range = start.zip(end).filter(|(_, end)| *end <= place.end);
    let (start, end) = range.with_context(|| {
        format!(
            "shape {shape:?} at {offset} with strides {stride:?} reaches beyond its storage of {} bytes",
            place.len()
        )
    })?;
    Ok((PickleEntry { kind: storage.kind, shape: shape.clone(), stride: stride.clone(), range: start..end }, size))
}

impl Weights for PickleFile {
    fn names(&self) -> Vec<String> {
        self.entries.keys().cloned().collect()
    }

    fn shape(&self, name: &str) -> Option<&[usize]> {
        self.entries.get(name).map(|entry| entry.shape.as_slice())
    }

    fn tensor(&self, name: &str) -> Result<HostTensor> {
        self.tensor(name)
    }

    fn stored(&self, name: &str, floats: bool) -> Result<Option<StoredMatrix>> {
        let entry = self.entry(name)?;
        let dtype = self.dtype(name, entry)?;
        let (&[rows, width], true) = (&entry.shape[..], floats || dtype != Dtype::F32) else { return Ok(None) };
        let bytes = entry.bytes(&self.map, dtype.size());
        release(&self.map, &entry.range);
        StoredMatrix::new(dtype.format(), [rows, width], bytes).map(Some)
    }

    fn file_of(&self, _name: &str) -> &Path {
        &self.path
    }
}
