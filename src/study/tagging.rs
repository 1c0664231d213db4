//! The spans of held-out solutions, tagged as the run tagged its training problems. Knows entropies and spans.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::{DoesNotApply, Study};
use crate::evaluation::response_entropies;
use crate::guard::read_text;
use crate::loading::Checkpoint;
use crate::machine::Compute;
use crate::model::Decoder;
use crate::model::checkpoint::ModelFiles;
use crate::model::checkpoint::peft::Apply;
use crate::progress;
use crate::schema::TeacherForcedRow;
use crate::text::Sample;
use crate::text::annotate::batches;
use crate::text::spans::ScoredResponse;
use crate::text::tagging::Summary;

/// A held-out solution and the spans that the annotator tags in it.
pub type TaggedSolution = (Sample, Vec<Range<usize>>);

/// `<swi>`, `</swi>` and `<latent>`.
const SWITCH_TOKENS: usize = 3;

/// Positions of a kept model that are fed at once where order does not matter: more are not faster, and take memory.
const TOGETHER: usize = 2048;

impl Study {
    /// Tags the held-out problems as the run tagged its training problems: same annotator, same threshold. A model without a run is
    /// tagged by the one that the user names, else by itself, with the threshold of these problems.
    ///
    /// # Errors
    /// A run without annotation, a problem without solution.
    pub(super) fn tag_held_out(&self) -> Result<Vec<TaggedSolution>> {
        let corpus = &self.corpus;
        let sample = |problem| Sample::new(problem, &corpus.vocabulary, &corpus.template);
        let samples: Vec<Sample> = corpus.test.iter().map(sample).collect::<Result<_>>()?;
        let settings = &self.recipe.annotate;
        let annotator = self.annotator()?;
        let model = annotator.as_ref().unwrap_or(&self.model);
        let mut entropies = vec![vec![]; samples.len()];
        let at: BTreeMap<&str, usize> = samples.iter().enumerate().map(|(i, s)| (s.id.as_str(), i)).collect();
        ensure!(at.len() == samples.len(), "{}: two held-out problems have the same id", self.name);
        let tokens = if model.is_kept() { settings.batch_tokens.min(TOGETHER) } else { settings.batch_tokens };
        for batch in batches(samples.iter().collect(), settings.batch_rows, tokens) {
            // A batch of a large model takes minutes.
            progress::go_on()?;
            for (sample, values) in batch.iter().zip(response_entropies(model, &batch)?) {
                entropies[at[sample.id.as_str()]] = values;
            }
        }
        let scored = |i: usize| {
            let Sample { clauses, answer, .. } = &samples[i];
            ScoredResponse { entropies: &entropies[i], clauses, answer: answer.as_ref() }
        };
        let threshold = match self.run.as_deref().map(read_threshold).transpose()?.flatten() {
            Some(threshold) => threshold,
            None => {
                let threshold = settings.spans.threshold((0..samples.len()).map(scored));
                threshold.map_err(|why| DoesNotApply::because(format!("{why:#}")))?
            }
        };
        let chosen =
            |i: usize| samples[i].spans.clone().unwrap_or_else(|| settings.spans.choose(scored(i), threshold).spans);
        let spans: Vec<_> = (0..samples.len()).map(chosen).collect();
        Ok(samples.into_iter().zip(spans).collect())
    }

    /// With held-out solutions tagged by a model that the user names.
    #[must_use]
    pub fn annotated_by(self, annotator: Option<String>) -> Self {
        Self { annotator, ..self }
    }

    /// The model whose entropies say where held-out solutions switch, where the checkpoint is not of a run, which has its own: what
    /// `--annotator` names, or the checkpoint itself.
    pub fn annotator_name(&self) -> Option<&str> {
        match (&self.run, &self.annotator) {
            (Some(_), _) => None,
            (None, named) => Some(named.as_deref().unwrap_or(TeacherForcedRow::SELF_TAGGED)),
        }
    }

    /// The model that tags, where it is not this one; it computes in the same type.
    fn annotator(&self) -> Result<Option<Decoder>> {
        let load = |files: &ModelFiles| Compute::new(&self.model).load(files, &self.device).map(Some);
        let run = match (&self.run, &self.annotator) {
            (Some(run), _) => run,
            (None, Some(named)) => {
                let opened = Checkpoint::open(named, None, Apply::Merged)?;
                let sizes = opened.vocabulary.as_ref().map(|theirs| (theirs.size(), self.corpus.vocabulary.size()));
                // This model's has three tokens more where it learnt to switch.
                ensure!(
                    sizes.is_some_and(|(theirs, ours)| ours.abs_diff(theirs) <= SWITCH_TOKENS),
                    "--annotator {named}: its tokens are not those of {} (sizes {sizes:?}): name the base that it was trained from",
                    self.name
                );
                return load(&opened.files);
            }
            (None, None) => return Ok(None),
        };
        let base = run.join("base");
        let annotator = ["annotator", "checkpoint"].map(|name| base.join(name)).into_iter().find(|p| p.is_dir());
        let annotator =
            annotator.with_context(|| format!("{}: holds no annotator and no checkpoint", base.display()))?;
        load(&ModelFiles::open_folder(annotator)?)
    }
}

fn read_threshold(run: &Path) -> Result<Option<f32>> {
    let file = run.join("annotate").join("summary.json");
    let text =
        read_text(&file).with_context(|| format!("{}: cannot read; the run has no annotation", file.display()))?;
    let summary: Summary = serde_json::from_str(&text).with_context(|| format!("{}: not a summary", file.display()))?;
    Ok(summary.threshold)
}
