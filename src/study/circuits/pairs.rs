//! Pairs of sequences that differ in one value and its consequences, for activation patching.
//!
//! Three sources: a generated problem and its twin with another start value, decoded ([`decoded`]); the same two as plain text, cut
//! before the last value ([`as_text`]); a user's file with two questions per line ([`of_file`]).

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::gradient::TargetRow;
use super::rows::value;
use crate::latent::trace::PositionRole;
use crate::latent::{DecodeSettings, Request, Sequence, Switching, Trace, decode};
use crate::model::Hooks;
use crate::progress::say;
use crate::schema::Form;
use crate::study::Study;
use crate::study::readout::{at_ends, most_probable};
use crate::tasks::{Split, Task};
use crate::text::{Problem, Sample, lines};

/// Two sequences of the same length up to the readout, which their last position decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Index of the candidate.
    pub number: usize,
    /// The first candidate that shares a program with it, directly or through others: a group is never split between fit and test.
    pub group: usize,
    pub clean: Sequence,
    pub corrupt: Sequence,
    /// The tokens that the two runs predict at the readout; they differ.
    pub says: [u32; 2],
    /// Positions of each clause, for plain text.
    pub clauses: Vec<Range<usize>>,
}

impl Pair {
    /// The corrupt sequence with its token embeddings a share of the way to the clean one's, to be differentiated.
    pub(crate) fn on_the_way(&self, share: f64) -> TargetRow<'_> {
        TargetRow { row: &self.corrupt, says: self.says, toward: Some((&self.clean, share)) }
    }
}

/// The clean and the corrupt prompt.
pub(crate) type PairPrompts = (Vec<u32>, Vec<u32>);

/// The prompts of the first `candidates` problems of the recipe's task, each with its twin.
///
/// # Errors
/// A checkpoint without a generated task, or a task without pairs.
pub fn task_prompts(study: &Study, candidates: usize) -> Result<Vec<PairPrompts>> {
    let encode = |question: &str| study.corpus.template.encode_prompt(&study.corpus.vocabulary, question);
    let twins = twins(study, candidates)?;
    twins.iter().map(|(a, b)| Ok((encode(&a.question)?, encode(&b.question)?))).collect()
}

fn twins(study: &Study, candidates: usize) -> Result<Vec<(Problem, Problem)>> {
    let Study { recipe, name, .. } = study;
    let task = recipe.task.as_ref();
    let task = task.with_context(|| format!("{name}: needs a generated task to make pairs from"))?;
    let mut out = vec![];
    for index in 0..candidates {
        if let Some((clean, corrupt)) = task.pair(Split::Test, recipe.seed, index as u64)? {
            out.push((clean.into(), corrupt.into()));
        }
    }
    ensure!(!out.is_empty(), "{name}: the task `{}` has no pairs that differ in their start only", task.name());
    Ok(out)
}

/// For each candidate, the first one that shares a program with it, directly or through others.
fn groups<T: Ord>(programs: impl Iterator<Item = [T; 2]>) -> Vec<usize> {
    let (mut of_program, mut first): (BTreeMap<T, usize>, Vec<usize>) = (BTreeMap::new(), vec![]);
    for (number, both) in programs.enumerate() {
        first.push(number);
        for program in both {
            let met = first[*of_program.entry(program).or_insert(number)];
            let (low, high) = (met.min(first[number]), met.max(first[number]));
            first.iter_mut().filter(|group| **group == high).for_each(|group| *group = low);
        }
    }
    first
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct QuestionPairLine {
    clean: String,
    corrupt: String,
}

/// The prompts of a file, if one is named: JSON Lines of `{"clean": "a question", "corrupt": "its twin"}`.
///
/// # Errors
/// A file that cannot be read; a line of another form.
pub(crate) fn read_prompts(study: &Study, path: Option<&Path>) -> Result<Option<Vec<PairPrompts>>> {
    let Some(path) = path else { return Ok(None) };
    let encode = |question: &str| study.corpus.template.encode_prompt(&study.corpus.vocabulary, question);
    let (mut out, mut repeated) = (vec![], 0);
    for (place, line) in lines(path)? {
        let at = || format!("{place}: expected {{\"clean\": …, \"corrupt\": …}}");
        let QuestionPairLine { clean, corrupt } = serde_json::from_str(&line).with_context(at)?;
        let pair = (encode(&clean)?, encode(&corrupt)?);
        // Intervals count pairs: a copy adds no evidence.
        if out.contains(&pair) { repeated += 1 } else { out.push(pair) }
    }
    let file = path.display();
    if repeated > 0 {
        say(&format!("warning: {file}: {repeated} pairs repeat an earlier pair and are left out"));
    }
    ensure!(!out.is_empty(), "{file}: contains no pair");
    Ok(Some(out))
}

/// Why an experiment has no pairs: no file, and no task that makes them. `None` if it has.
pub(crate) fn no_pairs(study: &Study, experiment: &str, file: Option<&Path>) -> Option<String> {
    let why = no_twins(study, experiment).filter(|_| file.is_none())?;
    Some(format!("{why}, or {experiment}.pairs_file in --recipe"))
}

/// Why the task has no pairs: not generated, or its problems have no start value. `None` if it has.
pub(crate) fn no_twins(study: &Study, experiment: &str) -> Option<String> {
    let (name, task) = (&study.name, study.recipe.task.as_ref());
    (!task.is_some_and(Task::has_pairs)).then(|| {
        let found = task.map_or_else(String::new, |task| {
            format!("; problems of `{}` have no start value to differ in", task.name())
        });
        format!("{name}: {experiment} needs a generated task to make pairs from{found}")
    })
}

pub(crate) struct PairChoice<'a> {
    pub forms: &'a [Form],
    /// `None`: the first `candidates` problems of the task. Given prompts have no worked solutions: their text is decoded without switching.
    pub given: Option<&'a [PairPrompts]>,
    pub candidates: usize,
    /// Maximum number per form.
    pub limit: usize,
    /// Only pairs of the most common length.
    pub alike: bool,
}

impl PairChoice<'_> {
    /// Calls `work` with the usable pairs of every form that has at least two, or four.
    pub fn each(&self, study: &Study, four: bool, mut work: impl FnMut(Form, &[Pair]) -> Result<()>) -> Result<()> {
        let (least, said) = if four { (4, "four") } else { (2, "two") };
        let mut any = false;
        for &form in self.forms {
            let pairs = self.pairs_in_form(study, form)?;
            let pairs = if self.alike { keep_most_common_length(pairs) } else { pairs };
            if pairs.len() >= least {
                any = true;
                work(form, &pairs)?;
            }
        }
        let all = self.given.map_or(self.candidates, <[PairPrompts]>::len);
        study.require(any, || {
            format!(
                "fewer than {said} of {all} pairs are usable: a pair must agree up to a text token after a block, or be solved \
                as text"
            )
        })
    }

    fn pairs_in_form(&self, study: &Study, form: Form) -> Result<Vec<Pair>> {
        let &Self { given, candidates, limit, .. } = self;
        let groups = match given {
            Some(prompts) => groups(prompts.iter().map(|(clean, corrupt)| [clean, corrupt])),
            None => groups(twins(study, candidates)?.into_iter().map(|(clean, corrupt)| [clean.group, corrupt.group])),
        };
        let mut pairs = match (given, form) {
            (Some(prompts), Form::Latents) => decoded(study, prompts, Switching::Free, limit),
            (Some(prompts), Form::Text) => decoded(study, prompts, Switching::Suppressed, limit),
            (None, Form::Latents) => decoded(study, &task_prompts(study, candidates)?, Switching::Free, limit),
            (None, Form::Text) => as_text(study, candidates, limit),
        }?;
        pairs.iter_mut().for_each(|pair| pair.group = groups[pair.number]);
        Ok(pairs)
    }
}

fn keep_most_common_length(pairs: Vec<Pair>) -> Vec<Pair> {
    let mut lengths: BTreeMap<usize, usize> = BTreeMap::new();
    pairs.iter().for_each(|pair| *lengths.entry(pair.clean.ids.len()).or_default() += 1);
    let most = lengths.into_iter().max_by_key(|(_, n)| *n).map(|(length, _)| length);
    pairs.into_iter().filter(|pair| Some(pair.clean.ids.len()) == most).collect()
}

/// Decodes both prompts of every pair; returns at most `limit` that agree up to a text token, after a block unless it is suppressed.
pub fn decoded(study: &Study, prompts: &[PairPrompts], switching: Switching, limit: usize) -> Result<Vec<Pair>> {
    let settings = DecodeSettings { switching, ..study.settings() };
    let decoding = study.decoding(&settings);
    let mut pairs = vec![];
    let size = study.recipe.evaluation.batch.max(1);
    for (chunk, prompts) in prompts.chunks(size).enumerate() {
        let both = prompts.iter().flat_map(|(clean, corrupt)| [clean, corrupt]).enumerate();
        let requests: Vec<Request> =
            both.map(|(problem, prompt)| study.corpus.request(problem, prompt)).collect::<Result<_>>()?;
        let traces = decode(decoding, &requests, 1, &mut Hooks::none())?;
        for (i, two) in traces.chunks_exact(2).enumerate() {
            let opened = switching == Switching::Suppressed;
            if two[0].prompt.len() == two[1].prompt.len()
                && let Some(found) = pair_traces(&two[0], &two[1], study.corpus.switch.latent, opened)?
            {
                let number = chunk * size + i;
                pairs.push(Pair { number, group: number, ..found });
            }
            if pairs.len() == limit {
                return Ok(pairs);
            }
        }
    }
    Ok(pairs)
}

/// `opened`: the readout may come before any block.
fn pair_traces(clean: &Trace, corrupt: &Trace, latent: u32, opened: bool) -> Result<Option<Pair>> {
    let both = || clean.positions.iter().zip(&corrupt.positions);
    let Some(at) = both().position(|(a, b)| a.token != b.token || a.kind != b.kind) else { return Ok(None) };
    let (a, b) = (&clean.positions[at], &corrupt.positions[at]);
    let opened = opened || clean.positions[..at].iter().any(|p| p.kind == PositionRole::Latent);
    if !opened || a.kind != PositionRole::Text || b.kind != PositionRole::Text {
        return Ok(None);
    }
    let row = |trace: &Trace| {
        let ids = trace.prompt.iter().copied().chain(trace.positions[..at].iter().map(|p| p.token)).collect();
        Sequence::new(0, ids, trace.prompt.len(), Some(latent))
    };
    let (clean, corrupt, says) = (row(clean)?, row(corrupt)?, [a.token, b.token]);
    Ok(Some(Pair { number: 0, group: 0, clean, corrupt, says, clauses: vec![] }))
}

/// At most `limit` twins as plain text of their solutions, cut before the last value, if the model predicts both values.
pub fn as_text(study: &Study, candidates: usize, limit: usize) -> Result<Vec<Pair>> {
    let solved = |(number, (clean, corrupt)): (usize, &(Problem, Problem))| solve_both(study, number, clean, corrupt);
    let mut candidates = twins(study, candidates)?.iter().enumerate().map(solved).collect::<Result<Vec<_>>>()?;
    let masked = study.mask_in_text(false);
    let mut pairs: Vec<Pair> = vec![];
    for chunk in candidates.chunks_mut(64) {
        let chunk: Vec<Pair> = chunk.iter_mut().filter_map(Option::take).collect();
        if chunk.is_empty() {
            continue;
        }
        let rows: Vec<Sequence> = chunk.iter().flat_map(|p| [p.clean.clone(), p.corrupt.clone()]).collect();
        let ends = at_ends(study, &rows, Hooks::none())?;
        let said: Vec<u32> = ends.iter().map(|logits| most_probable(logits, &masked)).collect();
        pairs.extend(chunk.into_iter().zip(said.chunks_exact(2)).filter(|(p, said)| p.says == **said).map(|(p, _)| p));
        if pairs.len() >= limit {
            break;
        }
    }
    pairs.truncate(limit);
    Ok(pairs)
}

fn solve_both(study: &Study, number: usize, clean: &Problem, corrupt: &Problem) -> Result<Option<Pair>> {
    let (Some(clean), Some(corrupt)) = (cut(study, clean)?, cut(study, corrupt)?) else { return Ok(None) };
    let says = [clean.due, corrupt.due];
    let same = clean.row.ids.len() == corrupt.row.ids.len() && clean.clauses == corrupt.clauses && says[0] != says[1];
    let CutSolution { row, clauses, .. } = clean;
    Ok(same.then_some(Pair { number, group: number, clean: row, corrupt: corrupt.row, says, clauses }))
}

/// A solution cut before its last value.
struct CutSolution {
    row: Sequence,
    /// The first token of the value.
    due: u32,
    clauses: Vec<Range<usize>>,
}

/// `None` if no clause is known, or the value is not found in it.
fn cut(study: &Study, problem: &Problem) -> Result<Option<CutSolution>> {
    let corpus = &study.corpus;
    let sample = Sample::new(problem, &corpus.vocabulary, &corpus.template)?;
    let Some(due) = sample.clauses.last().and_then(|last| value(problem, &sample, last)) else { return Ok(None) };
    let prompt = sample.prompt.len();
    let ids = sample.prompt.iter().chain(&sample.response[..due]).copied().collect();
    let clauses = sample.clauses.iter().map(|c| prompt + c.start..prompt + c.end.min(due)).collect();
    let row = Sequence::new(0, ids, prompt, Some(corpus.switch.latent))?;
    Ok(Some(CutSolution { row, due: sample.response[due], clauses }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_that_share_a_program_are_one_group() {
        // The fourth joins the first two groups, the last has its own.
        let programs = [["a", "b"], ["c", "d"], ["b", "e"], ["e", "d"], ["f", "g"]];
        assert_eq!(groups(programs.into_iter()), [0, 0, 0, 0, 4]);
        assert_eq!(groups([["a", "b"], ["c", "d"], ["b", "e"]].into_iter()), [0, 1, 0]);
    }
}
