//! Opening a run: the folder, its manifest, its model and its text; everything that can fail fails here.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use burn::tensor::Device;
use serde_json::{Value, json};

use super::{Branch, Run, inputs, plan, resume, taken};
use crate::corpus::Corpus;
use crate::guard::read_text;
use crate::latent::{Reasoning, SwitchIds};
use crate::loading::{Checkpoint, NewRows};
use crate::method::Phase;
use crate::model::Decoder;
use crate::model::checkpoint::peft::Adapter;
use crate::model::checkpoint::{EMBED, HEAD, ModelFiles};
use crate::model::config::{Extras, Family, ModelConfig};
use crate::model::lora::{LoraSettings, TARGETS};
use crate::progress::say;
use crate::recipe::{Compute, Lora, ModelSize, Recipe};
use crate::store::{Lock, remove_leftovers, write_atomic};
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
    /// Runs of which one's finished phases are taken over (`--from`).
    pub from: Vec<Branch>,
    /// The command as typed, for the manifest.
    pub command: String,
    /// Outside autodiff.
    pub device: Device,
    /// The processes that train together.
    pub world: World,
    /// Whether to check everything, print what the run needs, and write nothing.
    pub dry: bool,
    /// Whether the user has asked for a stop ([`crate::progress::stop_asked`]): asked after every step.
    pub stop: fn() -> bool,
}

/// What can always be done where a run may not be gone on with.
const OTHER_FOLDER: &str = "put back what it was, or name another folder with --out";

/// A recipe's chat form in the model's own spelling, where its files have one. A run that began with another goes on with it.
fn template(recipe: &Recipe, opened: &Checkpoint, begun: &Path) -> Result<Template> {
    let named = recipe.data.template;
    if !named.is_chat() || !opened.text()?.has_chat() {
        return Ok(named);
    }
    let begun = read_text(begun).ok().and_then(|text| toml::from_str::<Recipe>(&text).ok());
    Ok(if begun.is_some_and(|recipe| recipe.data.template == named) { named } else { named.own() })
}

/// Paths as the run has them: older versions stored them relative to the current folder.
fn keep_names(recipe: &mut Recipe, begun: &Path) {
    let held = read_text(begun).ok().and_then(|text| toml::from_str::<Recipe>(&text).ok());
    let Some(held) = held else { return };
    let same = |held: &Path, ours: &Path| std::path::absolute(held).is_ok_and(|whole| whole == ours);
    for (ours, held) in [(&mut recipe.data.path, held.data.path), (&mut recipe.data.test_path, held.data.test_path)] {
        if let (Some(path), Some(held)) = (ours.as_mut(), held)
            && same(&held, path)
        {
            *path = held;
        }
    }
    if let (Some(model), Some(held)) = (recipe.pretrained.as_mut(), held.pretrained)
        && same(Path::new(&held), Path::new(model))
    {
        *model = held;
    }
}

/// Checks the folder, builds the corpus, writes recipe and manifest.
pub(super) fn open(mut recipe: Recipe, options: Options, phases: &[Phase]) -> Result<Run> {
    let root = options.out.clone();
    let recipe_path = root.join("recipe.toml");
    keep_names(&mut recipe, &recipe_path);
    let over = recipe.adapter.clone();
    let open = |model: &String| options.world.first_alone(|| Checkpoint::open_to_train(model, over.as_deref()));
    // How the model spells a chat belongs to the settings.
    let mut opened = recipe.pretrained.as_ref().filter(|_| recipe.data.template.is_chat()).map(open).transpose()?;
    if let Some(opened) = &opened {
        recipe.data.template = template(&recipe, opened, &recipe_path)?;
    }
    let text = toml::to_string(&recipe).context("writing the recipe as TOML")?;
    if recipe_path.exists() {
        ensure!(
            options.resume,
            "{}: holds a run already; --resume goes on with it, --out names another folder",
            root.display()
        );
        resume::same_settings(&recipe, &recipe_path)?;
    } else {
        ensure!(
            !options.resume,
            "--resume: {}: holds no run (no recipe.toml); leave --resume away to begin one",
            root.display()
        );
    }
    let branch = match options.from.as_slice() {
        [] => None,
        from => Some(taken::best(&recipe, phases, from)?),
    };
    let names: Vec<&str> = phases.iter().map(|phase| phase.name).collect();
    let held = if recipe_path.exists() {
        inputs::held(&root, &names)?
    } else {
        inputs::ensure_new(&root, &names)?;
        None
    };
    if let Some(held) = &held {
        // What needs no model to be read is told before one is.
        let ours = json!({
            "threads": options.threads,
            "processes": options.world.size,
            "settings_sha256": inputs::hash_of(&text),
        });
        inputs::same(&root.join("manifest.json"), held, &ours, OTHER_FOLDER)?;
    }
    // Every process has looked at the folder before one writes there.
    options.world.barrier();
    let writes = options.world.writes();
    let writes = writes && !options.dry;
    let lock = writes.then(|| Lock::take(&root, &options.command)).transpose()?;
    if options.resume && writes {
        sweep(&root, &names)?;
    }
    let (mut files, mut config) = (None, None);
    let (vocabulary, pretrained) = match &recipe.pretrained {
        Some(model) => {
            let opened = opened.take().map_or_else(|| open(model), Ok)?;
            opened.text()?;
            let pretrained = PretrainedAdapter::new(model, &opened.files, &recipe)?;
            // Reads all weights.
            files = if options.dry { None } else { Some(inputs::model(&opened.files)?) };
            config = Some(opened.files.config.clone());
            (opened.vocabulary, pretrained)
        }
        None => (None, None),
    };
    let corpus = Corpus::build(&recipe, vocabulary)?;
    if recipe.pretrained.is_some() && recipe.data.template.is_chat() {
        say(&format!("prompts are made by {}", corpus.template.told(&corpus.vocabulary)));
    }
    if corpus.dropped > 0 {
        say(&format!(
            "{} of {} training problems are longer than data.max_tokens = {} and were dropped",
            corpus.dropped,
            corpus.dropped + corpus.train.len(),
            recipe.data.max_tokens
        ));
    }
    corpus.told.iter().chain(&corpus.graded()?).for_each(|line| say(line));
    corpus.ensure_sayable()?;
    recipe.optimizer.dtype.begin(&options.device)?;
    let device = options.device.clone().autodiff();
    let device = if recipe.optimizer.gradient_checkpointing { device.gradient_checkpointing() } else { device };
    let together = recipe.evaluation.batch;
    let mut run = Run { recipe, options, root, corpus, device, together, pretrained, _lock: lock };
    let vocab_size = run.corpus.vocabulary.size();
    let config = config.or_else(|| run.recipe.model.as_ref().map(|size| config_of(size, vocab_size)));
    if let Some(config) = config {
        run.together = plan::plan(&run, phases, &ModelConfig { vocab_size, ..config })?;
    }
    if run.options.dry {
        return Ok(run);
    }
    let ours = inputs::manifest(&run, files.as_ref())?;
    if let Some(held) = &held {
        inputs::same(&run.root.join("manifest.json"), held, &ours, OTHER_FOLDER)?;
    }
    if let Some((from, planned)) = &branch {
        taken::same_work(&ours, from, planned)?;
    }
    if writes {
        taken::unchanged(&run.root, phases)?;
        write_atomic(&recipe_path, text.as_bytes())?;
        // What began the run stays; only what was taken over is added.
        let mut manifest = held.unwrap_or(ours);
        let write =
            |manifest: &Value| write_atomic(&run.root.join("manifest.json"), &serde_json::to_vec_pretty(manifest)?);
        write(&manifest)?;
        if let Some((from, planned)) = &branch {
            taken::take(planned, from, &run.root)?;
        }
        let origins = taken::origins(&run.root, phases)?;
        if !origins.is_empty() {
            manifest["taken"] = origins.into();
            write(&manifest)?;
        }
    }
    Ok(run)
}

/// The pretrained model below the adapters that a run writes.
pub(super) struct PretrainedAdapter {
    files: ModelFiles,
    /// A hub id, or a path as it was typed.
    name: String,
    /// The adapter over it that the run begins with.
    adapter: Option<Arc<Adapter>>,
}

impl PretrainedAdapter {
    /// `None` where checkpoints are whole models.
    fn new(model: &str, checkpoint: &ModelFiles, recipe: &Recipe) -> Result<Option<Self>> {
        let Some(lora) = recipe.lora.as_ref().filter(|_| !recipe.checkpoint.whole) else { return Ok(None) };
        // As typed: people publish adapters, and an absolute path would tell of the machine.
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
            "{model}: is an adapter that changes {lost:?} in a way that an adapter of ours does not hold (whole weights, or factors of \
             other matrices than projections)"
        );
        ensure!(!recipe.optimizer.dtype.is_stored(), "{why}, and --dtype stored writes no other: use --dtype f32");
        say(&format!("{why}: checkpoints are whole models"));
        Ok(None)
    }
}

/// What is learnt over an adapter is written as one adapter over its base: projections' factors, rows of tokens, and tables where they
/// are trained whole.
fn not_written_again<'a>(adapter: &'a Adapter, lora: &Lora) -> Vec<&'a str> {
    let replaced = adapter.replaced_names().filter(|name| !(lora.trains_tables() && [EMBED, HEAD].contains(name)));
    let is_projection = |name: &str| TARGETS.iter().any(|target| name.ends_with(&format!(".{target}.weight")));
    replaced.chain(adapter.factor_names().filter(|name| !is_projection(name))).collect()
}

/// What the weights that a phase starts from are: the pretrained model, under an adapter or not, or weights that are no adapter's.
pub(super) enum Start {
    Over(Option<Arc<Adapter>>),
    Whole,
}

/// Removes what a killed process left half-written: in the run's folder and in those of its phases, `grpo_step20` of `grpo` included.
fn sweep(root: &Path, phases: &[&str]) -> Result<()> {
    for entry in fs::read_dir(root).with_context(|| format!("{}: cannot list", root.display()))? {
        let entry = entry.with_context(|| format!("{}: cannot list", root.display()))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let phase = name.rsplit_once("_step").filter(|(_, step)| step.parse::<usize>().is_ok());
        let phase = phase.map_or(&*name, |(phase, _)| phase);
        if phases.contains(&phase) && entry.path().is_dir() {
            PhaseFolder { path: entry.path() }.sweep()?;
        }
    }
    remove_leftovers(root)
}

/// The configuration of a model that is trained from nothing.
fn config_of(size: &ModelSize, vocab_size: usize) -> ModelConfig {
    ModelConfig {
        family: Family::Qwen3,
        vocab_size,
        hidden_size: size.hidden_size,
        intermediate_size: size.intermediate_size,
        num_hidden_layers: size.num_hidden_layers,
        num_attention_heads: size.num_attention_heads,
        num_key_value_heads: size.num_key_value_heads,
        head_dim: size.head_dim,
        rms_norm_eps: 1e-6,
        rope_theta: size.rope_theta,
        rope_scaling: None,
        qk_norm: true,
        tie_word_embeddings: size.tie_word_embeddings,
        max_position_embeddings: 2048,
        bos_token_id: None,
        eos_token_ids: vec![],
        pad_token_id: None,
        extras: Extras::default(),
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
                let Recipe { seed, seed_token, .. } = self.recipe.clone();
                let rows = NewRows { seed, seed_token, ..NewRows::default() };
                Ok(loaded.add_switch_tokens(&rows)?.model)
            }
            (None, Some(size)) => {
                let config = config_of(size, self.corpus.vocabulary.size());
                Decoder::random(&config, self.recipe.seed, &self.device.clone().inner())
            }
            (None, None) => anyhow::bail!("the recipe names neither `model` nor `pretrained`"),
        }
    }

    /// The weights that a phase starts from: those in a folder of another, or the pretrained ones.
    pub(super) fn start(&self, from: Option<(&PhaseFolder, &str)>) -> Result<(Decoder, Start)> {
        let Some((folder, name)) = from else {
            let adapter = self.pretrained.as_ref().and_then(|from| from.adapter.clone());
            return Ok((self.initial_model()?, Start::Over(adapter)));
        };
        let model = folder.import_to_train(name, self.base_dtype(), &self.device.clone().inner())?;
        let adapter = folder.adapter(name)?;
        Ok((model, adapter.map_or(Start::Whole, |adapter| Start::Over(Some(Arc::new(adapter))))))
    }

    /// What the weights that a phase starts from are read in: those under LoRA factors as training computes, others in f32.
    pub(super) fn base_dtype(&self) -> Compute {
        let frozen = self.recipe.lora.is_some() && self.recipe.pretrained.is_some();
        if frozen { self.recipe.optimizer.dtype } else { Compute::F32 }
    }

    /// Whether what these weights learn is written as an adapter.
    pub(super) fn writes_adapter(&self, start: &Start) -> bool {
        self.pretrained.is_some() && matches!(start, Start::Over(_))
    }

    /// Writes weights with what belongs to them.
    pub(super) fn export(
        &self,
        folder: &PhaseFolder,
        name: &str,
        (model, start): (&Decoder, &Start),
        reasoning: &Reasoning,
        trained: TrainingHistory,
    ) -> Result<()> {
        let SwitchIds { swi, swi_end, latent } = self.switch();
        let held = self.pretrained.iter().flat_map(|from| &from.adapter).flat_map(|held| &held.config.token_rows);
        let tokens: Vec<u32> = [swi, swi_end, latent].into_iter().chain(held.map(|&token| token as u32)).collect();
        let over = match (&self.pretrained, start) {
            (Some(PretrainedAdapter { files, name, .. }), Start::Over(before)) => Some(Over {
                base: files,
                name,
                before: before.as_deref(),
                tokens: &tokens,
                tables: self.recipe.lora.as_ref().is_some_and(Lora::trains_tables),
            }),
            _ => None,
        };
        folder
            .export(name, model, &CheckpointExport { vocabulary: self.vocabulary(), over, reasoning, trained })
            .map(drop)
    }

    /// The weights ready to train: on the autodiff device, with LoRA where the recipe has it.
    fn trainable(&self, model: Decoder) -> Result<Decoder> {
        let SwitchIds { swi, swi_end, latent } = self.switch();
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
        // After the factors, which freeze what is there: heads are always trained whole.
        model.heads = heads;
        Ok(model)
    }

    /// A trainer of the weights, shared by the processes of the run.
    pub(super) fn trainer(&self, model: Decoder) -> Result<Trainer> {
        let mut trainer = Trainer::new(self.trainable(model)?, &self.recipe.optimizer).among(self.options.world);
        if self.recipe.lora.as_ref().is_some_and(|lora| lora.only_new_rows) {
            let SwitchIds { swi, swi_end, latent } = self.switch();
            trainer.token_rows = Some(vec![swi, swi_end, latent]);
        }
        Ok(trainer)
    }

    pub(super) fn switch(&self) -> SwitchIds {
        self.corpus.switch
    }

    pub(super) fn vocabulary(&self) -> &Vocabulary {
        &self.corpus.vocabulary
    }

    pub(super) fn path(&self) -> &Path {
        &self.root
    }
}
