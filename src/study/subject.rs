//! What an experiment is run on: a checkpoint of a run, its problems, its decoder settings.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use burn::tensor::Device;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::open::DoesNotApply;
use crate::corpus::Corpus;
use crate::evaluation::response_entropies;
use crate::grade::Grader;
use crate::latent::{Decode, DecodeSettings, Gradient, Reasoning, Sequence, Unrolled, unroll};
use crate::loading::{NewRows, Opened};
use crate::machine::Compute;
use crate::model::checkpoint::peft::Apply;
use crate::model::checkpoint::{Checkpoint, ModelRef};
use crate::model::{Decoder, Hooks, ModelConfig};
use crate::progress::{self, say};
use crate::recipe::{Evaluation, MOST_ROWS, Recipe};
use crate::store::{ORIGIN, hex, sha256};
use crate::tasks::Split;
use crate::text::annotate::batches;
use crate::text::spans::Scored;
use crate::text::tagging::Summary;
use crate::text::{Fields, Part, Prompts, Sample, Template, data_files};

/// A checkpoint with the held-out problems that it is asked.
pub struct Subject {
    /// `<run>/<phase>`, or the name of a model that is not of a run.
    pub name: String,
    pub model: Decoder,
    pub corpus: Corpus,
    pub recipe: Recipe,
    /// How the checkpoint reasons: what every decode and every known row of it goes through.
    pub reasoning: Reasoning,
    /// The run folder, if it is of a run.
    pub run: Option<PathBuf>,
    /// Folder or file of its weights; where that is an adapter's folder, its base too.
    pub source: Vec<PathBuf>,
    /// Folder of the adapter over them, if there is one.
    pub adapter: Option<PathBuf>,
}

/// A held-out solution and the spans that the annotator tags in it.
pub type Tagged = (Sample, Vec<Range<usize>>);

impl Subject {
    /// Opens `<run>/<phase>/checkpoint` with `<run>/recipe.toml`, and the first `problems` held-out problems.
    ///
    /// # Errors
    /// A folder that is not a run, a phase that was not trained.
    pub fn open(run: &Path, phase: &str, problems: Option<usize>, device: &Device) -> Result<Self> {
        Self::of_run(run, phase, &Asked { problems, ..Asked::default() }, Compute::F32, device)
    }

    /// The same on the problems of another file.
    ///
    /// # Errors
    /// As [`Self::open`], and a file that cannot be read.
    pub(crate) fn of_run(run: &Path, phase: &str, asked: &Asked, dtype: Compute, device: &Device) -> Result<Self> {
        let file = run.join("recipe.toml");
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("{}: cannot read; name a run folder of `train`", file.display()))?;
        let mut recipe: Recipe = toml::from_str(&text).with_context(|| format!("{}: not a recipe", file.display()))?;
        let trained = recipe.clone();
        asked.of(&mut recipe)?;
        let folder = run.join(phase).join("checkpoint");
        ensure!(folder.is_dir(), "{}: no such checkpoint; the run has not trained phase `{phase}`", folder.display());
        let opened = Opened::open(&folder.display().to_string(), None, Apply::Merged)?;
        opened.text()?;
        let source = opened.checkpoint.places();
        let loaded = opened.load_as(dtype, device)?;
        loaded.model.ensure_finite().with_context(|| folder.display().to_string())?;
        let vocabulary = loaded.vocabulary.with_context(|| format!("{}: brings no tokenizer", folder.display()))?;
        let mut corpus = Corpus::build(&recipe, Some(vocabulary))?;
        if asked.data.is_some() && !asked.raw {
            corpus.tell_trained(&trained);
        }
        let name = format!("{}/{phase}", recipe.name);
        warn_of_dwell(&name, &loaded.reasoning, &recipe);
        let run = Some(run.to_path_buf());
        let reasoning = loaded.reasoning;
        Ok(Self { name, model: loaded.model, corpus, recipe, reasoning, run, source, adapter: None })
    }

    /// Opens a model that is not of a run: a Hugging Face folder, a `.gguf`, a hub id. One that has never seen `<swi>`
    /// gets rows for it. `like` says how it is prompted, tagged and decoded.
    ///
    /// # Errors
    /// What cannot be read, a model without tokenizer, no problems to ask.
    pub fn of_model(
        model: &str,
        adapter: Option<&Path>,
        like: &Recipe,
        asked: &Asked,
        dtype: Compute,
        device: &Device,
    ) -> Result<Self> {
        let mut recipe = like.clone();
        let place = ModelRef::parse(model)?;
        let brought = asked.data.is_some() || recipe.task.is_some() || recipe.data.path.is_some();
        if let (ModelRef::Hub { .. }, false) = (&place, brought) {
            bail!(
                "{model}: no such folder or file here; a model of the hub brings no problems: name a file of them with --data"
            );
        }
        ensure!(brought, "{model}: a model brings no problems: name a file of them with --data");
        asked.of(&mut recipe)?;
        let opened = Opened::open(model, adapter, Apply::Merged)?;
        opened.text()?;
        recipe.data.template = form(&opened, &recipe, asked)?;
        // A checkpoint that says how it was decoded in training is decoded so; `like` is for those that do not.
        if let Some(reasoning) = &opened.reasoning {
            (recipe.evaluation.k_min, recipe.evaluation.k_cap) = (reasoning.k_min, reasoning.k_cap);
        }
        let source = opened.checkpoint.places();
        let loaded = opened.load_as(dtype, device)?.add_switch_tokens(&NewRows {
            seed: recipe.seed,
            seed_token: recipe.seed_token.clone(),
            ..NewRows::default()
        })?;
        loaded.model.ensure_finite().with_context(|| model.to_owned())?;
        let vocabulary = loaded.vocabulary.with_context(|| format!("{model}: brings no tokenizer"))?;
        Prompts::of(recipe.data.template, &vocabulary)?.end_id(&vocabulary).map(drop).with_context(|| {
            format!("{model}: prompted as `{}` is; --like names another preset or recipe", like.name)
        })?;
        let corpus = Corpus::build(&recipe, Some(vocabulary))?;
        if !asked.raw && recipe.task.is_none() {
            say(&format!("{model}: prompted by {}", corpus.template.told(&corpus.vocabulary)));
        }
        if asked.batch.is_none() && loaded.model.is_kept() {
            let prompt = corpus.test_prompts.iter().map(Vec::len).max().unwrap_or(0);
            let rows = rows_held(loaded.model.config(), prompt + recipe.evaluation.max_new_tokens);
            recipe.evaluation.batch = recipe.evaluation.batch.min(rows.max(FEWEST));
        }
        let (name, adapter) = (model.to_owned(), adapter.map(Path::to_path_buf));
        warn_of_dwell(&name, &loaded.reasoning, &recipe);
        let subject =
            Self { name, model: loaded.model, corpus, recipe, reasoning: loaded.reasoning, run: None, source, adapter };
        Ok(subject)
    }

    /// The same under a name of the caller's: of the model, or of the run that its phase belongs to.
    #[must_use]
    pub(crate) fn named(mut self, name: &str) -> Self {
        self.name = if self.run.is_some() { format!("{name}/{}", self.short_name()) } else { name.to_owned() };
        name.clone_into(&mut self.recipe.name);
        self
    }

    /// What a decode of it shares: model, latent source, controller, switch tokens. The user's Ctrl-C cancels it.
    pub fn decode<'a>(&'a self, settings: &'a DecodeSettings) -> Decode<'a> {
        Decode {
            model: &self.model,
            source: &self.reasoning.source,
            controller: &self.reasoning.blocks,
            switch: Some(self.corpus.switch),
            settings,
            cancel: Some(crate::progress::stop_flag()),
            ahead: None,
        }
    }

    /// Known rows of it run to the end, latents through its own source.
    ///
    /// # Errors
    /// As [`unroll`].
    pub fn unroll(&self, sequences: &[Sequence], hooks: &mut Hooks) -> Result<Unrolled> {
        unroll(&self.model, sequences, &self.reasoning.source, Gradient::Through, hooks)
    }

    /// The same, its model computing in this type.
    #[must_use]
    pub(crate) fn computing_in(self, dtype: Compute) -> Self {
        Self { model: dtype.apply(self.model), ..self }
    }

    /// The task's name, or the file's.
    pub fn dataset(&self) -> String {
        self.recipe.dataset()
    }

    /// The part of its name that stands in file names: the phase, or the model.
    pub(crate) fn short_name(&self) -> &str {
        self.name.rsplit('/').next().unwrap_or(&self.name)
    }

    /// What its rows depend on besides settings ([`crate::store::ORIGIN`]): hashes of weights, adapter and data, float type,
    /// decoding, grader.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub(crate) fn origin(&self) -> Result<Map<String, Value>> {
        let Evaluation { k_min, k_cap, max_new_tokens, .. } = self.recipe.evaluation;
        let template = self.corpus.template.described()?;
        let Reasoning { source, blocks, .. } = &self.reasoning;
        let parts = [
            json!(sha256(&weight_files(&self.source)?)?),
            json!(self.adapter.clone().map(|dir| sha256(&weight_files(&[dir])?)).transpose()?),
            json!(Compute::of(&self.model).name()),
            json!({
                "k_min": k_min,
                "k_cap": k_cap,
                "max_new_tokens": max_new_tokens,
                "template": template,
                "source": source,
                "blocks": blocks,
            }),
            json!(self.data_hash()?),
            json!(self.corpus.grader()),
        ];
        Ok(ORIGIN.into_iter().map(str::to_owned).zip(parts).collect())
    }

    /// Of the file of problems with the names of its keys; of a generated task, of its first problems: the same whatever
    /// number of them is asked.
    fn data_hash(&self) -> Result<String> {
        let Recipe { task, data, seed, .. } = &self.recipe;
        let Some(task) = task else {
            let file = data.test_path.as_ref().or(data.path.as_ref()).context("data.path is missing")?;
            let hash = sha256(&data_files(file, Part::Test)?)?;
            return Ok(data.fields.as_ref().map_or(hash.clone(), |fields| format!("{hash} {fields:?}")));
        };
        let mut hash = Sha256::new();
        for problem in task.rows(Split::Test, *seed, 0..16)? {
            for text in [&problem.id, &problem.question, &problem.solution, &problem.answer] {
                hash.update(text);
            }
        }
        Ok(hex(&hash.finalize()))
    }

    /// Tags the held-out problems as the run tagged its training problems: same annotator, same threshold. A model
    /// without a run is its own annotator, with the threshold of these problems.
    ///
    /// # Errors
    /// A run without annotation, a problem without solution.
    pub(crate) fn tag_held_out(&self, device: &Device) -> Result<Vec<Tagged>> {
        let corpus = &self.corpus;
        let samples: Result<Vec<Sample>> =
            corpus.test.iter().map(|p| Sample::new(p, &corpus.vocabulary, &corpus.template)).collect();
        let samples = samples?;
        let settings = &self.recipe.annotate;
        let annotator = self.annotator(device)?;
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
            Scored { entropies: &entropies[i], clauses, answer: answer.as_ref() }
        };
        let threshold = match &self.run {
            Some(run) => read_threshold(run)?,
            None => {
                let threshold = settings.spans.threshold((0..samples.len()).map(scored));
                threshold.map_err(|why| DoesNotApply::because(format!("{why:#}")))?
            }
        };
        let spans: Vec<_> = (0..samples.len()).map(|i| settings.spans.choose(scored(i), threshold).spans).collect();
        Ok(samples.into_iter().zip(spans).collect())
    }

    /// The model that tagged the run's training problems, where it is not this one; it computes in the same type.
    fn annotator(&self, device: &Device) -> Result<Option<Decoder>> {
        let Some(run) = &self.run else { return Ok(None) };
        let base = run.join("base");
        let annotator = ["annotator", "checkpoint"].map(|name| base.join(name)).into_iter().find(|p| p.is_dir());
        let annotator =
            annotator.with_context(|| format!("{}: holds no annotator and no checkpoint", base.display()))?;
        Compute::of(&self.model).load(&Checkpoint::open_folder(annotator)?, device).map(Some)
    }
}

/// Says where no block can have a length that the checkpoint was trained at.
fn warn_of_dwell(name: &str, reasoning: &Reasoning, recipe: &Recipe) {
    if let Some(warning) = reasoning.untrained_dwell(recipe.evaluation.k_min, recipe.evaluation.k_cap) {
        say(&format!("{name}: {warning}"));
    }
}

/// Keys and values held by one batch, in floats: 32 MB of them a thread, and of a large model more, a small share of its weights, which
/// every step of a batch reads anew.
const CACHE_HELD: usize = 1 << 23;
const SHARE_OF_WEIGHTS: usize = 80;

/// Rows of so many positions whose keys and values are held together.
pub(in crate::study) fn rows_held(config: &ModelConfig, positions: usize) -> usize {
    let held = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim;
    CACHE_HELD.max(config.token_weights() / SHARE_OF_WEIGHTS) / (held * positions.max(1))
}

/// Positions of a kept model that are fed at once where order does not matter: more are not faster, and take memory.
const TOGETHER: usize = 2048;

/// Rows of a kept model that decode together in any case: a step of theirs takes little longer than one of a single row.
const FEWEST: usize = 8;

/// Which problems are asked. Experiments read held-out problems only.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// A file of them instead of the recipe's own.
    pub data: Option<PathBuf>,
    /// Names of the file's keys, where they are not those of a known format.
    pub fields: Option<Fields>,
    /// How answers of the file are graded, where its gold answers do not say it.
    pub grader: Option<Grader>,
    /// The first so many.
    pub problems: Option<usize>,
    /// So many decoded together.
    pub batch: Option<usize>,
    /// Rows are given as the model reads them: no template is asked for.
    pub raw: bool,
    /// The recipe that says how a model is prompted was not named by the user: its text stands in for nothing.
    pub unnamed: bool,
}

/// How a model that is not a run's is prompted: by its own chat template, where the recipe's form is a chat or nobody named one.
fn form(opened: &Opened, recipe: &Recipe, asked: &Asked) -> Result<Template> {
    let named = recipe.data.template;
    if asked.raw {
        return Ok(Template::Plain);
    }
    if recipe.task.is_some() {
        return Ok(named);
    }
    let has_own = opened.text()?.has_chat();
    Ok(match (has_own, asked.unnamed) {
        (true, true) => Template::Chat,
        (true, false) => named.own(),
        (false, true) => Template::Plain,
        (false, false) => named,
    })
}

impl Asked {
    fn of(&self, recipe: &mut Recipe) -> Result<()> {
        if let Some(n) = self.problems {
            ensure!((1..=MOST_ROWS).contains(&n), "--problems must be from 1 to {MOST_ROWS}, found {n}");
            recipe.evaluation.problems = n;
        }
        if let Some(batch) = self.batch {
            ensure!((1..=MOST_ROWS).contains(&batch), "--batch must be from 1 to {MOST_ROWS}, found {batch}");
            recipe.evaluation.batch = batch;
        }
        if let Some(path) = &self.data {
            ensure!(path.exists(), "--data {}: no such file or folder", path.display());
            recipe.task = None;
            recipe.data.path = Some(path.clone());
            recipe.data.test_path = Some(path.clone());
            recipe.data.fields.clone_from(&self.fields);
            recipe.data.max_tokens = usize::MAX;
        }
        recipe.data.grader = self.grader.or(recipe.data.grader.filter(|_| self.data.is_none()));
        ensure!(
            self.grader.is_none() || recipe.task.is_none(),
            "--grader says how answers of a file are graded, and the problems are generated: name a file with --data"
        );
        ensure!(
            self.fields.is_none() || self.data.is_some(),
            "--field names keys of the file that --data names, and there is none"
        );
        if recipe.task.is_some() {
            recipe.data.rows = 1;
        } else if self.data.is_some() {
            // Nothing is trained: a file without solutions is asked all the same.
            recipe.data.rows = 0;
        }
        Ok(())
    }
}

/// Files as they are; of a folder its `.safetensors` in the order of their names.
fn weight_files(sources: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut files = vec![];
    for source in sources {
        if !source.is_dir() {
            files.push(source.clone());
            continue;
        }
        let read = std::fs::read_dir(source).with_context(|| format!("{}: cannot read", source.display()))?;
        let paths = read.flatten().map(|entry| entry.path());
        let mut own: Vec<PathBuf> = paths.filter(|p| p.extension().is_some_and(|e| e == "safetensors")).collect();
        own.sort();
        files.extend(own);
    }
    Ok(files)
}

fn read_threshold(run: &Path) -> Result<f32> {
    let file = run.join("annotate").join("summary.json");
    let text = std::fs::read_to_string(&file)
        .with_context(|| format!("{}: cannot read; the run has no annotation", file.display()))?;
    let summary: Summary = serde_json::from_str(&text).with_context(|| format!("{}: not a summary", file.display()))?;
    Ok(summary.threshold)
}
