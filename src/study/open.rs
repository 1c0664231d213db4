//! From what a user names (a phase of a run, a model) to a study of it.

use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::Study;
use super::staging::logits::rows_held;
use crate::corpus::Corpus;
use crate::evaluation::{LongestRows, rows_that_fit};
use crate::grade::Grader;
use crate::guard::read_text;
use crate::latent::{Blocks, Reasoning};
use crate::loading::{Checkpoint, Loaded, NewRows};
use crate::machine::memory::{MEMORY, free_memory, gigabytes, seconds_per_weight};
use crate::machine::{Compute, Machine};
use crate::method::Recipe;
use crate::model::checkpoint::ModelRef;
use crate::model::checkpoint::peft::Apply;
use crate::names::meant;
use crate::progress::say;
use crate::recipe::{Evaluation, MOST_ROWS};
use crate::text::{Fields, Prompts, Template, Vocabulary, is_there};

/// The folder of a phase's checkpoint.
///
/// # Errors
/// A phase that has none, with those that have one.
pub fn checkpoint(run: &Path, phase: &str) -> Result<PathBuf> {
    let folder = run.join(phase).join("checkpoint");
    if folder.is_dir() {
        return Ok(folder);
    }
    let there = phases(run);
    let near = meant(phase, there.iter().map(String::as_str));
    let known =
        if there.is_empty() { "none has a checkpoint yet".into() } else { format!("there are {}", there.join(", ")) };
    bail!("{}: no such checkpoint; the run has not trained phase `{phase}`{near}; {known}", folder.display())
}

/// The phases of a run that have a checkpoint, by name.
pub fn phases(run: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(run).into_iter().flatten().flatten();
    let with = entries.filter(|entry| entry.path().join("checkpoint").is_dir());
    let mut names: Vec<String> = with.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Paths of the files of problems that a run's recipe names: as named, or next to the run if both were moved.
///
/// # Errors
/// A file that is in neither place.
fn locate(run: &Path, recipe: &mut Recipe) -> Result<()> {
    let whole = std::path::absolute(run).with_context(|| format!("{}: no absolute path", run.display()))?;
    let data = &mut recipe.data;
    for path in [&mut data.path, &mut data.test_path].into_iter().flatten().filter(|path| !is_there(path)) {
        let parts: Vec<Component> = path.components().collect();
        let beside = whole.ancestors().take(MOST_ABOVE).find_map(|folder| {
            let ends = (1..parts.len()).rev().map(|from| folder.join(parts[from..].iter().collect::<PathBuf>()));
            ends.into_iter().find(|there| is_there(there))
        });
        *path = beside.with_context(|| {
            format!(
                "{}: no such file or folder; {} names it (relative paths are from the folder in which the run was started): put it back, or \
                 name the problems with --data",
                path.display(),
                run.join("recipe.toml").display()
            )
        })?;
    }
    Ok(())
}

/// Number of folders above a run that are searched for its files of problems.
const MOST_ABOVE: usize = 4;

/// Refuses problems whose hash is not that of the run's manifest. Prompts with a date differ every day and are not compared.
fn ensure_same_problems(run: &Path, trained: &Recipe, corpus: &Corpus) -> Result<()> {
    let file = run.join("manifest.json");
    let Ok(text) = read_text(&file) else { return Ok(()) };
    let manifest: Value = serde_json::from_str(&text).with_context(|| format!("{}: not a manifest", file.display()))?;
    let (Some(held), None) = (manifest["test_sha256"].as_str(), manifest["template"].get("prompt")) else {
        return Ok(());
    };
    // The hash is over the problems with which the run measured itself.
    let [_, ours] = Corpus::build(trained, Some(corpus.vocabulary.clone()))?.hashes()?;
    let path = trained.data.test_path.as_ref().or(trained.data.path.as_ref()).map(|path| path.display().to_string());
    ensure!(
        ours == held,
        "{}: hash mismatch: these are not the problems that the run held out (test_sha256 of {}); put the file back, or name these with --data",
        path.unwrap_or_default(),
        file.display()
    );
    Ok(())
}

impl Study {
    /// Opens `<run>/<phase>/checkpoint` with `<run>/recipe.toml`, and the first `problems` held-out problems, on the default machine.
    ///
    /// # Errors
    /// A folder that is not a run, a phase that was not trained.
    pub fn open(run: &Path, phase: &str, problems: Option<usize>, seed: u64) -> Result<Self> {
        let asked = ProblemChoice { problems, ..ProblemChoice::default() };
        Ok(Self { seed, ..Self::of_run(run, phase, &asked, &Machine::default())? })
    }

    /// On a machine of the caller's, and on the problems of another file where `asked` names one.
    ///
    /// # Errors
    /// As [`Self::open`], and a file that cannot be read.
    pub fn of_run(run: &Path, phase: &str, asked: &ProblemChoice, machine: &Machine) -> Result<Self> {
        let file = run.join("recipe.toml");
        let text = read_text(&file)
            .with_context(|| format!("{}: cannot read; name a run folder of `train`", file.display()))?;
        let mut recipe: Recipe = toml::from_str(&text).with_context(|| format!("{}: not a recipe", file.display()))?;
        if asked.data.is_none() {
            locate(run, &mut recipe)?;
        }
        let trained = recipe.clone();
        asked.of(&mut recipe)?;
        let folder = checkpoint(run, phase)?;
        let opened = Checkpoint::open(&folder.display().to_string(), None, Apply::Merged)?;
        opened.text()?;
        let source = opened.files.places();
        let loaded = opened.load_as(machine.dtype, &machine.device)?;
        let vocabulary = loaded.vocabulary.with_context(|| format!("{}: brings no tokenizer", folder.display()))?;
        let mut corpus = Corpus::build(&recipe, Some(vocabulary))?;
        if asked.data.is_some() && !asked.raw {
            corpus.tell_trained(&trained);
        }
        if asked.data.is_none() && recipe.task.is_none() {
            ensure_same_problems(run, &trained, &corpus)?;
        }
        let name = format!("{}/{phase}", recipe.name);
        let study = Self::new(name, loaded.model, corpus, recipe, loaded.reasoning);
        let study = Self { batch: asked.batch, ..study }.on(machine)?;
        Ok(Self { run: Some(run.to_path_buf()), source, ..study })
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
        asked: &ProblemChoice,
        machine: &Machine,
    ) -> Result<Self> {
        let mut recipe = like.clone();
        let place = ModelRef::parse(model)?;
        let brought = asked.data.is_some() || recipe.task.is_some() || recipe.data.path.is_some();
        let is_hub = matches!(place, ModelRef::Hub { .. });
        let which = if is_hub { "no such folder or file here; a model of the hub" } else { "a model" };
        ensure!(brought, "{model}: {which} brings no problems: name a file of them with --data");
        asked.of(&mut recipe)?;
        let mut opened = Checkpoint::open(model, adapter, Apply::Merged)?;
        opened.text()?;
        let mut asked = asked.clone();
        if opened.is_released && asked.unnamed {
            recipe = Recipe::like("switch-released")?;
            asked.of(&mut recipe)?;
            asked.unnamed = false;
        } else if opened.is_released {
            let Evaluation { k_min, k_cap, .. } = recipe.evaluation;
            opened.reasoning =
                Some(Reasoning { blocks: Blocks::Learnt(recipe.blocks), k_min, k_cap, ..Reasoning::default() });
        }
        let (source, says, over) = (opened.files.places(), opened.reasoning.is_some(), opened.adapter.clone());
        let loaded = opened.load_as(machine.dtype, &machine.device)?;
        let study = Self::of_loaded(model, (loaded, says), recipe, &asked, machine)?;
        Ok(Self { source, adapter: over, ..study })
    }

    /// A study of a model that is loaded already and stays so: what is asked of a session.
    pub fn of_session(
        name: &str,
        loaded: &Loaded,
        like: &Recipe,
        asked: &ProblemChoice,
        machine: &Machine,
    ) -> Result<Self> {
        let mut recipe = like.clone();
        asked.of(&mut recipe)?;
        let says = loaded.reasoning != Reasoning::default();
        Self::of_loaded(name, (loaded.clone(), says), recipe, asked, machine)
    }

    /// `says`: its files say how it reasons.
    fn of_loaded(
        model: &str,
        (mut loaded, says): (Loaded, bool),
        mut recipe: Recipe,
        asked: &ProblemChoice,
        machine: &Machine,
    ) -> Result<Self> {
        let told = || format!("{model}: brings no tokenizer");
        recipe.data.template = form(loaded.vocabulary.as_ref().with_context(told)?, &recipe, asked);
        // A checkpoint that says how it was decoded in training is decoded so; `like` is for those that do not.
        if says {
            (recipe.evaluation.k_min, recipe.evaluation.k_cap) = (loaded.reasoning.k_min, loaded.reasoning.k_cap);
        }
        let plain = loaded.switch.is_none();
        // Rows of a user's own hold none of these tokens: the model stays as it is.
        if !(plain && asked.raw) {
            loaded = loaded.add_switch_tokens(&NewRows {
                seed: recipe.seed,
                seed_token: recipe.seed_token.clone(),
                ..NewRows::default()
            })?;
        }
        // Tokens that were added here never stood in a text: the model writes as it did without them.
        let untrained = plain && !says;
        if untrained {
            loaded.reasoning.blocks = Blocks::Never;
        }
        let vocabulary = loaded.vocabulary.with_context(told)?;
        Prompts::new(recipe.data.template, &vocabulary)?.end_id(&vocabulary).map(drop).with_context(|| {
            format!("{model}: prompted as `{}` is; --like names another preset or recipe", recipe.name)
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
        let study = Self::new(model.to_owned(), loaded.model, corpus, recipe, loaded.reasoning);
        Self { untrained, batch: asked.batch, ..study }.on(machine)
    }

    /// Its model computing on this machine. Says where no block can have a length that the checkpoint was trained at.
    fn on(self, machine: &Machine) -> Result<Self> {
        if let Some(warning) =
            self.reasoning.untrained_dwell(self.recipe.evaluation.k_min, self.recipe.evaluation.k_cap)
        {
            say(&format!("{}: {warning}", self.name));
        }
        let Machine { device, dtype, threads, .. } = machine;
        let mut study = Self { model: dtype.apply(self.model), device: device.clone(), ..self }.by(*threads);
        study.fit_batch()?;
        Ok(study)
    }

    /// Lets fewer problems decode together where their keys, values and logits do not fit into the memory that is free, and prints how
    /// long decoding all problems once takes, where that is long.
    ///
    /// # Errors
    /// One row, or the batch that the user asked for, that does not fit.
    fn fit_batch(&mut self) -> Result<()> {
        const WORTH_SAYING: f64 = 600.0;
        let Evaluation { batch, max_new_tokens, k_cap, .. } = self.recipe.evaluation;
        let (config, prompts) = (self.model.config(), &self.corpus.test_prompts);
        let prompt = prompts.iter().map(Vec::len).max().unwrap_or(0);
        let bytes = if Compute::new(&self.model) == Compute::Bf16 { 2 } else { 4 };
        let workers = self.threads.min(prompts.len()).max(1);
        let rows = LongestRows { positions: prompt + max_new_tokens + k_cap, bytes, workers };
        let wanted = batch.min(prompts.len().div_ceil(workers)).max(1);
        let fits = free_memory(&self.device).map_or(wanted, |free| rows_that_fit(config, &rows, free));
        ensure!(
            fits >= if self.batch.is_some() { wanted } else { 1 },
            "{}: {} problems of {} positions that decode together (times {workers} workers) need {} each, and {fits} fit: set --batch or \
             --threads lower, answers shorter (evaluation.max_new_tokens), or name more memory with {MEMORY}",
            self.name,
            if self.batch.is_some() { wanted } else { 1 },
            rows.positions,
            gigabytes(rows.row(config))
        );
        if fits < wanted {
            self.recipe.evaluation.batch = fits;
            say(&format!(
                "{}: {fits} problems decode together instead of {batch}: their keys, values and logits take up to {} each",
                self.name,
                gigabytes(rows.row(config))
            ));
        }
        let rounds = prompts.len().div_ceil(workers * wanted.min(fits).max(1));
        let steps = rounds * max_new_tokens;
        // A small model is done before its time is worth a measurement.
        if config.token_weights() as f64 * (steps as f64) < 1e12 {
            return Ok(());
        }
        let width = config.hidden_size.min(4096);
        let pace = seconds_per_weight(wanted.min(fits), width, Compute::new(&self.model).dtype(), &self.device)?;
        let seconds = pace * config.token_weights() as f64 * steps as f64;
        if seconds > WORTH_SAYING {
            say(&format!(
                "{}: decoding {} problems once is up to {steps} forwards, at least {:.0} minutes if no answer ends before its limit; \
                 experiments that intervene decode them once for each mode, step and draw",
                self.name,
                prompts.len(),
                seconds / 60.0
            ));
        }
        Ok(())
    }
}

/// Rows of a kept model that decode together in any case: a step of theirs takes little longer than one of a single row.
const FEWEST: usize = 8;

/// Which problems are asked. Experiments read held-out problems only.
#[derive(Clone, Debug, Default)]
pub struct ProblemChoice {
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
fn form(vocabulary: &Vocabulary, recipe: &Recipe, asked: &ProblemChoice) -> Template {
    let named = recipe.data.template;
    match (vocabulary.has_chat(), asked.unnamed) {
        _ if asked.raw => Template::Plain,
        _ if recipe.task.is_some() => named,
        (true, true) => Template::Chat,
        (true, false) => named.own(),
        (false, true) => Template::Plain,
        (false, false) => named,
    }
}

impl ProblemChoice {
    fn of(&self, recipe: &mut Recipe) -> Result<()> {
        let Evaluation { problems, batch, .. } = &mut recipe.evaluation;
        for (flag, asked, own) in [("--problems", self.problems, problems), ("--batch", self.batch, batch)] {
            let n = asked.unwrap_or(*own);
            ensure!(asked.is_none() || (1..=MOST_ROWS).contains(&n), "{flag} must be from 1 to {MOST_ROWS}, found {n}");
            *own = n;
        }
        if let Some(path) = &self.data {
            ensure!(is_there(path), "--data {}: no such file or folder", path.display());
            recipe.task = None;
            recipe.data.path = Some(path.clone());
            recipe.data.test_path = Some(path.clone());
            recipe.data.fields.clone_from(&self.fields);
            recipe.data.test_fields.clone_from(&self.fields);
            recipe.data.grpo_path = None;
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
