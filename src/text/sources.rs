//! Files of problems: opens them (plain or gzip, one JSON object a line or one JSON list), tells their format, reads them.
//! What a record of each format means is in `formats`. Every error names file, record and key.

use std::cell::Cell;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Context, Result, bail, ensure};
use serde::de::{Deserializer as _, Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Problem;
use super::formats::Format;
use super::record::Record;

/// Where problems come from, as a recipe says it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    pub path: PathBuf,
    /// Left out: told from the keys of the first record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<Format>,
    /// Names of the keys, for `format = "jsonl"`.
    #[serde(default)]
    pub fields: Fields,
    /// Keep GSM8K's calculator annotations `<<48/2=24>>` in the solution.
    #[serde(default)]
    pub keep_calculator: bool,
    /// Read no more than this many problems.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// Which key holds what, in a generic JSONL file. `question` and `answer` must be there, the others may be missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fields {
    pub id: String,
    pub question: String,
    pub solution: String,
    pub answer: String,
    pub subject: String,
    pub level: String,
}

impl Default for Fields {
    fn default() -> Self {
        let name = str::to_string;
        Fields {
            id: name("id"),
            question: name("question"),
            solution: name("solution"),
            answer: name("answer"),
            subject: name("subject"),
            level: name("level"),
        }
    }
}

impl Source {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Source { path: path.into(), format: None, fields: Fields::default(), keep_calculator: false, limit: None }
    }

    /// Reads the problems.
    pub fn read(&self) -> Result<Vec<Problem>> {
        Ok(self.placed()?.into_iter().map(|(problem, _)| problem).collect())
    }

    /// The problems, each with the place it stands at (`file:line`), for errors that come later.
    pub(crate) fn placed(&self) -> Result<Vec<(Problem, String)>> {
        let file = self.path.as_path();
        let limit = self.limit.unwrap_or(usize::MAX);
        let mut problems = Vec::new();
        let mut format = self.format;
        let stem = stem(file);
        each_object(file, &mut |place, object| {
            if problems.len() >= limit {
                return Ok(false);
            }
            let format = *match &mut format {
                Some(format) => format,
                unknown => unknown.insert(Format::of(&object).with_context(|| place.clone())?),
            };
            let fallback = format!("{}-{stem}-{}", format.name(), problems.len());
            let record = Record { object: &object, place: &place, fallback_id: fallback, source: self };
            problems.push((record.problem(format)?, place));
            Ok(true)
        })?;
        ensure!(!problems.is_empty(), "{}: holds no problem", file.display());
        Ok(problems)
    }
}

/// Reads every problem of a file whose format its keys tell.
pub fn read_problems(path: impl Into<PathBuf>) -> Result<Vec<Problem>> {
    Source::new(path).read()
}

/// Name of a file without its endings.
fn stem(file: &Path) -> String {
    let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    name.trim_end_matches(".gz").trim_end_matches(".jsonl").trim_end_matches(".json").to_string()
}

/// Bytes of one record at most, and of a packed file's text: so many, and so many times its bytes. Text packs to a tenth.
const MOST_RECORD: u64 = 16 << 20;
const MOST_UNPACKED: (u64, u64) = (64 << 20, 50);

/// A reader that ends with an error after as many bytes as are left.
struct Bounded<R> {
    reader: R,
    left: Rc<Cell<u64>>,
    what: String,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let most = into.len().min(usize::try_from(self.left.get()).unwrap_or(usize::MAX));
        if most == 0 && !into.is_empty() {
            return Err(std::io::Error::other(self.what.clone()));
        }
        let came = self.reader.read(&mut into[..most])?;
        self.left.set(self.left.get() - came as u64);
        Ok(came)
    }
}

/// Opens a file; gzip is told by its first bytes, not by its name.
fn open(file: &Path) -> Result<Box<dyn BufRead>> {
    let context = || format!("{}: cannot read", file.display());
    let plain = std::fs::File::open(file).with_context(context)?;
    let packed = plain.metadata().with_context(context)?.len();
    let mut plain = BufReader::new(plain);
    if plain.fill_buf().with_context(context)?.starts_with(&[0x1f, 0x8b]) {
        let most = MOST_UNPACKED.0.saturating_add(MOST_UNPACKED.1.saturating_mul(packed));
        let what = format!("{packed} bytes unpack to more than {most}: more than text does");
        let reader = flate2::bufread::MultiGzDecoder::new(plain);
        return Ok(Box::new(BufReader::new(Bounded { reader, left: Rc::new(Cell::new(most)), what })));
    }
    Ok(Box::new(plain))
}

/// Calls `take` with each object and the place it stands at, until it returns false.
fn each_object(file: &Path, take: &mut Take) -> Result<()> {
    let shown = file.display();
    let mut reader = open(file)?;
    let head = reader.fill_buf().with_context(|| format!("{shown}: cannot read"))?;
    let start = if head.starts_with(b"\xEF\xBB\xBF") { 3 } else { 0 };
    let start = start + head[start..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
    if head.get(start) == Some(&b'[') {
        // One list over the whole file: there are no lines to name, so records are.
        reader.consume(start);
        return each_of_list(reader, &shown.to_string(), take);
    }
    let mut line = String::new();
    for number in 1.. {
        line.clear();
        let place = format!("{shown}:{number}");
        let came = (&mut reader)
            .take(MOST_RECORD + 1)
            .read_line(&mut line)
            .with_context(|| format!("{place}: cannot read"))?;
        ensure!(
            came as u64 <= MOST_RECORD,
            "{place}: a line of more than {MOST_RECORD} bytes: one problem a line is expected"
        );
        let text = line.trim_start_matches('\u{feff}').trim();
        if !text.is_empty() {
            let value = serde_json::from_str(text).with_context(|| format!("{place}: not valid JSON"))?;
            if !take(place.clone(), object(&place, value)?)? {
                break;
            }
        }
        if came == 0 {
            break;
        }
    }
    Ok(())
}

type Take<'a> = dyn FnMut(String, Map<String, Value>) -> Result<bool> + 'a;

fn object(place: &str, value: Value) -> Result<Map<String, Value>> {
    match value {
        Value::Object(object) => Ok(object),
        other => bail!("{place}: expected a JSON object, found {}", super::special::kind(&other)),
    }
}

/// The records of a JSON list, one at a time in memory.
fn each_of_list(list: impl Read, shown: &str, take: &mut Take) -> Result<()> {
    struct Records<'a, 'b> {
        shown: &'a str,
        take: &'a mut Take<'b>,
        left: Rc<Cell<u64>>,
        /// What ended the reading before the list's end: that `take` had enough, or its error.
        ended: &'a mut Option<Result<()>>,
    }
    impl<'de> Visitor<'de> for Records<'_, '_> {
        type Value = ();
        fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
            f.write_str("a list of records")
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
            let mut index = 0;
            while let Some(value) = list.next_element::<Value>()? {
                index += 1;
                let place = format!("{}: record {index}", self.shown);
                match object(&place, value).and_then(|object| (self.take)(place, object)) {
                    Ok(true) => self.left.set(MOST_RECORD),
                    other => {
                        *self.ended = Some(other.map(drop));
                        return Err(A::Error::custom("ended"));
                    }
                }
            }
            Ok(())
        }
    }
    let left = Rc::new(Cell::new(MOST_RECORD));
    let what = format!("a record of more than {MOST_RECORD} bytes");
    let reader = BufReader::with_capacity(1 << 16, Bounded { reader: list, left: left.clone(), what });
    let mut ended = None;
    let mut json = serde_json::Deserializer::from_reader(reader);
    let read = json.deserialize_seq(Records { shown, take, left, ended: &mut ended }).and_then(|()| json.end());
    match ended {
        Some(ended) => ended,
        None => read.with_context(|| format!("{shown}: not a valid JSON list")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn read(bytes: &[u8], name: &str) -> Result<usize> {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join(name);
        std::fs::write(&file, bytes).expect("a file");
        let mut records = 0;
        each_object(&file, &mut |_, _| {
            records += 1;
            Ok(true)
        })
        .map(|()| records)
    }

    fn packed(bytes: &[u8]) -> Vec<u8> {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        packer.write_all(bytes).expect("in memory");
        packer.finish().expect("in memory")
    }

    #[test]
    fn lines_and_lists_of_any_length_are_read_and_their_records_are_bounded() {
        let record = format!("{{\"question\": \"{}\"}}", "é".repeat(1000));
        let many = 2 * MOST_RECORD as usize / record.len();
        let list = format!("\u{feff}\n [{}]", vec![record.as_str(); many].join(","));
        assert_eq!(read(list.as_bytes(), "a.json").expect("a list in one line"), many);
        assert_eq!(read(vec![record.as_str(); 3].join("\n\n").as_bytes(), "a.jsonl").expect("lines"), 3);
        let long = format!("{{\"question\": \"{}\"}}", "a".repeat(MOST_RECORD as usize));
        let error = format!("{:#}", read(long.as_bytes(), "a.jsonl").expect_err("a long line"));
        assert!(error.contains("a.jsonl:1: a line of more than 16777216 bytes"), "{error}");
        let error = format!("{:#}", read(format!("[{record},{long}{long}]").as_bytes(), "a.json").expect_err("long"));
        assert!(error.contains("a.json") && error.contains("a record of more than 16777216 bytes"), "{error}");
        let error = format!("{:#}", read(format!("[{record},5,{record}]").as_bytes(), "a.json").expect_err("a number"));
        assert!(error.contains("a.json: record 2: expected a JSON object"), "{error}");
    }

    #[test]
    fn a_packed_file_unpacks_in_proportion() {
        let line = b"{\"question\": \"a\", \"answer\": \"b\"}\n";
        assert_eq!(read(&packed(&line.repeat(1000)), "a.jsonl.gz").expect("small"), 1000);
        let error = format!("{:#}", read(&packed(&line.repeat(3 << 20)), "a.jsonl.gz").expect_err("a bomb"));
        assert!(error.contains("a.jsonl.gz") && error.contains("more than text does"), "{error}");
    }
}
