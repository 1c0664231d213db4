//! The unpacked size of a Parquet file, read from its page headers before anything is unpacked. Knows bytes; no frame.
//!
//! Layout: <https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift>, in Thrift's compact protocol.

use anyhow::{Context, Result, ensure};

/// Sizes of the pages of one or more columns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PageSizes {
    /// Bytes once unpacked.
    pub bytes: u64,
    /// Values, dictionaries' included.
    pub values: u64,
}

impl PageSizes {
    pub fn add(&mut self, other: PageSizes) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.values = self.values.saturating_add(other.values);
    }
}

/// Sizes of the pages of one column chunk, up to `values` values.
///
/// # Errors
/// A malformed header, or a page beyond the chunk.
pub(super) fn sizes(chunk: &[u8], values: u64) -> Result<PageSizes> {
    let (mut all, mut seen, mut at) = (PageSizes::default(), 0, 0);
    while seen < values && at < chunk.len() {
        let mut header = Thrift { bytes: chunk, at };
        let page = header.page().with_context(|| format!("no page header at byte {at} of a column"))?;
        let end = header.at.saturating_add(page.packed);
        ensure!(end <= chunk.len(), "a page of {} bytes at byte {at} of a column of {}", page.packed, chunk.len());
        all.add(PageSizes { bytes: page.unpacked, values: page.values });
        seen += if page.dictionary { 0 } else { page.values };
        at = end;
    }
    Ok(all)
}

/// Whether a footer is one structure whose lists have their declared lengths: the decoder allocates those first.
pub(super) fn is_whole(footer: &[u8]) -> bool {
    Thrift { bytes: footer, at: 0 }.skip(STRUCT, DEPTH).is_some()
}

#[derive(Default)]
struct Page {
    packed: usize,
    unpacked: u64,
    values: u64,
    dictionary: bool,
}

struct Thrift<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// Structures within structures that are followed.
const DEPTH: usize = 16;
const STRUCT: u8 = 12;

impl Thrift<'_> {
    fn page(&mut self) -> Option<Page> {
        let mut page = Page::default();
        self.fields(DEPTH, &mut |thrift, id, kind| {
            match (id, kind) {
                (2, 5) => page.unpacked = thrift.integer()?.try_into().ok()?,
                (3, 5) => page.packed = thrift.integer()?.try_into().ok()?,
                // Headers of a data page, of a dictionary, of a data page of the second version: values come first.
                (5 | 7 | 8, STRUCT) => {
                    page.dictionary = id == 7;
                    thrift.fields(DEPTH, &mut |thrift, id, kind| match (id, kind) {
                        (1, 5) => {
                            page.values = thrift.integer()?.try_into().ok()?;
                            Some(())
                        }
                        _ => thrift.skip(kind, DEPTH),
                    })?;
                }
                _ => thrift.skip(kind, DEPTH)?,
            }
            Some(())
        })?;
        Some(page)
    }

    /// Calls `read` with number and type of each field of a structure; it must read the field's value.
    fn fields(&mut self, depth: usize, read: &mut dyn FnMut(&mut Self, i64, u8) -> Option<()>) -> Option<()> {
        depth.checked_sub(1)?;
        let mut id = 0_i64;
        loop {
            let head = self.byte()?;
            let kind = head & 15;
            if kind == 0 {
                return Some(());
            }
            id = if head >> 4 == 0 { self.integer()? } else { id + i64::from(head >> 4) };
            read(self, id, kind)?;
        }
    }

    fn skip(&mut self, kind: u8, depth: usize) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        match kind {
            1 | 2 => {}
            3 => self.pass(1)?,
            4..=6 => drop(self.integer()?),
            7 => self.pass(8)?,
            8 => {
                let length = self.varint()?.try_into().ok()?;
                self.pass(length)?;
            }
            9 | 10 => {
                let head = self.byte()?;
                let length = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
                for _ in 0..length {
                    self.element(head & 15, depth)?;
                }
            }
            11 => {
                let length = self.varint()?;
                let kinds = if length == 0 { 0 } else { self.byte()? };
                for _ in 0..length {
                    self.element(kinds >> 4, depth)?;
                    self.element(kinds & 15, depth)?;
                }
            }
            STRUCT => self.fields(depth, &mut |thrift, _, kind| thrift.skip(kind, depth))?,
            _ => return None,
        }
        Some(())
    }

    /// In lists a boolean is one byte.
    fn element(&mut self, kind: u8, depth: usize) -> Option<()> {
        if matches!(kind, 1 | 2) { self.pass(1) } else { self.skip(kind, depth) }
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn pass(&mut self, n: usize) -> Option<()> {
        self.at = self.at.checked_add(n).filter(|end| *end <= self.bytes.len())?;
        Some(())
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 127) << shift;
            if byte < 128 {
                return Some(value);
            }
        }
        None
    }

    /// A signed number, as zigzag.
    fn integer(&mut self) -> Option<i64> {
        let value = self.varint()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_counted_and_damaged_headers_are_refused() {
        // type 0, 40 bytes unpacked, 3 packed, a data page header of 5 values in encoding 0.
        let page = [0x15, 0, 0x15, 80, 0x15, 6, 0x2C, 0x15, 10, 0x15, 0, 0, 0, 9, 9, 9];
        let chunk = [page, page].concat();
        assert_eq!(sizes(&chunk, 10).expect("two pages"), PageSizes { bytes: 80, values: 10 });
        assert_eq!(sizes(&chunk, 5).expect("one page is enough"), PageSizes { bytes: 40, values: 5 });
        for at in 0..13 {
            assert!(sizes(&chunk[..at + 1], 10).is_err(), "cut at {at}");
        }
        let error = sizes(&page[..14], 10).expect_err("its bytes are missing").to_string();
        assert!(error.contains("a page of 3 bytes"), "{error}");
        // A list of two bytes; of fifteen or more, whose number follows: two, or more than there are.
        assert!(is_whole(&[0x19, 0x23, 1, 2, 0]) && is_whole(&[0x19, 0xF3, 2, 1, 2, 0]));
        assert!(!is_whole(&[0x19, 0xF3, 0xFF, 0xFF, 0xFF, 0xFF, 0x07, 1, 2, 0]) && !is_whole(&[0x19, 0x23, 1]));
        let nested = [0x1C; 100];
        assert!(sizes(&nested, 1).is_err(), "structures without end");
    }
}
