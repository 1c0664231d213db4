//! The GGUF container, versions 2 and 3: metadata and the table of tensors. Every length is checked against the
//! file before it is used. Layout: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::{Result, anyhow, bail, ensure};

use super::quant;
use crate::guard;
use switchyard_ops::stored::Format;

/// A metadata value. All numbers but f32, and booleans (0 or 1), are [`Value::Number`].
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Number(f64),
    /// Separate from the other numbers because its shortest decimal is the intended value (1e-5, not 9.99999974e-6).
    Float(f32),
    Text(String),
    Numbers(Vec<f64>),
    Texts(Vec<String>),
}

/// Location of a tensor. `shape` is in PyTorch's order; the file stores the fastest axis first.
#[derive(Clone, Debug)]
pub struct Info {
    pub shape: Vec<usize>,
    pub kind: Format,
    pub range: Range<usize>,
    /// Index of the file in a split model.
    pub part: usize,
}

pub struct Contents {
    pub meta: BTreeMap<String, Value>,
    pub tensors: BTreeMap<String, Info>,
}

/// Upper bounds: a larger number means a damaged file, or one that requests more memory than it has bytes. The largest vocabularies
/// have a quarter of a million tokens, the largest models some thousand tensors.
const MOST_KEYS: u64 = 1 << 16;
const MOST_TENSORS: u64 = 1 << 20;
const MOST_VALUES: usize = 1 << 23;
const MOST_TEXT: usize = 1 << 26;

/// Parses metadata and tensor table. `bytes` is the whole file, so that tensor ranges can be checked.
pub fn parse(bytes: &[u8]) -> Result<Contents> {
    ensure!(bytes.starts_with(b"GGUF"), "not a GGUF file: expected it to begin with \"GGUF\"{}", recognise(bytes));
    let mut at = Cursor { bytes, pos: 4, listed: 0 };
    let version = at.u32()?;
    let big_endian = matches!(version.swap_bytes(), 1..=3);
    ensure!(!big_endian, "a big-endian file: convert it with gguf-py's gguf_convert_endian.py");
    ensure!(matches!(version, 2 | 3), "GGUF version {version} is not supported: expected 2 or 3");
    let tensors = at.u64()?;
    let keys = at.u64()?;
    ensure!(tensors <= MOST_TENSORS, "has {tensors} tensors: at most {MOST_TENSORS} are read");
    ensure!(keys <= MOST_KEYS, "has {keys} metadata keys: at most {MOST_KEYS} are read");
    let mut meta = BTreeMap::new();
    for _ in 0..keys {
        let key = at.text()?;
        let value = at.u32().and_then(|kind| at.value(kind)).map_err(|e| anyhow!("metadata `{key}`: {e}"))?;
        ensure!(meta.insert(key.clone(), value).is_none(), "metadata `{key}` appears twice");
    }
    let mut raw = Vec::new();
    for _ in 0..tensors {
        let name = at.text()?;
        let info = RawInfo::read(&mut at).map_err(|e| anyhow!("tensor `{name}`: {e}"))?;
        raw.push((name, info));
    }
    let alignment = match meta.get("general.alignment") {
        Some(Value::Number(n)) if *n >= 1.0 && *n <= 65_536.0 => *n as usize,
        Some(other) => {
            bail!("metadata `general.alignment` must be between 1 and 65536, found {other:?}")
        }
        None => 32,
    };
    let start = at.pos.next_multiple_of(alignment);
    let mut table = BTreeMap::new();
    for (name, info) in raw {
        let info = info.place(start, bytes.len()).map_err(|e| anyhow!("tensor `{name}`: {e}"))?;
        ensure!(table.insert(name.clone(), info).is_none(), "tensor `{name}` appears twice");
    }
    let mut placed: Vec<_> = table.iter().collect();
    placed.sort_by_key(|(_, info)| (info.range.start, info.range.end));
    if let Some([(before, _), (name, info)]) = placed.array_windows().find(|[a, b]| a.1.range.end > b.1.range.start) {
        bail!("tensor `{name}` begins at byte {}, inside tensor `{before}`: the file is damaged", info.range.start);
    }
    Ok(Contents { meta, tensors: table })
}

/// Describes a file without the GGUF magic number.
fn recognise(bytes: &[u8]) -> String {
    let begins = |mark: &[u8]| bytes.starts_with(mark);
    let ggml = [&b"ggml"[..], b"lmgg", b"ggjt", b"tjgg", b"ggmf", b"fmgg", b"ggla", b"algg"];
    let what = if ggml.iter().any(|mark| begins(mark)) {
        Some("it is a GGML file from before GGUF: convert the model again")
    } else if begins(b"PK") {
        Some("it is a zip archive, perhaps PyTorch's")
    } else {
        guard::recognise(bytes)
    };
    what.map_or_else(String::new, |what| format!("; {what}"))
}

struct RawInfo {
    shape: Vec<usize>,
    kind: u32,
    offset: u64,
}

impl RawInfo {
    fn read(at: &mut Cursor) -> Result<Self> {
        let axes = at.u32()?;
        ensure!((1..=4).contains(&axes), "must have 1 to 4 axes, found {axes}");
        let mut shape = Vec::new();
        for _ in 0..axes {
            shape.push(usize::try_from(at.u64()?)?);
        }
        shape.reverse();
        Ok(Self { shape, kind: at.u32()?, offset: at.u64()? })
    }

    fn place(self, start: usize, length: usize) -> Result<Info> {
        let kind = quant::format(self.kind)?;
        let (width, rows) = self.shape.split_last().map_or((1, &[][..]), |(w, rest)| (*w, rest));
        let shape = &self.shape;
        ensure!(!shape.contains(&0), "shape {shape:?} has an empty axis");
        let row = kind.row_bytes(width).ok_or_else(|| {
            anyhow!("shape {shape:?}: the row length must be a multiple of {}, the block of {kind:?}", kind.block_len())
        })?;
        let size = rows.iter().try_fold(row, |n, d| n.checked_mul(*d));
        let offset = usize::try_from(self.offset).ok().and_then(|o| o.checked_add(start));
        let range = offset.and_then(|o| Some(o..o.checked_add(size?)?));
        let end = range.as_ref().map_or(usize::MAX, |r| r.end);
        match range {
            Some(range) if end <= length => Ok(Info { shape: self.shape, kind, range, part: 0 }),
            _ => bail!(
                "truncated file: its data (shape {shape:?}) end at byte {end}, the file at byte {length} (download it again)"
            ),
        }
    }
}

struct Cursor<'a> {
    bytes: &'a [u8],
    pos: usize,
    /// Number of list values so far: in memory they need up to 16 times their bytes.
    listed: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let end = self.pos.checked_add(n).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or_else(|| {
            anyhow!("truncated file: expected {n} more bytes at byte {}, the file has {}", self.pos, self.bytes.len())
        })?;
        let part = &self.bytes[self.pos..end];
        self.pos = end;
        Ok(part)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        Ok(self.take(N)?.try_into()?)
    }

    fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Result<String> {
        let length = usize::try_from(self.u64()?)?;
        let at = self.pos;
        ensure!(length <= MOST_TEXT, "the string at byte {at} has {length} bytes: at most {MOST_TEXT} are read");
        String::from_utf8(self.take(length)?.to_vec()).map_err(|_| anyhow!("the string at byte {at} is not UTF-8"))
    }

    fn value(&mut self, kind: u32) -> Result<Value> {
        Ok(match kind {
            6 => Value::Float(self.array().map(f32::from_le_bytes)?),
            8 => Value::Text(self.text()?),
            9 => self.list()?,
            _ => Value::Number(self.number(kind)?),
        })
    }

    fn number(&mut self, kind: u32) -> Result<f64> {
        Ok(match kind {
            0 | 7 => f64::from(self.array().map(u8::from_le_bytes)?),
            1 => f64::from(self.array().map(i8::from_le_bytes)?),
            2 => f64::from(self.array().map(u16::from_le_bytes)?),
            3 => f64::from(self.array().map(i16::from_le_bytes)?),
            4 => f64::from(self.u32()?),
            5 => f64::from(self.array().map(i32::from_le_bytes)?),
            6 => f64::from(self.array().map(f32::from_le_bytes)?),
            10 => self.u64()? as f64,
            11 => self.array().map(i64::from_le_bytes)? as f64,
            12 => self.array().map(f64::from_le_bytes)?,
            other => bail!("value type {other} is unknown: expected 0 to 12"),
        })
    }

    fn list(&mut self) -> Result<Value> {
        let kind = self.u32()?;
        let length = usize::try_from(self.u64()?)?;
        self.listed = self.listed.saturating_add(length);
        ensure!(self.listed <= MOST_VALUES, "a list of {length} values: all lists together may have {MOST_VALUES}");
        // `length` reserves no memory: with a damaged count the loop reaches the end of the file.
        match kind {
            8 => (0..length).map(|_| self.text()).collect::<Result<_>>().map(Value::Texts),
            9 => bail!("lists of lists are not supported"),
            _ => (0..length).map(|_| self.number(kind)).collect::<Result<_>>().map(Value::Numbers),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Vec<u8> {
        [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
    }

    /// A file of vectors of 32 floats at the given offsets.
    fn file(places: &[(&str, u64)], meta: &[(&str, Vec<u8>)]) -> Vec<u8> {
        let counts = [places.len() as u64, meta.len() as u64].map(u64::to_le_bytes).concat();
        let mut bytes = [b"GGUF".to_vec(), 3_u32.to_le_bytes().to_vec(), counts].concat();
        meta.iter().for_each(|(key, value)| bytes.extend([text(key), value.clone()].concat()));
        for (name, offset) in places {
            bytes.extend(text(name));
            let (axes, kind) = (1_u32.to_le_bytes(), 0_u32.to_le_bytes());
            bytes.extend([&axes[..], &32_u64.to_le_bytes(), &kind, &offset.to_le_bytes()].concat());
        }
        bytes.resize(bytes.len().next_multiple_of(32) + 256, 0);
        bytes
    }

    fn refused(bytes: &[u8], words: &str) {
        let error = parse(bytes).err().expect("refused").to_string();
        assert!(error.contains(words), "{error}");
    }

    #[test]
    fn tensors_that_overlap_are_refused() {
        assert_eq!(parse(&file(&[("a", 128), ("b", 0)], &[])).expect("in any order").tensors.len(), 2);
        refused(&file(&[("a", 0), ("b", 64)], &[]), "tensor `b` begins at byte");
        refused(&file(&[("a", 0), ("b", 0)], &[]), "inside tensor `a`");
    }

    #[test]
    fn counts_are_bounded_before_memory_is_allocated() {
        let list = |kind: u32, length: u64| {
            [&9_u32.to_le_bytes()[..], &kind.to_le_bytes(), &length.to_le_bytes(), &[0; 64]].concat()
        };
        refused(&file(&[], &[("k", list(0, 1 << 40))]), "metadata `k`: a list of 1099511627776 values");
        refused(&file(&[], &[("k", list(8, 1 << 24))]), "metadata `k`: a list of 16777216 values");
        let long = [&8_u32.to_le_bytes()[..], &(1_u64 << 40).to_le_bytes()].concat();
        refused(&file(&[], &[("k", long)]), "metadata `k`: the string at byte");
        for (at, words) in [(8, "has 1099511627776 tensors"), (16, "has 1099511627776 metadata keys")] {
            let mut bytes = file(&[], &[]);
            bytes[at..at + 8].copy_from_slice(&(1_u64 << 40).to_le_bytes());
            refused(&bytes, words);
        }
    }
}
