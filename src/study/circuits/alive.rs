//! Which edges of a circuit can matter at all: those on a way from an input that differs between the two rows to the read-out. The
//! others carry no difference, or hand it to nobody: without them the circuit computes the same.

use std::collections::BTreeSet;

use super::edges::{Graph, Receiver, Sender};
use super::pairs::Pair;

/// Place, receiver, sender: indices.
pub type Edge = (usize, usize, usize);

/// The edges of a circuit that lie on such a way in some pair; `places` says of each pair to which place its positions belong.
pub fn alive(graph: Graph, pairs: &[(&Pair, &[usize])], circuit: &BTreeSet<Edge>) -> BTreeSet<Edge> {
    let mut out = BTreeSet::new();
    for &(pair, places) in pairs {
        let way = Way { graph, pair, places, circuit };
        let (reached, needed) = (way.reached(), way.needed());
        let here = |edge: &&Edge| {
            let at = |p: usize| places[p] == edge.0 && reached[p][edge.2] && needed[p][edge.1];
            (0..places.len()).any(at)
        };
        out.extend(circuit.iter().filter(here).copied());
    }
    out
}

struct Way<'a> {
    graph: Graph,
    pair: &'a Pair,
    places: &'a [usize],
    circuit: &'a BTreeSet<Edge>,
}

impl Way<'_> {
    /// Of every position, which senders can differ from the other run.
    fn reached(&self) -> Vec<Vec<bool>> {
        let (graph, row) = (self.graph, &self.pair.clean);
        let mut out = vec![vec![false; graph.senders().len()]; row.ids.len()];
        // Keys and values of this and earlier positions that differ, by layer and head.
        let mut seen = vec![vec![false; graph.groups]; graph.layers];
        for p in 0..row.ids.len() {
            out[p][0] |= !row.is_latent(p) && row.ids[p] != self.pair.corrupt.ids[p];
            for (index, receiver) in graph.receivers().into_iter().enumerate() {
                let hears = self.into(p, index).any(|sender| out[p][sender]);
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

    /// The senders that the circuit has for a receiver.
    fn into(&self, position: usize, receiver: usize) -> impl Iterator<Item = usize> {
        let place = self.places[position];
        self.circuit.range((place, receiver, 0)..(place, receiver + 1, 0)).map(|edge| edge.2)
    }

    /// Of every position, which receivers can change the read-out.
    fn needed(&self) -> Vec<Vec<bool>> {
        let (graph, row) = (self.graph, &self.pair.clean);
        let mut out = vec![vec![false; graph.receivers().len()]; row.ids.len()];
        // Keys and values that a needed head reads at this or a later position, by layer and head.
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
                self.into(p, index).filter(|_| needed).for_each(|sender| asked[sender] = true);
            }
            next_asks = row.is_latent(p) && asked[0];
        }
        out
    }
}
