//! Annotates a corpus: scores every response once, then tags spans by the span rule.
//!
//! Scores are written in parts as they are computed (`entropies`), so that a stopped run resumes. Tags depend on a quantile of the whole
//! corpus and are computed at the end from the stored scores, so that other span settings need no second pass of the model. Knows samples,
//! files and order of work; the base model is a closure.

use std::collections::HashSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::entropies::Store;
use super::samples::Sample;
use super::spans::SpanSettings;
use super::tagging::{Annotation, Summary, TaggedLine, tag, tagged_in_data};
use crate::store::write_atomic;

settings! {
    pub struct AnnotateSettings {
        pub spans: SpanSettings = SpanSettings::default(),
        /// Maximum number of samples in one batch.
        pub batch_rows: usize = 32,
        /// Maximum number of tokens in one batch, padding included. A single sample may be longer.
        pub batch_tokens: usize = 8192,
        /// Number of samples between two writes to disk: the most that a crash can lose.
        pub part_rows: usize = 512,
    }
}

impl AnnotateSettings {
    pub fn check(&self) -> Result<()> {
        for (name, value) in
            [("batch_rows", self.batch_rows), ("batch_tokens", self.batch_tokens), ("part_rows", self.part_rows)]
        {
            ensure!(value >= 1, "annotate.{name}: expected at least 1, found 0");
        }
        self.spans.check()
    }
}

/// Annotates `samples` into `folder`: `entropies/part-*.parquet` during the work, then `entropies.parquet`, `tagged.jsonl` and
/// `summary.json`. `source` names model and data; a folder of another source is refused. `score` returns one entropy (nats) for each
/// response token of each sample of a batch; `progress` receives the number of finished samples.
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
            "annotate: requested entropies of {} samples, got {}",
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

    let entropies = samples.iter().map(|sample| store.get(sample)).collect::<Result<Vec<_>>>()?;
    let (tagged, summary) = tag(samples, &entropies, settings, source)?;
    super::entropies::write_all(&folder.join("entropies.parquet"), samples, &entropies, &tagged)?;
    write_tags(&tagged, &summary, folder)?;
    Ok(Annotation { tagged, summary, entropies })
}

/// Uses the spans of the data, if it has them: writes the same files except the entropies, without a model.
pub fn take_spans(
    samples: &[Sample],
    settings: &AnnotateSettings,
    folder: &Path,
    source: &str,
) -> Result<Option<Annotation>> {
    let Some((tagged, summary)) = tagged_in_data(samples, settings, source) else { return Ok(None) };
    check_ids(samples)?;
    std::fs::create_dir_all(folder).with_context(|| format!("{}: cannot make the folder", folder.display()))?;
    write_tags(&tagged, &summary, folder)?;
    Ok(Some(Annotation { tagged, summary, entropies: vec![vec![]; samples.len()] }))
}

/// Requires distinct ids, by which a resumed run finds its samples.
fn check_ids(samples: &[Sample]) -> Result<()> {
    let mut seen = HashSet::with_capacity(samples.len());
    for sample in samples {
        ensure!(seen.insert(sample.id.as_str()), "annotate: two samples have the id {:?}", sample.id);
    }
    Ok(())
}

/// Batches of samples of similar length, to limit padding.
pub fn batches(mut samples: Vec<&Sample>, rows: usize, tokens: usize) -> Vec<Vec<&Sample>> {
    samples.sort_by_key(|sample| sample.length());
    let mut batches: Vec<Vec<&Sample>> = Vec::new();
    for sample in samples {
        match batches.last_mut() {
            // Sorted: the newest sample is the longest, so it sets the padded width.
            Some(batch) if batch.len() < rows && (batch.len() + 1) * sample.length() <= tokens => batch.push(sample),
            _ => batches.push(vec![sample]),
        }
    }
    batches
}

fn write_tags(tagged: &[TaggedLine], summary: &Summary, folder: &Path) -> Result<()> {
    let mut lines = String::new();
    for row in tagged {
        lines.push_str(&serde_json::to_string(row)?);
        lines.push('\n');
    }
    write_atomic(&folder.join("tagged.jsonl"), lines.as_bytes())?;
    write_atomic(&folder.join("summary.json"), serde_json::to_string_pretty(summary)?.as_bytes())
}
