//! Whether the steps that blocks replace can be decoded from their latents as a solution: the value of each block's step is read from its
//! latents, and the chain of these values and those in the text is verified by forward chaining.
//!
//! 1. Select the problems that are answered right and have blocks in place of known steps.
//! 2. Read each block at one latent, in two ways: the logit lens at `layer` (the most probable of all values that steps of these problems
//!    have), and a linear probe for the value of the block's step.
//! 3. A step follows if the problem's operation, applied to the previous step as read, gives it; in a graph, if an edge leads to it from
//!    there. A chain is valid if every step follows and the last gives the answer.
//! 4. Compare the share of valid chains with two nulls: `shuffled` uses the values read in another problem with blocks of the same
//!    lengths, `permuted` moves a problem's own values to other steps.
//!
//! Control for memorisation. A model may store a code of each problem, or of each calculation, without the value; a probe fitted on that
//! code would look the value up. So the training rows of a probe exclude the program of the problem under other names
//! ([`Problem::group`]) and the calculation that the block replaces ([`StepValue::clause`](crate::tasks::StepValue::clause), `5 + 4 = 2`),
//! which other programs contain too: it must read a value from calculations with other operands. A value that only one calculation has is
//! held out by program alone: there the code of the calculation is a code of the value, and no probe can separate the two. Coordinates
//! with rounding noise only are not scaled up ([`Standardiser`](crate::stats::Standardiser)): in a table of values with each value once per
//! row and column, they would reveal the entries that are not left out, and so the missing one.
//!
//! Misleads: an arithmetic chain has one derivation, so that it is valid only if every value read is true; in a graph other paths count
//! too. Steps in the text between blocks are right. A second operand is taken from the problem; its own step shows whether it was read
//! right. A readable chain does not show that the answer depends on it (see `known_value`). The control for memorisation removes
//! training rows (about half, for three blocks), so that a probe that reads nothing is weaker evidence.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use ndarray::{Array2, Axis};
use rand::Rng;
use rand::seq::SliceRandom;

use super::About;
use super::markdown::table_of;
use crate::latent::{Sequence, Trace};
use crate::nth::Nth;
use crate::random::keyed;
use crate::schema::{DecodedTraceRow, Reader, adjust};
use crate::stats::by_problem::{cell, share};
use crate::stats::probe::{RowGroups, TooFew, ValueProtocol};
use crate::stats::{Bootstrap, Estimate, LEVEL, accuracy, sign_flip};
use crate::study::Study;
use crate::study::arithmetic::{Arithmetic, of_study};
use crate::study::block_values::blocks;
use crate::study::circuits::patch::Node;
use crate::study::readout::log_probs;
use crate::study::staging::capture::at_latents;
use crate::tasks::{Task, edges};
use crate::text::Problem;

pub const ABOUT: About = About::asking(
    "whether the steps that blocks stand for can be read from latents as a valid solution: logit lens, probe, two nulls",
)
.on_request();

settings! {
    pub struct Config {
        /// Layer that is read, 0 to the number of blocks; the last where it is not given.
        pub layer: Option<usize> = None,
        /// Probes for values.
        pub probe: ValueProtocol = ValueProtocol::default(); ValueProtocol::SETTINGS,
    }
}

impl Config {
    pub(super) fn check(&self) -> Result<()> {
        let unused = self.probe.draws != ValueProtocol::default().draws;
        ensure!(!unused, "decoded_trace.probe.draws has no effect: only single predictions of the probe are read");
        Ok(())
    }
}

/// Verifies a chain. Arguments: index of the test problem, value of each step. Returns whether each step follows from those before it
/// and, last, whether the answer follows from the steps.
pub type Derivation<'a> = dyn Fn(usize, &[&str]) -> Vec<bool> + Sync + 'a;

/// A [`Derivation`] by arithmetic: each step is applied to the result before it, and the last result is the answer.
fn along_chain(arithmetic: &dyn Arithmetic, problem: usize, answer: &str, values: &[&str]) -> Vec<bool> {
    let numbers: Vec<Option<i64>> = values.iter().map(|value| value.parse().ok()).collect();
    let made = |step: usize| {
        let operand = match step.checked_sub(1) {
            Some(before) => numbers[before],
            None => arithmetic.operand(problem, 0),
        };
        arithmetic.apply(problem, step, operand?)
    };
    let mut follows: Vec<bool> =
        (0..values.len()).map(|step| numbers[step].is_some() && made(step) == numbers[step]).collect();
    let last = numbers.last().copied().flatten();
    let said = last.and_then(|last| arithmetic.answer_if(problem, values.len() - 1, last));
    follows.push(said.as_deref() == Some(answer));
    follows
}

/// A [`Derivation`] in a graph: each step follows an edge of the question, and the last reaches the answer.
fn along_path(about: &Problem, values: &[&str]) -> Vec<bool> {
    let Some((root, edges)) = edges(&about.question) else { return vec![false; values.len() + 1] };
    let from = std::iter::once(&root).chain(values);
    let mut follows: Vec<bool> = from.zip(values).map(|(from, to)| edges.contains(&(*from, *to))).collect();
    follows.push(values.last() == Some(&about.answer.as_str()));
    follows
}

struct ReadProblem {
    problem: usize,
    row: Sequence,
    /// The value of each step in the solution.
    words: Vec<String>,
    blocks: Vec<ReadBlock>,
}

struct ReadBlock {
    /// Index of the block in the response.
    block: usize,
    /// The step of the solution that it replaces.
    step: usize,
    latents: usize,
}

impl ReadProblem {
    /// The values of all steps, with `read` as the values of the blocks' steps.
    fn with<'a>(&'a self, read: &[&'a str]) -> Vec<&'a str> {
        let mut values: Vec<&str> = self.words.iter().map(String::as_str).collect();
        self.blocks.iter().zip(read).for_each(|(block, word)| values[block.step] = word);
        values
    }

    fn lengths(&self) -> Vec<usize> {
        self.blocks.iter().map(|block| block.latents).collect()
    }
}

/// One row per reader and latent.
pub fn rows(study: &Study, config: &Config) -> Result<Vec<DecodedTraceRow>> {
    let test = &study.corpus.test;
    match &study.recipe.task {
        Some(Task::Graph(_)) => rows_by(study, config, &|problem, values| along_path(&test[problem], values)),
        Some(_) => {
            let arithmetic = of_study(study)?;
            let follows = |problem: usize, values: &[&str]| {
                along_chain(arithmetic.as_ref(), problem, &test[problem].answer, values)
            };
            rows_by(study, config, &follows)
        }
        None => Err(study.inapplicable("what follows from what is known of generated tasks only").into()),
    }
}

/// [`rows`] with the caller's derivation.
pub fn rows_by(study: &Study, config: &Config, derivation: &Derivation) -> Result<Vec<DecodedTraceRow>> {
    config.check()?;
    study.chooses_blocks()?;
    let depth = study.model.config().num_hidden_layers;
    let layer = config.layer.unwrap_or(depth);
    ensure!(
        layer <= depth,
        "decoded_trace.layer: layer {layer} does not exist, the model has 0 to {depth} (0: the embedding)"
    );
    let (all, left_out) = reads(study, derivation)?;
    study.require(all.len() > 1, || format!("{} right answers have blocks in the place of known steps", all.len()))?;
    let recall = Recall::new(study, &all);
    let found = LatentStates::new(study, layer, &all, &recall)?;
    let mut rows: Vec<DecodedTraceRow> = vec![];
    for reader in Reader::ALL {
        for latent in 0..shared_latents(all.iter().map(ReadProblem::lengths)) {
            let mine: Vec<usize> =
                (0..all.len()).filter(|&i| all[i].lengths().iter().all(|length| *length > latent)).collect();
            let Some(read) = found.read(&config.probe, reader, &mine, latent)? else { continue };
            let here: Vec<&ReadProblem> = mine.iter().map(|&i| &all[i]).collect();
            rows.push(of_reader(&recall, derivation, (reader, layer, latent, left_out), &here, &read)?);
        }
    }
    adjust(rows.iter_mut().filter_map(|row| row.p_holm.as_mut()))?;
    Ok(rows)
}

/// The most latents that every block of some problem has: a problem is read at latents that all of its blocks have.
fn shared_latents(lengths: impl Iterator<Item = Vec<usize>>) -> usize {
    lengths.filter_map(|blocks| blocks.into_iter().min()).max().unwrap_or(0)
}

/// The problems with right answers whose blocks replace known steps, and the number of those with other blocks.
fn reads(study: &Study, derivation: &Derivation) -> Result<(Vec<ReadProblem>, usize)> {
    let (corpus, (scores, traces)) = (&study.corpus, study.decoded()?);
    let (mut all, mut left_out) = (vec![], 0);
    for (trace, _) in traces.iter().zip(&scores.outcomes).filter(|(t, o)| o.correct && t.latent_calls() > 0) {
        match read(trace, &corpus.test[trace.problem], study)? {
            Some(read) if derivation(read.problem, &read.with(&[])).iter().all(|follows| *follows) => {
                all.push(read);
            }
            _ => left_out += 1,
        }
    }
    Ok((all, left_out))
}

/// `None` if the text is not the solution without the clauses that blocks replace, or if a value is not one word.
fn read(trace: &Trace, problem: &Problem, study: &Study) -> Result<Option<ReadProblem>> {
    let vocabulary = &study.corpus.vocabulary;
    let stands = blocks(trace, problem, vocabulary)?;
    let row = trace.sequence(&study.corpus.switch)?;
    let mut latents: BTreeMap<usize, usize> = BTreeMap::new();
    row.latent_steps().for_each(|(_, block, _)| *latents.entry(block).or_default() += 1);
    let gold: Vec<&str> = problem.solution.split_whitespace().collect();
    let hidden = |word: usize| stands.iter().any(|(_, step)| problem.steps[*step].words.contains(&word));
    let shown: Vec<&str> = gold.iter().enumerate().filter(|(i, _)| !hidden(*i)).map(|(_, word)| *word).collect();
    let text = vocabulary.decode_visible(&trace.text())?;
    let values = problem.steps.iter().map(|step| match gold.get(step.value_words.clone()) {
        Some([word]) => Some((*word).to_owned()),
        _ => None,
    });
    let words: Option<Vec<String>> = values.collect();
    let follows = text.split_whitespace().eq(shown) && stands.len() == latents.len();
    let block = |(block, step)| Some(ReadBlock { block, step, latents: *latents.get(&block)? });
    let blocks = stands.into_iter().filter_map(block).collect();
    Ok(words.filter(|_| follows).map(|words| ReadProblem { problem: trace.problem, words, blocks, row }))
}

/// For each problem, the value read from each of its blocks.
type Readings<'a> = Option<Vec<Vec<&'a str>>>;

struct LatentStates<'a> {
    study: &'a Study,
    all: &'a [ReadProblem],
    recall: &'a Recall<'a>,
    /// Row of the state of each problem's block and latent step.
    at: BTreeMap<(usize, usize, usize), usize>,
    states: Array2<f32>,
    /// The values that steps have, and the tokens of each that is a single token.
    words: Vec<&'a str>,
    tokens: Vec<Vec<u32>>,
}

impl<'a> LatentStates<'a> {
    fn new(study: &'a Study, layer: usize, all: &'a [ReadProblem], recall: &'a Recall<'a>) -> Result<Self> {
        let rows: Vec<Sequence> = all.iter().map(|read| read.row.clone()).collect();
        let points = [Node::Resid(layer).point()];
        let (keys, mut states) = at_latents(study, &rows, &points, |row, block, step| Some((row, block, step)))?;
        let at = keys.into_iter().enumerate().map(|(row, key)| (key, row)).collect();
        let words: BTreeSet<&str> = all.iter().flat_map(|read| read.words.iter().map(String::as_str)).collect();
        let words = Vec::from_iter(words);
        let tokens = words.iter().map(|word| study.corpus.vocabulary.word_tokens(word)).collect::<Result<_>>()?;
        Ok(Self { study, all, recall, at, states: states.remove(0), words, tokens })
    }

    /// Reads each block of the problems `mine` at one latent; `None` for values of several tokens, or too few problems for a probe.
    fn read(&self, probe: &ValueProtocol, reader: Reader, mine: &[usize], latent: usize) -> Result<Readings<'a>> {
        let keys: Vec<(usize, usize)> =
            mine.iter().flat_map(|&i| (0..self.all[i].blocks.len()).map(move |b| (i, b))).collect();
        let rows: Vec<usize> =
            keys.iter().map(|&(i, b)| self.at[&(self.all[i].problem, self.all[i].blocks[b].block, latent)]).collect();
        let states = self.states.select(Axis(0), &rows);
        let read = match reader {
            Reader::Logit if self.tokens.iter().any(Vec::is_empty) => None,
            Reader::Logit => Some(self.by_lens(&states)?),
            Reader::Probe => TooFew::none(self.by_probe(probe, &keys, &states))?,
        };
        let Some(read) = read else { return Ok(None) };
        let mut read = read.into_iter().map(|word| self.words[word]);
        Ok(Some(mine.iter().map(|&i| read.by_ref().take(self.all[i].blocks.len()).collect()).collect()))
    }

    fn by_lens(&self, states: &Array2<f32>) -> Result<Vec<usize>> {
        let mut read = vec![];
        // Few rows at a time: a vocabulary is large.
        for some in states.axis_chunks_iter(Axis(0), 64) {
            for lp in log_probs(&self.study.model, some.iter().copied().collect())? {
                let of = |word: &usize| self.tokens[*word].iter().map(|&t| lp[t as usize]).fold(f64::MIN, f64::max);
                let best = (0..self.words.len()).max_by(|a, b| of(a).total_cmp(&of(b)));
                read.push(best.unwrap_or(0));
            }
        }
        Ok(read)
    }

    fn by_probe(&self, probe: &ValueProtocol, keys: &[(usize, usize)], states: &Array2<f32>) -> Result<Vec<usize>> {
        let value = |&(i, b): &(usize, usize)| {
            let read = &self.all[i];
            self.words.partition_point(|word| *word < read.words[read.blocks[b].step].as_str())
        };
        let values: Vec<usize> = keys.iter().map(value).collect();
        let (mut groups, mut contexts) = (vec![], vec![]);
        for &(i, b) in keys {
            groups.push(self.recall.of_block(&self.all[i], b));
            contexts.push(self.recall.of_problem(&self.all[i]));
        }
        probe.predictions(states.view(), &values, RowGroups { groups: &groups, contexts: &contexts })
    }
}

/// Keys by which a probe could look up a block's value: the calculation that the block replaces, and the program of its problem.
struct Recall<'a> {
    study: &'a Study,
    /// The program of each held-out problem.
    programs: Vec<usize>,
    /// Calculations whose value another one has too, numbered after the programs.
    calculations: BTreeMap<&'a str, usize>,
}

impl<'a> Recall<'a> {
    fn new(study: &'a Study, all: &[ReadProblem]) -> Self {
        let mut lead_to: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (read, block) in all.iter().flat_map(|read| read.blocks.iter().map(move |block| (read, block))) {
            let clause = study.corpus.test[read.problem].steps[block.step].clause.as_str();
            lead_to.entry(&read.words[block.step]).or_default().insert(clause);
        }
        let several = lead_to.into_values().filter(|clauses| clauses.len() > 1).flatten();
        let calculations: BTreeSet<&str> = several.collect();
        let first = study.corpus.test.len();
        Self {
            study,
            programs: study.corpus.groups(),
            calculations: calculations.into_iter().enumerate().map(|(i, clause)| (clause, first + i)).collect(),
        }
    }

    fn of_problem(&self, read: &ReadProblem) -> usize {
        self.programs[read.problem]
    }

    /// The block's calculation or, if no other has the same value, its program.
    fn of_block(&self, read: &ReadProblem, block: usize) -> usize {
        let clause = self.study.corpus.test[read.problem].steps[read.blocks[block].step].clause.as_str();
        self.calculations.get(clause).copied().unwrap_or_else(|| self.of_problem(read))
    }

    /// Unit of resampling, because a probe reads its problems right or wrong together: for a single block its key, else the program.
    fn unit(&self, read: &ReadProblem) -> usize {
        if read.blocks.len() == 1 { self.of_block(read, 0) } else { self.of_problem(read) }
    }
}

/// The row of one reader; its p-value is not adjusted yet.
fn of_reader(
    recall: &Recall<'_>,
    derivation: &Derivation,
    (reader, layer, latent, left_out): (Reader, usize, usize, usize),
    here: &[&ReadProblem],
    read: &[Vec<&str>],
) -> Result<DecodedTraceRow> {
    let study = recall.study;
    let holds = |i: usize, values: &[&str]| {
        derivation(here[i].problem, &here[i].with(values)).into_iter().all(|follows| follows)
    };
    let valid: Vec<bool> = (0..here.len()).map(|i| holds(i, &read[i])).collect();
    let of_problem = |(one, values): (&&ReadProblem, &Vec<&str>)| {
        let of = derivation(one.problem, &one.with(values));
        one.blocks.iter().map(|block| (one.problem, of[block.step])).collect::<Vec<_>>()
    };
    let follows: Vec<(usize, bool)> = here.iter().zip(read).flat_map(of_problem).collect();
    let lengths: Vec<Vec<usize>> = here.iter().map(|one| one.lengths()).collect();
    let pairs = donors(&lengths, study.seed);
    let own: Vec<bool> = pairs.iter().map(|&(i, _)| valid[i]).collect();
    let others: Vec<bool> = pairs.iter().map(|&(i, donor)| holds(i, &read[donor])).collect();
    let of_pairs: Vec<usize> = pairs.iter().map(|&(i, _)| recall.unit(here[i])).collect();
    let permuted = (0..here.len()).filter(|&i| read[i].len() > 1).map(|i| {
        let mut values = read[i].clone();
        let by = keyed([study.seed, here[i].problem as u64, 1, 0]).random_range(1..values.len());
        values.rotate_left(by);
        (valid[i], holds(i, &values))
    });
    let (several, moved): (Vec<bool>, Vec<bool>) = permuted.unzip();
    let tested = against(study.seed, &own, &others, &of_pairs)?;
    Ok(DecodedTraceRow {
        identity: study.identity(here.len()),
        reader,
        layer,
        step: Nth::new(latent),
        left_out,
        reads: follows.len(),
        valid: accuracy(&valid)?,
        follows: share(study.seed, &follows)?,
        shuffled: of_any(&others)?,
        valid_of_several: of_any(&several)?,
        permuted: of_any(&moved)?,
        difference: tested.map(|(difference, _)| difference),
        p_holm: tested.map(|(_, p)| p),
    })
}

/// `own` minus `others`, paired by problem, with the p-value of no difference: the exact sign-flip test on sums over groups. Groups are the
/// units, because a probe that was not fitted on a group is right or wrong on all its problems at once. `None` for fewer than two groups.
fn against(seed: u64, own: &[bool], others: &[bool], groups: &[usize]) -> Result<Option<(Estimate, f64)>> {
    let mut sums: BTreeMap<usize, i64> = BTreeMap::new();
    for ((own, others), group) in own.iter().zip(others).zip(groups) {
        *sums.entry(*group).or_default() += i64::from(*own) - i64::from(*others);
    }
    if sums.len() < 2 {
        return Ok(None);
    }
    let p = sign_flip(&sums.into_values().collect::<Vec<_>>());
    let shares = |all: &[bool]| all.iter().map(|holds| f64::from(u8::from(*holds))).collect::<Vec<_>>();
    let difference = Bootstrap::seeded(seed).clustered_paired(&shares(others), &shares(own), groups)?;
    Ok(Some((if p > 1.0 - LEVEL { difference.reaching(0.0) } else { difference }, p)))
}

fn of_any(holds: &[bool]) -> Result<Option<Estimate>> {
    Some(holds).filter(|holds| !holds.is_empty()).map(accuracy).transpose()
}

/// Assigns to each problem another one whose blocks have the same lengths, each once; problems without a partner are left out.
fn donors(lengths: &[Vec<usize>], seed: u64) -> Vec<(usize, usize)> {
    let mut alike: BTreeMap<&[usize], Vec<usize>> = BTreeMap::new();
    lengths.iter().enumerate().for_each(|(i, of)| alike.entry(of.as_slice()).or_default().push(i));
    let mut pairs = vec![];
    for mut group in alike.into_values().filter(|group| group.len() > 1) {
        let mut rng = keyed([seed, group[0] as u64, 0, 0]);
        group.shuffle(&mut rng);
        pairs.extend((0..group.len()).map(|i| (group[i], group[(i + 1) % group.len()])));
    }
    pairs.sort_unstable();
    pairs
}

pub fn table(rows: &[DecodedTraceRow]) -> String {
    let columns = "reader | latent | valid [95 %] | steps that follow | another problem's values | several blocks: valid | \
                   moved to other steps | verdict";
    table_of(columns, rows, |r| {
        let [follows, shuffled, several, permuted] =
            [r.follows, r.shuffled, r.valid_of_several, r.permuted].map(|estimate| cell(estimate, 3));
        let (DecodedTraceRow { reader, step, valid, .. }, verdict) = (r, r.verdict());
        format!("{reader} | {step} | {valid:.3} | {follows} | {shuffled} | {several} | {permuted} | {verdict}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::{Chains, Graph, Split};

    fn problems(task: &Task) -> Vec<(Problem, Vec<String>)> {
        let rows = task.rows(Split::Test, 0, 0..50).expect("problems").into_iter().map(Problem::from);
        let words = |p: &Problem| {
            let gold: Vec<&str> = p.solution.split_whitespace().collect();
            p.steps.iter().map(|s| gold[s.value_words.start].to_owned()).collect()
        };
        rows.map(|problem| (problem.clone(), words(&problem))).collect()
    }

    /// Chains of 50 problems, whose true values follow; then what follows where one value of each is another.
    fn changed(derivation: &Derivation, problems: &[(Problem, Vec<String>)], other: impl Fn(&str) -> String) {
        for (i, (_, words)) in problems.iter().enumerate() {
            let mut values: Vec<&str> = words.iter().map(String::as_str).collect();
            assert!(derivation(i, &values).iter().all(|f| *f), "problem {i}: the solution is a derivation");
            let (at, wrong) = (i % values.len(), other(&words[i % words.len()]));
            values[at] = &wrong;
            let follows = derivation(i, &values);
            assert!(!follows[at] && follows[..at].iter().all(|f| *f), "problem {i}: step {at} does not follow");
        }
    }

    #[test]
    fn a_chain_follows_step_by_step_and_a_path_by_its_edges() {
        let task = Task::Chains(Chains::default());
        let chains = problems(&task);
        let rows = task.rows(Split::Test, 0, 0..50).expect("problems");
        let answers: Vec<String> = rows.iter().map(|row| row.answer.clone()).collect();
        let follows = |problem: usize, values: &[&str]| along_chain(&rows, problem, &answers[problem], values);
        changed(&follows, &chains, |value| ((value.parse::<i64>().expect("a digit") + 1) % 7).to_string());

        let graphs = problems(&Task::Graph(Graph::default()));
        let paths = |problem: usize, values: &[&str]| along_path(&graphs[problem].0, values);
        changed(&paths, &graphs, |_| "no node".to_owned());
        // A path to another node counts up to its end.
        let (problem, words) = &graphs[0];
        let values: Vec<&str> = words[..words.len() - 1].iter().map(String::as_str).collect();
        let follows = paths(0, &values);
        assert!(follows[..values.len()].iter().all(|f| *f) && !follows[values.len()], "{}", problem.question);
    }

    #[test]
    fn no_latent_is_read_that_every_problem_lacks() {
        assert_eq!(shared_latents([vec![9, 3], vec![4, 5]].into_iter()), 4, "each problem lacks a fifth one");
        assert_eq!(shared_latents(std::iter::empty()), 0);
    }

    #[test]
    fn donors_have_blocks_of_the_same_lengths() {
        let lengths = [vec![5], vec![5, 5], vec![5], vec![5], vec![3], vec![5, 5]];
        let pairs = donors(&lengths, 0);
        assert_eq!(pairs.iter().map(|(i, _)| *i).collect::<Vec<_>>(), [0, 1, 2, 3, 5], "one is alone with its lengths");
        assert!(pairs.iter().all(|&(i, donor)| i != donor && lengths[i] == lengths[donor]), "{pairs:?}");
    }
}
