//! `report grade`: grades a file of pairs. One JSON object a line with `gold` and `pred`; `verdict` and `rule` are
//! added and everything else is kept, in the order of the input. Reads in blocks, grades a block in parallel, and puts
//! the output in place only once it is complete.

use super::equivalent;
use anyhow::{Context, Result, bail, ensure};
use rayon::prelude::*;
use serde_json::{Map, Value};
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use tempfile::NamedTempFile;

/// Lines held in memory at a time.
const BLOCK: usize = 4096;

/// What was graded; `agree` and `labelled` count pairs that carry a boolean `expected`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub pairs: usize,
    pub equal: usize,
    pub labelled: usize,
    pub agree: usize,
}

/// Grades the pairs of `input` into `output`.
pub fn grade_file(input: &Path, output: &Path) -> Result<Summary> {
    let file = File::open(input).with_context(|| format!("cannot open {}", input.display()))?;
    let temporary = beside(output)?;
    let mut writer = BufWriter::new(temporary);
    let mut summary = Summary::default();
    let mut lines = BufReader::new(file).lines().enumerate();
    let mut first = 1;
    loop {
        let block: Vec<String> = lines
            .by_ref()
            .take(BLOCK)
            .map(|(k, line)| line.with_context(|| format!("{}, line {}: cannot be read", input.display(), k + 1)))
            .collect::<Result<_>>()?;
        if block.is_empty() {
            break;
        }
        let graded: Vec<Option<Value>> = block
            .par_iter()
            .enumerate()
            .map(|(k, line)| grade_line(line).with_context(|| format!("{}, line {}", input.display(), first + k)))
            .collect::<Result<_>>()?;
        for row in graded.into_iter().flatten() {
            count(&row, &mut summary);
            serde_json::to_writer(&mut writer, &row)?;
            writer.write_all(b"\n")?;
        }
        first += block.len();
    }
    let temporary = writer.into_inner().map_err(|e| e.into_error()).context("cannot finish the output")?;
    temporary.persist(output).with_context(|| format!("cannot put {} in place", output.display()))?;
    Ok(summary)
}

/// A temporary file in the output's folder, with the permissions that a new file gets.
fn beside(output: &Path) -> Result<NamedTempFile> {
    if let Ok(there) = output.metadata() {
        ensure!(there.is_file(), "{}: not a file (a folder, a device or a pipe): name a file", output.display());
    }
    let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666)); // less what the umask takes away
    let file = builder.tempfile_in(folder);
    file.with_context(|| format!("cannot write in {} (does the folder exist?)", folder.display()))
}

fn count(row: &Value, s: &mut Summary) {
    let verdict = row["verdict"].as_bool().unwrap_or(false);
    s.pairs += 1;
    s.equal += usize::from(verdict);
    if let Some(expected) = row.get("expected").and_then(Value::as_bool) {
        s.labelled += 1;
        s.agree += usize::from(expected == verdict);
    }
}

/// The graded row of a line; `None` for an empty line.
fn grade_line(line: &str) -> Result<Option<Value>> {
    if line.trim().is_empty() {
        return Ok(None);
    }
    let mut row: Map<String, Value> = serde_json::from_str(line).context("not a JSON object")?;
    let verdict = equivalent(text(&row, "gold")?, text(&row, "pred")?);
    row.insert("verdict".into(), verdict.equal.into());
    row.insert("rule".into(), verdict.rule.to_string().into());
    Ok(Some(Value::Object(row)))
}

fn text<'a>(row: &'a Map<String, Value>, key: &str) -> Result<&'a str> {
    match row.get(key) {
        Some(Value::String(s)) => Ok(s),
        Some(other) => bail!("key \"{key}\" is not a string but {other}"),
        None => bail!("key \"{key}\" is missing (a pair has \"gold\" and \"pred\")"),
    }
}
