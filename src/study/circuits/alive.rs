//! Prunes a circuit to the edges on a path from an input that differs between the two runs to the readout. All other edges carry no
//! difference or do not reach the readout, so that the circuit computes the same without them.

use std::collections::BTreeSet;

use super::edges::{EdgeGraph, Receiver, Sender};
use super::pairs::Pair;

/// Indices: (place, receiver, sender).
pub type Edge = (usize, usize, usize);

/// The circuit's edges on such a path in at least one pair. `places`: for each pair, the place of each of its positions.
pub fn alive(graph: EdgeGraph, pairs: &[(&Pair, &[usize])], circuit: &BTreeSet<Edge>) -> BTreeSet<Edge> {
    let mut out = BTreeSet::new();
    for &(pair, places) in pairs {
        let way = EdgePaths { graph, pair, places, circuit };
        let (reached, needed) = (way.find_reached(), way.find_needed());
        let here = |edge: &&Edge| {
            let at = |p: usize| places[p] == edge.0 && reached[p][edge.2] && needed[p][edge.1];
            (0..places.len()).any(at)
        };
        out.extend(circuit.iter().filter(here).copied());
    }
    out
}

struct EdgePaths<'a> {
    graph: EdgeGraph,
    pair: &'a Pair,
    places: &'a [usize],
    circuit: &'a BTreeSet<Edge>,
}

impl EdgePaths<'_> {
    /// For every position: which senders can differ between the runs.
    fn find_reached(&self) -> Vec<Vec<bool>> {
        let (graph, row) = (self.graph, &self.pair.clean);
        let mut out = vec![vec![false; graph.senders().len()]; row.ids.len()];
        // Keys and values that differ at this or an earlier position, by layer and head.
        let mut seen = vec![vec![false; graph.groups]; graph.layers];
        for p in 0..row.ids.len() {
            out[p][0] |= !row.is_latent(p) && row.ids[p] != self.pair.corrupt.ids[p];
            for (index, receiver) in graph.receivers().into_iter().enumerate() {
                let hears = self.senders_into(p, index).any(|sender| out[p][sender]);
                match receiver {
                    Receiver::Query(layer, head) => out[p][graph.sender(Sender::Head(layer, head))] = hears,
                    Receiver::Key(layer, group) | Receiver::Value(layer, group) => {
                        seen[layer][group] |= hears;
                        for head in graph.readers(layer, group) {
                            out[p][head] |= seen[layer][group];
                        }
                    }
                    Receiver::Mlp(layer) => out[p][graph.sender(Sender::Mlp(layer))] = hears,
                    Receiver::Latent if row.is_latent(p + 1) => out[p + 1][0] = hears,
                    Receiver::Latent | Receiver::Logits => {}
                }
            }
        }
        out
    }

    /// The circuit's senders for a receiver.
    fn senders_into(&self, position: usize, receiver: usize) -> impl Iterator<Item = usize> {
        let place = self.places[position];
        self.circuit.range((place, receiver, 0)..(place, receiver + 1, 0)).map(|edge| edge.2)
    }

    /// For every position: which receivers can change the readout.
    fn find_needed(&self) -> Vec<Vec<bool>> {
        let (graph, row) = (self.graph, &self.pair.clean);
        let mut out = vec![vec![false; graph.receivers().len()]; row.ids.len()];
        // Keys and values at this position that a needed head reads here or later, by layer and head.
        let mut read = vec![vec![false; graph.groups]; graph.layers];
        // Whether the next position is a latent whose input is needed.
        let mut next_asks = false;
        for p in (0..row.ids.len()).rev() {
            let mut asked = vec![false; graph.senders().len()];
            for (index, receiver) in graph.receivers().into_iter().enumerate().rev() {
                let needed = match receiver {
                    Receiver::Logits => p + 1 == row.ids.len(),
                    Receiver::Latent => next_asks,
                    Receiver::Mlp(layer) => asked[graph.sender(Sender::Mlp(layer))],
                    Receiver::Key(layer, group) | Receiver::Value(layer, group) => {
                        read[layer][group] |= graph.readers(layer, group).any(|head| asked[head]);
                        read[layer][group]
                    }
                    Receiver::Query(layer, head) => asked[graph.sender(Sender::Head(layer, head))],
                };
                out[p][index] = needed;
                self.senders_into(p, index).filter(|_| needed).for_each(|sender| asked[sender] = true);
            }
            next_asks = row.is_latent(p) && asked[0];
        }
        out
    }
}
