//! `report grade`: grades a file of pairs. A record has `gold` and `pred`; `verdict`, `rule` and `grader` are added, other keys are copied, in
//! the order of the input. Reads in blocks, grades a block in parallel, and puts the output in place only once it is complete.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use rayon::prelude::*;
use serde_json::{Map, Value};

use super::{print, spooled};
use switchyard::grade::{Grader, GraderCounts, GraderVerdict, Grading};
use switchyard::progress::say;
use switchyard::store::{digits, output_path, write_with};
use switchyard::text::sources::each_object;

/// Records in memory at a time.
const BLOCK: usize = 4096;

/// Grade pairs (JSON lines, CSV or Parquet with "gold" and "pred"); adds "verdict", "rule" and "grader" to each.
#[derive(Args, Clone, Debug)]
pub(super) struct Grade {
    /// The pairs to read, one JSON object per line
    #[arg(long)]
    pairs: PathBuf,
    /// Output file; replaced only once it is complete
    #[arg(long)]
    out: PathBuf,
    /// math, exact (the same words) or choice (the same letter); by default chosen by each gold answer
    #[arg(long, value_name = "NAME")]
    grader: Option<Grader>,
    /// Grade like a reward: units, number bases and digits beyond the sixth count, and unreadable parts are not ignored
    #[arg(long)]
    strict: bool,
}

impl Grade {
    pub fn run(&self) -> Result<()> {
        let s = grade_file(
            &spooled(&self.pairs)?,
            &output_path(&self.out).context("--out")?,
            Grading { named: self.grader, strict: self.strict },
        )?;
        let how = if self.grader.is_some() { "named" } else { "from the gold answers; --grader names one for all" };
        say(&format!("grader: {} ({how})", s.counted));
        let mut done = format!("{} pairs, {} equal → {}\n", s.counted.all, s.equal, self.out.display());
        if s.labelled > 0 {
            done += &format!("agrees with \"expected\" in {} of {}\n", s.agree, s.labelled);
        }
        print(&done)
    }
}

/// Totals; `agree` and `labelled` count pairs with a boolean `expected`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub counted: GraderCounts,
    pub equal: usize,
    pub labelled: usize,
    pub agree: usize,
}

/// Grades the pairs of `input` into `output`.
pub fn grade_file(input: &Path, output: &Path, grading: Grading) -> Result<Summary> {
    let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    ensure!(folder.is_dir(), "cannot write in {} (does the folder exist?)", folder.display());
    write_with(output, |writer| grade_into(input, grading, writer))
}

fn grade_into(input: &Path, grading: Grading, writer: &mut dyn Write) -> Result<Summary> {
    let mut summary = Summary::default();
    let mut block: Vec<(String, Map<String, Value>)> = vec![];
    let left_out = each_object(input, &mut |place, row| {
        block.push((place, row));
        if block.len() == BLOCK {
            grade_block(&mut block, grading, &mut summary, writer)?;
        }
        Ok(true)
    })?;
    grade_block(&mut block, grading, &mut summary, writer)?;
    ensure!(summary.counted.all > 0, "{}: has no pairs", input.display());
    if !left_out.is_empty() {
        say(&format!("warning: columns of unsupported types are left out: {}", left_out.join(", ")));
    }
    if let Some(warning) = summary.counted.check(&input.display().to_string())? {
        say(&warning);
    }
    Ok(summary)
}

fn grade_block(
    block: &mut Vec<(String, Map<String, Value>)>,
    grading: Grading,
    summary: &mut Summary,
    writer: &mut dyn Write,
) -> Result<()> {
    let read = |(place, row): &(String, Map<String, Value>)| -> Result<(String, GraderVerdict)> {
        let text = |key| text(row, key).with_context(|| place.clone());
        let (gold, pred) = (text("gold")?, text("pred")?);
        let verdict = grading.grade(&gold, &pred);
        Ok((gold, verdict))
    };
    let graded: Vec<(String, GraderVerdict)> = block.par_iter().map(read).collect::<Result<_>>()?;
    summary.counted.add(grading.counted(graded.iter().map(|(gold, _)| gold.as_str())));
    for ((_, mut row), (gold, verdict)) in block.drain(..).zip(graded) {
        summary.equal += usize::from(verdict.equal);
        if let Some(expected) = row.get("expected").and_then(Value::as_bool) {
            summary.labelled += 1;
            summary.agree += usize::from(expected == verdict.equal);
        }
        row.insert("verdict".into(), verdict.equal.into());
        row.insert("rule".into(), verdict.rule.to_string().into());
        row.insert("grader".into(), grading.grader(&gold).name().into());
        writeln!(writer, "{}", digits::write(&Value::Object(row)))?;
    }
    Ok(())
}

fn text(row: &Map<String, Value>, key: &str) -> Result<String> {
    match row.get(key) {
        Some(value) if digits::digits(value).is_some() => Ok(digits::plain(digits::digits(value).unwrap_or_default())),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Bool(is)) => Ok(is.to_string()),
        Some(other) => bail!("key \"{key}\" is not a text but {}", digits::write(other)),
        None => bail!("key \"{key}\" is missing (a pair has \"gold\" and \"pred\")"),
    }
}
