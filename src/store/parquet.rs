//! Parquet files with a checksum. Knows bytes and frames.
//!
//! Parquet readers trust the sizes in a file: a damaged one may request more memory than exists, and end the process. Each of our files
//! has the SHA-256 of its bytes, and is read only if that matches. It is stored between pages and footer, where other readers (pandas,
//! DuckDB, polars) do not look: for them the file is plain Parquet. Its key-value metadata have the commit that wrote it and, as JSON, unit
//! and description of each column.

use std::io::Cursor;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use polars::prelude::{DataFrame, FileMetadata, KeyValueMetadata, ParquetReader, ParquetWriter, SerReader};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::head::commit;
use super::pages::{PageSizes, is_whole, sizes};
use super::write_atomic;
use crate::guard::{MOST_FILE, ensure_memory, guarded, read_bytes};

/// First and last bytes of every Parquet file.
const MAGIC: &[u8] = b"PAR1";
/// The footer's length (u32, little-endian) and [`MAGIC`].
const TAIL: usize = 8;
const MARK: &[u8] = b"SWYDSHA2";
const SEAL: usize = MARK.len() + 32;

/// Writes a frame, whole or not at all. `columns` describes them, as a manifest does.
pub(crate) fn write(path: &Path, frame: &mut DataFrame, columns: &Value) -> Result<()> {
    let said = [("switchyard.commit", commit()), ("switchyard.columns", columns.to_string())];
    let said = KeyValueMetadata::from_static(said.map(|(key, value)| (key.to_owned(), value)).to_vec());
    let mut bytes = Vec::new();
    let writer = ParquetWriter::new(&mut bytes).with_key_value_metadata(Some(said));
    let place = || format!("cannot encode {}", path.display());
    // If the system refuses threads to the crate, it panics.
    guarded(|| writer.finish(frame)).with_context(place)?.with_context(place)?;
    write_atomic(path, &sealed(&bytes).with_context(place)?)
}

/// Reads a file of [`write()`].
///
/// # Errors
/// A file that is missing, truncated, changed, or of another writer.
pub fn read(path: &Path) -> Result<DataFrame> {
    let place = || path.display().to_string();
    let bytes = read_bytes(path, MOST_FILE).with_context(|| format!("cannot read {}", place()))?;
    read_checked(&bytes).with_context(place)
}

/// The frame of a file's bytes, if they are as they were written.
pub(crate) fn read_checked(bytes: &[u8]) -> Result<DataFrame> {
    check(bytes)?;
    decode(bytes)
}

/// The frame of a whole file.
fn decode(bytes: &[u8]) -> Result<DataFrame> {
    decode_with(bytes, |reader| Ok(reader.finish()?)).context(DAMAGED)
}

const DAMAGED: &str = "truncated or damaged Parquet file";

/// Applies `read` to any Parquet file. The crate panics on some damaged files, and allocates whatever a file declares: so sizes are checked
/// first.
pub(crate) fn decode_with<'a, T>(
    bytes: &'a [u8],
    read: impl FnOnce(ParquetReader<Cursor<&'a [u8]>>) -> Result<T>,
) -> Result<T> {
    let read = || {
        ensure!(is_whole(&bytes[footer(bytes)?]), "its footer is damaged");
        let mut reader = ParquetReader::new(Cursor::new(bytes));
        bounded(reader.get_metadata()?, bytes)?;
        read(reader)
    };
    guarded(read).context(DAMAGED)?
}

/// Checks that the declared sizes are proportionate: a hundred times the file's bytes, or numbers of values that packing explains.
fn bounded(metadata: &FileMetadata, bytes: &[u8]) -> Result<()> {
    let length = bytes.len() as u64;
    let most = PageSizes { bytes: (256 << 20) + 100 * length, values: (4 << 20) + 64 * length };
    let (mut all, mut cells) = (PageSizes::default(), 0_u64);
    for group in &metadata.row_groups {
        for column in group.parquet_columns() {
            let range = column.byte_range();
            let chunk = usize::try_from(range.start).ok().zip(usize::try_from(range.end).ok());
            let chunk = chunk.and_then(|(start, end)| bytes.get(start..end)).context("a column beyond the end")?;
            all.add(sizes(chunk, column.num_values().try_into().context("a negative number of values")?)?);
            cells = cells.saturating_add(group.num_rows() as u64);
        }
    }
    let values = all.values.max(cells).max(metadata.num_rows as u64);
    ensure!(all.bytes <= most.bytes, "{length} bytes unpack to {}: more than {}", all.bytes, most.bytes);
    ensure!(values <= most.values, "{length} bytes claim {values} values: more than {}", most.values);
    // Unpacked, and as JSON values.
    let needed = all.bytes.saturating_add(values.saturating_mul(128));
    ensure_memory(|| format!("{length} bytes that unpack to {} with {values} values", all.bytes), needed)?;
    Ok(())
}

/// The file with its checksum.
fn sealed(bytes: &[u8]) -> Result<Vec<u8>> {
    let footer = footer(bytes)?.start;
    let (pages, rest) = bytes.split_at(footer);
    Ok([pages, MARK, &sum(pages, rest), rest].concat())
}

fn check(bytes: &[u8]) -> Result<()> {
    let again = "make the rows again with the command in manifest.json";
    let footer = footer(bytes).map_err(|error| anyhow!("{error}; {again}"))?.start;
    let written = footer.checked_sub(SEAL).filter(|seal| bytes[*seal..].starts_with(MARK));
    let seal = written.with_context(|| format!("damaged, or Parquet of another program (no checksum); {again}"))?;
    let same = sum(&bytes[..seal], &bytes[footer..])[..] == bytes[seal + MARK.len()..footer];
    ensure!(same, "damaged (checksum mismatch); {again}");
    Ok(())
}

fn sum(pages: &[u8], rest: &[u8]) -> [u8; 32] {
    Sha256::new().chain_update(pages).chain_update(rest).finalize().into()
}

fn footer(bytes: &[u8]) -> Result<Range<usize>> {
    let whole = bytes.len() >= MAGIC.len() + TAIL && bytes.starts_with(MAGIC) && bytes.ends_with(MAGIC);
    ensure!(whole, "not a whole Parquet file");
    let end = bytes.len() - TAIL;
    let length = u32::from_le_bytes([bytes[end], bytes[end + 1], bytes[end + 2], bytes[end + 3]]) as usize;
    ensure!(length <= end - MAGIC.len(), "not a Parquet file: its footer would be longer than the file");
    Ok(end - length..end)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use polars::prelude::Column;
    use serde_json::json;

    use super::*;

    /// Files with a correct checksum over malformed contents, as an attacker who knows the checksum can make.
    #[test]
    fn hostile_files_with_the_right_checksum_are_errors() {
        let column = Column::new("x".into(), (0..100).map(f64::from).collect::<Vec<_>>());
        let mut frame = DataFrame::new_infer_height(vec![column]).expect("a frame");
        let mut plain = Vec::new();
        ParquetWriter::new(&mut plain).finish(&mut frame).expect("encodes");
        let mut read = 0;
        for at in 4..plain.len() - TAIL {
            for bit in [0x01, 0x40, 0xFF] {
                let mut changed = plain.clone();
                changed[at] ^= bit;
                read += usize::from(decode(&changed).is_ok());
            }
        }
        assert!(read > 0, "some changes are to values only");
        assert!(decode(&plain).expect("whole").equals(&frame));
    }

    #[test]
    fn every_changed_byte_and_every_cut_is_noticed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.parquet");
        let column = Column::new("x".into(), [1.5_f64, -2.0, 3.25]);
        let mut frame = DataFrame::new_infer_height(vec![column]).expect("a frame");
        let columns = json!({ "x": { "unit": "nats", "about": "a column" } });
        write(&path, &mut frame, &columns).expect("writes");
        assert!(read(&path).expect("whole").equals(&frame));
        let bytes = fs::read(&path).expect("bytes");
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x40;
            check(&changed).expect_err("one byte is another");
            check(&bytes[..at]).expect_err("cut");
        }
        let said =
            ParquetReader::new(Cursor::new(&bytes)).get_metadata().expect("metadata").key_value_metadata().clone();
        let said = said.expect("what was said").into_iter().find(|pair| pair.key == "switchyard.columns");
        assert_eq!(said.and_then(|pair| pair.value), Some(columns.to_string()));
        // Plain Parquet, as another program writes it.
        let mut plain = Vec::new();
        ParquetWriter::new(&mut plain).finish(&mut frame).expect("encodes");
        let error = check(&plain).expect_err("no checksum").to_string();
        assert!(error.contains("no checksum"), "{error}");
        assert!(ParquetReader::new(Cursor::new(bytes)).finish().expect("others read it").equals(&frame));
    }
}
