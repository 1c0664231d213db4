//! Reads the records of problem files (JSON lines, a JSON list, CSV, Parquet; plain or gzip) and detects their format. `formats` converts a
//! record to problems; `files` resolves a folder. Every error names file, record and key.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::csv::CsvRecords;
use super::files::{self, Content, Part, data_files};
use super::formats::RecordFormat;
use super::record::{self, Record, kind};
use super::{Problem, tables};
use crate::guard::{MOST_TEXT, ensure_memory};
use crate::store::{digits, json};

/// Source of problems in a recipe.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    pub path: PathBuf,
    /// Default: detected from the keys of the first record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<RecordFormat>,
    /// Names of the keys, for `format = "jsonl"`.
    #[serde(default)]
    pub fields: Fields,
    /// Which text is the solution where a record has a list `generations`.
    #[serde(default)]
    pub generations: Generations,
    /// Keep GSM8K's calculator annotations `<<48/2=24>>` in the solution. They are its steps either way.
    #[serde(default)]
    pub keep_calculator: bool,
    /// Read no more than this many problems.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

names! {
    /// Which text is the solution of a record that also has `generations` (OpenR1-Math: traces of R1).
    #[derive(Default)]
    pub enum Generations {
        /// The key `solution`.
        #[default]
        Solution = "solution",
        /// The first generation whose answer the record marks right (`correctness_math_verify`, else `correctness_llama`).
        First = "first",
        /// Each of these, a problem each.
        All = "all",
    }
}

settings! {
    /// Keys of a generic JSONL file. `question` and `answer` are required, the others optional.
    #[derive(Eq)]
    pub struct Fields {
        pub id: String = "id".into(),
        pub question: String = "question".into(),
        pub solution: String = "solution".into(),
        pub answer: String = "answer".into(),
        pub subject: String = "subject".into(),
        pub level: String = "level".into(),
        /// Options of multiple choice; without another name `options` and `endings` too.
        pub choices: String = "choices".into(),
        /// A text before the question in the prompt, such as a passage. None by default.
        pub context: String = String::new(),
        /// Problems with the same value are not split between fitting and judging; without it the question is the group.
        pub group: String = "group".into(),
    }
}

impl Source {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Source { path: path.into(), ..Source::default() }
    }

    /// `fields` if the record has its keys, else the format that its keys imply.
    fn format_of(&self, object: &Map<String, Value>) -> Result<RecordFormat> {
        let Fields { question, answer, .. } = &self.fields;
        let named = self.fields != Fields::default() && object.contains_key(question) && object.contains_key(answer);
        if named { Ok(RecordFormat::Jsonl) } else { RecordFormat::detect(object) }
    }

    /// Reads the problems; in a folder, the held-out ones (`test`, else `validation`).
    ///
    /// # Errors
    /// Content that cannot be read, by file, record and key; one id for two questions.
    pub fn read(&self) -> Result<Vec<Problem>> {
        Ok(self.placed(Part::Test, &mut LeftOut::default())?.into_iter().map(|(problem, _)| problem).collect())
    }

    /// Reads the problems of a part, each with its place (`file:line`) for later messages.
    pub(crate) fn placed(&self, part: Part, left_out: &mut LeftOut) -> Result<Vec<(Problem, String)>> {
        let limit = self.limit.unwrap_or(usize::MAX);
        let mut problems: Vec<(Problem, String)> = Vec::new();
        let mut format = self.format;
        // Only keys that a user named are required.
        let mut absent = if format == Some(RecordFormat::Jsonl) { self.fields.named() } else { vec![] };
        for file in data_files(&self.path, part)? {
            let stem = files::stem(&file);
            let unread = each_object(&file, &mut |place, object| {
                if problems.len() >= limit {
                    return Ok(false);
                }
                absent.retain(|(_, key)| !record::has(&object, key));
                if problems.is_empty() {
                    left_out.parts = self.fields.unread_parts(&object);
                }
                let format = *match &mut format {
                    Some(format) => format,
                    unknown => unknown.insert(self.format_of(&object).with_context(|| place.clone())?),
                };
                let fallback = format!("{}-{stem}-{}", format.name(), problems.len());
                let record = Record { object: &object, place: &place, fallback_id: fallback, source: self };
                let read = record.problems(format)?;
                left_out.unmarked += usize::from(read.is_empty());
                problems.extend(read.into_iter().map(|problem| (problem, place.clone())));
                Ok(true)
            })?;
            let lost = |(_, key): &&(&str, &str)| unread.iter().any(|column| column.split(" (").next() == Some(key));
            if let Some((name, key)) = self.fields.keys().iter().find(lost) {
                bail!(
                    "{}: column `{key}` has an unsupported type ({}): write it as text or numbers, or read the problems without it \
                     (--field {name}=none)",
                    file.display(),
                    unread.join(", ")
                );
            }
        }
        if let Some((name, key)) = absent.first().filter(|_| problems.len() < limit) {
            bail!(
                "{}: no record has the key `{key}` of --field {name}={key} (data.fields in a recipe)",
                self.path.display()
            );
        }
        ensure!(!problems.is_empty(), "{}: has no problem", self.path.display());
        distinct_ids(&mut problems)?;
        // If some solutions have tags, the others have no spans.
        if problems.iter().any(|(problem, _)| problem.spans.is_some()) {
            problems.iter_mut().for_each(|(problem, _)| {
                problem.spans.get_or_insert_default();
            });
        }
        Ok(problems)
    }
}

/// Records and keys that were ignored.
#[derive(Default)]
pub(crate) struct LeftOut {
    /// Number of records without a generation that is marked right.
    pub unmarked: usize,
    /// Keys of the first record that look like parts of its question.
    pub parts: Vec<String>,
}

impl Fields {
    /// The field of a problem and the record's key for it.
    fn keys(&self) -> [(&'static str, &str); 9] {
        let Self { id, question, solution, answer, subject, level, choices, context, group } = self;
        [
            ("id", id),
            ("question", question),
            ("solution", solution),
            ("answer", answer),
            ("subject", subject),
            ("level", level),
            ("choices", choices),
            ("context", context),
            ("group", group),
        ]
        .map(|(name, key)| (name, key.as_str()))
    }

    /// Optional keys that a user named. `none` stands for no key, and a missing id is replaced by a number.
    fn named(&self) -> Vec<(&'static str, &str)> {
        let default = Self::default();
        let named = self.keys().into_iter().zip(default.keys()).filter(|((name, key), (_, default))| {
            key != default && *key != "none" && !["id", "question", "answer"].contains(name)
        });
        named.map(|(named, _)| named).collect()
    }

    /// Keys of a record that are not read although their names suggest parts of the question.
    fn unread_parts(&self, object: &Map<String, Value>) -> Vec<String> {
        const PARTS: &str = "context passage article story paragraph premise hypothesis sentence1 sentence2 input \
            image images figure audio";
        let said = |value: &Value| match value {
            Value::Null => false,
            Value::String(text) => !text.trim().is_empty(),
            Value::Array(items) => !items.is_empty(),
            _ => true,
        };
        let unread = object.iter().filter(|(key, value)| {
            self.context != "none"
                && PARTS.split(' ').any(|part| part == key.to_lowercase())
                && said(value)
                && self.keys().iter().all(|(_, named)| named != key)
        });
        unread.map(|(key, _)| key.clone()).collect()
    }
}

/// Gives each copy of a problem a new id (`id#2`), because rows, spans and states are looked up by id.
///
/// # Errors
/// One id for two questions.
fn distinct_ids(problems: &mut [(Problem, String)]) -> Result<()> {
    let mut seen: HashMap<String, (String, String, usize)> = HashMap::new();
    let written: HashSet<String> = problems.iter().map(|(problem, _)| problem.id.clone()).collect();
    for (problem, place) in problems {
        let asks = problem.asks();
        let Some((question, first, copies)) = seen.get_mut(&problem.id) else {
            seen.insert(problem.id.clone(), (asks, place.clone(), 1));
            continue;
        };
        ensure!(
            *question == asks,
            "{place}: key \"id\": `{}` is also at {first}, with another question; an id names one problem: make them different, \
             or name another key (--field id=KEY; one that no record has numbers them)",
            cut(&problem.id)
        );
        problem.id = loop {
            *copies += 1;
            let new = format!("{}#{copies}", problem.id);
            if !written.contains(&new) {
                break new;
            }
        };
    }
    Ok(())
}

/// A value shortened for messages: it may have megabytes.
pub fn cut(text: &str) -> String {
    const SHOWN: usize = 60;
    let shown: String = text.chars().take(SHOWN).collect();
    let more = if shown.len() < text.len() { "…" } else { "" };
    format!("{shown}{more}")
}

/// Reads every problem of a file; detects the format from its keys.
pub fn read_problems(path: impl Into<PathBuf>) -> Result<Vec<Problem>> {
    Source::new(path).read()
}

/// Calls `take` with the place of each object and the object, until it returns false. Returns the columns of Parquet with unsupported
/// types, which are in no object.
pub fn each_object(
    file: &Path,
    take: &mut dyn FnMut(String, Map<String, Value>) -> Result<bool>,
) -> Result<Vec<String>> {
    let shown = file.display();
    let mut left_out = vec![];
    let rows = match files::open(file)? {
        Content::Json(reader) => return each_json(file, reader, take).map(|()| left_out),
        Content::Csv(reader) => return each_row(file, reader, take).map(|()| left_out),
        Content::Parquet(bytes) => tables::parquet(bytes, &mut left_out).with_context(|| shown.to_string())?,
    };
    match each(file, rows, take) {
        Err(error) if !left_out.is_empty() => {
            Err(anyhow!("{error:#} (columns of unsupported types: {})", left_out.join(", ")))
        }
        done => done.map(|()| left_out),
    }
}

/// Calls `take` with the records of a file without lines.
fn each(
    file: &Path,
    rows: Vec<Map<String, Value>>,
    take: &mut dyn FnMut(String, Map<String, Value>) -> Result<bool>,
) -> Result<()> {
    for (index, row) in rows.into_iter().enumerate() {
        if !take(format!("{}: record {}", file.display(), index + 1), row)? {
            break;
        }
    }
    Ok(())
}

fn each_row(
    file: &Path,
    reader: Box<dyn BufRead>,
    take: &mut dyn FnMut(String, Map<String, Value>) -> Result<bool>,
) -> Result<()> {
    let mut records = CsvRecords::open(reader).with_context(|| file.display().to_string())?;
    for number in 1.. {
        let place = || format!("{}: record {number}", file.display());
        let Some(record) = records.next().with_context(place)? else { break };
        if !take(place(), record)? {
            break;
        }
    }
    Ok(())
}

fn each_json(
    file: &Path,
    mut reader: Box<dyn BufRead>,
    take: &mut dyn FnMut(String, Map<String, Value>) -> Result<bool>,
) -> Result<()> {
    let shown = file.display();
    let object = |place: &str, value: Value| match value {
        Value::Object(object) => Ok(object),
        other => bail!("{place}: expected a JSON object, found {}", kind(&other)),
    };
    let mut line = String::new();
    let (mut number, mut seen) = (0, false);
    loop {
        line.clear();
        number += 1;
        let came = read_line(&mut reader, &mut line, !seen).with_context(|| format!("{shown}:{number}"))?;
        if came == 0 {
            return Ok(());
        }
        let text = line.trim_start_matches('\u{feff}').trim();
        if text.is_empty() {
            continue;
        }
        let place = format!("{shown}:{number}");
        // One list over the whole file, or one object over several lines.
        if !seen && (text.starts_with('[') || text == "{" || came as u64 > MOST_RECORD) {
            break;
        }
        let value = digits::read(text).map_err(clearer).with_context(|| format!("{place}: not valid JSON"))?;
        ensure_distinct(text, &place)?;
        // `{"data": [...]}` as the only line.
        if !seen && wrapped(&value).is_some() && is_at_end(&mut reader).with_context(|| shown.to_string())? {
            line = text.to_owned();
            break;
        }
        seen = true;
        if !take(place.clone(), object(&place, value)?)? {
            return Ok(());
        }
    }
    // Without lines, places are record numbers.
    reader.take(MOST_LIST).read_to_string(&mut line).map_err(files::unread).with_context(|| shown.to_string())?;
    ensure!(
        (line.len() as u64) < MOST_LIST,
        "{shown}: a JSON list of more than {MOST_LIST} bytes: write one record a line"
    );
    ensure_memory(|| format!("{shown}: a JSON list of {} bytes", line.len()), 16 * line.len() as u64)?;
    let text = line.trim_start_matches('\u{feff}');
    let whole: Value =
        digits::read(text).map_err(clearer).with_context(|| format!("{shown}: not a valid JSON list"))?;
    ensure_distinct(text, &shown.to_string())?;
    let list = match whole {
        Value::Array(list) => list,
        whole @ Value::Object(_) => wrapped(&whole).cloned().unwrap_or_else(|| vec![whole]),
        other => bail!("{shown}: expected a list of JSON objects, found {}", kind(&other)),
    };
    for (index, value) in list.into_iter().enumerate() {
        let place = format!("{shown}: record {}", index + 1);
        let value = object(&place, value)?;
        if !take(place, value)? {
            break;
        }
    }
    Ok(())
}

/// The problems of an object that stores them under one key next to settings: `{"version": 1, "data": [...]}`. `None` for an object
/// that is a problem itself, and for a list of messages (a prompt).
fn wrapped(value: &Value) -> Option<&Vec<Value>> {
    const SETTING: usize = 30;
    /// Names of problem lists; texts next to these may have any length.
    const LISTS: [&str; 8] = ["data", "examples", "problems", "questions", "rows", "records", "items", "instances"];
    let object = value.as_object().filter(|object| RecordFormat::detect(object).is_err())?;
    let mut lists = object.iter().filter(|(_, value)| value.is_array());
    let ((name, list), None) = (lists.next()?, lists.next()) else { return None };
    let list = list.as_array()?;
    let is_named = LISTS.contains(&name.as_str());
    let setting = |value: &Value| match value {
        Value::Array(_) | Value::Number(_) | Value::Bool(_) | Value::Null => true,
        Value::String(text) => is_named || text.len() <= SETTING,
        Value::Object(_) => is_named || digits::digits(value).is_some(),
    };
    let problem = |item: &Value| item.as_object().is_some_and(|item| !item.contains_key("role"));
    ((is_named || object.len() <= 3) && object.values().all(setting) && !list.is_empty() && list.iter().all(problem))
        .then_some(list)
}

/// Whether only white space follows.
fn is_at_end(reader: &mut dyn BufRead) -> Result<bool> {
    loop {
        let held = reader.fill_buf().map_err(files::unread)?;
        if held.is_empty() {
            return Ok(true);
        }
        let spaces = held.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        if spaces < held.len() {
            return Ok(false);
        }
        reader.consume(spaces);
    }
}

/// Refuses an object with a repeated key: JSON readers differ in which value they use.
fn ensure_distinct(text: &str, place: &str) -> Result<()> {
    let Some(key) = json::twice(text) else { return Ok(()) };
    bail!("{place}: key \"{key}\" occurs twice in one object: remove one of them")
}

/// The non-blank lines of a file, each with its place (`file:line`).
pub fn lines(file: &Path) -> Result<Vec<(String, String)>> {
    let shown = file.display();
    let mut text = String::new();
    match files::open(file)? {
        Content::Json(reader) => reader
            .take(MOST_TEXT)
            .read_to_string(&mut text)
            .map_err(files::unread)
            .with_context(|| shown.to_string())?,
        Content::Csv(_) | Content::Parquet(_) => bail!("{shown}: a table; expected one JSON object a line"),
    };
    ensure!((text.len() as u64) < MOST_TEXT, "{shown}: more than {MOST_TEXT} bytes");
    let lines = text.trim_start_matches('\u{feff}').lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    Ok(lines.map(|(number, line)| (format!("{shown}:{}", number + 1), line.to_owned())).collect())
}

/// Maximum bytes of a JSON list, which is read whole.
const MOST_LIST: u64 = 512 << 20;

/// Maximum bytes of one record of JSON lines or CSV.
pub(super) const MOST_RECORD: u64 = 16 << 20;

fn read_line(reader: &mut dyn BufRead, line: &mut String, first: bool) -> Result<usize> {
    let came = reader.take(MOST_RECORD + 1).read_line(line).map_err(files::unread)?;
    // A list, also `{"data": [...]}`, may be one line of the whole file.
    let begin: String = line.trim_start_matches('\u{feff}').chars().filter(|c| !c.is_whitespace()).take(80).collect();
    let list = begin.starts_with('[') || begin.starts_with("{\"") && begin.contains("\":[{");
    ensure!(
        came as u64 <= MOST_RECORD || first && list,
        "a line of more than {MOST_RECORD} bytes: one problem a line is expected"
    );
    Ok(came)
}

/// Explains serde_json's message on unpaired surrogates.
fn clearer(error: anyhow::Error) -> anyhow::Error {
    let said = error.to_string();
    let half = said.contains("surrogate") || said.contains("hex escape");
    if half {
        return anyhow!(
            "half of a character, an unpaired surrogate such as \\ud83d: remove it, or write the file again from valid text ({said})"
        );
    }
    error
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
        .map(|_| records)
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
        assert_eq!(read([record.as_str(); 3].join("\n\n").as_bytes(), "a.jsonl").expect("lines"), 3);
        let long = format!("{{\"question\": \"{}\"}}", "a".repeat(MOST_RECORD as usize));
        let error = format!("{:#}", read(long.as_bytes(), "a.jsonl").expect_err("a long line"));
        assert!(error.contains("a.jsonl:1: a line of more than 16777216 bytes"), "{error}");
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
