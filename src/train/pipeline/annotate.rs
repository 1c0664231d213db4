//! Phase 1's annotation: scores the corpus with the annotator and tags spans for blocks (method §3).

use anyhow::{Result, bail};

use super::Run;
use super::supervised::ANNOTATOR_WINDOW;
use crate::evaluation::response_entropies;
use crate::progress::{Progress, say};
use crate::store::write_atomic;
use crate::text::annotate::{annotate as annotate_corpus, take_spans};
use crate::text::tagging::Summary;
use crate::train::state::PhaseFolder;

pub(super) fn run(run: &Run) -> Result<()> {
    let folder = run.root.join("annotate");
    // Written last: a run that was stopped before repeats the phase.
    let last = folder.join("sample.txt");
    if last.exists() {
        return Ok(());
    }
    if let Some(annotation) = take_spans(&run.corpus.train, &run.recipe.annotate, &folder, "spans of the data")? {
        let Summary { spans, samples, samples_without_span, .. } = annotation.summary;
        say(&format!(
            "annotate: {spans} spans in {samples} samples ({samples_without_span} without), tagged in the data"
        ));
        return write_atomic(&last, annotation.excerpt(8).as_bytes());
    }
    let base = PhaseFolder::open(&run.root, "base")?;
    let name = if base.path.join("annotator").exists() { "annotator" } else { "checkpoint" };
    if run.recipe.base.annotator_accuracy > 0.0 && name == "checkpoint" {
        say(&format!(
            "annotate: the base did not reach token accuracy {} over {ANNOTATOR_WINDOW} steps; the finished base scores the corpus",
            run.recipe.base.annotator_accuracy
        ));
    }
    let dtype = run.base_dtype();
    let model = base.import(name, dtype, &run.device.clone().inner())?;
    let source = format!("base/{name}, {}, seed {}", run.recipe.name, run.recipe.seed);
    let mut progress = Progress::new("annotate", run.corpus.train.len(), 0);
    let annotation = annotate_corpus(
        &run.corpus.train,
        &run.recipe.annotate,
        &folder,
        &source,
        |batch| response_entropies(&model, batch),
        |done, _| progress.update(done, ""),
    )?;
    progress.finish();
    let summary = &annotation.summary;
    say(&format!(
        "annotate: {} spans in {} samples ({} without), threshold {:.3} nats",
        summary.spans,
        summary.samples,
        summary.samples_without_span,
        summary.threshold.unwrap_or_default()
    ));
    if summary.spans == 0 {
        bail!("annotate: no span was tagged in {} samples; loosen annotate.spans", summary.samples);
    }
    write_atomic(&last, annotation.excerpt(8).as_bytes())
}
