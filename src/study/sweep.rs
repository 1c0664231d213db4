//! Forked decoding: many continuations of the same prefix.
//!
//! 1. Decode every problem normally. Store the KV cache up to its first block, its outcome and its latent states.
//! 2. Group the forks (problems × modes × steps × draws) into batches that share prefixes.
//! 3. Decode each batch with the changed latent inputs, and grade it.
//!
//! Problems without a block are decoded once for all. Knows how to decode and grade forks, not what they mean.

use std::cell::RefCell;
use std::ops::{Deref, Range};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};

use super::Study;
use super::answers::{gold_tokens, outcome};
use super::normal::{Normal, row};
use crate::evaluation::requests;
use crate::interventions::{
    Bank, ChangeLog, ChangePlace, Firings, Intervention, LatentPlace, Later, PreparedChange, Steps, latents,
};
use crate::latent::trace::PositionRole;
use crate::latent::{Branch, DecodeSettings, FinishedRow, Fork, Prefix, Request, Start, Switching, Trace};
use crate::model::{Hooks, Select};
use crate::parallel;
use crate::progress::go_on;
use crate::schema::{At, BlockOrigin, NormalRunRow};

/// Upper bound of the KV cache of one batch of forks, in bytes.
const CACHE_BYTES: usize = 256 << 20;
/// Maximum batch size of forks: a CPU gains nothing beyond it, and its caches overflow.
const ROWS: usize = 128;

/// Outcome of one problem under one continuation.
#[derive(Clone, Debug, PartialEq)]
pub struct SweepOutcome {
    pub correct: bool,
    pub answer: Option<String>,
    /// Margin: logit of the gold answer's first token minus that of the best other token, where the response gives its answer.
    pub margin: Option<f64>,
    pub switched: bool,
    pub latent_calls: usize,
    /// Whether tokens and log-probabilities equal the normal run's, bit for bit.
    pub identical: bool,
}

/// One continuation of every problem: its difference from the normal run.
#[derive(Clone, Copy, Default)]
pub struct Continuation<'a> {
    /// Replacements of the inputs at latent steps.
    pub inputs: Option<(&'a dyn Intervention, Steps)>,
    /// Switching rule from the first `<swi>` on.
    pub switching: Switching,
    /// Opens a block in problems without one, where p(`<swi>`) was highest; other problems do not change.
    pub force: bool,
    /// Decode in batches of exactly the normal run's shape, so that equal inputs give equal bits.
    pub same_shape: bool,
}

/// One problem that was decoded again.
#[derive(Clone, Debug)]
pub struct ForkedProblem {
    pub problem: usize,
    /// Index of the continuation.
    pub continuation: usize,
    pub outcome: SweepOutcome,
    pub firings: Firings,
}

struct Batch {
    problems: Range<usize>,
    /// `None`: another shard forks these problems.
    prefix: Option<Prefix>,
}

/// The held-out problems after normal decoding, and the point at which each can be forked.
pub struct Forkable {
    pub settings: DecodeSettings,
    pub blocks: BlockOrigin,
    batches: Vec<Batch>,
    pub requests: Vec<Request>,
    /// Position at which the normal run was forced to open a block.
    pub force_at: Vec<Option<usize>>,
    /// Outcomes of the normal run.
    pub traces: Vec<Trace>,
    pub normal: Vec<SweepOutcome>,
    /// Latent states of the normal run.
    pub bank: Bank,
    /// Problems without a block: their prefix is the whole response.
    ended: Vec<bool>,
}

/// A study's problems, ready to be forked.
pub struct Sweep<'a> {
    study: &'a Study,
    of: &'a Forkable,
    /// Maximum batch size of forks.
    pub rows_at_once: usize,
}

impl Deref for Sweep<'_> {
    type Target = Forkable;

    fn deref(&self) -> &Forkable {
        self.of
    }
}

/// Forks of one batch that decode together: (problem, continuation).
struct ForkUnit {
    batch: usize,
    start: Start,
    members: Vec<(usize, usize)>,
}

impl Forkable {
    /// Decodes every problem normally and stores the state at its fork.
    pub(super) fn new(study: &Study) -> Result<Self> {
        let (settings, blocks) = (study.settings(), study.blocks);
        let requests = requests(&study.corpus)?;
        let given = study.normal.as_ref();
        if let Some(given) = given {
            ensure!(given.blocks == blocks, "--decoded: its blocks are {:?}, this run's {blocks:?}", given.blocks);
        }
        let (mut batches, mut all, mut bank) = (vec![], vec![], Bank::default());
        let decoded = decoded_batches(study, &requests, &settings, given.is_none())?;
        for (chunk, decoded) in requests.chunks(study.batch_size()).zip(decoded) {
            let problems = chunk[0].problem..chunk[0].problem + chunk.len();
            let (prefix, of, states) = decoded.unwrap_or_else(|| {
                let given = given.map_or(&[][..], |given| &given.problems[problems.clone()]);
                (None, given.to_vec(), Bank::default())
            });
            batches.push(Batch { problems, prefix });
            all.extend(of);
            bank.merge(states);
        }
        if let Some(given) = given {
            bank.merge(given.bank.clone());
        }
        let parts = all.into_iter().map(|Normal { outcome, trace, ended, force_at }| (outcome, trace, ended, force_at));
        let (normal, traces, ended, force_at) = parts.collect();
        Ok(Self { settings, blocks, force_at, batches, requests, traces, normal, bank, ended })
    }
}

/// A batch after normal decoding: its prefix, outcomes and latent states.
type DecodedBatch = (Option<Prefix>, Vec<Normal>, Bank);

fn batch(study: &Study, gold: &[Option<u32>], settings: &DecodeSettings, requests: &[Request]) -> Result<DecodedBatch> {
    let decoding = study.decoding(settings);
    let watch: Vec<Option<u32>> = requests.iter().map(|r| gold[r.problem]).collect();
    let mut force_at = vec![None; requests.len()];
    let mut prefix = Prefix::new(decoding, requests, &watch, &force_at)?;
    if study.blocks == BlockOrigin::Forced {
        let at = |r| prefix.ended(r).map(|decoded| closest(&decoded.trace));
        force_at = (0..requests.len()).map(at).collect();
        prefix = Prefix::new(decoding, requests, &watch, &force_at)?;
    }
    let mut decoded: Vec<Option<FinishedRow>> = (0..requests.len()).map(|r| prefix.ended(r)).collect();
    let ended: Vec<bool> = decoded.iter().map(Option::is_some).collect();
    let held: Vec<usize> = (0..requests.len()).filter(|&r| !ended[r]).collect();
    let bank = RefCell::new(Bank::default());
    if !held.is_empty() {
        let log = ChangeLog::from_requests(requests);
        let mut hooks = Hooks::none();
        let layers = study.model.layers.len();
        hooks
            .observe(&latents(), layers, |site, value| bank.borrow_mut().record(Select::LATENTS, site, value, &log))?;
        let forks: Vec<Fork> = held.iter().map(|&r| fork(r, r, &requests[r], Switching::Free, None)).collect();
        let done = prefix.fork(decoding, Start::Switch, &forks, &mut Branch::whole(&mut hooks))?;
        held.iter().zip(done).for_each(|(&r, d)| decoded[r] = Some(d));
    }
    let normal = |((decoded, ended), force_at): ((FinishedRow, bool), Option<usize>)| {
        let outcome = outcome(&study.corpus, &decoded, Some(&decoded.trace))?;
        Ok(Normal { outcome, trace: decoded.trace, ended, force_at })
    };
    let all = decoded.into_iter().flatten().zip(ended).zip(force_at).map(normal).collect::<Result<_>>()?;
    Ok((Some(prefix), all, bank.into_inner()))
}

impl<'a> Sweep<'a> {
    pub(super) fn new(study: &'a Study, of: &'a Forkable) -> Self {
        Self { study, of, rows_at_once: rows_at_once(study, &of.settings, &of.requests) }
    }

    /// The problems that this process forks.
    pub(crate) fn forkable_problems(&self) -> impl Iterator<Item = usize> {
        self.batches.iter().filter(|batch| batch.prefix.is_some()).flat_map(|batch| batch.problems.clone())
    }

    /// Whether a continuation can change the outcome: one that opens blocks acts on problems without a block, all others on the rest.
    pub(crate) fn forks(&self, problem: usize, continuation: &Continuation) -> bool {
        self.ended[problem] == continuation.force
    }

    /// Runs every continuation on every problem that it can change. `hand_over` receives the forks of each batch once they are
    /// decoded, in any order and from several threads. A batch whose forks are all `known` is skipped; one with some known forks is
    /// decoded whole, so that its numbers equal those of an uninterrupted run.
    pub fn each(
        &self,
        all: &[Continuation],
        later: Later,
        channel: At,
        known: &(dyn Fn(usize, usize) -> bool + Sync),
        hand_over: &(dyn Fn(Vec<ForkedProblem>) -> Result<()> + Sync),
    ) -> Result<()> {
        let mut units = self.units(all);
        units.retain(|unit| unit.members.iter().any(|&(r, c)| !known(self.batches[unit.batch].problems.start + r, c)));
        self.study.each("groups of continuations", &units, |unit| {
            let forks = self.unit(unit, all, later, channel)?;
            go_on()?;
            hand_over(forks)
        })?;
        Ok(())
    }

    /// Outcomes per continuation, in the order of the problems.
    pub fn run(&self, all: &[Continuation], later: Later, channel: At) -> Result<Vec<Vec<SweepOutcome>>> {
        let outcomes = Mutex::new(vec![self.normal.clone(); all.len()]);
        self.each(all, later, channel, &|_, _| false, &|forks| {
            let mut outcomes = outcomes.lock().unwrap_or_else(PoisonError::into_inner);
            forks.into_iter().for_each(|fork| outcomes[fork.continuation][fork.problem] = fork.outcome);
            Ok(())
        })?;
        Ok(outcomes.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    fn units(&self, all: &[Continuation]) -> Vec<ForkUnit> {
        let mut units = vec![];
        let limit = self.rows_at_once.max(1);
        let own = self.batches.iter().enumerate().filter(|(_, batch)| batch.prefix.is_some());
        for (batch, Batch { problems, .. }) in own {
            let ended = |&r: &usize| self.ended[problems.start + r];
            let (ended, held): (Vec<usize>, Vec<usize>) = (0..problems.len()).partition(ended);
            let select = |wanted: &dyn Fn(&Continuation) -> bool| -> Vec<usize> {
                (0..all.len()).filter(|&c| wanted(&all[c])).collect()
            };
            let forced = select(&|c| c.force);
            let alone = select(&|c| c.same_shape);
            let shared = select(&|c| !c.same_shape && !c.force);
            for c in alone {
                let members: Vec<_> = held.iter().map(|&r| (r, c)).collect();
                units.push(ForkUnit { batch, start: Start::Switch, members });
            }
            for (start, requests, which) in [(Start::Switch, &held, shared), (Start::Prompt, &ended, forced)] {
                let members: Vec<_> = requests.iter().flat_map(|&r| which.iter().map(move |&c| (r, c))).collect();
                // Groups of nearly equal size within the limit.
                let size = members.len().div_ceil(members.len().div_ceil(limit).max(1)).max(1);
                units.extend(members.chunks(size).map(|m| ForkUnit { batch, start, members: m.to_vec() }));
            }
        }
        units.retain(|unit| !unit.members.is_empty());
        units
    }

    fn unit(&self, unit: &ForkUnit, all: &[Continuation], later: Later, channel: At) -> Result<Vec<ForkedProblem>> {
        let Batch { problems: Range { start: first, .. }, prefix } = &self.batches[unit.batch];
        let prefix = prefix.as_ref().context("a fork of another shard's problem")?;
        let (mut sequences, mut forks) = (vec![], vec![]);
        for (id, &(request, continuation)) in unit.members.iter().enumerate() {
            let Continuation { switching, force, .. } = all[continuation];
            let (problem, of) = (first + request, &self.requests[first + request]);
            sequences.push((problem, of.prompt.len()));
            forks.push(fork(request, id, of, switching, force.then(|| closest(&self.traces[problem]))));
        }
        let (log, later_log) = (ChangeLog::new(sequences.clone()), ChangeLog::new(sequences));
        let inputs = |at: &ChangePlace| all[unit.members[at.place.row].1].inputs;
        let replaced = PreparedChange::at_latents("latent inputs", |at, old| {
            let with = inputs(at).filter(|(_, steps)| steps.admits(at.known.step));
            Ok(with.and_then(|(with, _)| with.input(&at.known, old)))
        });
        // Later latents of a changed block are those of the normal run.
        let frozen = PreparedChange::at_latents("frozen latents", |at, _| {
            let is_later = inputs(at).is_some_and(|(_, steps)| !steps.admits(at.known.step));
            let is_later = is_later && log.has_changed(at.place.row, at.known.block);
            let LatentPlace { problem, block, step } = at.known;
            Ok(self.bank.get(problem, block, step).filter(|_| is_later).map(<[f32]>::to_vec))
        });
        let (mut hooks, mut other) = (Hooks::none(), Hooks::none());
        hooks.change(&replaced, &log);
        if later == Later::Frozen {
            hooks.change(&frozen, &later_log);
            // With one channel changed, the other one sees the old input.
            other.change(&frozen, &later_log);
        }
        let decoding = self.study.decoding(&self.settings);
        let done = prefix.fork(decoding, unit.start, &forks, &mut Branch::reaching(channel, &mut hooks, &mut other))?;
        drop((hooks, other));
        let of = |((&(request, continuation), decoded), firings): ((&(usize, usize), &FinishedRow), Firings)| {
            let problem = first + request;
            let outcome = outcome(&self.study.corpus, decoded, self.traces.get(problem))?;
            Ok(ForkedProblem { problem, continuation, outcome, firings })
        };
        unit.members.iter().zip(&done).zip(log.firings()).map(of).collect()
    }

    /// Requires a problem with a latent step to intervene on.
    pub fn switches(&self) -> Result<()> {
        self.study.require(!self.bank.is_empty(), || {
            "no problem switched: there is no latent step to intervene on (--force opens blocks where p(<swi>) is highest)"
                .into()
        })
    }
}

/// Decodes the batches of this process, with `others` also those of other shards, without prefixes. `None` for a batch of others.
fn decoded_batches(
    study: &Study,
    requests: &[Request],
    settings: &DecodeSettings,
    others: bool,
) -> Result<Vec<Option<DecodedBatch>>> {
    let chunks: Vec<(bool, &[Request])> = requests
        .chunks(study.batch_size())
        .enumerate()
        .map(|(unit, chunk)| (study.computes_unit(unit), chunk))
        .collect();
    let gold = gold_tokens(&study.corpus)?;
    let wanted = chunks.iter().filter(|(own, _)| *own || others).count();
    study.say(&format!("decoding {} problems normally", requests.len()));
    let counted = study.counted("batches decoded", wanted);
    let one = |&(own, chunk): &(bool, &[Request])| {
        if !own && !others {
            return Ok(None);
        }
        let (prefix, all, bank) = batch(study, &gold, settings, chunk)?;
        counted.add_one();
        Ok(Some((prefix.filter(|_| own), all, bank)))
    };
    let done = parallel::each(&chunks, study.threads, one)?;
    go_on()?;
    Ok(done)
}

/// The normal run of this process's problems as records.
pub(crate) fn normal_rows(study: &Study) -> Result<Vec<NormalRunRow>> {
    let requests = requests(&study.corpus)?;
    let identity = study.identity(requests.len());
    let done = decoded_batches(study, &requests, &study.settings(), false)?;
    let batches = done.iter().flatten();
    let all = batches.flat_map(|(_, all, bank)| all.iter().map(move |normal| (normal, bank)));
    all.map(|(normal, bank)| row(&identity, study.blocks, normal, bank)).collect()
}

fn rows_at_once(study: &Study, settings: &DecodeSettings, requests: &[Request]) -> usize {
    let config = study.model.config();
    let longest = requests.iter().map(|r| r.prompt.len()).max().unwrap_or(0) + settings.max_new_tokens;
    let row = config.num_hidden_layers * 2 * config.num_key_value_heads * config.head_dim * 4 * longest;
    (CACHE_BYTES / row.max(1)).clamp(8, ROWS)
}

pub(crate) fn fork(request: usize, id: usize, of: &Request, switching: Switching, force_at: Option<usize>) -> Fork {
    Fork { request, id, rollout: of.rollout, switching, force_at }
}

/// The visible position at which a response without blocks has the highest p(`<swi>`), the first of equals.
fn closest(trace: &Trace) -> usize {
    let visible = trace.positions.iter().filter(|p| p.kind != PositionRole::Latent);
    let p: Vec<f64> = visible.map(|at| at.p_swi.unwrap_or(0.0)).collect();
    (0..p.len()).rev().max_by(|&a, &b| p[a].total_cmp(&p[b])).unwrap_or(0)
}
