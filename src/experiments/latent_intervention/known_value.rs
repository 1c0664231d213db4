//! Who is exchanged for whom, and what the answer must then be: the plan of the `known_value` intervention.
//!
//! A block holds s_j where the visible text before it follows the gold solution up to step j's clause. One block after the
//! prompt stands for all steps that the text does not write: it holds the result of the last of them, and where it is
//! exchanged the answer should become the donor's. Only problems that the normal run answers right take part, so that what
//! their blocks should hold is what they were seen to use.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::interventions::Swap;
use crate::latent::Trace;
use crate::latent::trace::Kind;
use crate::study::Subject;
use crate::study::sweep::Sweep;
use crate::tasks::{Split, TaskProblem};
use crate::text::{Problem, Vocabulary};

/// What the answer of a problem would be if a step of it had produced another value.
pub(crate) type Predict<'p> = dyn Fn(usize, usize, i64) -> Option<String> + Sync + 'p;

/// One exchange.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Exchange {
    pub swap: Swap,
    /// What the answer must become.
    pub predicted: String,
    /// Every donor that could have been drawn: the answer it predicts and how many of them do.
    pub drawable: BTreeMap<String, usize>,
}

impl Exchange {
    /// The share of donors that could have been drawn which predict this answer: how often it is right by chance.
    pub fn chance(&self, answer: Option<&str>) -> f64 {
        by_chance(&self.drawable, answer)
    }
}

/// The share of `drawable` (answers, and how many draws predict each) that predicts this answer.
pub(crate) fn by_chance(drawable: &BTreeMap<String, usize>, answer: Option<&str>) -> f64 {
    let all: usize = drawable.values().sum();
    let same = answer.and_then(|a| drawable.get(a)).copied().unwrap_or(0);
    same as f64 / all as f64
}

/// A block and the value that it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub problem: usize,
    pub block: usize,
    /// Of the solution.
    pub step: usize,
    pub value: i64,
}

/// The generated task's own arithmetic.
///
/// # Errors
/// A checkpoint whose problems are not generated, or not by its recipe.
pub(crate) fn of_task(subject: &Subject) -> Result<impl Fn(usize, usize, i64) -> Option<String> + Sync + use<>> {
    let task = subject.recipe.task.as_ref();
    let task = task.with_context(|| {
        format!(
            "{}: known_value needs a generated task: the steps of `{}` are not known",
            subject.name,
            subject.dataset()
        )
    })?;
    let n = subject.corpus.test.len() as u64;
    let problems: Vec<TaskProblem> = task.rows(Split::Test, subject.recipe.seed, 0..n)?;
    let same = problems.iter().zip(&subject.corpus.test).all(|(a, b)| a.id == b.id);
    ensure!(same, "{}: known_value needs the problems of the recipe's own task", subject.name);
    Ok(move |problem: usize, step, value| problems.get(problem)?.answer_if(step, value))
}

/// The blocks of right answers that stand for a known step, in the order of the problems.
///
/// # Errors
/// A token that the vocabulary does not know.
pub(crate) fn held(sweep: &Sweep, subject: &Subject) -> Result<Vec<Held>> {
    let mut held: Vec<Held> = vec![];
    for (trace, _) in sweep.traces.iter().zip(&sweep.normal).filter(|(_, o)| o.switched && o.correct) {
        let (i, problem) = (trace.problem, &subject.corpus.test[trace.problem]);
        let vocabulary = &subject.corpus.vocabulary;
        let blocks = match subject.reasoning.blocks.after_prompt() {
            Some(_) => unwritten(trace, problem, vocabulary)?.map(|step| (0, step)).into_iter().collect(),
            None => blocks(trace, problem, vocabulary)?,
        };
        for (block, step) in blocks {
            let value = problem.steps[step].value.number();
            held.extend(value.map(|value| Held { problem: i, block, step, value }));
        }
    }
    Ok(held)
}

/// One map of exchanges (by problem) for each draw: a block and a donor for each problem that has some.
///
/// # Errors
/// No block that is known to hold a value, or none that could be exchanged.
pub fn plan(
    sweep: &Sweep,
    subject: &Subject,
    predict: &Predict,
    draws: usize,
    seed: u64,
) -> Result<Vec<BTreeMap<usize, Exchange>>> {
    let held = held(sweep, subject)?;
    ensure!(!held.is_empty(), "{}: no block of a right answer stands for a known step", subject.name);
    let mut values: BTreeMap<i64, Vec<Held>> = BTreeMap::new();
    held.iter().for_each(|h| values.entry(h.value).or_default().push(*h));
    let mut plans = vec![];
    for draw in 0..draws {
        let mut plan = BTreeMap::new();
        for own in held.chunk_by(|a, b| a.problem == b.problem) {
            let problem = own[0].problem;
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            rng.set_stream((problem * draws + draw) as u64);
            let target = own[rng.random_range(0..own.len())];
            let gold = &subject.corpus.test[problem].answer;
            let (mut pool, mut drawable): (Vec<(Held, String)>, BTreeMap<String, usize>) = (vec![], BTreeMap::new());
            for (&value, donors) in values.iter().filter(|(v, _)| **v != target.value) {
                // A value that leads to the same answer could not be told from no effect.
                let Some(answer) = predict(problem, target.step, value).filter(|a| a != gold) else { continue };
                for donor in donors.iter().filter(|d| d.problem != problem) {
                    *drawable.entry(answer.clone()).or_default() += 1;
                    pool.push((*donor, answer.clone()));
                }
            }
            if pool.is_empty() {
                continue;
            }
            let (donor, predicted) = pool.swap_remove(rng.random_range(0..pool.len()));
            let swap = Swap { block: target.block, donor: donor.problem, donor_block: donor.block };
            plan.insert(problem, Exchange { swap, predicted, drawable });
        }
        ensure!(!plan.is_empty(), "{}: no block could be exchanged for one that holds another value", subject.name);
        plans.push(plan);
    }
    Ok(plans)
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
fn blocks(trace: &Trace, problem: &Problem, vocabulary: &Vocabulary) -> Result<Vec<(usize, usize)>> {
    let gold: Vec<&str> = problem.solution.split_whitespace().collect();
    let mut segments: Vec<Vec<u32>> = vec![vec![]];
    for position in &trace.positions {
        match (position.kind, segments.last_mut()) {
            (Kind::Swi, _) => segments.push(vec![]),
            (Kind::Text, Some(segment)) => segment.push(position.token),
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
