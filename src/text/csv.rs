//! Reads CSV record by record, so that memory is bounded by the longest record (RFC 4180, and the line ends and separators of
//! spreadsheets). Knows cells, not the meaning of columns.

use std::collections::HashSet;
use std::io::BufRead;

use anyhow::{Result, anyhow, bail, ensure};
use serde_json::{Map, Value};

use super::files;
use super::sources::MOST_RECORD;

/// Maximum columns of a table: each record has all their names.
const MOST_COLUMNS: usize = 4096;

/// The records of a table whose first line names the columns.
pub(super) struct CsvRecords<'r> {
    reader: Box<dyn BufRead + 'r>,
    separator: u8,
    names: Vec<String>,
    /// The last record ended with a carriage return; a line feed that follows belongs to it.
    after_return: bool,
}

/// One cell; `None` if empty.
type Cell = Option<String>;

#[derive(Clone, Copy, PartialEq)]
enum QuoteMode {
    Start,
    Plain,
    Quoted,
    /// After a quote inside a quoted cell: the cell's end, or the first of a doubled quote.
    Closed,
}

impl<'r> CsvRecords<'r> {
    /// The separator is a comma, a tab or a semicolon, the most frequent in the first line.
    ///
    /// # Errors
    /// A first line that cannot be read; a duplicate column name.
    pub fn open(mut reader: Box<dyn BufRead + 'r>) -> Result<Self> {
        const MARK: &[u8] = "\u{feff}".as_bytes();
        if reader.fill_buf().map_err(files::unread)?.starts_with(MARK) {
            reader.consume(MARK.len());
        }
        let head = reader.fill_buf().map_err(files::unread)?;
        let first = head.split(|byte| matches!(byte, b'\n' | b'\r')).next().unwrap_or_default();
        let count = |separator: &u8| first.iter().filter(|byte| *byte == separator).count();
        let separator = [b';', b'\t', b','].into_iter().max_by_key(count).unwrap_or(b',');
        let mut records = Self { reader, separator, names: vec![], after_return: false };
        let names = records.cells()?.unwrap_or_default();
        records.names = names.into_iter().map(Option::unwrap_or_default).collect();
        let mut seen = HashSet::new();
        let twice = records.names.iter().find(|name| !name.is_empty() && !seen.insert(name.as_str()));
        if let Some(name) = twice {
            bail!("column {name:?} occurs twice in the first line: rename one of them");
        }
        Ok(records)
    }

    /// The next record; cells are texts, empty cells null. `None` at the end.
    ///
    /// # Errors
    /// More cells than the first line has; an unclosed quote; a record that is too long.
    pub fn next(&mut self) -> Result<Option<Map<String, Value>>> {
        let Some(cells) = self.cells()? else { return Ok(None) };
        ensure!(
            cells.len() <= self.names.len(),
            "a row has more cells than the first line: quote cells that contain the separator"
        );
        let cells = cells.into_iter().chain(std::iter::repeat(None));
        let cells = cells.map(|cell| cell.map_or(Value::Null, Value::String));
        Ok(Some(self.names.iter().cloned().zip(cells).collect()))
    }

    /// The cells of the next non-empty line.
    fn cells(&mut self) -> Result<Option<Vec<Cell>>> {
        let (mut cells, mut cell, mut mode, mut quoted, mut length): (Vec<Cell>, Vec<u8>, _, _, usize) =
            (vec![], vec![], QuoteMode::Start, false, 0);
        loop {
            let buffer = self.reader.fill_buf().map_err(files::unread)?;
            if buffer.is_empty() {
                ensure!(mode != QuoteMode::Quoted, "a quote is not closed, or is inside a cell without being doubled");
                if length == 0 {
                    return Ok(None);
                }
                push(&mut cells, &mut cell, quoted)?;
                return Ok(Some(cells));
            }
            let mut used = 0;
            let mut ended = false;
            for &byte in buffer {
                used += 1;
                if std::mem::take(&mut self.after_return) && byte == b'\n' {
                    continue;
                }
                match (mode, byte) {
                    (QuoteMode::Quoted, b'"') => mode = QuoteMode::Closed,
                    (QuoteMode::Closed, b'"') => {
                        cell.push(b'"');
                        mode = QuoteMode::Quoted;
                    }
                    (QuoteMode::Start, b'"') => (mode, quoted) = (QuoteMode::Quoted, true),
                    (QuoteMode::Start | QuoteMode::Plain | QuoteMode::Closed, b'\n' | b'\r') => {
                        self.after_return = byte == b'\r';
                        if length > 0 {
                            ended = true;
                            break;
                        }
                        continue;
                    }
                    (QuoteMode::Start | QuoteMode::Plain | QuoteMode::Closed, _) if byte == self.separator => {
                        push(&mut cells, &mut cell, quoted)?;
                        (mode, quoted) = (QuoteMode::Start, false);
                        ensure!(cells.len() < MOST_COLUMNS, "a row has more than {MOST_COLUMNS} cells");
                    }
                    (QuoteMode::Closed, _) => {
                        bail!("a quote is not closed, or is inside a cell without being doubled")
                    }
                    (QuoteMode::Start | QuoteMode::Plain | QuoteMode::Quoted, _) => {
                        cell.push(byte);
                        mode = if mode == QuoteMode::Quoted { mode } else { QuoteMode::Plain };
                    }
                }
                length += 1;
            }
            self.reader.consume(used);
            ensure!(
                length as u64 <= MOST_RECORD,
                "a record of more than {MOST_RECORD} bytes: one problem a record is expected (or a quote is not closed)"
            );
            if ended {
                push(&mut cells, &mut cell, quoted)?;
                return Ok(Some(cells));
            }
        }
    }
}

fn push(cells: &mut Vec<Cell>, cell: &mut Vec<u8>, quoted: bool) -> Result<()> {
    let text = String::from_utf8(std::mem::take(cell)).map_err(|_| anyhow!("not UTF-8 text: write it as UTF-8"))?;
    cells.push((quoted || !text.is_empty()).then_some(text));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<String>> {
        // Buffers of every length split records at every position.
        let whole = |capacity: usize| -> Result<Vec<String>> {
            let reader = std::io::BufReader::with_capacity(capacity, text.as_bytes());
            let mut records = CsvRecords::open(Box::new(reader))?;
            let mut out = vec![];
            while let Some(record) = records.next()? {
                out.push(Value::Object(record).to_string());
            }
            Ok(out)
        };
        let found = whole(1 << 16)?;
        for capacity in 16..40 {
            assert_eq!(whole(capacity)?, found, "{capacity}");
        }
        Ok(found)
    }

    #[test]
    fn cells_are_cut_as_spreadsheets_write_them() {
        let one = r#"{"a":"1","b":"x, \"y\"\nz"}"#;
        for end in ["\n", "\r\n"] {
            let text = format!("a,b{end}1,\"x, \"\"y\"\"\nz\"{end}{end},{end}2");
            assert_eq!(read(&text).expect("reads"), [one, r#"{"a":null,"b":null}"#, r#"{"a":"2","b":null}"#]);
        }
        assert_eq!(read("a;b\r1;\"\"\r").expect("reads"), [r#"{"a":"1","b":""}"#]);
        assert!(read("").expect("reads").is_empty());
        for (text, error) in [
            ("a,b\n1,2,3\n", "more cells"),
            ("a,b\n\"1,2\n", "not closed"),
            ("a,b\n\"1\"x,2\n", "not closed"),
            ("a,a\n1,2\n", "occurs twice"),
        ] {
            assert!(read(text).expect_err(text).to_string().contains(error), "{text}");
        }
    }

    #[test]
    fn a_record_has_a_bound_and_a_file_has_none() {
        let of = |text: Box<dyn std::io::Read>| {
            let mut records = CsvRecords::open(Box::new(std::io::BufReader::new(text)))?;
            let mut n = 0;
            while records.next()?.is_some() {
                n += 1;
            }
            anyhow::Ok(n)
        };
        use std::io::Read;
        let endless = |byte: u8| std::io::repeat(byte);
        let head = || &b"a,b\n\""[..];
        let error = of(Box::new(head().chain(endless(b'x')))).expect_err("a cell without an end").to_string();
        assert!(error.contains("more than 16777216 bytes"), "{error}");
        let error = of(Box::new((&b"a\n"[..]).chain(endless(b',')))).expect_err("a row without an end").to_string();
        assert!(error.contains("cells"), "{error}");
    }
}
