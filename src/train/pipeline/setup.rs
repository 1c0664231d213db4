//! Opens a run: folder, manifest, model and text. Everything that can fail does so before training.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use burn::tensor::Device;
use serde_json::{Value, json};

use super::model_card::ModelCard;
use super::{Run, RunBranch, inputs, plan, resume, taken};
use crate::corpus::Corpus;
use crate::guard::read_text;
use crate::latent::{Reasoning, SwitchIds};
use crate::loading::{Checkpoint, NewRows};
use crate::method::Phase;
use crate::method::Recipe;
use crate::model::Decoder;
use crate::model::checkpoint::peft::Adapter;
use crate::model::checkpoint::{EMBED, HEAD, ModelFiles};
use crate::model::config::{Family, ModelConfig};
use crate::model::lora::{LoraSettings, TARGETS};
use crate::progress::say;
use crate::recipe::{Compute, Lora, ModelSize};
use crate::store::{Lock, file_name, list, remove_leftovers, write_atomic};
use crate::text::{Template, Vocabulary};
use crate::train::state::{CheckpointExport, Over, PhaseFolder, TrainingHistory};
use crate::train::trainer::Trainer;
use crate::world::World;

/// What the command line adds to a recipe.
#[derive(Clone, Debug)]
pub struct Options {
    pub out: PathBuf,
    pub resume: bool,
    pub only: Vec<String>,
    pub threads: usize,
    /// Runs whose finished phases can be reused (`--from`).
    pub from: Vec<RunBranch>,
    /// The command as typed, for the manifest.
    pub command: String,
    /// Outside autodiff.
    pub device: Device,
    /// The processes that train together.
    pub world: World,
    /// Whether to check everything, print what the run needs, and write nothing.
    pub dry: bool,
    /// Whether the user asked for a stop ([`crate::progress::stop_asked`]); called after every step.
    pub stop: fn() -> bool,
}

/// Advice if a run cannot be resumed.
const OTHER_FOLDER: &str = "restore it, or name another folder with --out";

/// The recipe's chat template in the model's own spelling, if its files have one. A resumed run uses the template of its start.
fn template(recipe: &Recipe, opened: &Checkpoint, begun: &Path) -> Result<Template> {
    let named = recipe.data.template;
    if !named.is_chat() || !opened.text()?.has_chat() {
        return Ok(named);
    }
    Ok(if begun_recipe(begun).is_some_and(|recipe| recipe.data.template == named) {
        named
    } else {
        named.with_model_template()
    })
}

/// The recipe that a run began with.
fn begun_recipe(file: &Path) -> Option<Recipe> {
    toml::from_str(&read_text(file).ok()?).ok()
}

/// Restores the paths as the run stored them: older versions wrote them relative to the current folder.
fn keep_names(recipe: &mut Recipe, begun: &Path) {
    let Some(Recipe { shared: held, .. }) = begun_recipe(begun) else { return };
    let ours = &mut recipe.shared;
    let same = |held: &Path, ours: &Path| std::path::absolute(held).is_ok_and(|whole| whole == ours);
    for (ours, held) in [
        (&mut ours.data.path, held.data.path),
        (&mut ours.data.test_path, held.data.test_path),
        (&mut ours.data.grpo_path, held.data.grpo_path),
    ] {
        if let (Some(path), Some(held)) = (ours.as_mut(), held)
            && same(&held, path)
        {
            *path = held;
        }
    }
    if let (Some(model), Some(held)) = (ours.pretrained.as_mut(), held.pretrained)
        && same(Path::new(&held), Path::new(model))
    {
        *model = held;
    }
}

/// Opens a run:
/// 1. complete the recipe: absolute paths, the model's own chat template;
/// 2. require a new folder, or one with the same settings; choose finished phases of other runs;
/// 3. open the pretrained model's files and build the corpus;
/// 4. lock the folder, and remove what a killed process left half-written;
/// 5. estimate and print memory and time; a dry run ends here;
/// 6. compare data, model and settings with those of the run's start;
/// 7. write recipe and manifest, and copy the chosen phases.
pub(super) fn open(mut recipe: Recipe, options: Options, phases: &[Phase]) -> Result<Run> {
    let root = options.out.clone();
    keep_names(&mut recipe, &root.join(RECIPE));
    let opened = chat_model(&mut recipe, &options)?;
    let text = toml::to_string(&recipe).context("writing the recipe as TOML")?;
    ensure_resumable(&recipe, &options)?;
    let branch = match options.from.as_slice() {
        [] => None,
        from => Some(taken::choose_run(&recipe, phases, from)?),
    };
    let held = begun_with(&text, &options, phases)?;
    let TextAndBase { vocabulary, pretrained, license, config, hashes } = text_and_base(&recipe, opened, &options)?;
    let corpus = corpus(&recipe, vocabulary)?;
    // Every process looks at the folder before one writes there.
    options.world.barrier();
    let writes = options.world.writes() && !options.dry;
    let lock = writes.then(|| Lock::acquire(&root, &options.command)).transpose()?;
    if options.resume && writes {
        let names: Vec<&str> = phases.iter().map(|phase| phase.name).collect();
        sweep(&root, &names)?;
    }
    recipe.optimizer.dtype.begin(&options.device)?;
    let device = options.device.clone().autodiff();
    let device = if recipe.optimizer.gradient_checkpointing { device.gradient_checkpointing() } else { device };
    let together = recipe.evaluation.batch;
    let mut run = Run { recipe, options, root, corpus, device, together, pretrained, license, _lock: lock };
    let vocab_size = run.corpus.vocabulary.size();
    let config = config.or_else(|| run.recipe.model.as_ref().map(|size| config_of(size, vocab_size)));
    if let Some(config) = config {
        run.together = plan::plan(&run, phases, &ModelConfig { vocab_size, ..config })?;
    }
    if run.options.dry {
        return Ok(run);
    }
    let ours = inputs::manifest(&run, hashes.as_ref())?;
    if let Some(held) = &held {
        inputs::compare(&run.root.join(MANIFEST), held, &ours, OTHER_FOLDER)?;
    }
    if let Some((from, planned)) = &branch {
        taken::ensure_same_inputs(&ours, from, planned)?;
    }
    if writes {
        taken::ensure_unchanged(&run.root, phases)?;
        write_atomic(&run.root.join(RECIPE), text.as_bytes())?;
        // The original manifest is not replaced; only reused phases are added.
        let mut manifest = held.unwrap_or(ours);
        write_manifest(&run.root, &manifest)?;
        if let Some((from, planned)) = &branch {
            taken::copy_phases(planned, from, &run.root)?;
        }
        let origins = taken::origins(&run.root, phases)?;
        if !origins.is_empty() {
            manifest["taken"] = origins.into();
            write_manifest(&run.root, &manifest)?;
        }
    }
    Ok(run)
}

const RECIPE: &str = "recipe.toml";
const MANIFEST: &str = "manifest.json";

fn write_manifest(root: &Path, manifest: &Value) -> Result<()> {
    write_atomic(&root.join(MANIFEST), &serde_json::to_vec_pretty(manifest)?)
}

fn open_model(model: &str, recipe: &Recipe, options: &Options) -> Result<Checkpoint> {
    options.world.first_alone(|| Checkpoint::open_to_train(model, recipe.adapter.as_deref()))
}

/// Opens the model of a recipe with chat prompts, and stores the model's own chat template in the recipe.
fn chat_model(recipe: &mut Recipe, options: &Options) -> Result<Option<Checkpoint>> {
    let model = recipe.pretrained.as_ref().filter(|_| recipe.data.template.is_chat());
    let opened = model.map(|model| open_model(model, recipe, options)).transpose()?;
    if let Some(opened) = &opened {
        recipe.data.template = template(recipe, opened, &options.out.join(RECIPE))?;
    }
    Ok(opened)
}

/// Requires `--resume` for an existing run with the same settings, and no `--resume` otherwise.
fn ensure_resumable(recipe: &Recipe, options: &Options) -> Result<()> {
    let (begun, root) = (options.out.join(RECIPE), options.out.display());
    if begun.exists() {
        ensure!(options.resume, "{root}: has a run already; --resume continues it, --out names another folder");
        return resume::ensure_same_settings(recipe, &begun);
    }
    ensure!(!options.resume, "--resume: {root}: has no run (no recipe.toml); omit --resume to begin one");
    Ok(())
}

/// The manifest of the run's start, after comparing the inputs that need no model.
fn begun_with(text: &str, options: &Options, phases: &[Phase]) -> Result<Option<Value>> {
    let root = &options.out;
    let names: Vec<&str> = phases.iter().map(|phase| phase.name).collect();
    if !root.join(RECIPE).exists() {
        inputs::ensure_new(root, &names)?;
        return Ok(None);
    }
    let held = inputs::read_manifest(root, &names)?;
    if let Some(held) = &held {
        let ours = json!({
            "threads": options.threads,
            "processes": options.world.size,
            "settings_sha256": inputs::hash_settings(text),
        });
        inputs::compare(&root.join(MANIFEST), held, &ours, OTHER_FOLDER)?;
    }
    Ok(held)
}

/// Parts of a pretrained model in a run; empty if a model is trained from scratch.
#[derive(Default)]
struct TextAndBase {
    vocabulary: Option<Vocabulary>,
    pretrained: Option<PretrainedAdapter>,
    license: Option<String>,
    config: Option<ModelConfig>,
    /// Hashes of its base's and adapter's files. A dry run computes none.
    hashes: Option<[String; 2]>,
}

fn text_and_base(recipe: &Recipe, opened: Option<Checkpoint>, options: &Options) -> Result<TextAndBase> {
    let Some(model) = &recipe.pretrained else { return Ok(TextAndBase::default()) };
    let opened = opened.map_or_else(|| open_model(model, recipe, options), Ok)?;
    opened.text()?;
    let pretrained = PretrainedAdapter::new(model, &opened.files, recipe)?;
    let hashes = (!options.dry).then(|| inputs::hash_model(&opened.files)).transpose()?;
    let (license, config) = (opened.files.license()?, Some(opened.files.config.clone()));
    Ok(TextAndBase { vocabulary: opened.vocabulary, pretrained, license, config, hashes })
}

/// Builds the corpus, and prints how many problems it uses.
fn corpus(recipe: &Recipe, vocabulary: Option<Vocabulary>) -> Result<Corpus> {
    let corpus = Corpus::build(recipe, vocabulary)?;
    if recipe.pretrained.is_some() && recipe.data.template.is_chat() {
        say(&format!("prompts are made by {}", corpus.template.describe(&corpus.vocabulary)));
    }
    corpus.told.iter().chain(&corpus.graded()?).for_each(|line| say(line));
    corpus.ensure_sayable()?;
    Ok(corpus)
}

/// The base of the adapters that a run writes.
pub(super) struct PretrainedAdapter {
    files: ModelFiles,
    /// A hub id, or a path as typed.
    name: String,
    /// The adapter that the run begins with.
    adapter: Option<Arc<Adapter>>,
}

impl PretrainedAdapter {
    /// `None` if checkpoints are whole models.
    fn new(model: &str, checkpoint: &ModelFiles, recipe: &Recipe) -> Result<Option<Self>> {
        let Some(lora) = recipe.lora.as_ref().filter(|_| !recipe.checkpoint.whole) else { return Ok(None) };
        // As typed: people publish adapters, and an absolute path would reveal the machine's folders.
        let (name, place) = match &checkpoint.base {
            Some(base) if recipe.adapter.is_none() => (base.name.clone(), base.path.display().to_string()),
            _ => (model.to_owned(), model.to_owned()),
        };
        let files = ModelFiles::open(&place)?;
        let adapter = checkpoint.base.as_ref().map(|base| base.adapter.clone());
        let mut lost = adapter.as_ref().map_or_else(Vec::new, |adapter| not_written_again(adapter, lora));
        if files.config.tie_word_embeddings != checkpoint.config.tie_word_embeddings {
            lost.push(HEAD);
        }
        if lost.is_empty() {
            return Ok(Some(Self { files, name, adapter }));
        }
        let why = format!(
            "{model}: is an adapter whose change of {lost:?} our adapters cannot store (whole weights, or factors of matrices other than \
            projections)"
        );
        ensure!(!recipe.optimizer.dtype.is_stored(), "{why}, and --dtype stored writes only adapters: use --dtype f32");
        say(&format!("{why}: checkpoints are whole models"));
        Ok(None)
    }
}

/// Parameters that the new adapter could not store. It combines the loaded adapter with new training over the same base: factors of
/// projections, token rows, and tables that are trained whole.
fn not_written_again<'a>(adapter: &'a Adapter, lora: &Lora) -> Vec<&'a str> {
    let replaced = adapter.replaced_names().filter(|name| !(lora.trains_tables() && [EMBED, HEAD].contains(name)));
    let is_projection = |name: &str| TARGETS.iter().any(|target| name.ends_with(&format!(".{target}.weight")));
    replaced.chain(adapter.factor_names().filter(|name| !is_projection(name))).collect()
}

/// Initial weights of a phase: the pretrained model with or without an adapter, or a whole model.
pub(super) enum PhaseStart {
    Over(Option<Arc<Adapter>>),
    Whole,
}

/// Removes what a killed process left half-written, in the run's folder and in those of its phases, `grpo_step20` of `grpo` included.
fn sweep(root: &Path, phases: &[&str]) -> Result<()> {
    for path in list(root)? {
        let name = file_name(&path);
        let phase = name.rsplit_once("_step").filter(|(_, step)| step.parse::<usize>().is_ok());
        let phase = phase.map_or(&*name, |(phase, _)| phase);
        if phases.contains(&phase) && path.is_dir() {
            PhaseFolder { path }.sweep()?;
        }
    }
    remove_leftovers(root)
}

/// The configuration of a model that is trained from scratch.
fn config_of(size: &ModelSize, vocab_size: usize) -> ModelConfig {
    ModelConfig {
        vocab_size,
        hidden_size: size.hidden_size,
        intermediate_size: size.intermediate_size,
        num_hidden_layers: size.num_hidden_layers,
        num_attention_heads: size.num_attention_heads,
        num_key_value_heads: size.num_key_value_heads,
        head_dim: size.head_dim,
        rope_theta: size.rope_theta,
        tie_word_embeddings: size.tie_word_embeddings,
        ..ModelConfig::new(Family::Qwen3)
    }
}

impl Run {
    /// The model that the first phase starts from, with rows for the switch tokens.
    fn initial_model(&self) -> Result<Decoder> {
        match (&self.recipe.pretrained, &self.recipe.model) {
            (Some(name), _) => {
                let device = self.device.clone().inner();
                let opened = Checkpoint::open_to_train(name, self.recipe.adapter.as_deref())?;
                let loaded = opened.load_to_train(self.base_dtype(), &device)?;
                let (seed, seed_token) = (self.recipe.seed, self.recipe.seed_token.clone());
                let rows = NewRows { seed, seed_token, std: self.recipe.seed_std, ..NewRows::default() };
                Ok(loaded.add_switch_tokens(&rows)?.model)
            }
            (None, Some(size)) => {
                let config = config_of(size, self.corpus.vocabulary.size());
                Decoder::random(&config, self.recipe.seed, &self.device.clone().inner())
            }
            (None, None) => anyhow::bail!("the recipe names neither `model` nor `pretrained`"),
        }
    }

    /// The weights that a phase starts from: those of another phase, or the pretrained ones.
    pub(super) fn start(&self, from: Option<(&PhaseFolder, &str)>) -> Result<(Decoder, PhaseStart)> {
        let Some((folder, name)) = from else {
            let adapter = self.pretrained.as_ref().and_then(|from| from.adapter.clone());
            return Ok((self.initial_model()?, PhaseStart::Over(adapter)));
        };
        let model = folder.import_to_train(name, self.base_dtype(), &self.device.clone().inner())?;
        let adapter = folder.adapter(name)?;
        Ok((model, adapter.map_or(PhaseStart::Whole, |adapter| PhaseStart::Over(Some(Arc::new(adapter))))))
    }

    /// Float type for a phase's initial weights: the compute type under LoRA factors, else f32.
    pub(super) fn base_dtype(&self) -> Compute {
        let frozen = self.recipe.lora.is_some() && self.recipe.pretrained.is_some();
        if frozen { self.recipe.optimizer.dtype } else { Compute::F32 }
    }

    /// Whether the result of training these weights is written as an adapter.
    pub(super) fn writes_adapter(&self, start: &PhaseStart) -> bool {
        self.pretrained.is_some() && matches!(start, PhaseStart::Over(_))
    }

    /// Writes weights with the files that belong to them.
    pub(super) fn export(
        &self,
        folder: &PhaseFolder,
        name: &str,
        (model, start): (&Decoder, &PhaseStart),
        reasoning: &Reasoning,
        trained: TrainingHistory,
    ) -> Result<()> {
        let SwitchIds { swi, swi_end, latent } = self.corpus.switch;
        let held = self.pretrained.iter().flat_map(|from| &from.adapter).flat_map(|held| &held.config.token_rows);
        let tokens: Vec<u32> = [swi, swi_end, latent].into_iter().chain(held.map(|&token| token as u32)).collect();
        let over = match (&self.pretrained, start) {
            (Some(PretrainedAdapter { files, name, .. }), PhaseStart::Over(before)) => Some(Over {
                base: files,
                name,
                before: before.as_deref(),
                tokens: &tokens,
                tables: self.recipe.lora.as_ref().is_some_and(Lora::trains_tables),
            }),
            _ => None,
        };
        let phase = file_name(&folder.path);
        let title = if name == "checkpoint" { phase } else { format!("{phase}/{name}") };
        let card = ModelCard { run: self, name: title, reasoning, trained, is_adapter: over.is_some() }.markdown()?;
        let model_card = Some(card.as_str());
        let to = CheckpointExport { vocabulary: &self.corpus.vocabulary, over, reasoning, trained, model_card };
        folder.export(name, model, &to).map(drop)
    }

    /// Prepares weights for training: autodiff device, LoRA if the recipe has it.
    fn trainable(&self, model: Decoder) -> Result<Decoder> {
        let SwitchIds { swi, swi_end, latent } = self.corpus.switch;
        let only_new = self.recipe.lora.as_ref().is_some_and(|lora| lora.only_new_rows);
        let model = if only_new && model.is_kept() { model.learning_tokens(&[swi, swi_end, latent])? } else { model };
        let model = model.trained_on(&self.device);
        let heads = model.heads.clone();
        let mut model = match (&self.recipe.lora, self.recipe.pretrained.is_some()) {
            (Some(lora), true) => model.with_lora(&LoraSettings {
                rank: lora.rank,
                alpha: lora.alpha,
                targets: lora.targets.clone(),
                train_embeddings: lora.train_embeddings,
                seed: self.recipe.seed,
            })?,
            _ => model,
        };
        // After the factors, which freeze the existing weights: heads are always trained whole.
        model.heads = heads;
        Ok(model)
    }

    /// A trainer of the weights, shared by the processes of the run.
    pub(super) fn trainer(&self, model: Decoder) -> Result<Trainer> {
        let mut trainer = Trainer::new(self.trainable(model)?, &self.recipe.optimizer).among(self.options.world);
        if self.recipe.lora.as_ref().is_some_and(|lora| lora.only_new_rows) {
            let SwitchIds { swi, swi_end, latent } = self.corpus.switch;
            trainer.token_rows = Some(vec![swi, swi_end, latent]);
        }
        Ok(trainer)
    }
}
