//! What experiments share: a [`Study`], that is a checkpoint with its problems and what is computed of them when it is first
//! asked for: known rows laid out beside their annotation, answers, decoding that is forked many times from one prefix. Knows no
//! experiment.

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
use decodes::{Decodes, named};
pub use normal::NormalRun;
pub use open::{ProblemChoice, checkpoint, phases};
use staging::{Reading, StagedSolutions, logits, stage};
use sweep::{Forkable, Sweep};
pub use tagging::TaggedSolution;
pub use units::Shard;

/// The checkpoint has nothing of what an experiment asks about. Neither is at fault: the experiment is left out.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct DoesNotApply(String);

impl DoesNotApply {
    pub(crate) fn because(why: impl Into<String>) -> Self {
        Self(why.into())
    }
}

/// A checkpoint with the held-out problems that it is asked. What experiments share is computed once, when first asked for;
/// threads may share it.
pub struct Study {
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
    /// The model that tags the held-out solutions, where the checkpoint is not of a run and the user names one; a run has its own.
    pub annotator: Option<String>,
    /// Of everything random: bootstraps, splits, draws.
    pub seed: u64,
    /// Workers that share the problems. A large model has one, whose products use all threads: several would each read all of its
    /// weights, for fewer rows at a time.
    pub threads: usize,
    pub device: Device,
    /// The part of the problems that this process works on; `None`: all.
    pub shard: Option<Shard>,
    /// Problems that decode together, where the user says so; the recipe says the same then.
    pub batch: Option<usize>,
    /// Where the blocks of the normal run come from that interventions fork.
    pub blocks: BlockOrigin,
    /// Whether `<swi>` and its like were added when it was opened: what is measured of them is of untrained tokens.
    pub untrained: bool,
    /// Whether [`Self::say`] tells the user what is being done.
    pub talks: bool,
    /// Responses that were decoded by others.
    pub decodes: Decodes,
    /// The normal run as shards made it.
    pub normal: Option<NormalRun>,
    tagged: OnceLock<Vec<TaggedSolution>>,
    staged: OnceLock<StagedSolutions>,
    readings: OnceLock<Vec<Vec<Reading>>>,
    decoded: OnceLock<(Scores, Vec<Trace>)>,
    forkable: OnceLock<Forkable>,
}

/// Weights of a large model.
const LARGE: usize = 1 << 30;

/// What a cell holds, computed where it is empty.
fn lazy<T>(cell: &OnceLock<T>, compute: impl FnOnce() -> Result<T>) -> Result<&T> {
    if cell.get().is_none() {
        let _ = cell.set(compute()?);
    }
    cell.get().context("nothing was computed")
}

impl Study {
    /// Tokens that its decoder never draws in text ([`Controller::masked_in_text`]).
    pub(crate) fn mask_in_text(&self, may_open: bool) -> Vec<u32> {
        self.reasoning.blocks.masked_in_text(&self.corpus.switch, may_open)
    }

    /// A model and its problems, of no run, by one worker.
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
            tagged: OnceLock::new(),
            staged: OnceLock::new(),
            readings: OnceLock::new(),
            decoded: OnceLock::new(),
            forkable: OnceLock::new(),
        }
    }

    /// By so many workers; a large model has one.
    #[must_use]
    pub(crate) fn by(self, threads: usize) -> Self {
        let threads = if self.model.config().token_weights() < LARGE { threads } else { 1 };
        Self { threads, ..self }
    }

    /// One part of several. Problems go to parts in the batches that decode together, so that each is computed exactly as
    /// one process computes it.
    ///
    /// # Errors
    /// More parts than there are batches.
    pub fn sharded(self, shard: Option<Shard>) -> Result<Self> {
        if let Some(shard) = shard {
            let (problems, batch) = (self.corpus.test.len(), self.together());
            let batches = problems.div_ceil(batch);
            ensure!(
                shard.of <= batches,
                "--shard {shard}: {}'s {problems} problems, {batch} decoded together, make {batches} shards at most: take fewer \
                 shards, or a smaller --batch",
                self.name
            );
        }
        Ok(Self { shard, ..self })
    }

    /// With spans that are known already, in the order of the problems, instead of an annotator's.
    #[must_use]
    pub fn with_tags(self, tagged: Vec<TaggedSolution>) -> Self {
        Self { tagged: OnceLock::from(tagged), ..self }
    }

    #[must_use]
    pub fn with_blocks(self, blocks: BlockOrigin) -> Self {
        Self { blocks, forkable: OnceLock::new(), ..self }
    }

    /// Under a name of the caller's: of the model, or of the run that its phase belongs to.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = if self.run.is_some() { format!("{name}/{}", self.short_name()) } else { name.to_owned() };
        name.clone_into(&mut self.recipe.name);
        self
    }

    /// Tells the user what is being done.
    pub(crate) fn say(&self, what: &str) {
        if self.talks {
            crate::progress::say(&format!("intervene: {}: {what}", self.name));
        }
    }

    /// `work` on every item by the study's workers; results in order. Tells the user how many are done.
    ///
    /// # Errors
    /// The first that fails; the user's Ctrl-C, after which nothing of what was under way is a result.
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
            counted.one();
            Ok(done)
        })
    }

    /// How far a part of the work is.
    pub(crate) fn counted(&self, what: &str, total: usize) -> SharedProgress {
        SharedProgress::new(&self.name, what, total)
    }

    /// Problems that decode together.
    pub(crate) fn together(&self) -> usize {
        self.recipe.evaluation.batch.max(1)
    }

    /// Whether a unit of work is this process' own, by its number.
    pub(crate) fn has(&self, unit: usize) -> bool {
        self.shard.is_none_or(|shard| shard.has(unit))
    }

    /// Whether a problem is this process' own.
    pub(crate) fn owns(&self, problem: usize) -> bool {
        self.has(problem / self.together())
    }

    /// `n` is the number of problems behind a row.
    pub fn identity(&self, n: usize) -> Identity {
        Identity { checkpoint: self.name.clone(), dataset: self.recipe.dataset(), n, seed: self.seed }
    }

    /// The part of its name that stands in file names: the phase, or the model.
    pub fn short_name(&self) -> &str {
        self.name.rsplit('/').next().unwrap_or(&self.name)
    }

    /// As an evaluation decodes: greedily.
    pub fn settings(&self) -> DecodeSettings {
        decode_settings(&self.recipe.evaluation, &self.corpus.stops, Switching::Free)
    }

    /// What a decode of it shares: model, latent source, controller, switch tokens. The user's Ctrl-C cancels it.
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

    /// Known rows of it run to the end, latents through its own source.
    pub fn unroll(&self, sequences: &[Sequence], hooks: &mut Hooks) -> Result<UnrolledStates> {
        unroll(&self.model, sequences, &self.reasoning.source, Gradient::Through, hooks)
    }

    /// That it has nothing of what is asked about.
    pub(crate) fn lacks(&self, why: &str) -> DoesNotApply {
        DoesNotApply(format!("{}: {why}", self.name))
    }

    /// Refuses a checkpoint that [`Self::lacks`] what must be `there`.
    pub(crate) fn needs(&self, there: bool, why: impl FnOnce() -> String) -> Result<()> {
        ensure!(there, self.lacks(&why()));
        Ok(())
    }

    /// Whether what heads and MLPs put out goes into the stream as it is, and logits are sums over the stream, so that a head's own part
    /// of them is known.
    ///
    /// # Errors
    /// [`DoesNotApply`] to a model that normalises it first, or caps its logits.
    pub fn adds_as_it_is(&self) -> Result<()> {
        let family = self.model.config().family;
        let adds = family.norm_place() == NormPlace::Before && self.model.config().extras.logit_cap.is_none();
        self.needs(adds, || {
            format!(
                "a {} model normalises what attention and MLP put out before it is added, or caps its logits, which this experiment \
                 does not take apart",
                family.name()
            )
        })
    }

    /// Whether the stream is the sum of what embeddings, heads and MLPs write, and norms only divide it: what takes a decision
    /// apart, edge by edge or exactly, relies on both.
    ///
    /// # Errors
    /// As [`Self::adds_as_it_is`]; [`DoesNotApply`] to a model with LayerNorms, biases of its outputs or learned positions.
    pub fn is_plain_sum(&self) -> Result<()> {
        self.adds_as_it_is()?;
        let family = self.model.config().family;
        let plain = !family.layer_norm() && !family.other_biases() && !family.learned_positions();
        let has = "LayerNorms, biases and learned positions, which this experiment does not take apart";
        self.needs(plain, || format!("a {} model has {has}", family.name()))
    }

    /// Whether the model itself says where its blocks stand and how long they are, or was trained to where it cannot yet.
    ///
    /// # Errors
    /// [`DoesNotApply`] where a rule says so.
    pub fn chooses_blocks(&self) -> Result<()> {
        let why = match &self.reasoning.blocks {
            Blocks::Learnt(_) | Blocks::Never | Blocks::Plain => return Ok(()),
            Blocks::Thinking { .. } => "the model does not choose where to switch",
            _ => "the model chooses neither where to switch nor how long to stay",
        };
        let rule = serde_json::to_string(&self.reasoning.blocks)?;
        Err(self.lacks(&format!("its blocks follow a rule ({rule}): {why}")).into())
    }

    /// The held-out solutions with the spans that the annotator tags in them, in the order of the problems.
    ///
    /// # Errors
    /// [`DoesNotApply`] where blocks do not stand at spans; a run without annotation, a solution that cannot be scored.
    pub fn tagged(&self) -> Result<&[TaggedSolution]> {
        self.chooses_blocks()?;
        Ok(lazy(&self.tagged, || {
            let test = &self.corpus.test;
            let bare = test.iter().filter(|problem| problem.solution.trim().is_empty()).count();
            let why = || format!("{bare} of {} problems bring no worked solution in which to tag spans", test.len());
            ensure!(bare == 0, DoesNotApply(why()));
            self.tag_held_out().context("tagging the held-out solutions")
        })?)
    }

    /// The tagged solutions as known rows, with what stands where.
    pub(crate) fn staged(&self) -> Result<&StagedSolutions> {
        lazy(&self.staged, || stage(self, self.tagged()?))
    }

    /// What each next-token distribution of the staged solutions says about `<swi>`, as [`logits::readings`].
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

    /// Greedy decoding under another rule of switching or another `K_min`.
    pub fn decode(&self, switching: Switching, k_min: usize) -> Result<(Scores, Vec<Trace>)> {
        if let Some(traces) = self.decodes.get(&named(switching, k_min)) {
            return Ok((score(traces, &self.corpus)?, traces.clone()));
        }
        let requests = requests(&self.corpus)?;
        let batches: Vec<&[Request]> = requests.chunks(self.together()).collect();
        let counted = self.counted("batches decoded", batches.len());
        let traces = self.decode_only(&self.model, (switching, k_min), &batches, &|_| {
            counted.one();
            Ok(())
        })?;
        Ok((score(&traces, &self.corpus)?, traces))
    }

    /// Greedy decoding of every held-out problem by another model of its shape.
    pub(crate) fn decode_as(&self, model: &Decoder) -> Result<Scores> {
        let requests = requests(&self.corpus)?;
        let batches: Vec<&[Request]> = requests.chunks(self.together()).collect();
        let own = (Switching::Free, self.recipe.evaluation.k_min);
        score(&self.decode_only(model, own, &batches, &|_| Ok(()))?, &self.corpus)
    }

    /// Decodes some of the problems, in batches that are the caller's and not those of a number of threads: threads round
    /// nothing another way. `done` hears of each batch.
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
