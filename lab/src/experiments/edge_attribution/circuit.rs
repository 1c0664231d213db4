//! From scores to a circuit, and what circuits do alone. Knows sets of edges; nothing of rows on disk.

use std::collections::BTreeSet;

use anyhow::Result;
use ndarray::Array2;

use super::scores::{Edges, RecordedPair};
use crate::parallel;
use crate::progress::go_on;
use crate::study::circuits::alive::{Edge, alive};
use crate::study::circuits::edges::Receiver;
use crate::study::circuits::rewire::{RewiredRun, leads};

/// Rows that run at once, and shares of edges that they may hold.
const ROWS: usize = 64;
const HELD: usize = 1 << 26;

/// Every edge that can exist with its score summed over pairs, the largest first, whatever its sign.
pub fn ranked(edges: &Edges, pairs: &[RecordedPair], scores: &[Vec<Array2<f64>>]) -> Vec<(Edge, f64)> {
    let graph = edges.weights.graph;
    let mut out: Vec<(Edge, f64)> = vec![];
    let stand = standing(pairs);
    for place in 0..edges.places {
        let here = |(_, kind): &(usize, Receiver)| match kind {
            Receiver::Latent | Receiver::Logits => stand.contains(&(place, *kind)),
            _ => true,
        };
        for (receiver, kind) in graph.receivers().into_iter().enumerate().filter(here) {
            for sender in 0..graph.reads(kind) {
                let sum = scores.iter().map(|of_pair| of_pair[place][[receiver, sender]]).sum();
                out.push(((place, receiver, sender), sum));
            }
        }
    }
    // Equal scores stand in the order of the edges, whatever the machine.
    out.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()).then(a.0.cmp(&b.0)));
    out
}

/// At which places the receivers stand that not every position has: before a latent step, and at the read-out. An edge to a receiver
/// that never stands at its place is no edge: it counts in no share, and no random set draws it.
fn standing(pairs: &[RecordedPair]) -> BTreeSet<(usize, Receiver)> {
    let mut out = BTreeSet::new();
    for RecordedPair { pair, places, .. } in pairs {
        out.extend(places.last().map(|&place| (place, Receiver::Logits)));
        let before_latent = |&(position, _): &(usize, &usize)| pair.clean.is_latent(position + 1);
        out.extend(places.iter().enumerate().filter(before_latent).map(|(_, &place)| (place, Receiver::Latent)));
    }
    out
}

impl Edges<'_> {
    /// The lead of a pair where only a circuit's edges carry what the clean run computes, for each circuit; on all others stands the
    /// corrupt run's value.
    pub fn alone(&self, recorded: &RecordedPair, circuits: &[&BTreeSet<Edge>]) -> Result<Vec<f64>> {
        let graph = self.weights.graph;
        let floats = self.places * graph.receivers().len() * graph.senders().len();
        let mut out = vec![];
        for some in circuits.chunks((HELD / floats.max(1)).clamp(1, ROWS)) {
            go_on()?;
            let shares: Vec<Vec<Array2<f32>>> = some.iter().map(|circuit| self.shares_of(circuit)).collect();
            let runs: Vec<RewiredRun> = shares.iter().map(|shares| recorded.rewired(shares)).collect();
            out.extend(leads(self.study, self.weights, &runs)?);
        }
        Ok(out)
    }

    /// 0 where an edge is in the circuit, 1 elsewhere.
    fn shares_of(&self, circuit: &BTreeSet<Edge>) -> Vec<Array2<f32>> {
        let mut shares = self.shares(1.0);
        circuit.iter().for_each(|&(place, receiver, sender)| shares[place][[receiver, sender]] = 0.0);
        shares
    }

    /// Σ (lead − corrupt) / Σ (clean − corrupt) of one circuit.
    fn effect(&self, recorded: &[&RecordedPair], circuit: &BTreeSet<Edge>) -> Result<f64> {
        let shares = self.shares_of(circuit);
        let runs: Vec<RewiredRun> = recorded.iter().map(|r| r.rewired(&shares)).collect();
        let found = parallel::run(&parallel::cut(&runs, self.study.threads), |part| {
            let leads = part.chunks(ROWS).map(|some| {
                go_on()?;
                leads(self.study, self.weights, some)
            });
            Ok(leads.collect::<Result<Vec<_>>>()?.concat())
        })?;
        let moved: f64 = found.iter().flatten().zip(recorded).map(|(lead, r)| lead - r.leads[0]).sum();
        Ok(moved / recorded.iter().map(|r| r.whole()).sum::<f64>())
    }

    /// The fewest edges from the top of the ranking whose effect alone is at least `share`, and of these the ones that lie on a way
    /// from a difference to the read-out. The effect need not grow with every edge: the search doubles the number until it is
    /// enough, then halves the gap.
    pub fn smallest(&self, recorded: &[&RecordedPair], ranked: &[(Edge, f64)], share: f64) -> Result<BTreeSet<Edge>> {
        let pairs: Vec<_> = recorded.iter().map(|r| (r.pair, &r.places[..])).collect();
        let top = |n: usize| -> BTreeSet<Edge> { ranked[..n].iter().map(|(edge, _)| *edge).collect() };
        let enough = |n: usize| anyhow::Ok(self.effect(recorded, &top(n))? >= share);
        let (mut low, mut high) = (0, 8.min(ranked.len()));
        while high < ranked.len() && !enough(high)? {
            (low, high) = (high, (2 * high).min(ranked.len()));
        }
        while high - low > (high / 50).max(1) {
            let middle = (low + high) / 2;
            if enough(middle)? { high = middle } else { low = middle }
        }
        Ok(alive(self.weights.graph, &pairs, &top(high)))
    }
}
