//! Finds the records of an uncompressed ZIP archive such as `torch.save` writes (PKWARE's APPNOTE 6.3; sizes above 4 GB in ZIP64
//! fields). Knows nothing of their contents.

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::{Context, Result, bail, ensure};

const END: [u8; 4] = *b"PK\x05\x06";
const END64: [u8; 4] = *b"PK\x06\x06";
const LOCATOR64: [u8; 4] = *b"PK\x06\x07";
const ENTRY: [u8; 4] = *b"PK\x01\x02";
pub(super) const LOCAL: [u8; 4] = *b"PK\x03\x04";

/// Bytes of the end record without its comment, of which there are at most 2¹⁶ − 1.
const END_BYTES: usize = 22;

/// Name → range of its bytes.
pub(super) fn records(bytes: &[u8]) -> Result<BTreeMap<String, Range<usize>>> {
    let (mut at, count) = directory(bytes)?;
    let mut records = BTreeMap::new();
    for _ in 0..count {
        let entry = ZipFields { bytes, at };
        ensure!(entry.tag()? == ENTRY, "damaged archive: no entry of its directory at byte {at}");
        let [flags, method] = [entry.u16(8)?, entry.u16(10)?];
        let [name_len, extra_len, comment_len] = [entry.u16(28)?, entry.u16(30)?, entry.u16(32)?];
        let name = String::from_utf8_lossy(entry.range(46, name_len)?).into_owned();
        ensure!(method == 0 && flags & 1 == 0, "`{name}` is compressed or encrypted, which torch.save never does");
        let extra = Zip64Extra { fields: entry.range(46 + name_len, extra_len)? };
        let [packed, size, offset] = extra.widen([entry.u32(20)?, entry.u32(24)?, entry.u32(42)?])?;
        ensure!(packed == size, "`{name}` is compressed, which torch.save never does");
        let local = ZipFields { bytes, at: offset };
        ensure!(local.tag()? == LOCAL, "damaged archive: `{name}` is not at byte {offset}");
        let start = offset + 30 + local.u16(26)? + local.u16(28)?;
        let end = start.checked_add(size).filter(|end| *end <= bytes.len());
        let end = end.with_context(|| format!("truncated file: `{name}` ends after its {} bytes", bytes.len()))?;
        records.insert(name, start..end);
        at += 46 + name_len + extra_len + comment_len;
    }
    Ok(records)
}

/// Offset of the directory, and its number of entries.
fn directory(bytes: &[u8]) -> Result<(usize, usize)> {
    let last = bytes.len().checked_sub(END_BYTES);
    let earliest = bytes.len().saturating_sub(END_BYTES + usize::from(u16::MAX));
    let end = last.and_then(|last| (earliest..=last).rev().find(|&at| bytes[at..].starts_with(&END)));
    let Some(end) = end else { bail!("truncated file: an archive of torch.save without its end (download it again)") };
    let fields = ZipFields { bytes, at: end };
    let (count, offset) = (fields.u16(10)?, fields.u32(16)?);
    let Some(locator) = end.checked_sub(20).filter(|&at| bytes[at..].starts_with(&LOCATOR64)) else {
        return Ok((offset, count));
    };
    let wide = ZipFields { bytes, at: ZipFields { bytes, at: locator }.u64(8)? };
    ensure!(wide.tag()? == END64, "damaged archive: its ZIP64 end record is misplaced");
    Ok((wide.u64(48)?, wide.u64(32)?))
}

/// Little-endian numbers at offsets from `at`.
struct ZipFields<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> ZipFields<'a> {
    fn range(&self, offset: usize, len: usize) -> Result<&'a [u8]> {
        let start = self.at.checked_add(offset);
        let end = start.and_then(|start| start.checked_add(len));
        let found = start.zip(end).and_then(|(start, end)| self.bytes.get(start..end));
        found.with_context(|| format!("damaged archive: a header at byte {} is cut off", self.at))
    }

    fn tag(&self) -> Result<[u8; 4]> {
        Ok(self.range(0, 4)?.try_into()?)
    }

    fn u16(&self, offset: usize) -> Result<usize> {
        Ok(u16::from_le_bytes(self.range(offset, 2)?.try_into()?).into())
    }

    fn u32(&self, offset: usize) -> Result<usize> {
        Ok(u32::from_le_bytes(self.range(offset, 4)?.try_into()?) as usize)
    }

    fn u64(&self, offset: usize) -> Result<usize> {
        Ok(usize::try_from(u64::from_le_bytes(self.range(offset, 8)?.try_into()?))?)
    }
}

/// The extra fields of an entry, one of which has the numbers that do not fit in 32 bits.
struct Zip64Extra<'a> {
    fields: &'a [u8],
}

impl Zip64Extra<'_> {
    fn widen(&self, narrow: [usize; 3]) -> Result<[usize; 3]> {
        let mut rest = self.fields;
        while let Some((head, body)) = rest.split_at_checked(4) {
            let [id, len] = [[head[0], head[1]], [head[2], head[3]]].map(u16::from_le_bytes);
            let Some((body, next)) = body.split_at_checked(len.into()) else { break };
            if id == 1 {
                let fields = ZipFields { bytes: body, at: 0 };
                // Order in the field: size, packed size, offset; only those that do not fit.
                let mut at = 0;
                let mut out = narrow;
                for place in [1, 0, 2] {
                    if narrow[place] == u32::MAX as usize {
                        out[place] = fields.u64(at)?;
                        at += 8;
                    }
                }
                return Ok(out);
            }
            rest = next;
        }
        Ok(narrow)
    }
}
