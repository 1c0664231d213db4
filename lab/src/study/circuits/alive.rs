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
        let graph = self.graph;
        let row = &self.pair.clean;
        let mut out = vec![vec![false; graph.senders().len()]; row.ids.len()];
        // Keys and values of this and earlier positions that differ, by layer and head.
        let mut seen = vec![vec![false; graph.groups]; graph.layers];
        for p in 0..row.ids.len() {
            out[p][0] = if row.is_latent(p) {
                p > 0 && self.hears(&out[p - 1], p - 1, Receiver::Latent)
            } else {
                row.ids[p] != self.pair.corrupt.ids[p]
            };
            for layer in 0..graph.layers {
                for (group, seen) in seen[layer].iter_mut().enumerate() {
                    *seen |= self.hears(&out[p], p, Receiver::Key(layer, group))
                        || self.hears(&out[p], p, Receiver::Value(layer, group));
                }
                for head in 0..graph.heads {
                    let by_keys = seen[layer][head * graph.groups / graph.heads];
                    let differs = by_keys || self.hears(&out[p], p, Receiver::Query(layer, head));
                    out[p][graph.sender(Sender::Head(layer, head))] = differs;
                }
                out[p][graph.sender(Sender::Mlp(layer))] = self.hears(&out[p], p, Receiver::Mlp(layer));
            }
        }
        out
    }

    /// Whether a receiver gets a difference along the circuit.
    fn hears(&self, reached: &[bool], position: usize, receiver: Receiver) -> bool {
        self.into(position, receiver).any(|sender| reached[sender])
    }

    fn into(&self, position: usize, receiver: Receiver) -> impl Iterator<Item = usize> {
        let (place, receiver) = (self.places[position], self.graph.receiver(receiver));
        self.circuit.range((place, receiver, 0)..(place, receiver + 1, 0)).map(|edge| edge.2)
    }

    /// Of every position, which receivers can change the read-out.
    fn needed(&self) -> Vec<Vec<bool>> {
        let graph = self.graph;
        let row = &self.pair.clean;
        let last = row.ids.len() - 1;
        let mut out = vec![vec![false; graph.receivers().len()]; row.ids.len()];
        // Heads of keys that a needed head reads at this or a later position.
        let mut read = vec![vec![false; graph.groups]; graph.layers];
        // Whether the next position is a latent whose input is needed.
        let mut next_asks = false;
        for p in (0..row.ids.len()).rev() {
            let mut asked = vec![false; graph.senders().len()];
            let mut need = |receiver: Receiver, asked: &mut Vec<bool>| {
                out[p][graph.receiver(receiver)] = true;
                self.into(p, receiver).for_each(|sender| asked[sender] = true);
            };
            if p == last {
                need(Receiver::Logits, &mut asked);
            }
            if next_asks {
                need(Receiver::Latent, &mut asked);
            }
            for layer in (0..graph.layers).rev() {
                if asked[graph.sender(Sender::Mlp(layer))] {
                    need(Receiver::Mlp(layer), &mut asked);
                }
                for head in 0..graph.heads {
                    if asked[graph.sender(Sender::Head(layer, head))] {
                        need(Receiver::Query(layer, head), &mut asked);
                        read[layer][head * graph.groups / graph.heads] = true;
                    }
                }
                for (group, &read) in read[layer].iter().enumerate() {
                    if read {
                        need(Receiver::Key(layer, group), &mut asked);
                        need(Receiver::Value(layer, group), &mut asked);
                    }
                }
            }
            next_asks = row.is_latent(p) && asked[0];
        }
        out
    }
}
