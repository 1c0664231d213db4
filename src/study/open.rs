//! What the experiments on one checkpoint share: computed once, when first asked for.

use std::cell::OnceCell;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use burn::tensor::Device;

use super::decodes::{Decodes, named};
use super::normal::NormalRun;
use super::shard::Shard;
use super::staging::{Reading, Staged, logits, stage};
use super::subject::{Subject, Tagged};
use crate::evaluation::{Evaluated, Scores, decode_batches, requests, score};
use crate::latent::{Blocks, Request, Switching, Trace};
use crate::machine::Machine;
use crate::recipe::Evaluation;
use crate::schema::Identity;

/// The checkpoint has nothing of what an experiment asks about. Neither is at fault: the experiment is left out.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct DoesNotApply(String);

impl DoesNotApply {
    pub(crate) fn because(why: impl Into<String>) -> Self {
        Self(why.into())
    }
}

/// A checkpoint under examination.
pub struct Study {
    pub subject: Subject,
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
    /// Responses that were decoded by others.
    pub decodes: Decodes,
    /// The normal run as shards made it.
    pub normal: Option<NormalRun>,
    tagged: OnceCell<Vec<Tagged>>,
    staged: OnceCell<Staged>,
    readings: OnceCell<Vec<Vec<Reading>>>,
    decoded: OnceCell<(Scores, Vec<Trace>)>,
}

/// Weights of a large model.
const LARGE: usize = 1 << 30;

impl Study {
    pub fn new(subject: Subject, seed: u64, threads: usize, device: Device) -> Self {
        let threads = if subject.model.config().token_weights() < LARGE { threads } else { 1 };
        Self {
            subject,
            seed,
            threads,
            device,
            shard: None,
            batch: None,
            decodes: Decodes::default(),
            normal: None,
            tagged: OnceCell::new(),
            staged: OnceCell::new(),
            readings: OnceCell::new(),
            decoded: OnceCell::new(),
        }
    }

    /// Opens a phase of a run on the default machine; as [`Subject::open`].
    ///
    /// # Errors
    /// As [`Subject::open`].
    pub fn open(run: &Path, phase: &str, problems: Option<usize>, seed: u64) -> Result<Self> {
        let Machine { device, threads, .. } = Machine::default();
        Ok(Self::new(Subject::open(run, phase, problems, &device)?, seed, threads, device))
    }

    /// One part of several. Problems go to parts in the batches that decode together, so that each is computed exactly as
    /// one process computes it.
    ///
    /// # Errors
    /// More parts than there are batches.
    pub fn sharded(self, shard: Option<Shard>) -> Result<Self> {
        if let Some(shard) = shard {
            let (problems, batch) = (self.subject.corpus.test.len(), self.together());
            let batches = problems.div_ceil(batch);
            ensure!(
                shard.of <= batches,
                "--shard {shard}: {}'s {problems} problems, {batch} decoded together, make {batches} shards at most: take fewer \
                 shards, or a smaller --batch",
                self.subject.name
            );
        }
        Ok(Self { shard, ..self })
    }

    /// Problems that decode together.
    pub(crate) fn together(&self) -> usize {
        self.subject.recipe.evaluation.batch.max(1)
    }

    /// Whether a unit of work is this process' own, by its number.
    pub(crate) fn has(&self, unit: usize) -> bool {
        self.shard.is_none_or(|shard| shard.has(unit))
    }

    /// Whether a problem is this process' own.
    pub(crate) fn owns(&self, problem: usize) -> bool {
        self.has(problem / self.together())
    }

    /// With spans that are known already, in the order of the problems, instead of an annotator's.
    #[must_use]
    pub fn with_tags(self, tagged: Vec<Tagged>) -> Self {
        Self { tagged: OnceCell::from(tagged), ..self }
    }

    /// `n` is the number of problems behind a row.
    pub fn identity(&self, n: usize) -> Identity {
        Identity { checkpoint: self.subject.name.clone(), dataset: self.subject.dataset(), n, seed: self.seed }
    }

    /// Whether the model itself says where its blocks stand and how long they are, or was trained to where it cannot yet.
    ///
    /// # Errors
    /// [`DoesNotApply`] where a rule says so.
    pub fn chooses_blocks(&self) -> Result<()> {
        let Subject { name, reasoning, .. } = &self.subject;
        let rule = match reasoning.blocks {
            Blocks::Learnt | Blocks::Never => return Ok(()),
            rule => serde_json::to_string(&rule)?,
        };
        let why = match reasoning.blocks {
            Blocks::Thinking { .. } => "the model does not choose where to switch",
            _ => "the model chooses neither where to switch nor how long to stay",
        };
        Err(DoesNotApply(format!("{name}: its blocks follow a rule ({rule}): {why}")).into())
    }

    /// The held-out solutions with the spans that the annotator tags in them, in the order of the problems.
    ///
    /// # Errors
    /// [`DoesNotApply`] where blocks do not stand at spans; a run without annotation, a solution that cannot be scored.
    pub fn tagged(&self) -> Result<&[Tagged]> {
        self.chooses_blocks()?;
        if self.tagged.get().is_none() {
            let test = &self.subject.corpus.test;
            let bare = test.iter().filter(|problem| problem.solution.trim().is_empty()).count();
            ensure!(
                bare == 0,
                DoesNotApply(format!(
                    "{bare} of {} problems bring no worked solution in which to tag spans",
                    test.len()
                ))
            );
            let tagged = self.subject.tag_held_out(&self.device).context("tagging the held-out solutions")?;
            let _ = self.tagged.set(tagged);
        }
        Ok(self.tagged.get().map(Vec::as_slice).unwrap_or_default())
    }

    /// The tagged solutions as known rows, with what stands where.
    ///
    /// # Errors
    /// As [`Self::tagged`], and data without a single boundary.
    pub(crate) fn staged(&self) -> Result<&Staged> {
        if self.staged.get().is_none() {
            let _ = self.staged.set(stage(&self.subject, self.tagged()?)?);
        }
        self.staged.get().context("nothing was staged")
    }

    /// What each next-token distribution of the staged solutions says about `<swi>`, as [`logits::readings`].
    ///
    /// # Errors
    /// As [`Self::staged`] and the model's.
    pub(crate) fn readings(&self) -> Result<&[Vec<Reading>]> {
        if self.readings.get().is_none() {
            let _ = self.readings.set(logits::readings(&self.subject, self.staged()?, self.threads)?);
        }
        Ok(self.readings.get().map(Vec::as_slice).unwrap_or_default())
    }

    /// Greedy decoding of every held-out problem: scores and traces, in the order of the problems.
    ///
    /// # Errors
    /// As the decoder's.
    pub fn decoded(&self) -> Result<(&Scores, &[Trace])> {
        if self.decoded.get().is_none() {
            let _ = self.decoded.set(self.decode(Switching::Free, self.subject.recipe.evaluation.k_min)?);
        }
        self.decoded.get().map(|(scores, traces)| (scores, traces.as_slice())).context("nothing was decoded")
    }

    /// Greedy decoding under another rule of switching or another `K_min`.
    ///
    /// # Errors
    /// As the decoder's.
    pub fn decode(&self, switching: Switching, k_min: usize) -> Result<(Scores, Vec<Trace>)> {
        let corpus = &self.subject.corpus;
        if let Some(traces) = self.decodes.get(&named(switching, k_min)) {
            return Ok((score(traces, corpus)?, traces.clone()));
        }
        let requests = requests(corpus);
        let batches: Vec<&[Request]> = requests.chunks(self.together()).collect();
        let traces = self.decode_only(switching, k_min, &batches, &|_| Ok(()))?;
        Ok((score(&traces, corpus)?, traces))
    }

    /// The same of some of the problems, in batches that are the caller's and not those of a number of threads: threads round
    /// nothing another way. `done` hears of each batch.
    ///
    /// # Errors
    /// As the decoder's and those of `done`.
    pub(crate) fn decode_only(
        &self,
        switching: Switching,
        k_min: usize,
        batches: &[&[Request]],
        done: &(dyn Fn(&[Trace]) -> Result<()> + Sync),
    ) -> Result<Vec<Trace>> {
        let Subject { model, corpus, recipe, reasoning, .. } = &self.subject;
        let evaluation = &Evaluation { k_min, k_cap: recipe.evaluation.k_cap.max(k_min), ..recipe.evaluation.clone() };
        decode_batches(&Evaluated { model, corpus, evaluation, reasoning, switching }, batches, self.threads, done)
    }
}
