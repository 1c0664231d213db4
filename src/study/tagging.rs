//! Tags the spans of held-out solutions like the run tagged its training problems. Knows entropies and spans.

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

/// A held-out solution and its tagged spans.
pub type TaggedSolution = (Sample, Vec<Range<usize>>);

/// `<swi>`, `</swi>` and `<latent>`.
const SWITCH_TOKENS: usize = 3;

/// Positions of a large model per forward, where order does not matter: more are not faster and need memory.
const TOGETHER: usize = 2048;

impl Study {
    /// Tags the held-out problems with the run's annotator and threshold. A model outside a run is tagged by the annotator that the user
    /// names, else by itself, with the threshold computed from these problems.
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
            // A batch of a large model runs for minutes.
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

    /// The model whose entropies place the switches outside a run: `--annotator`, or the checkpoint itself.
    pub fn annotator_name(&self) -> Option<&str> {
        match (&self.run, &self.annotator) {
            (Some(_), _) => None,
            (None, named) => Some(named.as_deref().unwrap_or(TeacherForcedRow::SELF_TAGGED)),
        }
    }

    /// Loads the annotator, if it is another model; it computes in the same float type.
    fn annotator(&self) -> Result<Option<Decoder>> {
        let load = |files: &ModelFiles| Compute::new(&self.model).load(files, &self.device).map(Some);
        let run = match (&self.run, &self.annotator) {
            (Some(run), _) => run,
            (None, Some(named)) => {
                let opened = Checkpoint::open(named, None, Apply::Merged)?;
                let sizes = opened.vocabulary.as_ref().map(|theirs| (theirs.size(), self.corpus.vocabulary.size()));
                // A model that learnt to switch has three more tokens.
                ensure!(
                    sizes.is_some_and(|(theirs, ours)| ours.abs_diff(theirs) <= SWITCH_TOKENS),
                    "--annotator {named}: its vocabulary differs from {}'s (sizes {sizes:?}): name the base that the checkpoint was trained from",
                    self.name
                );
                return load(&opened.files);
            }
            (None, None) => return Ok(None),
        };
        let base = run.join("base");
        let annotator = ["annotator", "checkpoint"].map(|name| base.join(name)).into_iter().find(|p| p.is_dir());
        let annotator =
            annotator.with_context(|| format!("{}: contains neither an annotator nor a checkpoint", base.display()))?;
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
