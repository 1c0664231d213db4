//! Scores every edge in every pair (EAP with integrated gradients), selects a circuit by score, and runs circuits alone. Knows pairs, runs
//! and sets of edges, not rows on disk.

use std::collections::BTreeSet;

use anyhow::Result;
use ndarray::Array2;

use crate::parallel;
use crate::progress::go_on;
use crate::study::Study;
use crate::study::circuits::alive::{Edge, alive};
use crate::study::circuits::edges::{EdgeWeights, Receiver};
use crate::study::circuits::gradient::TargetRow;
use crate::study::circuits::pairs::Pair;
use crate::study::circuits::pulls::pulls;
use crate::study::circuits::rewire::{RewiredRun, leads, outputs};

/// Batch size, and the maximum number of edge shares in it.
const ROWS: usize = 64;
const HELD: usize = 1 << 26;

/// A pair with the outputs of its two runs.
pub struct RecordedPair<'p> {
    pub pair: &'p Pair,
    /// Place of each position.
    pub places: Vec<usize>,
    /// Every sender's output in the corrupt run, then in the clean one: `[senders, D]` per position.
    pub corrupt: Vec<Array2<f32>>,
    pub clean: Vec<Array2<f32>>,
    /// The lead in the corrupt run and in the clean run.
    pub leads: [f64; 2],
}

impl RecordedPair<'_> {
    pub fn whole(&self) -> f64 {
        self.leads[1] - self.leads[0]
    }

    /// The clean run, with a share of each edge's value from the corrupt run.
    pub fn rewired<'r>(&'r self, shares: &'r [Array2<f32>]) -> RewiredRun<'r> {
        let Pair { clean, says, .. } = self.pair;
        RewiredRun { row: clean, other: &self.corrupt, places: &self.places, shares, says: *says }
    }
}

pub struct Edges<'a> {
    pub study: &'a Study,
    pub weights: &'a EdgeWeights,
    /// Number of places over all pairs.
    pub places: usize,
}

impl Edges<'_> {
    /// The same share for every edge: `[receivers, senders]` per place.
    pub fn shares(&self, value: f32) -> Vec<Array2<f32>> {
        let graph = self.weights.graph;
        vec![Array2::from_elem((graph.receivers().len(), graph.senders().len()), value); self.places]
    }

    /// Runs both rows of every pair. `places`: the place of each position of each pair.
    pub fn recorded<'p>(&self, pairs: &'p [Pair], places: &[Vec<usize>]) -> Result<Vec<RecordedPair<'p>>> {
        let items: Vec<(&Pair, &Vec<usize>)> = pairs.iter().zip(places).collect();
        let (none, all) = (self.shares(1.0), self.shares(0.0));
        self.study.each("pairs run", &items, |&(pair, places)| {
            let mut both = outputs(self.study, self.weights, &[pair.corrupt.clone(), pair.clean.clone()])?.into_iter();
            let (corrupt, clean) = (both.next().unwrap_or_default(), both.next().unwrap_or_default());
            let mut out = RecordedPair { pair, places: places.clone(), corrupt, clean, leads: [0.0; 2] };
            let found = leads(self.study, self.weights, &[out.rewired(&none), out.rewired(&all)])?;
            out.leads.copy_from_slice(&found);
            Ok(out)
        })
    }

    /// Scores per pair and place, `[receivers, senders]`: gradient × (clean − corrupt), summed over the positions of the place. The
    /// gradient is the mean over `steps` runs whose token embeddings are interpolated between the two rows, at the midpoints of equal
    /// intervals; with 0 steps, that of the corrupt run.
    pub fn scores(&self, recorded: &[&RecordedPair], steps: usize) -> Result<Vec<Vec<Array2<f64>>>> {
        let shares: Vec<f64> = match steps {
            0 => vec![0.0],
            _ => (0..steps).map(|step| (step as f64 + 0.5) / steps as f64).collect(),
        };
        // Groups do not depend on the number of threads, because the rounding of a pair's sums depends on its group.
        let groups: Vec<&[&RecordedPair]> = recorded.chunks(8).collect();
        let done = self.study.each("groups of pairs passed", &groups, |some| {
            let mut sums: Vec<Vec<Array2<f64>>> =
                some.iter().map(|_| self.shares(0.0).iter().map(|x| x.mapv(f64::from)).collect()).collect();
            for &share in &shares {
                go_on()?;
                self.add(some, share, 1.0 / shares.len() as f64, &mut sums)?;
            }
            Ok(sums)
        })?;
        Ok(done.into_iter().flatten().collect())
    }

    fn add(&self, some: &[&RecordedPair], share: f64, factor: f64, sums: &mut [Vec<Array2<f64>>]) -> Result<()> {
        let aimed: Vec<TargetRow> = some.iter().map(|r| r.pair.on_the_way(share)).collect();
        let graph = self.weights.graph;
        let reads: Vec<usize> = graph.receivers().into_iter().map(|receiver| graph.reads(receiver)).collect();
        let Study { model, reasoning, .. } = self.study;
        let found = pulls(model, &reasoning.source, self.weights, &aimed)?;
        for ((r, pulls), sums) in some.iter().zip(found).zip(sums) {
            for (position, pull) in pulls.iter().enumerate() {
                let difference = &r.clean[position] - &r.corrupt[position];
                let product = pull.dot(&difference.t());
                let sum = &mut sums[r.places[position]];
                for (receiver, &reads) in reads.iter().enumerate() {
                    for sender in 0..reads {
                        sum[[receiver, sender]] += factor * f64::from(product[[receiver, sender]]);
                    }
                }
            }
        }
        Ok(())
    }

    /// The lead of a pair for each circuit run alone: its edges have the clean run's values, all others the corrupt run's.
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

    /// Shares of the corrupt run: 0 for the circuit's edges, 1 for all others.
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

    /// The fewest top-ranked edges whose effect alone is at least `share`, without those on no path from a difference to the readout. The
    /// effect need not grow with every edge: the search doubles the number until it is enough, then bisects.
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

/// Every possible edge with its score summed over pairs, by descending absolute value.
pub fn ranked<'s>(
    edges: &Edges,
    pairs: &[RecordedPair],
    scores: impl Iterator<Item = &'s Vec<Array2<f64>>> + Clone,
) -> Vec<(Edge, f64)> {
    let graph = edges.weights.graph;
    let mut out: Vec<(Edge, f64)> = vec![];
    let outputs = find_outputs(pairs);
    for place in 0..edges.places {
        let here = |(_, kind): &(usize, Receiver)| match kind {
            Receiver::Latent | Receiver::Logits => outputs.contains(&(place, *kind)),
            _ => true,
        };
        for (receiver, kind) in graph.receivers().into_iter().enumerate().filter(here) {
            for sender in 0..graph.reads(kind) {
                let sum = scores.clone().map(|of_pair| of_pair[place][[receiver, sender]]).sum();
                out.push(((place, receiver, sender), sum));
            }
        }
    }
    // Equal scores are ordered by edge, so that the result does not depend on the machine.
    out.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()).then(a.0.cmp(&b.0)));
    out
}

/// The places of receivers that not every position has: a latent's input (before a latent step) and the logits (at the readout). Other
/// combinations of place and receiver are not edges: they are not counted, nor drawn for random sets.
fn find_outputs(pairs: &[RecordedPair]) -> BTreeSet<(usize, Receiver)> {
    let mut out = BTreeSet::new();
    for RecordedPair { pair, places, .. } in pairs {
        out.extend(places.last().map(|&place| (place, Receiver::Logits)));
        let before_latent = |&(position, _): &(usize, &usize)| pair.clean.is_latent(position + 1);
        out.extend(places.iter().enumerate().filter(before_latent).map(|(_, &place)| (place, Receiver::Latent)));
    }
    out
}
