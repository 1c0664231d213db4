//! What an experiment is run on: a checkpoint of a run, its problems, its decoder settings.

use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use burn::tensor::Device;

use crate::corpus::Corpus;
use crate::evaluation::response_entropies;
use crate::loading::Opened;
use crate::model::Decoder;
use crate::model::checkpoint::Checkpoint;
use crate::model::checkpoint::peft::Apply;
use crate::recipe::Recipe;
use crate::text::Sample;
use crate::text::spans::Scored;
use crate::text::tagging::Summary;

/// A checkpoint with the held-out problems of its recipe.
pub struct Subject {
    pub name: String,
    pub model: Decoder,
    pub corpus: Corpus,
    pub recipe: Recipe,
}

impl Subject {
    /// Opens `<run>/<phase>/checkpoint` with `<run>/recipe.toml`, and the first `problems` held-out problems.
    ///
    /// # Errors
    /// A folder that is not a run, a phase that was not trained.
    pub fn open(run: &Path, phase: &str, problems: Option<usize>, device: &Device) -> Result<Self> {
        let file = run.join("recipe.toml");
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("{}: cannot read; name a run folder of `train`", file.display()))?;
        let mut recipe: Recipe = toml::from_str(&text).with_context(|| format!("{}: not a recipe", file.display()))?;
        if let Some(n) = problems {
            ensure!(n > 0, "--problems must be at least 1, found 0");
            recipe.evaluation.problems = n;
        }
        // Experiments read held-out problems only.
        recipe.data.rows = if recipe.task.is_some() { 1 } else { recipe.data.rows };
        let folder = run.join(phase).join("checkpoint");
        ensure!(folder.is_dir(), "{}: no such checkpoint; the run has not trained phase `{phase}`", folder.display());
        let loaded = Opened::open(&folder.display().to_string(), None, Apply::Merged)?.load(device)?;
        let vocabulary = loaded.vocabulary.with_context(|| format!("{}: brings no tokenizer", folder.display()))?;
        let corpus = Corpus::build(&recipe, Some(vocabulary))?;
        Ok(Self { name: format!("{}/{phase}", recipe.name), model: loaded.model, corpus, recipe })
    }
}

/// A held-out solution and the spans that the run's own annotator tags in it.
pub type Tagged = (Sample, Vec<Range<usize>>);

/// Tags the held-out problems as the run tagged its training problems: same annotator, same threshold.
///
/// # Errors
/// A run without annotation.
pub fn tag_held_out(run: &Path, subject: &Subject, device: &Device) -> Result<Vec<Tagged>> {
    let file = run.join("annotate").join("summary.json");
    let text = std::fs::read_to_string(&file)
        .with_context(|| format!("{}: cannot read; the run has no annotation", file.display()))?;
    let summary: Summary = serde_json::from_str(&text).with_context(|| format!("{}: not a summary", file.display()))?;
    let base = run.join("base");
    let annotator = ["annotator", "checkpoint"].map(|name| base.join(name)).into_iter().find(|p| p.is_dir());
    let annotator = annotator.with_context(|| format!("{}: holds no annotator and no checkpoint", base.display()))?;
    let model = Decoder::load(&Checkpoint::open_folder(annotator)?, device)?;
    let corpus = &subject.corpus;
    let mut tagged = vec![];
    for chunk in corpus.test.chunks(64) {
        let samples: Result<Vec<Sample>> =
            chunk.iter().map(|p| Sample::new(p, &corpus.vocabulary, corpus.template)).collect();
        let samples = samples?;
        let entropies = response_entropies(&model, &samples.iter().collect::<Vec<_>>())?;
        for (sample, entropies) in samples.into_iter().zip(entropies) {
            let scored = Scored { entropies: &entropies, clauses: &sample.clauses, answer: sample.answer.as_ref() };
            let spans = subject.recipe.annotate.spans.choose(scored, summary.threshold).spans;
            tagged.push((sample, spans));
        }
    }
    Ok(tagged)
}
