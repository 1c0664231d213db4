//! The plan of the `known_value` intervention: which value each block stores, which donor it is exchanged with, and which answer
//! arithmetic predicts.
//!
//! 1. Assign steps to blocks. A block at the start of step j's clause stores s_j, if the visible text before it follows the gold
//!    solution. A single block after the prompt replaces all steps that the text does not write; it stores the last one's result.
//! 2. Keep problems that the normal run answers correctly: only there is the block's value known to be used.
//! 3. Collect donors: blocks of other problems with another value that would change the answer.
//! 4. Draw one block and one donor per problem and draw, and predict the answer by two readings: *by value* (the block stores the
//!    result of its step) and *by operand* (the block stores the first operand, and the recipient's own step is applied to the
//!    donor's operand after the block).

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
    /// Prediction if the donor's block stores the result of its step.
    pub by_value: Prediction,
    /// Prediction if the block stores the step's first operand, to which the recipient's own step is applied. `None` if the operand is
    /// unknown, the answer would not change, or both readings predict the same answer.
    pub by_operand: Option<Prediction>,
}

/// The answer that one reading predicts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Prediction {
    pub answer: String,
    /// All candidate donors: predicted answer → number of donors.
    pub drawable: BTreeMap<String, usize>,
}

/// Share of the candidate donors that predict this answer: the rate of a match by chance.
pub(crate) fn by_chance<A: Ord>(drawable: &BTreeMap<A, usize>, answer: Option<&A>) -> f64 {
    let all: usize = drawable.values().sum();
    let same = answer.and_then(|a| drawable.get(a)).copied().unwrap_or(0);
    same as f64 / all as f64
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockValue {
    pub problem: usize,
    pub block: usize,
    pub step: usize,
    pub value: i64,
}

/// The blocks with a known step in correct answers, in the order of the problems.
pub(crate) fn find_block_values(sweep: &Sweep, study: &Study) -> Result<Vec<BlockValue>> {
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

pub(crate) type Plan = BTreeMap<usize, Exchange>;

/// One plan per draw: a block and a donor for each problem that has candidates.
pub fn plan(sweep: &Sweep, study: &Study, arithmetic: &dyn Arithmetic, draws: usize) -> Result<Vec<Plan>> {
    let held = find_block_values(sweep, study)?;
    ensure!(!held.is_empty(), "{}: no correct answer has a block with a known step (`steps` of a problem)", study.name);
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
        ensure!(!plan.is_empty(), "{}: no block can be exchanged with one of another value", study.name);
        plans.push(plan);
    }
    Ok(plans)
}

/// A candidate donor for a block, and the answers that the two readings predict.
struct Donor {
    held: BlockValue,
    by_value: String,
    by_operand: Option<String>,
}

/// Blocks of other problems with another value that would change the answer: an unchanged answer could not be told from no effect.
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

/// The last step that a response does not write, if its text is the end of the solution.
fn unwritten(trace: &Trace, problem: &Problem, vocabulary: &Vocabulary) -> Result<Option<usize>> {
    let text = vocabulary.decode_visible(&trace.text())?;
    let (words, gold) = (text.split_whitespace().count(), problem.solution.split_whitespace().count());
    let ends = text.split_whitespace().rev().zip(problem.solution.split_whitespace().rev()).all(|(a, b)| a == b);
    let from = gold.checked_sub(words).filter(|_| ends);
    Ok(from.and_then(|from| problem.steps.iter().rposition(|step| step.words.end <= from)))
}

/// `(block, step of the solution)` for the blocks that open at the start of a step's clause, as long as the text follows the solution.
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
        // After a block the text continues after the clause, or with the part of the clause that the block did not replace.
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
