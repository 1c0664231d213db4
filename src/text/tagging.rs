//! Result of an annotation: tagged solutions and totals. Knows samples and the span rule, not the model.

use std::fmt::Write;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::annotate::AnnotateSettings;
use super::samples::Sample;
use super::spans::{ScoredResponse, SpanSettings, mean};
use crate::guard::read_text;

/// One line of `tagged.jsonl`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaggedLine {
    pub id: String,
    /// Response tokens of each block.
    pub spans: Vec<Range<usize>>,
    /// Latents at the last stage.
    pub latents: usize,
    pub tagged_solution: String,
}

/// Contents of `summary.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Data and model of the scores, in the caller's words.
    pub source: String,
    pub settings: AnnotateSettings,
    pub samples: usize,
    pub positions: usize,
    pub mean_entropy: f64,
    /// Entropy from which on a token could be in a span; `None` for spans of the data.
    pub threshold: Option<f32>,
    pub spans: usize,
    pub span_tokens: usize,
    pub samples_without_span: usize,
    pub too_short: usize,
    pub over_cap: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Annotation {
    /// In the order of the samples.
    pub tagged: Vec<TaggedLine>,
    pub summary: Summary,
    /// Entropies of each sample, in the same order; empty if nothing was scored.
    pub entropies: Vec<Vec<f32>>,
}

impl TaggedLine {
    fn new(sample: &Sample, spans: Vec<Range<usize>>, rule: &SpanSettings) -> Self {
        Self {
            id: sample.id.clone(),
            latents: spans.iter().map(|span| rule.latents(span)).sum(),
            tagged_solution: sample.tagged_solution(&spans),
            spans,
        }
    }
}

impl Summary {
    /// The totals of tagged samples, without entropies.
    fn count(samples: &[Sample], tagged: &[TaggedLine], settings: &AnnotateSettings, source: &str) -> Self {
        let spans = || tagged.iter().flat_map(|line| &line.spans);
        Self {
            source: source.to_owned(),
            settings: settings.clone(),
            samples: samples.len(),
            positions: samples.iter().map(|sample| sample.response.len()).sum(),
            mean_entropy: 0.0,
            threshold: None,
            spans: spans().count(),
            span_tokens: spans().map(Range::len).sum(),
            samples_without_span: tagged.iter().filter(|line| line.spans.is_empty()).count(),
            too_short: 0,
            over_cap: 0,
        }
    }
}

/// Applies the span rule to a whole corpus.
pub(crate) fn tag(
    samples: &[Sample],
    entropies: &[Vec<f32>],
    settings: &AnnotateSettings,
    source: &str,
) -> Result<(Vec<TaggedLine>, Summary)> {
    let rule = &settings.spans;
    let corpus: Vec<ScoredResponse> = samples
        .iter()
        .zip(entropies)
        .map(|(sample, entropies)| ScoredResponse {
            entropies,
            clauses: &sample.clauses,
            answer: sample.answer.as_ref(),
        })
        .collect();
    let threshold = rule.threshold(corpus.iter().copied())?;
    let (mut tagged, mut too_short, mut over_cap) = (Vec::with_capacity(samples.len()), 0, 0);
    for (sample, scored) in samples.iter().zip(corpus) {
        let chosen = rule.choose(scored, threshold);
        too_short += chosen.too_short;
        over_cap += chosen.over_cap;
        tagged.push(TaggedLine::new(sample, chosen.spans, rule));
    }
    let total: f64 = entropies.iter().flatten().map(|&entropy| f64::from(entropy)).sum();
    let summary = Summary::count(samples, &tagged, settings, source);
    let mean_entropy = total / summary.positions as f64;
    Ok((tagged, Summary { mean_entropy, threshold: Some(threshold), too_short, over_cap, ..summary }))
}

/// Spans of the data, if every sample has its own; nothing is scored then.
pub fn tagged_in_data(
    samples: &[Sample],
    settings: &AnnotateSettings,
    source: &str,
) -> Option<(Vec<TaggedLine>, Summary)> {
    let line = |sample: &Sample| Some(TaggedLine::new(sample, sample.spans.clone()?, &settings.spans));
    let tagged = samples.iter().map(line).collect::<Option<Vec<_>>>().filter(|tagged| !tagged.is_empty())?;
    let summary = Summary::count(samples, &tagged, settings, source);
    Some((tagged, summary))
}

/// Reads `tagged.jsonl`.
pub fn read_tagged(file: &Path) -> Result<Vec<TaggedLine>> {
    let text = read_text(file).with_context(|| format!("{}: cannot read", file.display()))?;
    let parse = |(number, line): (usize, &str)| {
        serde_json::from_str(line).with_context(|| format!("{}:{}: not a tagged solution", file.display(), number + 1))
    };
    text.lines().enumerate().map(parse).collect()
}

impl Annotation {
    /// The first samples for a human reader: totals, then tagged text with each span's mean entropy.
    pub fn excerpt(&self, samples: usize) -> String {
        let Summary { spans, threshold, positions, span_tokens, .. } = self.summary;
        let share = 100.0 * span_tokens as f64 / positions as f64;
        let mut text = format!(
            "{} samples, {positions} positions, {}, {spans} spans over {share:.1} % of positions; {} samples without one\n",
            self.summary.samples,
            threshold.map_or("spans of the data".into(), |threshold| format!("threshold {threshold:.3} nats")),
            self.summary.samples_without_span
        );
        for (row, entropies) in self.tagged.iter().zip(&self.entropies).take(samples) {
            let scored = row.spans.iter().filter(|span| span.end <= entropies.len());
            let means: Vec<String> = scored.map(|span| format!("{:.2}", mean(entropies, span))).collect();
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{} [{}]\n  {}", row.id, means.join(" "), row.tagged_solution.replace('\n', "\n  "));
        }
        text
    }
}
