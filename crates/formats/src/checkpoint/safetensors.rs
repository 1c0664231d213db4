//! Reads safetensors from a memory map: a tensor is converted when it is requested.
//!
//! The header follows the rules of the `safetensors` crate: entries are contiguous and fill the file, so that none overlap. Its errors
//! do not name the tensor, and it accepts duplicate names; both are fixed here. As with every memory map, truncating an open file is
//! undefined behaviour; files are opened read-only and never grown.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail, ensure};
use memmap2::Mmap;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use super::host::{Dtype, HostTensor, count};
use super::params::is_buffer;
use super::{Weights, map_file, release};
use crate::guard::recognise;
use switchyard_ops::stored::StoredMatrix;

pub const SINGLE: &str = "model.safetensors";
pub const INDEX: &str = "model.safetensors.index.json";

/// The format's limit; a larger value means a damaged length field.
const MAX_HEADER: usize = 100_000_000;

/// The header's entries. A duplicate name is an error: JSON readers differ in which entry they use.
struct Header(BTreeMap<String, TensorInfo>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Header;
            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("an object of tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut entries = BTreeMap::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    let entry = map.next_value().map_err(|e| A::Error::custom(format!("tensor `{name}`: {e}")))?;
                    if entries.insert(name.clone(), entry).is_some() {
                        return Err(A::Error::custom(format!("tensor `{name}` is listed twice")));
                    }
                }
                Ok(Header(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

struct TensorEntry {
    dtype: Dtype,
    shape: Vec<usize>,
    /// Byte range in the file.
    range: std::ops::Range<usize>,
}

/// One mapped file whose header has been checked against its length.
pub struct SafetensorsFile {
    path: PathBuf,
    map: Mmap,
    entries: BTreeMap<String, TensorEntry>,
}

impl SafetensorsFile {
    pub fn open(path: &Path) -> Result<Self> {
        let map = map_file(path)?;
        let origin = path.display();
        let length = map.len();
        let header = map.first_chunk().and_then(|head| usize::try_from(u64::from_le_bytes(*head)).ok());
        // A plausible length may begin with any byte.
        if let Some(what) = recognise(&map).filter(|_| header.is_some_and(|header| header > MAX_HEADER)) {
            bail!("{origin}: not a safetensors file: {what}");
        }
        ensure!(length >= 8, "{origin}: truncated safetensors: expected at least 8 bytes, found {length}");
        let header = header.unwrap_or(usize::MAX);
        ensure!(
            header <= MAX_HEADER,
            "{origin}: not a safetensors file: its header claims {header} bytes, at most {MAX_HEADER} are possible"
        );
        let start = 8 + header;
        ensure!(start <= length, "{origin}: truncated safetensors: the header needs {start} bytes, found {length}");
        let Header(raw) = serde_json::from_slice(&map[8..start])
            .map_err(|e| anyhow!("{origin}: the safetensors header is damaged: {e}"))?;
        let mut entries = BTreeMap::new();
        for (name, info) in raw.iter().filter(|(name, _)| !is_buffer(name)) {
            let entry = check_entry(info, start).map_err(|e| anyhow!("{origin}: tensor `{name}`: {e}"))?;
            entries.insert(name.clone(), entry);
        }
        let mut placed: Vec<_> = raw.into_iter().collect();
        placed.sort_by_key(|(_, info)| info.data_offsets);
        let metadata = Metadata::new(None, placed).map_err(|e| {
            anyhow!(
                "{origin}: the safetensors header is damaged: {e}: tensors must be contiguous, without overlap or gap"
            )
        })?;
        let end = start.saturating_add(metadata.data_len());
        ensure!(
            end <= length,
            "{origin}: truncated safetensors: its data end at byte {end}, the file has {length} (download it again)"
        );
        ensure!(
            end == length,
            "{origin}: damaged safetensors: its data end at byte {end}, the file at byte {length} (download it again)"
        );
        Ok(Self { path: path.to_path_buf(), map, entries })
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.entries.get(name).map(|e| e.shape.as_slice())
    }

    pub fn tensor(&self, name: &str) -> Result<HostTensor> {
        let entry = self.entry(name)?;
        let data = entry.dtype.decode(&self.map[entry.range.clone()]);
        release(&self.map, &entry.range);
        HostTensor::new(entry.shape.clone(), data)
    }

    fn entry(&self, name: &str) -> Result<&TensorEntry> {
        self.entries.get(name).ok_or_else(|| anyhow!("{}: no tensor named `{name}`", self.path.display()))
    }
}

/// Checks that a tensor's type is supported and its shape fills its bytes.
fn check_entry(info: &TensorInfo, start: usize) -> Result<TensorEntry> {
    let tag = info.dtype.to_string();
    let dtype = Dtype::from_tag(&tag)
        .ok_or_else(|| anyhow!("dtype {tag} is not supported: expected F32, F16 or BF16 (convert it first)"))?;
    let (from, to) = info.data_offsets;
    let bytes = count(&info.shape).and_then(|n| n.checked_mul(dtype.size()));
    ensure!(
        from <= to && bytes == Some(to - from),
        "shape {:?} in {tag} does not fill its bytes {from}..{to}",
        info.shape
    );
    Ok(TensorEntry { dtype, shape: info.shape.clone(), range: start.saturating_add(from)..start.saturating_add(to) })
}

impl Weights for SafetensorsFile {
    fn names(&self) -> Vec<String> {
        self.names().map(str::to_owned).collect()
    }

    fn shape(&self, name: &str) -> Option<&[usize]> {
        self.shape(name)
    }

    fn tensor(&self, name: &str) -> Result<HostTensor> {
        self.tensor(name)
    }

    fn stored(&self, name: &str, floats: bool) -> Result<Option<StoredMatrix>> {
        let entry = self.entry(name)?;
        let (&[rows, width], true) = (&entry.shape[..], floats || entry.dtype != Dtype::F32) else { return Ok(None) };
        let bytes = self.map[entry.range.clone()].to_vec();
        release(&self.map, &entry.range);
        StoredMatrix::new(entry.dtype.format(), [rows, width], bytes).map(Some)
    }

    fn file_of(&self, _name: &str) -> &Path {
        &self.path
    }
}
