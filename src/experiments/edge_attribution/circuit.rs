//! From scores to a circuit, and what circuits do alone. Knows sets of edges; nothing of rows on disk.

use std::collections::BTreeSet;

use anyhow::Result;
use ndarray::Array2;

use super::scores::{Edges, Recorded};
use crate::parallel;
use crate::study::circuits::alive::{Edge, alive};
use crate::study::circuits::rewire::{Rewired, leads};
use crate::study::sweep::not_stopped;

/// Rows that run at once.
const ROWS: usize = 64;

/// Every edge with its score summed over pairs, the largest first, whatever its sign.
pub fn ranked(edges: &Edges, scores: &[Vec<Array2<f64>>]) -> Vec<(Edge, f64)> {
    let graph = edges.weights.graph;
    let mut out: Vec<(Edge, f64)> = vec![];
    for place in 0..edges.places {
        for (receiver, reads) in graph.receivers().into_iter().map(|r| graph.reads(r)).enumerate() {
            for sender in 0..reads {
                let sum = scores.iter().map(|of_pair| of_pair[place][[receiver, sender]]).sum();
                out.push(((place, receiver, sender), sum));
            }
        }
    }
    // Equal scores stand in the order of the edges, whatever the machine.
    out.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()).then(a.0.cmp(&b.0)));
    out
}

impl Edges<'_> {
    /// The lead of every pair (inner) where only a circuit's edges (outer) carry what the clean run computes; on all others stands
    /// the corrupt run's value.
    ///
    /// # Errors
    /// As the model's.
    pub fn alone(&self, recorded: &[Recorded], circuits: &[BTreeSet<Edge>]) -> Result<Vec<Vec<f64>>> {
        let of_circuit = |circuit: &BTreeSet<Edge>| {
            let mut shares = self.shares(1.0);
            circuit.iter().for_each(|&(place, receiver, sender)| shares[place][[receiver, sender]] = 0.0);
            shares
        };
        let shares: Vec<Vec<Array2<f32>>> = circuits.iter().map(of_circuit).collect();
        let runs: Vec<Rewired> =
            shares.iter().flat_map(|shares| recorded.iter().map(move |r| r.rewired(shares))).collect();
        let done = parallel::run(&parallel::cut(&runs, self.threads), |part| {
            let mut out = vec![];
            for some in part.chunks(ROWS) {
                not_stopped()?;
                out.extend(leads(self.subject, self.weights, some)?);
            }
            Ok(out)
        })?;
        let done: Vec<f64> = done.into_iter().flatten().collect();
        Ok(done.chunks(recorded.len().max(1)).map(<[f64]>::to_vec).collect())
    }

    /// Σ (lead − corrupt) / Σ (clean − corrupt) of one circuit.
    fn effect(&self, recorded: &[Recorded], circuit: &BTreeSet<Edge>) -> Result<f64> {
        let found = self.alone(recorded, std::slice::from_ref(circuit))?;
        let moved: f64 = found.iter().flatten().zip(recorded).map(|(lead, r)| lead - r.leads[0]).sum();
        Ok(moved / recorded.iter().map(Recorded::whole).sum::<f64>())
    }

    /// The fewest edges from the top of the ranking whose effect alone is at least `share`, and of these the ones that lie on a way
    /// from a difference to the read-out. The effect need not grow with every edge: the search doubles the number until it is
    /// enough, then halves the gap.
    ///
    /// # Errors
    /// As the model's.
    pub fn smallest(&self, recorded: &[Recorded], ranked: &[(Edge, f64)], share: f64) -> Result<BTreeSet<Edge>> {
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
