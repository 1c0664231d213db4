//! Files of problems: opens them (plain or gzip, one JSON object a line or one JSON list), tells their format, reads them.
//! What a record of each format means is in `formats`. Every error names file, record and key.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
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

/// Opens a file; gzip is told by its first bytes, not by its name.
fn open(file: &Path) -> Result<Box<dyn BufRead>> {
    let context = || format!("{}: cannot read", file.display());
    let mut plain = BufReader::new(std::fs::File::open(file).with_context(context)?);
    if plain.fill_buf().with_context(context)?.starts_with(&[0x1f, 0x8b]) {
        return Ok(Box::new(BufReader::new(flate2::bufread::MultiGzDecoder::new(plain))));
    }
    Ok(Box::new(plain))
}

/// Calls `take` with each object and the place it stands at, until it returns false.
fn each_object(file: &Path, take: &mut dyn FnMut(String, Map<String, Value>) -> Result<bool>) -> Result<()> {
    let shown = file.display();
    let object = |place: &str, value: Value| match value {
        Value::Object(object) => Ok(object),
        other => bail!("{place}: expected a JSON object, found {}", super::special::kind(&other)),
    };
    let mut reader = open(file)?;
    let mut line = String::new();
    let mut number = 0;
    loop {
        line.clear();
        number += 1;
        if reader.read_line(&mut line).with_context(|| format!("{shown}:{number}: cannot read"))? == 0 {
            return Ok(());
        }
        let text = line.trim_start_matches('\u{feff}').trim();
        if text.is_empty() {
            continue;
        }
        if number == 1 && text.starts_with('[') {
            break;
        }
        let place = format!("{shown}:{number}");
        let value = serde_json::from_str(text).with_context(|| format!("{place}: not valid JSON"))?;
        let value = object(&place, value)?;
        if !take(place, value)? {
            return Ok(());
        }
    }
    // One list over the whole file: there are no lines to name, so records are.
    let list = line.trim_start_matches('\u{feff}').as_bytes().chain(reader);
    let list: Vec<Value> = serde_json::from_reader(list).with_context(|| format!("{shown}: not a valid JSON list"))?;
    for (index, value) in list.into_iter().enumerate() {
        let place = format!("{shown}: record {}", index + 1);
        let value = object(&place, value)?;
        if !take(place, value)? {
            break;
        }
    }
    Ok(())
}
