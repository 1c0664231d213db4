//! Problems that a checkpoint was trained on, and longer ones, read or generated again from its run's recipe.

use std::collections::HashSet;

use anyhow::{Result, ensure};

use super::open::{locate, read_recipe};
use super::{DoesNotApply, Study, lazy};
use crate::corpus::{Corpus, ProgramKey, program};
use crate::method::Recipe;
use crate::text::Sample;

/// A sample of the training problems, and the programs of all.
pub(crate) struct TrainingProblems {
    /// The sample, as the corpus' held-out problems.
    pub corpus: Corpus,
    pub programs: HashSet<ProgramKey>,
}

impl Study {
    /// # Errors
    /// [`DoesNotApply`] to a model outside a run, with problems of another source, or without the run's problem file.
    pub(crate) fn training_problems(&self) -> Result<&TrainingProblems> {
        lazy(&self.training, || {
            let recipe = self.trained_recipe()?;
            let (corpus, programs) = Corpus::training(&recipe, &self.corpus.vocabulary)?;
            Ok(TrainingProblems { corpus, programs })
        })
    }

    /// Generated problems one level beyond the hardest trained one, as many as are held out, as the corpus' held-out problems.
    ///
    /// # Errors
    /// As [`Self::training_problems`]; [`DoesNotApply`] to a task without such a level, or if a worked solution exceeds the limit of a
    /// response.
    pub(crate) fn deeper_problems(&self) -> Result<&Corpus> {
        lazy(&self.deeper, || {
            let mut deeper = self.trained_recipe()?;
            let because = |why: String| DoesNotApply::because(why);
            let task = deeper.task.as_ref().ok_or_else(|| because("problems of a file have no known depth".into()))?;
            let next = task.deeper().ok_or_else(|| because(format!("`{}` has no harder level", task.name())))?;
            (deeper.task, deeper.data.rows) = (Some(next), 0);
            let corpus = Corpus::build(&deeper, Some(self.corpus.vocabulary.clone()))?;
            let length = |problem| Ok(Sample::new(problem, &corpus.vocabulary, &corpus.template)?.response.len());
            let lengths: Vec<usize> = corpus.test.iter().map(length).collect::<Result<_>>()?;
            let (longest, limit) = (lengths.into_iter().max().unwrap_or(0), deeper.evaluation.max_new_tokens);
            let long = || because(format!("longer solutions have {longest} tokens, and answers end at {limit}"));
            ensure!(longest < limit, long());
            Ok(corpus)
        })
    }

    /// The recipe of the run, with as many held-out problems as the study has.
    fn trained_recipe(&self) -> Result<Recipe> {
        let run = self.run.as_deref();
        let run = run.ok_or_else(|| DoesNotApply::because("no recipe says what the model was trained on"))?;
        let mut trained = read_recipe(run)?;
        locate(run, &mut trained).map_err(|why| DoesNotApply::because(format!("{why:#}")))?;
        let [ours, own] =
            [&*self.recipe, &*trained].map(|recipe| (&recipe.task, &recipe.data.path, &recipe.data.test_path));
        ensure!(ours == own, DoesNotApply::because("these are other problems than those of its run"));
        trained.evaluation.problems = self.corpus.test.len();
        Ok(trained)
    }

    /// Sets the training problems and the longer ones.
    #[must_use]
    pub(crate) fn trained_on(self, [corpus, deeper]: [Corpus; 2]) -> Self {
        let programs = corpus.test.iter().map(program).collect();
        Self { training: TrainingProblems { corpus, programs }.into(), deeper: deeper.into(), ..self }
    }
}
