//! Tests a found circuit on held-out pairs: alone and without one of its edges, compared with all other edges and with random circuits of
//! its size. Also the edge scores of each pair that it was found on.

use std::collections::BTreeSet;

use anyhow::Result;
use ndarray::Array2;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::Config;
use super::edges::{Edges, RecordedPair};
use crate::schema::{Circuit, EdgePairRow, Form, Identity};
use crate::study::circuits::alive::Edge;
use crate::study::circuits::places::Place;

/// Shares of all edges, from the top of the ranking, that are run alone.
const TOPS: [f64; 7] = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5];

/// A set of edges that is run alone.
struct EdgeSet {
    circuit: Circuit,
    number: usize,
    /// Rank of the missing edge.
    rank: Option<usize>,
    edges: BTreeSet<Edge>,
}

pub struct EdgeTrial<'a> {
    edges: &'a Edges<'a>,
    places: &'a [Place],
    /// Every recorded edge, with its rank and whether it is in the circuit.
    listed: Vec<(usize, Edge, bool)>,
    sets: Vec<EdgeSet>,
    of: usize,
    form: Form,
    identity: &'a Identity,
}

impl<'a> EdgeTrial<'a> {
    pub fn new(
        edges: &'a Edges<'a>,
        places: &'a [Place],
        ranked: &[(Edge, f64)],
        found: &BTreeSet<Edge>,
        config: &Config,
        (form, identity): (Form, &'a Identity),
    ) -> Self {
        let (mut listed, mut others) = (vec![], 0);
        for (i, (edge, _)) in ranked.iter().enumerate() {
            let inside = found.contains(edge);
            others += usize::from(!inside);
            if inside || others <= config.others {
                listed.push((i + 1, *edge, inside));
            }
        }
        let sets = sets(ranked, found, config, identity.seed);
        Self { edges, places, listed, sets, of: ranked.len(), form, identity }
    }

    /// Number of rows per pair; `finds`: a pair of the search.
    pub fn rows(&self, finds: bool) -> usize {
        if finds { self.listed.len() } else { self.sets.len() }
    }

    /// A pair's score of every recorded edge.
    pub fn edges(&self, pair: usize, recorded: &RecordedPair, scores: &[Array2<f64>]) -> Vec<EdgePairRow> {
        let graph = self.edges.weights.graph;
        let (senders, receivers) = (graph.senders(), graph.receivers());
        let row = |&(rank, (place, receiver, sender), inside): &(usize, Edge, bool)| EdgePairRow {
            number: rank,
            rank: Some(rank),
            edges: 1,
            sender: Some(senders[sender].label()),
            receiver: Some(receivers[receiver].label()),
            place: Some(self.places[place].name.clone()),
            back: self.places[place].back,
            in_circuit: Some(inside),
            found: scores[place][[receiver, sender]],
            ..self.blank(pair, recorded)
        };
        self.listed.iter().map(row).collect()
    }

    /// The effect of every set of edges alone, in a pair.
    pub fn circuits(&self, pair: usize, recorded: &RecordedPair) -> Result<Vec<EdgePairRow>> {
        let leads = self.edges.alone(recorded, &self.sets.iter().map(|set| &set.edges).collect::<Vec<_>>())?;
        let row = |(set, found): (&EdgeSet, f64)| EdgePairRow {
            circuit: Some(set.circuit),
            number: set.number,
            edges: set.edges.len(),
            rank: set.rank,
            found,
            ..self.blank(pair, recorded)
        };
        Ok(self.sets.iter().zip(leads).map(row).collect())
    }

    fn blank(&self, pair: usize, recorded: &RecordedPair) -> EdgePairRow {
        let (identity, form, [corrupt, clean]) = (self.identity.clone(), self.form, recorded.leads);
        EdgePairRow { identity, form, pair, of: self.of, corrupt, clean, ..EdgePairRow::default() }
    }
}

/// Every set of edges that is run alone.
fn sets(ranked: &[(Edge, f64)], found: &BTreeSet<Edge>, config: &Config, seed: u64) -> Vec<EdgeSet> {
    let all: BTreeSet<Edge> = ranked.iter().map(|(edge, _)| *edge).collect();
    let set = |circuit, number, edges| EdgeSet { circuit, number, rank: None, edges };
    let mut sets =
        vec![set(Circuit::Found, 0, found.clone()), set(Circuit::Rest, 0, all.difference(found).copied().collect())];
    let (mut rng, mut edges) = (ChaCha8Rng::seed_from_u64(seed), all.iter().copied().collect::<Vec<_>>());
    for number in 0..config.random {
        let drawn = edges.partial_shuffle(&mut rng, found.len()).0.iter().copied().collect();
        sets.push(set(Circuit::Random, number, drawn));
    }
    let mut sample: Vec<Edge> = found.iter().copied().collect();
    let sample = sample.partial_shuffle(&mut ChaCha8Rng::seed_from_u64(seed), config.removed).0.to_vec();
    if !sample.is_empty() {
        sets.push(set(Circuit::LessOne, 0, found.clone()));
    }
    for (i, edge) in sample.iter().enumerate() {
        let less = found.iter().filter(|other| *other != edge).copied().collect();
        let rank = ranked.iter().position(|(other, _)| other == edge).map(|at| at + 1);
        sets.push(EdgeSet { rank, ..set(Circuit::LessOne, i + 1, less) });
    }
    for (number, part) in TOPS.into_iter().enumerate() {
        let n = ((part * all.len() as f64) as usize).max(1);
        sets.push(set(Circuit::Top, number, ranked[..n].iter().map(|(edge, _)| *edge).collect()));
    }
    sets.push(set(Circuit::All, 0, all));
    sets
}
