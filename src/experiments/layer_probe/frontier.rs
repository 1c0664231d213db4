//! Does a latent step represent a whole search frontier, or one path? Only if the known value of a step is a set of names: the nodes that a
//! breadth-first search reaches.
//!
//! A sample is a latent and a node of its problem's graph; the label is whether the node is in the frontier of the block's step. The
//! probe reads the elementwise product of the state and the node's embedding: an inner product with fitted weights, so that one probe
//! serves all names. Problems rename their nodes, so a name alone predicts nothing; control labels are permuted among a problem's nodes.
//!
//! Target `frontier` uses every node. `frontier_unsaid` excludes those that the solution writes: above chance, it shows nodes that no
//! text names, hence more than one path at once. It detects only information along the embeddings: a state that encodes names otherwise
//! is not read.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use ndarray::{Array2, Axis};

use super::values::LatentState;
use super::{Config, row};
use crate::model::Activation;
use crate::schema::{Features, Negatives, ProbeRow};
use crate::stats::probe::{GroupedProtocol, GroupedScore, ProbeData, TooFew};
use crate::study::Study;
use crate::tasks::Fact;
use crate::text::Problem;

/// The names of nodes, and their embeddings [names, D].
pub(super) struct Names {
    index: BTreeMap<String, usize>,
    embeddings: Array2<f32>,
}

/// A latent and a node of its problem's graph.
struct LatentNodePair {
    /// Row of the features.
    latent: usize,
    problem: usize,
    group: usize,
    /// Row of the embeddings.
    node: usize,
    reached: bool,
    /// The solution writes it.
    said: bool,
}

impl Names {
    /// The names of all sets in the problems, if they are single tokens; `None` without sets.
    pub fn collect(study: &Study) -> Result<Option<Self>> {
        let corpus = &study.corpus;
        let sets = corpus.test.iter().flat_map(|p| p.steps.iter().filter_map(|s| set(&s.value)));
        let names: BTreeSet<&String> = sets.flatten().collect();
        let mut known: Vec<(&String, u32)> = vec![];
        for name in names {
            // In its form inside a text.
            known.extend(corpus.vocabulary.word_tokens(name)?.last().map(|&id| (name, id)));
        }
        if known.is_empty() {
            return Ok(None);
        }
        let ids = known.iter().map(|(_, id)| *id).collect();
        let values = Activation::Rank3(study.model.embed(&[ids])?).to_vec()?;
        let embeddings = Array2::from_shape_vec((known.len(), values.len() / known.len()), values)?;
        let index = known.into_iter().enumerate().map(|(i, (name, _))| (name.clone(), i)).collect();
        Ok(Some(Self { index, embeddings }))
    }

    /// The latents of one step, each with every node of its problem's graph, at most `most` samples of whole problems.
    fn pairs(&self, latents: &[(usize, &LatentState)], problems: &[Problem], most: usize) -> Vec<LatentNodePair> {
        let mut pairs: Vec<LatentNodePair> = vec![];
        for &(latent, &LatentState { problem, group, clause, .. }) in latents {
            let about = &problems[problem];
            let step = clause.and_then(|clause| about.steps.get(clause));
            let Some(frontier) = step.and_then(|step| set(&step.value)) else { continue };
            let said: BTreeSet<&str> = about.solution.split_whitespace().collect();
            let nodes: BTreeSet<&str> = about.question.split_whitespace().collect();
            pairs.extend(nodes.into_iter().filter_map(|name| {
                let (node, reached) = (*self.index.get(name)?, frontier.iter().any(|reached| reached == name));
                Some(LatentNodePair { latent, problem, group, node, reached, said: said.contains(name) })
            }));
        }
        if let Some(first_out) = pairs.get(most).map(|pair| pair.problem) {
            let cut = pairs.iter().position(|pair| pair.problem == first_out).unwrap_or(0);
            pairs.truncate(cut);
        }
        pairs
    }

    /// How well `protocol` separates the reached nodes from the others; `None` if there are too few of either.
    fn score(
        &self,
        states: &Array2<f32>,
        pairs: &[&LatentNodePair],
        protocol: &GroupedProtocol,
    ) -> Result<Option<GroupedScore>> {
        let rows: Vec<usize> = pairs.iter().map(|pair| pair.latent).collect();
        let nodes: Vec<usize> = pairs.iter().map(|pair| pair.node).collect();
        let features = states.select(Axis(0), &rows) * self.embeddings.select(Axis(0), &nodes);
        let labels: Vec<bool> = pairs.iter().map(|pair| pair.reached).collect();
        let groups: Vec<usize> = pairs.iter().map(|pair| pair.group).collect();
        if labels.iter().all(|reached| reached == &labels[0]) {
            return Ok(None);
        }
        TooFew::none(ProbeData::new(features.view(), &labels, &groups).and_then(|data| protocol.run(&data)))
    }
}

/// The rows of one layer: for each latent step both targets, and their controls.
pub(super) fn probe(
    (study, config, names): (&Study, &Config, &Names),
    latents: &[LatentState],
    states: &Array2<f32>,
    layer: usize,
) -> Result<Vec<ProbeRow>> {
    let mut rows = vec![];
    let problems = &study.corpus.test;
    for step in latents.iter().map(|latent| latent.step).collect::<BTreeSet<_>>() {
        let here: Vec<(usize, &LatentState)> =
            latents.iter().enumerate().filter(|(_, latent)| latent.step == step).collect();
        let pairs = names.pairs(&here, problems, config.max_positions);
        for (target, unsaid) in [("frontier", false), ("frontier_unsaid", true)] {
            let kept: Vec<&LatentNodePair> = pairs.iter().filter(|pair| !(unsaid && pair.said)).collect();
            let Some(score) = names.score(states, &kept, &config.grouped)? else { continue };
            let of = |score: &GroupedScore, balanced_accuracy| ProbeRow {
                negatives: Some(Negatives::OtherNodes),
                rows: score.rows,
                positives: score.positives,
                ..row(study, layer, &format!("value:{target}@{step}"), balanced_accuracy)
            };
            rows.push(ProbeRow {
                auroc: Some(score.auroc),
                selectivity: score.control.as_ref().map(|control| control.selectivity),
                chosen_c: ProbeRow::listed(&score.c),
                ..of(&score, score.balanced_accuracy)
            });
            let control = score.control.as_ref().map(|control| of(&score, control.balanced_accuracy));
            rows.extend(control.map(|row| ProbeRow { features: Features::Shuffled, ..row }));
        }
    }
    Ok(rows)
}

fn set(value: &Fact) -> Option<&Vec<String>> {
    match value {
        Fact::Set(names) => Some(names),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::nth::Nth;
    use crate::tasks::{Graph, Levels, Split, Task};

    const D: usize = 24;

    /// Problems of the graph task, names with random embeddings, and one latent per problem for its first hop.
    fn material(n: usize) -> (Vec<Problem>, Names, Vec<LatentState>) {
        let task = Task::Graph(Graph { levels: Levels { min: 1, max: 2 }, ..Graph::default() });
        let problems: Vec<Problem> =
            task.rows(Split::Test, 3, 0..n as u64).expect("problems").into_iter().map(Problem::from).collect();
        let names: BTreeSet<String> = ('a'..='z').map(String::from).collect();
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        let embeddings = Array2::from_shape_simple_fn((names.len(), D), || rng.random_range(-1.0f32..1.0));
        let index = names.into_iter().enumerate().map(|(i, name)| (name, i)).collect();
        let latent = |problem| {
            let (group, values) = (problem, [].into());
            LatentState { problem, group, position: 0, step: Nth::new(0), clause: Some(0), values }
        };
        (problems, Names { index, embeddings }, (0..n).map(latent).collect())
    }

    /// Scores of `frontier` and `frontier_unsaid` if a latent is the sum of these nodes' embeddings.
    fn scores(holds: impl Fn(&Problem) -> Vec<String>) -> [GroupedScore; 2] {
        let (problems, names, latents) = material(150);
        let mut states = Array2::zeros((problems.len(), D));
        for (mut state, problem) in states.rows_mut().into_iter().zip(&problems) {
            holds(problem).iter().for_each(|name| state += &names.embeddings.row(names.index[name]));
        }
        let here: Vec<(usize, &LatentState)> = latents.iter().enumerate().collect();
        let pairs = names.pairs(&here, &problems, usize::MAX);
        let protocol = GroupedProtocol::default();
        let of = |unsaid: bool| {
            let kept: Vec<&LatentNodePair> = pairs.iter().filter(|pair| !(unsaid && pair.said)).collect();
            names.score(&states, &kept, &protocol).expect("a score").expect("enough of both")
        };
        [of(false), of(true)]
    }

    #[test]
    fn a_frontier_in_superposition_is_told_from_one_path() {
        let frontier = |problem: &Problem| set(&problem.steps[0].value).expect("a set").clone();
        let [all, unsaid] = scores(frontier);
        assert!(all.auroc.value > 0.9 && unsaid.auroc.value > 0.9, "{} {}", all.auroc, unsaid.auroc);
        assert!(unsaid.control.is_some_and(|control| control.balanced_accuracy.covers(0.5)));
        // Only the solution's next node: what it does not write cannot be read.
        let path = |problem: &Problem| {
            let words: Vec<&str> = problem.solution.split_whitespace().collect();
            words[problem.steps[0].value_words.clone()].iter().map(|word| (*word).to_owned()).collect()
        };
        let [all, unsaid] = scores(path);
        assert!(all.balanced_accuracy.is_above(0.5), "{}", all.balanced_accuracy);
        assert!(!unsaid.balanced_accuracy.is_above(0.5), "{}", unsaid.balanced_accuracy);
    }

    #[test]
    fn rows_are_cut_between_problems() {
        let (problems, names, latents) = material(10);
        let here: Vec<(usize, &LatentState)> = latents.iter().enumerate().collect();
        let all = names.pairs(&here, &problems, usize::MAX);
        let first = all.iter().filter(|pair| pair.problem == 0).count();
        let cut = names.pairs(&here, &problems, first + 1);
        assert!((10..=16).contains(&first) && cut.len() == first, "{first} nodes, {} kept", cut.len());
        assert!(all.iter().filter(|pair| pair.problem == 0 && pair.reached).all(|pair| pair.node < names.index.len()));
    }
}
