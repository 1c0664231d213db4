//! Shared ground of experiments: a [`Study`] is a checkpoint with its held-out problems. It computes lazily and once what several
//! experiments need: tagged solutions, answers, and decodes that are forked from one prefix. Knows no experiment.

pub mod answers;
pub mod arithmetic;
pub(crate) mod block_values;
pub mod circuits;
pub mod decodes;
pub mod modes;
mod normal;
pub mod nulls;
mod open;
mod origin;
pub mod readout;
pub(crate) mod record;
pub(crate) mod shown;
pub(crate) mod staging;
pub mod sweep;
mod tagging;
mod training;
pub(crate) mod units;

use std::path::PathBuf;
use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};
use burn::tensor::Device;

use crate::corpus::Corpus;
use crate::evaluation::{EvaluationSetup, Scores, decode_batches, decode_settings, requests, score};
use crate::latent::{
    Blocks, Controller, Decode, DecodeSettings, Gradient, Reasoning, Request, Sequence, Switching, Trace,
    UnrolledStates, unroll,
};
use crate::method::Recipe;
use crate::model::config::NormPlace;
use crate::model::{Decoder, Hooks};
use crate::parallel;
use crate::progress::{SharedProgress, go_on};
use crate::recipe::Evaluation;
use crate::schema::{BlockOrigin, Identity};
use decodes::{Decodes, decode_name};
pub use normal::NormalRun;
pub use open::{ProblemChoice, checkpoint, kept_checkpoints, phases, recipe_of};
use staging::{Reading, StagedSolutions, logits, stage};
use sweep::{Forkable, Sweep};
pub use tagging::TaggedSolution;
pub(crate) use training::TrainingProblems;
pub use units::Shard;

/// Error: the checkpoint lacks something that the experiment measures. The experiment is skipped.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct DoesNotApply(String);

impl DoesNotApply {
    pub(crate) fn because(why: impl Into<String>) -> Self {
        Self(why.into())
    }
}

/// A checkpoint with its held-out problems. Shared results are computed once, on first use, and can be read by several threads.
pub struct Study {
    /// `<run>/<phase>`, or the name of a model outside a run.
    pub name: String,
    pub model: Decoder,
    pub corpus: Corpus,
    pub recipe: Recipe,
    /// The checkpoint's reasoning, used by every decode and every forward of a known sequence.
    pub reasoning: Reasoning,
    /// The run folder, if the checkpoint comes from a run.
    pub run: Option<PathBuf>,
    /// Folder or file of the weights. For an adapter's folder, also its base.
    pub source: Vec<PathBuf>,
    /// Folder of an adapter on top of the weights.
    pub adapter: Option<PathBuf>,
    /// Model that tags the held-out solutions, if the user names one for a checkpoint outside a run. A run has its own annotator.
    pub annotator: Option<String>,
    /// Seed of bootstraps, splits and draws.
    pub seed: u64,
    /// Worker threads, each with some of the problems. A large model has one worker, so that its weights are read once.
    pub threads: usize,
    pub device: Device,
    /// Share of the problems that this process computes; `None`: all.
    pub shard: Option<Shard>,
    /// Decode batch size set by the user, which overrides the recipe's.
    pub batch: Option<usize>,
    /// Origin of the blocks in the normal run that interventions fork.
    pub blocks: BlockOrigin,
    /// Whether `<swi>`, `</swi>` and `<latent>` were added on opening, so that measurements of them are of untrained tokens.
    pub untrained: bool,
    /// Whether [`Self::say`] prints progress.
    pub talks: bool,
    /// Responses that shards decoded.
    pub decodes: Decodes,
    /// The normal run that shards computed.
    pub normal: Option<NormalRun>,
    training: OnceLock<TrainingProblems>,
    deeper: OnceLock<Corpus>,
    tagged: OnceLock<Vec<TaggedSolution>>,
    staged: OnceLock<StagedSolutions>,
    readings: OnceLock<Vec<Vec<Reading>>>,
    decoded: OnceLock<(Scores, Vec<Trace>)>,
    forkable: OnceLock<Forkable>,
}

/// Weights from which on a model is large.
const LARGE: usize = 1 << 30;

/// The value of a cell; computed first if the cell is empty.
fn lazy<T>(cell: &OnceLock<T>, compute: impl FnOnce() -> Result<T>) -> Result<&T> {
    if cell.get().is_none() {
        let _ = cell.set(compute()?);
    }
    cell.get().context("the value was not computed")
}

impl Study {
    /// Tokens that the decoder never draws in text ([`Controller::masked_in_text`]).
    pub(crate) fn mask_in_text(&self, may_open: bool) -> Vec<u32> {
        self.reasoning.blocks.masked_in_text(&self.corpus.switch, may_open)
    }

    /// A model and its problems outside a run, with one worker.
    pub(crate) fn new(name: String, model: Decoder, corpus: Corpus, recipe: Recipe, reasoning: Reasoning) -> Self {
        Self {
            name,
            device: model.device(),
            model,
            corpus,
            recipe,
            reasoning,
            run: None,
            source: vec![],
            adapter: None,
            annotator: None,
            seed: 0,
            threads: 1,
            shard: None,
            batch: None,
            blocks: BlockOrigin::Own,
            untrained: false,
            talks: false,
            decodes: Decodes::default(),
            normal: None,
            training: OnceLock::new(),
            deeper: OnceLock::new(),
            tagged: OnceLock::new(),
            staged: OnceLock::new(),
            readings: OnceLock::new(),
            decoded: OnceLock::new(),
            forkable: OnceLock::new(),
        }
    }

    /// Sets the number of workers; a large model always has one.
    #[must_use]
    pub(crate) fn with_workers(self, threads: usize) -> Self {
        let threads = if self.model.config().token_weights() < LARGE { threads } else { 1 };
        Self { threads, ..self }
    }

    /// Restricts the study to one shard. Problems go to shards in whole decode batches, so that every number has the same bits as in a
    /// single process.
    ///
    /// # Errors
    /// More shards than batches.
    pub fn sharded(self, shard: Option<Shard>) -> Result<Self> {
        if let Some(shard) = shard {
            let (problems, batch) = (self.corpus.test.len(), self.batch_size());
            let batches = problems.div_ceil(batch);
            ensure!(
                shard.of <= batches,
                "--shard {shard}: {}'s {problems} problems in batches of {batch} allow {batches} shards at most: use fewer shards or a \
                 smaller --batch",
                self.name
            );
        }
        Ok(Self { shard, ..self })
    }

    /// Uses these tagged solutions, in the order of the problems, instead of an annotator's.
    #[must_use]
    pub fn with_tags(self, tagged: Vec<TaggedSolution>) -> Self {
        Self { tagged: OnceLock::from(tagged), ..self }
    }

    #[must_use]
    pub fn with_blocks(self, blocks: BlockOrigin) -> Self {
        Self { blocks, forkable: OnceLock::new(), ..self }
    }

    /// Renames the model, or the run that the phase belongs to.
    #[must_use]
    pub fn with_name(mut self, name: &str) -> Self {
        self.name = if self.run.is_some() { format!("{name}/{}", self.short_name()) } else { name.to_owned() };
        name.clone_into(&mut self.recipe.name);
        self
    }

    /// Prints progress, if enabled.
    pub(crate) fn say(&self, what: &str) {
        if self.talks {
            crate::progress::say(&format!("intervene: {}: {what}", self.name));
        }
    }

    /// Runs `work` on every item by the study's workers and prints progress; results in order.
    ///
    /// # Errors
    /// The first failure; Ctrl-C, after which no result of a running item is returned.
    pub(crate) fn each<'t, T: Sync, R: Send>(
        &self,
        what: &str,
        items: &'t [T],
        work: impl Fn(&'t T) -> Result<R> + Sync,
    ) -> Result<Vec<R>> {
        let counted = self.counted(what, items.len());
        parallel::each(items, self.threads, |item| {
            go_on()?;
            let done = work(item)?;
            go_on()?;
            counted.add_one();
            Ok(done)
        })
    }

    pub(crate) fn counted(&self, what: &str, total: usize) -> SharedProgress {
        SharedProgress::new(&self.name, what, total)
    }

    pub(crate) fn batch_size(&self) -> usize {
        self.recipe.evaluation.batch.max(1)
    }

    /// Whether this process computes the work unit of this number.
    pub(crate) fn computes_unit(&self, unit: usize) -> bool {
        self.shard.is_none_or(|shard| shard.has(unit))
    }

    pub(crate) fn computes_problem(&self, problem: usize) -> bool {
        self.computes_unit(problem / self.batch_size())
    }

    /// `n`: number of problems that a record summarises.
    pub fn identity(&self, n: usize) -> Identity {
        Identity { checkpoint: self.name.clone(), dataset: self.recipe.dataset(), n, seed: self.seed }
    }

    /// The name in file names: the phase, or the model.
    pub fn short_name(&self) -> &str {
        self.name.rsplit('/').next().unwrap_or(&self.name)
    }

    /// Maximum latents of a block, 0 without blocks. The decoder's cap bounds only blocks whose length the model chooses.
    pub(crate) fn longest_block(&self) -> usize {
        Reasoning { k_cap: self.recipe.evaluation.k_cap, ..self.reasoning.clone() }.longest_block()
    }

    /// Settings of an evaluation: greedy decoding.
    pub fn settings(&self) -> DecodeSettings {
        decode_settings(&self.recipe.evaluation, &self.corpus.stops, Switching::Free)
    }

    /// The arguments that all decodes share: model, latent source, controller, switch tokens. Ctrl-C cancels it.
    pub fn decoding<'a>(&'a self, settings: &'a DecodeSettings) -> Decode<'a> {
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

    /// Runs known sequences to the end, with latent inputs from the study's source.
    pub fn unroll(&self, sequences: &[Sequence], hooks: &mut Hooks) -> Result<UnrolledStates> {
        unroll(&self.model, sequences, &self.reasoning.source, Gradient::Through, hooks)
    }

    /// Error: the study lacks what the experiment needs.
    pub(crate) fn inapplicable(&self, why: &str) -> DoesNotApply {
        DoesNotApply(format!("{}: {why}", self.name))
    }

    /// Fails with [`Self::inapplicable`] unless `there`.
    pub(crate) fn require(&self, there: bool, why: impl FnOnce() -> String) -> Result<()> {
        ensure!(there, self.inapplicable(&why()));
        Ok(())
    }

    /// Requires that outputs of heads and MLPs are added to the stream unchanged and that logits are linear in the stream, so that a
    /// head's direct contribution to a logit is exact.
    ///
    /// # Errors
    /// [`DoesNotApply`] to a model with norms after attention or MLP, or with capped logits.
    pub fn adds_as_it_is(&self) -> Result<()> {
        let family = self.model.config().family;
        let adds = family.norm_place == NormPlace::Before && self.model.config().extras.logit_cap.is_none();
        self.require(adds, || {
            format!(
                "a {} model normalises the outputs of attention and MLP before adding them, or caps its logits: this experiment does not \
                 decompose it",
                family.name()
            )
        })
    }

    /// Requires that the stream is the sum of the outputs of embeddings, heads and MLPs, and that norms only divide it. Exact
    /// decompositions and edge attribution rely on both.
    ///
    /// # Errors
    /// As [`Self::adds_as_it_is`]; [`DoesNotApply`] to a model with LayerNorms, output biases or learned positions.
    pub fn is_plain_sum(&self) -> Result<()> {
        self.adds_as_it_is()?;
        let family = self.model.config().family;
        let plain = !family.layer_norm && !family.other_biases && !family.learned_positions;
        let has = "LayerNorms, biases and learned positions, which this experiment does not decompose";
        self.require(plain, || format!("a {} model has {has}", family.name()))
    }

    /// Requires that the model itself decides where a block opens and how long it is, or was trained towards that.
    ///
    /// # Errors
    /// [`DoesNotApply`] if a fixed rule decides.
    pub fn chooses_blocks(&self) -> Result<()> {
        let why = match &self.reasoning.blocks {
            Blocks::Learnt(_) | Blocks::Never | Blocks::Plain => return Ok(()),
            Blocks::Thinking { .. } => "the model does not choose where to switch",
            _ => "the model chooses neither where to switch nor how long to stay",
        };
        let rule = serde_json::to_string(&self.reasoning.blocks)?;
        Err(self.inapplicable(&format!("its blocks follow a rule ({rule}): {why}")).into())
    }

    /// The held-out solutions with the spans that the annotator tags, in the order of the problems.
    ///
    /// # Errors
    /// [`DoesNotApply`] if blocks are not placed at spans; a run without annotation; a solution that cannot be scored.
    pub fn tagged(&self) -> Result<&[TaggedSolution]> {
        self.chooses_blocks()?;
        Ok(lazy(&self.tagged, || {
            let test = &self.corpus.test;
            let bare = test.iter().filter(|problem| problem.solution.trim().is_empty()).count();
            let why = || format!("{bare} of {} problems have no worked solution in which to tag spans", test.len());
            ensure!(bare == 0, DoesNotApply(why()));
            self.tag_held_out().context("tagging the held-out solutions")
        })?)
    }

    /// The tagged solutions as sequences, with the class of each position.
    pub(crate) fn staged(&self) -> Result<&StagedSolutions> {
        lazy(&self.staged, || stage(self, self.tagged()?))
    }

    /// Statistics of `<swi>` in each next-token distribution of the staged solutions, see [`logits::readings`].
    pub(crate) fn readings(&self) -> Result<&[Vec<Reading>]> {
        Ok(lazy(&self.readings, || logits::readings(self, self.staged()?))?)
    }

    /// Greedy decoding of every held-out problem: scores and traces, in the order of the problems.
    pub fn decoded(&self) -> Result<(&Scores, &[Trace])> {
        let (scores, traces) = lazy(&self.decoded, || self.decode(Switching::Free, self.recipe.evaluation.k_min))?;
        Ok((scores, traces))
    }

    /// The problems decoded normally, ready to be forked.
    pub fn sweep(&self) -> Result<Sweep<'_>> {
        Ok(Sweep::new(self, lazy(&self.forkable, || Forkable::new(self))?))
    }

    /// Greedy decoding with another switching rule or another `K_min`.
    pub fn decode(&self, switching: Switching, k_min: usize) -> Result<(Scores, Vec<Trace>)> {
        if let Some(traces) = self.decodes.get(&decode_name(switching, k_min)) {
            return Ok((score(traces, &self.corpus)?, traces.clone()));
        }
        let requests = requests(&self.corpus)?;
        let batches: Vec<&[Request]> = requests.chunks(self.batch_size()).collect();
        let counted = self.counted("batches decoded", batches.len());
        let traces = self.decode_only(&self.model, (switching, k_min), &batches, &|_| {
            counted.add_one();
            Ok(())
        })?;
        Ok((score(&traces, &self.corpus)?, traces))
    }

    /// Greedy decoding by another model of the same shape, or of other problems.
    pub(crate) fn decode_with(&self, model: &Decoder, corpus: &Corpus) -> Result<Scores> {
        let Self { recipe, reasoning, .. } = self;
        let requests = requests(corpus)?;
        let batches: Vec<&[Request]> = requests.chunks(self.batch_size()).collect();
        let evaluation = &recipe.evaluation;
        let setup = EvaluationSetup { model, corpus, evaluation, reasoning, switching: Switching::Free };
        score(&decode_batches(&setup, &batches, self.threads, &|_| Ok(()))?, corpus)
    }

    /// Decodes some of the problems. The caller sets the batches, because another batch size rounds differently; the number of
    /// threads does not. `done` is called after each batch.
    pub(crate) fn decode_only(
        &self,
        model: &Decoder,
        (switching, k_min): (Switching, usize),
        batches: &[&[Request]],
        done: &(dyn Fn(&[Trace]) -> Result<()> + Sync),
    ) -> Result<Vec<Trace>> {
        let Self { corpus, recipe, reasoning, .. } = self;
        let evaluation = &Evaluation { k_min, k_cap: recipe.evaluation.k_cap.max(k_min), ..recipe.evaluation.clone() };
        let setup = EvaluationSetup { model, corpus, evaluation, reasoning, switching };
        decode_batches(&setup, batches, self.threads, done)
    }
}
