//! Which values blocks hold, who is exchanged for whom, and what the answer must then be: the plan of the `known_value` intervention.
//!
//! A block holds s_j where the visible text before it follows the gold solution up to step j's clause. One block after the
//! prompt stands for all steps that the text does not write: it holds the result of the last of them, and where it is
//! exchanged the answer should become the donor's. Only problems that the normal run answers right take part, so that what
//! their blocks should hold is what they were seen to use.
//!
//! The same exchange is graded by a second reading: that a block holds the first operand of its step, and that the step's own
//! operation is done after the block. Then the answer follows from the problem's own operation on the donor's operand.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::arithmetic::Arithmetic;
use crate::interventions::Swap;
use crate::latent::Trace;
use crate::latent::trace::PositionRole;
use crate::study::Study;
use crate::study::sweep::Sweep;
use crate::text::{Problem, Vocabulary};

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Exchange {
    pub swap: Swap,
    /// If the donor's block holds the result of its step.
    pub by_value: Prediction,
    /// If it holds what its step works on, to which the problem's own step is applied. `None` where that is not known, where it
    /// would change no answer, and where it predicts what the value does: such an exchange cannot tell the two apart.
    pub by_operand: Option<Prediction>,
}

/// What an answer must become by one reading of what blocks hold.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Prediction {
    pub answer: String,
    /// Every donor that could have been drawn: the answer it predicts and how many of them do.
    pub drawable: BTreeMap<String, usize>,
}

/// The share of `drawable` (answers, and how many draws predict each) that predicts this answer: how often it is right by chance.
pub(crate) fn by_chance<A: Ord>(drawable: &BTreeMap<A, usize>, answer: Option<&A>) -> f64 {
    let all: usize = drawable.values().sum();
    let same = answer.and_then(|a| drawable.get(a)).copied().unwrap_or(0);
    same as f64 / all as f64
}

/// A block and the value that it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockValue {
    pub problem: usize,
    pub block: usize,
    /// Of the solution.
    pub step: usize,
    pub value: i64,
}

/// The blocks of right answers that stand for a known step, in the order of the problems.
///
/// # Errors
/// A token that the vocabulary does not know.
pub(crate) fn held(sweep: &Sweep, study: &Study) -> Result<Vec<BlockValue>> {
    let mut held: Vec<BlockValue> = vec![];
    for (trace, _) in sweep.traces.iter().zip(&sweep.normal).filter(|(_, o)| o.switched && o.correct) {
        let (i, problem) = (trace.problem, &study.corpus.test[trace.problem]);
        let vocabulary = &study.corpus.vocabulary;
        let blocks = if study.reasoning.blocks.follow_prompt() {
            unwritten(trace, problem, vocabulary)?.map(|step| (0, step)).into_iter().collect()
        } else {
            blocks(trace, problem, vocabulary)?
        };
        for (block, step) in blocks {
            let value = problem.steps[step].value.number();
            held.extend(value.map(|value| BlockValue { problem: i, block, step, value }));
        }
    }
    Ok(held)
}

/// Exchanges by problem.
pub(crate) type Plan = BTreeMap<usize, Exchange>;

/// One plan for each draw: a block and a donor for each problem that has some.
///
/// # Errors
/// No block that is known to hold a value, or none that could be exchanged.
pub fn plan(sweep: &Sweep, study: &Study, arithmetic: &dyn Arithmetic, draws: usize) -> Result<Vec<Plan>> {
    let held = held(sweep, study)?;
    ensure!(!held.is_empty(), "{}: no block of a right answer stands for a known step", study.name);
    let mut values: BTreeMap<i64, Vec<BlockValue>> = BTreeMap::new();
    held.iter().for_each(|h| values.entry(h.value).or_default().push(*h));
    let mut plans = vec![];
    for draw in 0..draws {
        let mut plan = Plan::new();
        for own in held.chunk_by(|a, b| a.problem == b.problem) {
            let problem = own[0].problem;
            let mut rng = ChaCha8Rng::seed_from_u64(study.seed);
            rng.set_stream((problem * draws + draw) as u64);
            let target = own[rng.random_range(0..own.len())];
            let gold = &study.corpus.test[problem].answer;
            let pool = donors(&target, &values, gold, arithmetic);
            if !pool.is_empty() {
                let drawn = rng.random_range(0..pool.len());
                plan.extend(exchange(&target, &pool, drawn).map(|exchange| (problem, exchange)));
            }
        }
        ensure!(!plan.is_empty(), "{}: no block could be exchanged for one that holds another value", study.name);
        plans.push(plan);
    }
    Ok(plans)
}

/// A block that a target's could be exchanged for, and the answers that the two readings predict.
struct Donor {
    held: BlockValue,
    by_value: String,
    by_operand: Option<String>,
}

/// Blocks of other problems with another value, as long as it leads to another answer: the same one could not be told from no
/// effect.
fn donors(
    target: &BlockValue,
    values: &BTreeMap<i64, Vec<BlockValue>>,
    gold: &str,
    arithmetic: &dyn Arithmetic,
) -> Vec<Donor> {
    let (problem, step) = (target.problem, target.step);
    let answer_if = |value| arithmetic.answer_if(problem, step, value).filter(|answer| answer != gold);
    let mut pool = vec![];
    for (&value, donors) in values.iter().filter(|(value, _)| **value != target.value) {
        let Some(by_value) = answer_if(value) else { continue };
        for &held in donors.iter().filter(|donor| donor.problem != problem) {
            let operand = arithmetic.operand(held.problem, held.step);
            let result = operand.and_then(|operand| arithmetic.apply(problem, step, operand));
            let by_operand = result.and_then(answer_if).filter(|answer| *answer != by_value);
            pool.push(Donor { held, by_value: by_value.clone(), by_operand });
        }
    }
    pool
}

fn exchange(target: &BlockValue, pool: &[Donor], drawn: usize) -> Option<Exchange> {
    let donor = &pool[drawn];
    let by = |reading: fn(&Donor) -> Option<&String>| {
        let mut drawable: BTreeMap<String, usize> = BTreeMap::new();
        pool.iter().filter_map(reading).for_each(|answer| *drawable.entry(answer.clone()).or_default() += 1);
        Some(Prediction { answer: reading(donor)?.clone(), drawable })
    };
    let swap = Swap { block: target.block, donor: donor.held.problem, donor_block: donor.held.block };
    Some(Exchange { swap, by_value: by(|d| Some(&d.by_value))?, by_operand: by(|d| d.by_operand.as_ref()) })
}

/// The last step that a response does not write, where its text is the end of the solution.
fn unwritten(trace: &Trace, problem: &Problem, vocabulary: &Vocabulary) -> Result<Option<usize>> {
    let text = vocabulary.decode_visible(&trace.text())?;
    let (words, gold) = (text.split_whitespace().count(), problem.solution.split_whitespace().count());
    let ends = text.split_whitespace().rev().zip(problem.solution.split_whitespace().rev()).all(|(a, b)| a == b);
    let from = gold.checked_sub(words).filter(|_| ends);
    Ok(from.and_then(|from| problem.steps.iter().rposition(|step| step.words.end <= from)))
}

/// `(block, step of the solution)` for the blocks of a trace that stand where a step's clause begins, as long as its text
/// follows the solution.
pub(crate) fn blocks(trace: &Trace, problem: &Problem, vocabulary: &Vocabulary) -> Result<Vec<(usize, usize)>> {
    let gold: Vec<&str> = problem.solution.split_whitespace().collect();
    let mut segments: Vec<Vec<u32>> = vec![vec![]];
    for position in &trace.positions {
        match (position.kind, segments.last_mut()) {
            (PositionRole::Swi, _) => segments.push(vec![]),
            (PositionRole::Text, Some(segment)) => segment.push(position.token),
            _ => {}
        }
    }
    let (mut held, mut at, mut until) = (vec![], 0, None);
    for (block, segment) in segments.iter().enumerate() {
        let text = vocabulary.decode_visible(segment)?;
        let words: Vec<&str> = text.split_whitespace().collect();
        // After a block the text goes on behind the clause, or with what the block left of it.
        if let (Some(end), Some(first)) = (until.take(), words.first()) {
            let mut places = std::iter::once(end).chain(at..end);
            let Some(place) = places.find(|&p| gold.get(p) == Some(first)) else { break };
            at = place;
        }
        if gold.get(at..at + words.len()) != Some(&words[..]) {
            break;
        }
        at += words.len();
        if block + 1 < segments.len() {
            let Some(step) = problem.steps.iter().position(|s| s.words.start == at) else { break };
            held.push((block, step));
            until = Some(problem.steps[step].words.end);
        }
    }
    Ok(held)
}
