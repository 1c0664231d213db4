//! Donors, recipients and predicted first tokens of answers. Knows blocks, their values, and arithmetic.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use rand::Rng;

use crate::latent::{Sequence, Trace};
use crate::model::{HookPoint, Step};
use crate::random::keyed;
use crate::schema::Variable;
use crate::stats::grouped_holdout;
use crate::study::Study;
use crate::study::answers::{answer_at, first_token, gold_tokens};
use crate::study::arithmetic::Arithmetic;
use crate::study::block_values::{BlockValue, find_block_values};
use crate::study::staging::capture::at_latents;

/// A block that determines its problem's answer, in a sequence that ends where that answer's first token is decided.
pub struct Target {
    pub held: BlockValue,
    pub row: Sequence,
    /// The first token of the gold answer, which the normal run gives.
    pub gold: u32,
}

impl Target {
    /// The position of a latent step of the block.
    pub fn at(&self, step: usize) -> Option<usize> {
        self.row.steps.iter().position(|at| *at == Step::Latent { block: self.held.block, step })
    }
}

/// Every target of the problems' normal runs, in their order: blocks with a known step in correct answers, if each later step is in a
/// block too. The text after the block does not state the value, so that it is the same for every value.
pub fn targets(study: &Study) -> Result<Vec<Target>> {
    let sweep = study.sweep()?;
    sweep.switches()?;
    let (corpus, gold) = (&study.corpus, gold_tokens(&study.corpus)?);
    let held = find_block_values(&sweep, study)?;
    let mut out = vec![];
    for own in held.chunk_by(|a, b| a.problem == b.problem) {
        let trace = &sweep.traces[own[0].problem];
        let Some(row) = up_to_answer(study, trace, gold[trace.problem])? else { continue };
        let steps = corpus.test[trace.problem].steps.len();
        for &held in own {
            let later = |step: usize| own.iter().any(|other| other.step == step && other.block > held.block);
            let end = row.steps.iter().rposition(|at| matches!(at, Step::Latent { block, .. } if *block == held.block));
            let behind = end.map(|end| corpus.vocabulary.decode_visible(&row.ids[end + 1..])).transpose()?;
            let problem = &corpus.test[trace.problem];
            let value =
                problem.word_bytes(problem.steps[held.step].value_words.clone()).map(|at| &problem.solution[at]);
            let stated = behind.zip(value).is_none_or(|(text, value)| holds_words(&text, value));
            if (held.step + 1..steps).all(later)
                && !stated
                && let Some(gold) = gold[trace.problem]
            {
                out.push(Target { held, row: row.clone(), gold });
            }
        }
    }
    Ok(out)
}

/// Whether these words occur in a text in this order, adjacent.
fn holds_words(text: &str, words: &str) -> bool {
    let [text, words] = [text, words].map(|text| text.split_whitespace().collect::<Vec<_>>());
    text.windows(words.len().max(1)).any(|window| window == words)
}

/// A response up to the token that begins its answer, if that is the gold one.
fn up_to_answer(study: &Study, trace: &Trace, gold: Option<u32>) -> Result<Option<Sequence>> {
    let at = answer_at(&study.corpus, trace)?;
    let Some(at) = at.filter(|&at| gold.is_some() && trace.positions.get(at).map(|p| p.token) == gold) else {
        return Ok(None);
    };
    let (ids, prompt) = (trace.sequence(&study.corpus.switch)?.ids, trace.prompt.len());
    Sequence::new(trace.problem, ids[..prompt + at].to_vec(), prompt, Some(study.corpus.switch.latent)).map(Some)
}

/// States of every target's block, by point, step and target.
pub type States = BTreeMap<(HookPoint, usize, usize), Vec<f32>>;

pub fn states(study: &Study, targets: &[Target], points: &[HookPoint]) -> Result<States> {
    // Targets of one problem share a sequence.
    let mut rows: Vec<Sequence> = targets.iter().map(|target| target.row.clone()).collect();
    rows.dedup_by_key(|row| row.row);
    let (whose, found) = at_latents(study, &rows, points, |problem, block, step| {
        Some((step, targets.iter().position(|t| (t.held.problem, t.held.block) == (problem, block))?))
    })?;
    let mut states = States::new();
    for (point, found) in points.iter().zip(&found) {
        for ((step, target), state) in whose.iter().zip(found.rows()) {
            states.insert((*point, *step, *target), state.to_vec());
        }
    }
    Ok(states)
}

/// One exchange: indices of two targets, and the predicted first token of the answer.
#[derive(Clone, Debug, PartialEq)]
pub struct ExchangePair {
    pub target: usize,
    pub donor: usize,
    pub says: u32,
    /// The donor's value of the variable.
    pub holds: i64,
    /// The tokens that each donor which could have been drawn predicts.
    pub drawable: BTreeMap<u32, usize>,
}

/// Pairs of one variable: for training from one half of the problems, for judging from the other.
pub struct Pairs {
    pub train: Vec<ExchangePair>,
    pub seen: Vec<ExchangePair>,
    /// Pairs whose donor value occurs in no training pair, neither as donor nor as recipient.
    pub unseen: Vec<ExchangePair>,
}

/// Candidate blocks for the pairs of one variable.
pub struct Exchanges<'a> {
    pub study: &'a Study,
    pub targets: &'a [Target],
    pub arithmetic: &'a dyn Arithmetic,
    pub variable: Variable,
}

impl Exchanges<'_> {
    /// Draws pairs, at most `most` of each kind: one donor for each target in turn, then a second one, and so on.
    pub fn pairs(&self, most: [usize; 2], unseen: f64) -> Result<Pairs> {
        let seed = self.study.seed;
        let groups = self.study.corpus.groups();
        let of_targets: Vec<usize> = self.targets.iter().map(|t| groups[t.held.problem]).collect();
        let halves = grouped_holdout(&of_targets, 0.5, seed)?;
        let of = |target: usize| self.number(&self.targets[target].held);
        let mut all: Vec<i64> = (0..of_targets.len()).filter_map(of).collect::<BTreeSet<_>>().into_iter().collect();
        let apart = ((all.len() as f64 * unseen).round() as usize).min(all.len().saturating_sub(3));
        let mut rng = keyed([seed, self.variable as u64, 0, 0]);
        let held_out: BTreeSet<i64> = (0..apart).map(|_| all.swap_remove(rng.random_range(0..all.len()))).collect();
        let draw = |part: &[usize], own: &dyn Fn(i64) -> bool, put_in: &dyn Fn(i64) -> bool, most: usize| {
            let with = |pick: &dyn Fn(i64) -> bool| part.iter().copied().filter(|&t| of(t).is_some_and(pick)).collect();
            let (takers, donors): (Vec<usize>, Vec<usize>) = (with(own), with(put_in));
            self.drawn(&takers, &donors, most)
        };
        let known = |value: i64| !held_out.contains(&value);
        Ok(Pairs {
            train: draw(&halves.train, &known, &known, most[0])?,
            seen: draw(&halves.test, &known, &known, most[1])?,
            unseen: draw(&halves.test, &|_| true, &|value| !known(value), most[1])?,
        })
    }

    /// A block's value of the variable.
    fn number(&self, held: &BlockValue) -> Option<i64> {
        match self.variable {
            Variable::Value => Some(held.value),
            Variable::Operand => self.arithmetic.operand(held.problem, held.step),
        }
    }

    fn drawn(&self, takers: &[usize], donors: &[usize], most: usize) -> Result<Vec<ExchangePair>> {
        let targets = self.targets;
        let mut open: Vec<(usize, Vec<(usize, u32)>)> = vec![];
        for &target in takers {
            let mut pool = vec![];
            for &donor in donors.iter().filter(|&&donor| targets[donor].held.problem != targets[target].held.problem) {
                let says = self.predicted(&targets[target], &targets[donor].held)?;
                pool.extend(says.map(|says| (donor, says)));
            }
            open.push((target, pool));
        }
        let mut pairs = vec![];
        for round in 0.. {
            open.retain(|(_, pool)| pool.len() > round);
            if open.is_empty() || pairs.len() >= most {
                break;
            }
            for (target, pool) in &mut open {
                let (problem, draw) = (targets[*target].held.problem as u64, (*target * 1000 + round) as u64);
                let mut rng = keyed([self.study.seed, 1 + self.variable as u64, problem, draw]);
                let at = rng.random_range(round..pool.len());
                pool.swap(round, at);
                let mut drawable = BTreeMap::new();
                pool.iter().for_each(|(_, says)| *drawable.entry(*says).or_default() += 1);
                let (donor, says) = pool[round];
                let holds = self.number(&targets[donor].held).context("a donor without a number")?;
                pairs.push(ExchangePair { target: *target, donor, says, holds, drawable });
            }
        }
        pairs.truncate(most);
        Ok(pairs)
    }

    /// First token of the answer with the donor's value; `None` if it is the gold one or (operand) the prediction from the donor's value.
    fn predicted(&self, target: &Target, donor: &BlockValue) -> Result<Option<u32>> {
        let (BlockValue { problem, step, .. }, arithmetic) = (target.held, self.arithmetic);
        let corpus = &self.study.corpus;
        let first = |value: i64| -> Result<Option<u32>> {
            let Some(answer) = arithmetic.answer_if(problem, step, value) else { return Ok(None) };
            first_token(&corpus.vocabulary, &corpus.test[problem], &answer)
        };
        let by_value = first(donor.value)?;
        let says = match self.variable {
            Variable::Value => by_value,
            Variable::Operand => {
                let operand = arithmetic.operand(donor.problem, donor.step);
                let result = operand.and_then(|operand| arithmetic.apply(problem, step, operand));
                result.map(first).transpose()?.flatten().filter(|says| Some(*says) != by_value)
            }
        };
        Ok(says.filter(|says| *says != target.gold))
    }
}
