//! Annotation of a corpus: scores every response once, then tags it by the span rule.
//!
//! Knows samples, files and order of work; the base model is a closure. Scores go to disk in parts as they are made
//! (`entropies`), so that a run that was stopped goes on where it was; tags depend on the whole corpus' quantile and are
//! written at the end, from the stored scores, so that other span settings need no second pass of the model.

use std::collections::HashSet;
use std::fmt::Write;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::entropies::Store;
use super::samples::Sample;
use super::spans::{Scored, SpanSettings, mean};
use super::write_atomic;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AnnotateSettings {
    pub spans: SpanSettings,
    /// Most samples in one batch.
    pub batch_rows: usize,
    /// Most tokens in one batch, padding included. One sample alone may be longer.
    pub batch_tokens: usize,
    /// Samples between two writes to disk: what a crash can lose.
    pub part_rows: usize,
}

impl Default for AnnotateSettings {
    fn default() -> Self {
        AnnotateSettings {
            spans: SpanSettings::default(),
            batch_rows: 32,
            batch_tokens: 8192,
            part_rows: 512,
        }
    }
}

impl AnnotateSettings {
    pub fn check(&self) -> Result<()> {
        for (name, value) in [
            ("batch_rows", self.batch_rows),
            ("batch_tokens", self.batch_tokens),
            ("part_rows", self.part_rows),
        ] {
            ensure!(value >= 1, "annotate.{name}: expected at least 1, found 0");
        }
        self.spans.check()
    }
}

/// One line of `tagged.jsonl`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tagged {
    pub id: String,
    /// Response tokens of each block.
    pub spans: Vec<Range<usize>>,
    /// Latents at the last stage.
    pub latents: usize,
    pub tagged_solution: String,
}

/// What `summary.json` says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// What was scored, and by which model: the caller's words.
    pub source: String,
    pub settings: AnnotateSettings,
    pub samples: usize,
    pub positions: usize,
    pub mean_entropy: f64,
    pub threshold: f32,
    pub spans: usize,
    pub span_tokens: usize,
    pub samples_without_span: usize,
    pub too_short: usize,
    pub over_cap: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Annotation {
    /// In the order of the samples given.
    pub tagged: Vec<Tagged>,
    pub summary: Summary,
    /// Entropies of each sample, in the same order.
    pub entropies: Vec<Vec<f32>>,
}

/// Annotates `samples` into `folder`: `entropies/part-*.parquet` while it works, then `entropies.parquet`,
/// `tagged.jsonl` and `summary.json`. `source` names model and data; a folder begun under another name is refused.
/// `score` gives one entropy (nats) for each response token of each sample of a batch; `progress` is told how many
/// samples are done.
pub fn annotate(
    samples: &[Sample],
    settings: &AnnotateSettings,
    folder: &Path,
    source: &str,
    mut score: impl FnMut(&[&Sample]) -> Result<Vec<Vec<f32>>>,
    mut progress: impl FnMut(usize, usize),
) -> Result<Annotation> {
    settings.check()?;
    ensure!(!samples.is_empty(), "annotate: no samples");
    let mut store = Store::open(folder, source)?;
    check_ids(samples)?;
    let mut waiting = Vec::new();
    for sample in samples {
        if !store.has(sample)? {
            waiting.push(sample);
        }
    }
    let mut done = samples.len() - waiting.len();
    progress(done, samples.len());
    for batch in batches(waiting, settings.batch_rows, settings.batch_tokens) {
        let entropies = match score(&batch) {
            Ok(entropies) => entropies,
            Err(error) => {
                store.save_part()?;
                return Err(error);
            }
        };
        ensure!(
            entropies.len() == batch.len(),
            "annotate: asked for entropies of {} samples, got {}",
            batch.len(),
            entropies.len()
        );
        done += batch.len();
        for (sample, entropies) in batch.into_iter().zip(entropies) {
            store.add(sample, entropies)?;
        }
        if store.unsaved() >= settings.part_rows {
            store.save_part()?;
        }
        progress(done, samples.len());
    }
    store.save_part()?;

    let entropies = samples
        .iter()
        .map(|sample| store.get(sample))
        .collect::<Result<Vec<_>>>()?;
    let (tagged, summary) = tag(samples, &entropies, settings, source)?;
    write_outputs(samples, &entropies, &tagged, &summary, folder)?;
    Ok(Annotation {
        tagged,
        summary,
        entropies,
    })
}

/// Ids must be distinct: they are what a resumed run goes by.
fn check_ids(samples: &[Sample]) -> Result<()> {
    let mut seen = HashSet::with_capacity(samples.len());
    for sample in samples {
        ensure!(
            seen.insert(sample.id.as_str()),
            "annotate: two samples have the id {:?}",
            sample.id
        );
    }
    Ok(())
}

/// Batches of samples of like length, so that little of a batch is padding.
pub fn batches(mut samples: Vec<&Sample>, rows: usize, tokens: usize) -> Vec<Vec<&Sample>> {
    samples.sort_by_key(|sample| sample.length());
    let mut batches: Vec<Vec<&Sample>> = Vec::new();
    for sample in samples {
        match batches.last_mut() {
            // Sorted: the newest sample is the longest, so it sets the padded width.
            Some(batch) if batch.len() < rows && (batch.len() + 1) * sample.length() <= tokens => {
                batch.push(sample)
            }
            _ => batches.push(vec![sample]),
        }
    }
    batches
}

/// The span rule over a whole corpus.
pub fn tag(
    samples: &[Sample],
    entropies: &[Vec<f32>],
    settings: &AnnotateSettings,
    source: &str,
) -> Result<(Vec<Tagged>, Summary)> {
    let rule = &settings.spans;
    let corpus: Vec<Scored> = samples
        .iter()
        .zip(entropies)
        .map(|(sample, entropies)| Scored {
            entropies,
            clauses: &sample.clauses,
            answer: sample.answer.as_ref(),
        })
        .collect();
    let threshold = rule.threshold(corpus.iter().copied())?;
    let positions = entropies.iter().map(Vec::len).sum();
    let total: f64 = entropies
        .iter()
        .flatten()
        .map(|&entropy| f64::from(entropy))
        .sum();
    let mut summary = Summary {
        source: source.to_string(),
        settings: settings.clone(),
        samples: samples.len(),
        positions,
        mean_entropy: total / positions as f64,
        threshold,
        spans: 0,
        span_tokens: 0,
        samples_without_span: 0,
        too_short: 0,
        over_cap: 0,
    };
    let mut tagged = Vec::with_capacity(samples.len());
    for (sample, scored) in samples.iter().zip(corpus) {
        let chosen = rule.choose(scored, threshold);
        summary.spans += chosen.spans.len();
        summary.span_tokens += chosen.spans.iter().map(Range::len).sum::<usize>();
        summary.samples_without_span += usize::from(chosen.spans.is_empty());
        summary.too_short += chosen.too_short;
        summary.over_cap += chosen.over_cap;
        tagged.push(Tagged {
            id: sample.id.clone(),
            latents: chosen.spans.iter().map(|span| rule.latents(span)).sum(),
            tagged_solution: sample.tagged_solution(&chosen.spans),
            spans: chosen.spans,
        });
    }
    Ok((tagged, summary))
}

fn write_outputs(
    samples: &[Sample],
    entropies: &[Vec<f32>],
    tagged: &[Tagged],
    summary: &Summary,
    folder: &Path,
) -> Result<()> {
    super::entropies::write_all(
        &folder.join("entropies.parquet"),
        samples,
        entropies,
        tagged,
    )?;
    let mut lines = String::new();
    for row in tagged {
        lines.push_str(&serde_json::to_string(row)?);
        lines.push('\n');
    }
    write_atomic(&folder.join("tagged.jsonl"), lines.as_bytes())?;
    write_atomic(
        &folder.join("summary.json"),
        serde_json::to_string_pretty(summary)?.as_bytes(),
    )
}

/// Reads `tagged.jsonl`.
pub fn read_tagged(file: &Path) -> Result<Vec<Tagged>> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("{}: cannot read", file.display()))?;
    let parse = |(number, line): (usize, &str)| {
        serde_json::from_str(line)
            .with_context(|| format!("{}:{}: not a tagged solution", file.display(), number + 1))
    };
    text.lines().enumerate().map(parse).collect()
}

impl Annotation {
    /// The first samples as a reader should see them: totals, then tagged text with each span's mean entropy.
    pub fn excerpt(&self, samples: usize) -> String {
        let Summary {
            spans,
            threshold,
            positions,
            span_tokens,
            ..
        } = self.summary;
        let share = 100.0 * span_tokens as f64 / positions as f64;
        let mut text = format!(
            "{} samples, {positions} positions, threshold {threshold:.3} nats, {spans} spans over {share:.1} % of positions; \
             {} samples without one\n",
            self.summary.samples, self.summary.samples_without_span
        );
        for (row, entropies) in self.tagged.iter().zip(&self.entropies).take(samples) {
            let means: Vec<String> = row
                .spans
                .iter()
                .map(|span| format!("{:.2}", mean(entropies, span)))
                .collect();
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "{} [{}]\n  {}",
                row.id,
                means.join(" "),
                row.tagged_solution.replace('\n', "\n  ")
            );
        }
        text
    }
}
