//! After how many latents a model is committed to its answer: each block is closed after its first k latents, k = 0 to its whole length,
//! and the model answers.
//!
//! Only problems whose full run has a block are used. Blocks that the model opens and blocks that a rule opens after the prompt (Coconut,
//! CODI, CoLaR, pause tokens) are closed in the same way, all if there are several. At k = 0 no latent runs: `<swi></swi>`, or nothing if
//! blocks have no markers. `committed` is the share with the full run's answer from this k on, `reversed` the share that has it and
//! loses it again. `others_answer` is the null: the answer of the next problem's full run.
//!
//! Control: `resampled`. An early `</swi>` is off the training distribution, so a loss at k alone shows that later latents are needed *or*
//! that the early end does harm. The control removes the same latents but not the length: blocks run to their own end, and latent inputs
//! after the k-th are those of another problem's block. Later latents are needed if both lose; if only the cut does, the early end is the
//! cause.
//!
//! Misleads: text after the block can replace the latents that were cut, so an unchanged answer does not show that they contained it.
//! With one draw, the control misses values that the other problem shares (one in seven, say).

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;

use super::About;
use super::markdown::table_of;
use crate::evaluation::requests;
use crate::interventions::{At, Later, Steps, resampled};
use crate::latent::controller::InBlock;
use crate::latent::trace::PositionRole;
use crate::latent::{
    BlockEnd, Bounds, Controller, Decode, DecodeSettings, Request, Sequence, Switching, Trace, decode, sampling,
};
use crate::model::Hooks;
use crate::schema::{EarlyStopRow, adjust};
use crate::stats::by_problem::{cell, mean};
use crate::stats::{Flips, LEVEL, wilson};
use crate::study::Study;
use crate::study::answers::{answer_at, gold_tokens, graded};
use crate::study::staging::logits::logits_at;
use crate::study::sweep::{Continuation, SweepOutcome};

pub const ABOUT: About = About::asking(
    "after how many latents the answer is settled: every block closed after its first k, accuracy, commitment, reversals",
)
.on_request();

settings! {
    pub struct Config {
        /// Numbers of latents after which blocks are closed; empty: at most 16, evenly spaced below the longest block.
        pub k: Vec<usize> = vec![],
    }
}

/// Maximum number of default values of k.
const MOST: usize = 16;

impl Config {
    /// The values of k before the full run, in order.
    fn before(&self, longest: usize) -> Result<Vec<usize>> {
        if let Some(k) = self.k.iter().find(|k| **k > longest) {
            anyhow::bail!("early_stop.k: no block has {k} latents; the longest has {longest}");
        }
        let evenly = (0..longest.min(MOST)).map(|i| i * longest / longest.clamp(1, MOST));
        let all: BTreeSet<usize> = if self.k.is_empty() { evenly.collect() } else { self.k.iter().copied().collect() };
        Ok(all.into_iter().filter(|k| *k < longest).collect())
    }
}

/// The checkpoint's own controller, except that a block ends after a given number of latents.
struct Cutoff<'a> {
    own: &'a dyn Controller,
    latents: usize,
}

impl Controller for Cutoff<'_> {
    fn own(&self) -> Option<&dyn Controller> {
        Some(self.own)
    }

    fn closes(&self, at: &InBlock) -> BlockEnd {
        match self.own.closes(at) {
            BlockEnd::Stay if at.step >= self.latents => BlockEnd::Forced,
            own => own,
        }
    }

    fn bounds(&self, k_min: usize, k_cap: usize) -> Option<Bounds> {
        let own = self.own.bounds(k_min, k_cap)?;
        Some(Bounds { closes_at: own.closes_at.min(self.latents), ..own })
    }
}

/// Result for one k, in the order of the problems.
struct StopResult {
    k: usize,
    right: Vec<bool>,
    answers: Vec<Option<String>>,
    /// Problem, log-probability of the gold answer's first token.
    beliefs: Vec<(usize, f64)>,
    latents: Vec<(usize, f64)>,
}

/// One row per k, the full run last.
pub fn rows(study: &Study, config: &Config) -> Result<Vec<EarlyStopRow>> {
    let (_, traces) = study.decoded()?;
    let full: Vec<Trace> = traces.iter().filter(|trace| trace.latent_calls() > 0).cloned().collect();
    let few = || format!("{} of {} problems have a block, two are needed", full.len(), traces.len());
    study.require(full.len() > 1, few)?;
    let longest = full.iter().map(longest).max().unwrap_or(0);
    let all = requests(&study.corpus)?;
    let subset: Vec<Request> = full.iter().map(|trace| all[trace.problem].clone()).collect();
    let before = config.before(longest)?;
    let controls = controls(study, &before, &full)?;
    let cuts = before.into_iter().map(|k| stopped(study, k, cut(study, &subset, k)?));
    let mut stops = cuts.collect::<Result<Vec<_>>>()?;
    stops.push(stopped(study, longest, full)?);
    compare_stops(study, &stops, &controls)
}

/// The control for each k: right answers of the full run against those with another problem's latent inputs after the k-th.
fn controls(study: &Study, before: &[usize], full: &[Trace]) -> Result<Vec<Flips>> {
    let sweep = study.sweep()?;
    let other = resampled(&sweep.bank, study.seed);
    let after = |&k: &usize| Continuation { inputs: Some((&other, Steps::From(k))), ..Continuation::default() };
    let outcomes = sweep.run(&before.iter().map(after).collect::<Vec<_>>(), Later::Recompute, At::Both)?;
    let right =
        |outcomes: &[SweepOutcome]| full.iter().map(|trace| outcomes[trace.problem].correct).collect::<Vec<_>>();
    outcomes.iter().map(|outcomes| Flips::count(&right(&sweep.normal), &right(outcomes))).collect()
}

/// Number of latents of a response's longest block.
fn longest(trace: &Trace) -> usize {
    let runs = trace.positions.chunk_by(|a, b| a.kind == b.kind);
    runs.filter(|run| run[0].kind == PositionRole::Latent).map(<[_]>::len).max().unwrap_or(0)
}

/// Decodes the problems with blocks of at most `k` latents.
fn cut(study: &Study, requests: &[Request], k: usize) -> Result<Vec<Trace>> {
    let switching = if k == 0 { Switching::Empty } else { Switching::Free };
    let settings = DecodeSettings { switching, ..study.settings() };
    let controller = Cutoff { own: &study.reasoning.blocks, latents: k };
    let batches: Vec<&[Request]> = requests.chunks(study.batch_size()).collect();
    let traces = study.each(&format!("batches with {k} latents"), &batches, |batch| {
        let decoding = Decode { controller: &controller, ..study.decoding(&settings) };
        decode(decoding, batch, 1, &mut Hooks::none())
    })?;
    Ok(traces.concat())
}

fn stopped(study: &Study, k: usize, traces: Vec<Trace>) -> Result<StopResult> {
    let beliefs = beliefs(study, &traces)?;
    let latents = traces.iter().map(|trace| (trace.problem, trace.latent_calls() as f64)).collect();
    let (right, answers) = graded(&study.corpus, traces)?;
    Ok(StopResult { k, right, answers, beliefs, latents })
}

/// Log-probability of the gold answer's first token at each response's answer; responses without an answer are left out.
fn beliefs(study: &Study, traces: &[Trace]) -> Result<Vec<(usize, f64)>> {
    let (corpus, gold) = (&study.corpus, gold_tokens(&study.corpus)?);
    let (mut rows, mut decided): (Vec<Sequence>, BTreeMap<usize, usize>) = (vec![], BTreeMap::new());
    for trace in traces.iter().filter(|trace| gold[trace.problem].is_some()) {
        let Some(at) = answer_at(corpus, trace)? else { continue };
        decided.insert(trace.problem, trace.prompt.len() + at - 1);
        rows.push(trace.sequence(&corpus.switch)?);
    }
    let masked = study.mask_in_text(study.reasoning.blocks.model_opens());
    let read = |row: &Sequence, _: usize, logits: &[f32]| {
        let token = gold[row.row].map_or(0, |token| token as usize);
        (row.row, sampling::log_softmax(logits, 1.0, &masked)[token])
    };
    let found = logits_at(study, &rows, |row| vec![decided[&row.row]], read)?;
    Ok(found.concat())
}

fn compare_stops(study: &Study, stops: &[StopResult], controls: &[Flips]) -> Result<Vec<EarlyStopRow>> {
    let Some(full) = stops.last() else { return Ok(vec![]) };
    let n = full.right.len();
    let share = |holds: &dyn Fn(usize) -> bool| wilson((0..n).filter(|&i| holds(i)).count(), n, LEVEL);
    let mut rows = vec![];
    for (number, stop) in stops.iter().enumerate() {
        let same = |i: usize| stop.answers[i] == full.answers[i];
        let stays = |i: usize| stops[number..].iter().all(|later| later.answers[i] == full.answers[i]);
        let flips = Flips::count(&full.right, &stop.right)?;
        let (earlier, control) = (number + 1 < stops.len(), controls.get(number));
        rows.push(EarlyStopRow {
            identity: study.identity(n),
            k: stop.k,
            of: full.k,
            accuracy: share(&|i| stop.right[i])?,
            guess: Some(study.corpus.guess()),
            same_answer: share(&same)?,
            others_answer: share(&|i| stop.answers[i] == full.answers[(i + 1) % n])?,
            committed: share(&stays)?,
            reversed: share(&|i| same(i) && !stays(i))?,
            gold_logprob: mean(study.seed, stop.beliefs.iter().copied())?,
            latent_calls: mean(study.seed, stop.latents.iter().copied())?,
            difference: earlier.then(|| flips.change(LEVEL)).transpose()?,
            p_holm: earlier.then(|| flips.p_value()),
            resampled: control.map(|flips| wilson(flips.both_right + flips.gained, n, LEVEL)).transpose()?,
            resampled_difference: control.map(|flips| flips.change(LEVEL)).transpose()?,
            resampled_p_holm: control.map(Flips::p_value),
        });
    }
    adjust(rows.iter_mut().filter_map(|row: &mut EarlyStopRow| row.p_holm.as_mut()))?;
    adjust(rows.iter_mut().filter_map(|row: &mut EarlyStopRow| row.resampled_p_holm.as_mut()))?;
    Ok(rows)
}

pub fn table(rows: &[EarlyStopRow]) -> String {
    let columns = "latents kept | accuracy [95 %] | answer of the full run | of another problem's | settled | reversed later | \
                   log p(gold) | difference | later ones of another problem | verdict";
    let out = table_of(columns, rows, |r| {
        let EarlyStopRow { k, of, accuracy, same_answer, committed, .. } = r;
        let [others, reversed] = [r.others_answer, r.reversed].map(|share| format!("{:.3}", share.value));
        let (gold, difference, verdict) = (cell(r.gold_logprob, 2), cell(r.difference, 3), r.verdict());
        let control = cell(r.resampled_difference, 3);
        format!(
            "{k} of {of} | {accuracy:.3} | {same_answer:.3} | {others} | {committed:.3} | {reversed} | {gold} | \
             {difference} | {control} | {verdict}"
        )
    });
    format!("{out}\n{}\n", EarlyStopRow::READING)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_k_are_below_the_longest_block() {
        let of = |k: &[usize], longest| Config { k: k.to_vec() }.before(longest);
        assert_eq!(of(&[], 3).expect("three"), [0, 1, 2]);
        assert_eq!(of(&[3, 1, 1], 3).expect("one and the full run"), [1]);
        assert!(of(&[4], 3).expect_err("refused").to_string().contains("no block has 4 latents; the longest has 3"));
        let many = of(&[], 64).expect("evenly spaced");
        assert_eq!((many.len(), many[0], many[1], many[15]), (16, 0, 4, 60));
    }
}
