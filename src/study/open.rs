//! Opens what a user names (a phase of a run, or a model) as a [`Study`].

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
use crate::names::suggest;
use crate::progress::say;
use crate::recipe::{Evaluation, MOST_ROWS};
use crate::schema::GRPO_START;
use crate::text::{Fields, Prompts, Template, Vocabulary, is_there};

/// The folder of a phase's checkpoint; `sft/stage-3` is an intermediate one.
///
/// # Errors
/// The phase has no checkpoint; the message lists the phases that have one.
pub fn checkpoint(run: &Path, phase: &str) -> Result<PathBuf> {
    let on_the_way = phase.contains('/').then(|| run.join(phase)).filter(|folder| has_weights(folder));
    let folder = on_the_way.unwrap_or_else(|| run.join(phase).join("checkpoint"));
    if folder.is_dir() {
        return Ok(folder);
    }
    let there = phases(run);
    let near = suggest(phase, there.iter().map(String::as_str));
    let known =
        if there.is_empty() { "none has a checkpoint yet".into() } else { format!("there are {}", there.join(", ")) };
    bail!("{}: no such checkpoint; the run has not trained phase `{phase}`{near}; {known}", folder.display())
}

fn has_weights(folder: &Path) -> bool {
    ["config.json", "adapter_config.json"].iter().any(|file| folder.join(file).is_file())
}

/// Every checkpoint of a phase in a run, in the order of training: for a supervised phase the ends of its stages and the stored steps of the
/// last one, for GRPO its start and intermediate checkpoints; then the finished one.
///
/// # Errors
/// A phase that was not trained.
pub fn kept_checkpoints(run: &Path, phase: &str) -> Result<Vec<String>> {
    checkpoint(run, phase)?;
    let names = |folder: &Path| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
    };
    // Stages come first, then the steps of the last one; numbers in their order.
    let order = |name: &str| {
        let of = |prefix: &str| name.strip_prefix(prefix)?.split('-').next()?.parse::<usize>().ok();
        of("stage-").map(|stage| (0, stage)).or_else(|| of("last_step").map(|step| (1, step)))
    };
    let inside = names(&run.join(phase)).into_iter().filter(|name| has_weights(&run.join(phase).join(name)));
    let mut inside: Vec<_> = inside.filter_map(|name| Some((order(&name)?, format!("{phase}/{name}")))).collect();
    inside.sort();
    let prefix = format!("{phase}_step");
    let step = |name: String| Some((name.strip_prefix(&prefix)?.parse::<usize>().ok()?, name));
    let mut steps: Vec<_> = phases(run).into_iter().filter_map(step).collect();
    steps.sort();
    let start = (phase == "grpo").then(|| [GRPO_START, "sft"].into_iter().find(|name| checkpoint(run, name).is_ok()));
    let all = start.flatten().map(str::to_owned).into_iter().chain(inside.into_iter().map(|(_, name)| name));
    Ok(all.chain(steps.into_iter().map(|(_, name)| name)).chain([phase.to_owned()]).collect())
}

/// The phases of a run that have a checkpoint, by name.
pub fn phases(run: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(run).into_iter().flatten().flatten();
    let with = entries.filter(|entry| entry.path().join("checkpoint").is_dir());
    let mut names: Vec<String> = with.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Resolves the paths of a run recipe's problem files: as written, or next to the run if both were moved.
///
/// # Errors
/// A file that is in neither place.
pub(super) fn locate(run: &Path, recipe: &mut Recipe) -> Result<()> {
    let whole =
        std::path::absolute(run).with_context(|| format!("{}: cannot make the path absolute", run.display()))?;
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

/// The recipe of the run with this checkpoint (`<run>/<phase>/checkpoint`), with the paths of its problem files resolved unless other
/// problems are used; `None` outside a run.
///
/// # Errors
/// A malformed recipe; a problem file that does not exist.
pub fn recipe_of(checkpoint: &Path, other_problems: bool) -> Result<Option<Recipe>> {
    let run = checkpoint.parent().and_then(Path::parent).filter(|_| checkpoint.ends_with("checkpoint"));
    let Some(run) = run.filter(|run| run.join("recipe.toml").is_file()) else { return Ok(None) };
    let mut recipe = read_recipe(run)?;
    if !other_problems {
        locate(run, &mut recipe)?;
    }
    Ok(Some(recipe))
}

/// The recipe that a run was started with.
///
/// # Errors
/// A folder that is not a run.
pub(super) fn read_recipe(run: &Path) -> Result<Recipe> {
    let file = run.join("recipe.toml");
    let text =
        read_text(&file).with_context(|| format!("{}: cannot read; name a run folder of `train`", file.display()))?;
    toml::from_str(&text).with_context(|| format!("{}: not a recipe", file.display()))
}

/// Number of folders above a run that are searched for its problem files.
const MOST_ABOVE: usize = 4;

/// Compares the hash of the problems with the run's manifest. Prompts with a date differ every day and are not compared.
fn ensure_same_problems(run: &Path, trained: &Recipe, corpus: &Corpus) -> Result<()> {
    let file = run.join("manifest.json");
    let Ok(text) = read_text(&file) else { return Ok(()) };
    let manifest: Value = serde_json::from_str(&text).with_context(|| format!("{}: not a manifest", file.display()))?;
    let (Some(held), None) = (manifest["test_sha256"].as_str(), manifest["template"].get("prompt")) else {
        return Ok(());
    };
    // The manifest's hash covers the problems of the run's own evaluation.
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
    /// Opens `<run>/<phase>/checkpoint` with `<run>/recipe.toml` and the first `problems` held-out problems, on the default machine.
    ///
    /// # Errors
    /// A folder that is not a run, a phase that was not trained.
    pub fn open(run: &Path, phase: &str, problems: Option<usize>, seed: u64) -> Result<Self> {
        let asked = ProblemChoice { problems, ..ProblemChoice::default() };
        Ok(Self { seed, ..Self::open_run(run, phase, &asked, &Machine::default())? })
    }

    /// Opens a phase on this machine, with the problems of another file if `asked` names one.
    ///
    /// # Errors
    /// As [`Self::open`], and a file that cannot be read.
    pub fn open_run(run: &Path, phase: &str, asked: &ProblemChoice, machine: &Machine) -> Result<Self> {
        let mut recipe = read_recipe(run)?;
        if asked.data.is_none() {
            locate(run, &mut recipe)?;
        }
        let trained = recipe.clone();
        asked.apply_to(&mut recipe)?;
        let folder = checkpoint(run, phase)?;
        let opened = Checkpoint::open(&folder.display().to_string(), None, Apply::Merged)?;
        opened.text()?;
        let source = opened.files.places();
        let loaded = opened.load_as(machine.dtype, &machine.device)?;
        let vocabulary = loaded.vocabulary.with_context(|| format!("{}: has no tokenizer", folder.display()))?;
        let mut corpus = Corpus::build(&recipe, Some(vocabulary))?;
        if asked.data.is_some() && !asked.raw {
            corpus.tell_trained(&trained);
        }
        if asked.data.is_none() && recipe.task.is_none() {
            ensure_same_problems(run, &trained, &corpus)?;
        }
        let name = format!("{}/{}", recipe.name, phase.replace('/', "-"));
        let study = Self::new(name, loaded.model, corpus, recipe, loaded.reasoning);
        let study = Self { batch: asked.batch, ..study }.move_to(machine)?;
        Ok(Self { run: Some(run.to_path_buf()), source, ..study })
    }

    /// Opens a model outside a run: a Hugging Face folder, a `.gguf`, a hub id. A model that lacks `<swi>` gets new embedding rows for
    /// it. `like` is the recipe for prompt, tags and decoding.
    ///
    /// # Errors
    /// A file that cannot be read, a model without tokenizer, no problems.
    pub fn open_model(
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
        ensure!(brought, "{model}: {which} has no problems: name a file with --data");
        asked.apply_to(&mut recipe)?;
        let mut opened = Checkpoint::open(model, adapter, Apply::Merged)?;
        opened.text()?;
        let mut asked = asked.clone();
        if opened.is_released && asked.unnamed {
            recipe = Recipe::like("switch-released")?;
            asked.apply_to(&mut recipe)?;
            asked.unnamed = false;
        } else if opened.is_released {
            let Evaluation { k_min, k_cap, .. } = recipe.evaluation;
            opened.reasoning =
                Some(Reasoning { blocks: Blocks::Learnt(recipe.blocks), k_min, k_cap, ..Reasoning::default() });
        }
        let (source, says, over) = (opened.files.places(), opened.reasoning.is_some(), opened.adapter.clone());
        let loaded = opened.load_as(machine.dtype, &machine.device)?;
        let study = Self::from_loaded(model, (loaded, says), recipe, &asked, machine)?;
        Ok(Self { source, adapter: over, ..study })
    }

    /// Makes a study of a model that a session has loaded.
    pub fn from_session(
        name: &str,
        loaded: &Loaded,
        like: &Recipe,
        asked: &ProblemChoice,
        machine: &Machine,
    ) -> Result<Self> {
        let mut recipe = like.clone();
        asked.apply_to(&mut recipe)?;
        let says = loaded.reasoning != Reasoning::default();
        Self::from_loaded(name, (loaded.clone(), says), recipe, asked, machine)
    }

    /// `says`: whether the model's files state its way of reasoning.
    fn from_loaded(
        model: &str,
        (mut loaded, says): (Loaded, bool),
        mut recipe: Recipe,
        asked: &ProblemChoice,
        machine: &Machine,
    ) -> Result<Self> {
        let told = || format!("{model}: has no tokenizer");
        recipe.data.template = choose_template(loaded.vocabulary.as_ref().with_context(told)?, &recipe, asked);
        // A checkpoint that records its training's decoding is decoded the same way; `like` is for others.
        if says {
            (recipe.evaluation.k_min, recipe.evaluation.k_cap) = (loaded.reasoning.k_min, loaded.reasoning.k_cap);
        }
        let plain = loaded.switch.is_none();
        // A user's own sequences do not contain these tokens: the model is not extended.
        if !(plain && asked.raw) {
            loaded = loaded.add_switch_tokens(&NewRows {
                seed: recipe.seed,
                seed_token: recipe.seed_token.clone(),
                std: recipe.seed_std,
                ..NewRows::default()
            })?;
        }
        // The added tokens were never seen in a text: the model decodes without them, as before.
        let untrained = plain && !says;
        if untrained {
            loaded.reasoning.blocks = Blocks::Never;
        }
        let vocabulary = loaded.vocabulary.with_context(told)?;
        Prompts::new(recipe.data.template, &vocabulary)?.end_id(&vocabulary).map(drop).with_context(|| {
            format!("{model}: prompted like `{}`; --like names another preset or recipe", recipe.name)
        })?;
        let corpus = Corpus::build(&recipe, Some(vocabulary))?;
        if !asked.raw && recipe.task.is_none() {
            say(&format!("{model}: prompted by {}", corpus.template.describe(&corpus.vocabulary)));
        }
        if asked.batch.is_none() && loaded.model.is_kept() {
            let prompt = corpus.test_prompts.iter().map(Vec::len).max().unwrap_or(0);
            let rows = rows_held(loaded.model.config(), prompt + recipe.evaluation.max_new_tokens);
            recipe.evaluation.batch = recipe.evaluation.batch.min(rows.max(FEWEST));
        }
        let study = Self::new(model.to_owned(), loaded.model, corpus, recipe, loaded.reasoning);
        Self { untrained, batch: asked.batch, ..study }.move_to(machine)
    }

    /// Puts the model on this machine. Warns if no block can have a length that the checkpoint was trained at.
    fn move_to(self, machine: &Machine) -> Result<Self> {
        if let Some(warning) =
            self.reasoning.untrained_dwell(self.recipe.evaluation.k_min, self.recipe.evaluation.k_cap)
        {
            say(&format!("{}: {warning}", self.name));
        }
        let Machine { device, dtype, threads, .. } = machine;
        let mut study = Self { model: dtype.apply(self.model), device: device.clone(), ..self }.with_workers(*threads);
        study.fit_batch()?;
        Ok(study)
    }

    /// Lowers the decode batch size until keys, values and logits fit into free memory. Prints the time of one decoding of all problems
    /// if it is long.
    ///
    /// # Errors
    /// One sequence, or the batch size set by the user, does not fit.
    fn fit_batch(&mut self) -> Result<()> {
        const WORTH_SAYING: f64 = 600.0;
        let Evaluation { batch, max_new_tokens, k_cap, .. } = self.recipe.evaluation;
        let (config, prompts) = (self.model.config(), &self.corpus.test_prompts);
        let prompt = prompts.iter().map(Vec::len).max().unwrap_or(0);
        let bytes = if Compute::new(&self.model) == Compute::Bf16 { 2 } else { 4 };
        let workers = self.threads.min(prompts.len()).max(1);
        let rows = LongestRows { positions: prompt + max_new_tokens + k_cap, bytes, workers };
        let wanted = batch.min(prompts.len().div_ceil(workers)).max(1);
        let fits = free_memory(&self.device)?.map_or(wanted, |free| rows_that_fit(config, &rows, free));
        ensure!(
            fits >= if self.batch.is_some() { wanted } else { 1 },
            "{}: {} problems of {} positions in a batch (times {workers} workers) need {} each, and {fits} fit: lower --batch, --threads \
            or evaluation.max_new_tokens, or allow more memory with {MEMORY}",
            self.name,
            if self.batch.is_some() { wanted } else { 1 },
            rows.positions,
            gigabytes(rows.row(config))
        );
        if fits < wanted {
            self.recipe.evaluation.batch = fits;
            say(&format!(
                "{}: decode batch size {fits} instead of {batch}: keys, values and logits need up to {} per problem",
                self.name,
                gigabytes(rows.row(config))
            ));
        }
        let rounds = prompts.len().div_ceil(workers * wanted.min(fits).max(1));
        let steps = rounds * max_new_tokens;
        // A small model finishes before the measurement would.
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

/// Minimum batch size of a large model: a forward of a few sequences is hardly slower than of one.
const FEWEST: usize = 8;

/// Choice of problems. Experiments read held-out problems only.
#[derive(Clone, Debug, Default)]
pub struct ProblemChoice {
    /// A file of problems instead of the recipe's.
    pub data: Option<PathBuf>,
    /// Key names of the file, if its format is not a known one.
    pub fields: Option<Fields>,
    /// Grader of the file's answers, if the gold answers do not determine it.
    pub grader: Option<Grader>,
    /// Maximum number of problems, from the first.
    pub problems: Option<usize>,
    /// Decode batch size.
    pub batch: Option<usize>,
    /// Sequences are given as token text: no template is applied.
    pub raw: bool,
    /// The prompting recipe is the default: its generated problems do not replace missing ones.
    pub unnamed: bool,
}

/// The prompt template of a model outside a run: its own chat template if the recipe uses a chat or was not named, else the recipe's.
fn choose_template(vocabulary: &Vocabulary, recipe: &Recipe, asked: &ProblemChoice) -> Template {
    let named = recipe.data.template;
    match (vocabulary.has_chat(), asked.unnamed) {
        _ if asked.raw => Template::Plain,
        _ if recipe.task.is_some() => named,
        (true, true) => Template::Chat,
        (true, false) => named.with_model_template(),
        (false, true) => Template::Plain,
        (false, false) => named,
    }
}

impl ProblemChoice {
    fn apply_to(&self, recipe: &mut Recipe) -> Result<()> {
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
            // Nothing is trained, so a file without solutions is accepted.
            recipe.data.rows = 0;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_checkpoints_are_in_the_order_of_training() {
        let run = tempfile::tempdir().expect("a folder");
        let weights = |folder: &str| {
            let folder = run.path().join(folder);
            std::fs::create_dir_all(&folder).expect("a folder");
            std::fs::write(folder.join("config.json"), "{}").expect("a file");
        };
        for folder in ["checkpoint", "stage-10", "stage-2", "last_step30", "last_step4", "state"] {
            weights(&format!("sft/{folder}"));
        }
        let others = ["grpo_step100", "grpo_step20", "grpo", "coconut"];
        others.iter().for_each(|name| weights(&format!("{name}/checkpoint")));
        let of = |phase| kept_checkpoints(run.path(), phase).expect("checkpoints");
        assert_eq!(of("sft"), ["sft/stage-2", "sft/stage-10", "sft/last_step4", "sft/last_step30", "sft"]);
        assert_eq!(of("grpo"), ["sft", "grpo_step20", "grpo_step100", "grpo"]);
        weights("grpo_start/checkpoint");
        assert_eq!(of("grpo")[0], "grpo_start");
        assert_eq!(of("coconut"), ["coconut"]);
        assert_eq!(checkpoint(run.path(), "sft/stage-2").expect("a folder"), run.path().join("sft/stage-2"));
        let error = kept_checkpoints(run.path(), "brevity").expect_err("not trained").to_string();
        assert!(error.contains("brevity"), "{error}");
    }
}
