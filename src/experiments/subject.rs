//! What an experiment is run on: a checkpoint of a run, its problems, its decoder settings.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use burn::tensor::Device;

use crate::corpus::Corpus;
use crate::loading::Opened;
use crate::model::Decoder;
use crate::model::checkpoint::peft::Apply;
use crate::recipe::Recipe;

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
