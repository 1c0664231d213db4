//! Circuits: edges with their scores, and the share of the difference between two runs that a set of edges carries.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use super::Form;
use crate::schema::Identity;
use crate::schema::verdict::ratio_of_sums;
use crate::stats::{Estimate, LEVEL, wilson};

rows! {
    /// One edge. The file has the circuit's edges, and the others with the largest scores.
    pub struct EdgeRow {
        #[serde(flatten)]
        pub identity: Identity where n => "count": "pairs in which the circuit was looked for",
        pub form: Form => DirectLogitRow,
        /// `input` (embedding or injected state), `L2H0`, `MLP 1`.
        pub sender: String => "name": "what writes to the stream: input, head (L2H0) or MLP",
        /// `L2H0.q`, `L2H0.k`, `L2H0.v` (of keys and values their own head), `MLP 1`, `latent` (the next position's input), `logits`.
        pub receiver: String => "name": "what reads it: a head's query, key or value (L2H0.q), MLP, latent (the next input), logits",
        pub place: String => HeadPatchRow,
        pub back: Option<usize> => AttentionRow,
        /// Σ integrated gradient · (clean − corrupt) / Σ whole; the interval resamples pairs.
        pub score: Estimate => "share": "of the difference: integrated gradient at the receiver × (clean − corrupt)",
        pub rank: usize => "rank from 1": "by the size of the score",
        pub in_circuit: bool => "yes or no": "whether the edge belongs to the found circuit",
        pub needed: Option<Estimate> => "share": "of the difference that the circuit loses without the edge; of sampled edges",
    }
}

names! {
    /// The edges that have the clean run's values.
    pub enum Circuit {
        /// The found circuit.
        Found = "found",
        /// All but the found circuit.
        Rest = "rest",
        /// As many edges as the found circuit has, drawn at random.
        Random = "random",
        /// The found circuit without one edge.
        LessOne = "less_one",
        /// The edges with the largest scores.
        Top = "top",
        /// All edges: the clean run.
        All = "all",
    }
}

rows! {
    /// The effect of one kind of circuit.
    pub struct CircuitRow {
        #[serde(flatten)]
        pub identity: Identity where n => "count": "pairs that the circuit was tested on",
        pub form: Form => DirectLogitRow,
        pub circuit: Circuit => "name": "found, rest (all others), random, less_one, top (of the ranking) or all edges",
        pub edges: usize => "count": "edges that carry what the run computes",
        /// Edges that can exist: the logits read at the last place only, a latent's input only where a latent follows.
        pub of: usize => "count": "edges that can exist",
        pub circuits: usize => "count": "circuits that were run and averaged",
        /// Σ (lead with these edges alone − corrupt) / Σ (clean − corrupt). Of `found`: faithfulness; of `rest`, near 0 where the circuit
        /// is complete. The interval resamples pairs.
        pub effect: Estimate => "share": "of the difference between clean and corrupt that these edges bring alone",
        pub extreme: Option<f64> => "share": "of random circuits the largest effect, of less_one the smallest",
        /// Of `less_one`: share of the edges without which the effect is smaller (the interval of `needed` lies above 0).
        pub needed: Option<Estimate> => "share": "of the sampled edges without which the circuit's effect is smaller by an interval above 0",
    }
}

rows! {
    /// One pair's value for a single edge (pairs of the search) or for a set of edges (pairs of the test).
    #[derive(Default)]
    pub struct EdgePairRow {
        /// `n` counts the pairs of the form.
        #[serde(flatten)]
        pub identity: Identity,
        pub form: Form => DirectLogitRow,
        pub pair: usize => "index from 0":
            "the pair, among the usable ones of its form: of a single edge one in which the circuit is looked for, of a set one on \
                which it is tested",
        pub circuit: Option<Circuit> => "name": "as in circuits; absent of a single edge",
        /// Index of the set among those of its kind; for `less_one`, 0 is the whole circuit. For a single edge, its rank.
        pub number: usize => "count": "which of several sets of edges, of less_one 0 the whole circuit; of an edge its rank",
        pub edges: usize => "count": "edges of the set",
        pub rank: Option<usize> => "rank from 1": "of the edge, or of the edge that is missing, by the size of the score",
        pub of: usize => CircuitRow,
        pub sender: Option<String> => EdgeRow,
        pub receiver: Option<String> => EdgeRow,
        pub place: Option<String> => HeadPatchRow,
        pub back: Option<usize> => AttentionRow,
        pub in_circuit: Option<bool> => EdgeRow,
        pub found: f64 => "logits": "of an edge, gradient × (clean − corrupt); of a set, the lead with these edges alone",
        pub corrupt: f64 => "logits": "the lead in the corrupt run",
        pub clean: f64 => "logits": "the lead in the clean run",
    }
}

measured!(
    EdgePairRow,
    (Form, usize, Option<Circuit>, usize, usize),
    |row| (row.form, row.pair, row.circuit, row.edges, row.number),
    (Some(row.form), row.pair)
);

/// Σ moved / Σ whole of pairs.
fn share(seed: u64, pairs: &[&EdgePairRow], moved: &[f64]) -> Result<Estimate> {
    let both: Vec<[f64; 2]> =
        moved.iter().zip(pairs).map(|(moved, pair)| [*moved, pair.clean - pair.corrupt]).collect();
    ratio_of_sums(seed, &both)
}

/// Edges and circuits of every form, from the rows of all pairs in the order of their keys.
pub(crate) fn circuits(rows: &[EdgePairRow]) -> Result<(Vec<EdgeRow>, Vec<CircuitRow>)> {
    let (mut edges, mut circuits) = (vec![], vec![]);
    for form in Form::ALL {
        let mut sets: BTreeMap<(Option<Circuit>, usize, usize), Vec<&EdgePairRow>> = BTreeMap::new();
        for row in rows.iter().filter(|row| row.form == form) {
            sets.entry((row.circuit, row.edges, row.number)).or_default().push(row);
        }
        let sets_of = |circuit: Option<Circuit>| sets.iter().filter(move |(set, _)| set.0 == circuit);
        let (needed, less_one) = needed(&sets_of(Some(Circuit::LessOne)).map(|(set, rows)| (set.2, rows)).collect())?;
        for (&(_, _, rank), pairs) in sets_of(None) {
            edges.push(edge(rank, pairs, needed.get(&Some(rank)).copied())?);
        }
        for kind in [Circuit::Found, Circuit::Rest, Circuit::Random] {
            circuits.extend(circuit(kind, &sets_of(Some(kind)).map(|(_, rows)| rows).collect::<Vec<_>>())?);
        }
        circuits.extend(less_one);
        for (_, rows) in sets_of(Some(Circuit::Top)) {
            circuits.extend(circuit(Circuit::Top, &[rows])?);
        }
        circuits.extend(circuit(Circuit::All, &sets_of(Some(Circuit::All)).map(|(_, rows)| rows).collect::<Vec<_>>())?);
    }
    Ok((edges, circuits))
}

fn edge(rank: usize, pairs: &[&EdgePairRow], needed: Option<Estimate>) -> Result<EdgeRow> {
    let EdgePairRow { identity, form, sender, receiver, place, back, in_circuit, .. } = pairs[0].clone();
    let moved: Vec<f64> = pairs.iter().map(|row| row.found).collect();
    Ok(EdgeRow {
        score: share(identity.seed, pairs, &moved)?,
        identity: Identity { n: pairs.len(), ..identity },
        form,
        sender: sender.unwrap_or_default(),
        receiver: receiver.unwrap_or_default(),
        place: place.unwrap_or_default(),
        back,
        rank,
        in_circuit: in_circuit.unwrap_or_default(),
        needed,
    })
}

/// Loss of effect without an edge, by the edge's rank; and the summary row of the circuits without one edge.
type EdgeNeed = (BTreeMap<Option<usize>, Estimate>, Option<CircuitRow>);

fn needed(sets: &BTreeMap<usize, &Vec<&EdgePairRow>>) -> Result<EdgeNeed> {
    let Some(whole) = sets.get(&0) else { return Ok((BTreeMap::new(), None)) };
    let without: Vec<_> = sets.iter().filter(|(number, _)| **number > 0).map(|(_, pairs)| *pairs).collect();
    let mut of_edges = BTreeMap::new();
    for &pairs in &without {
        let less: BTreeMap<usize, f64> = pairs.iter().map(|row| (row.pair, row.found)).collect();
        let lost = whole.iter().map(|row| {
            let found =
                less.get(&row.pair).with_context(|| format!("a circuit without one edge lacks pair {}", row.pair));
            Ok(row.found - found?)
        });
        let lost: Vec<f64> = lost.collect::<Result<_>>()?;
        of_edges.insert(pairs[0].rank, share(whole[0].identity.seed, whole, &lost)?);
    }
    let count = of_edges.values().filter(|lost| lost.low > 0.0).count();
    let needed = Some(wilson(count, without.len(), LEVEL)?);
    Ok((of_edges, circuit(Circuit::LessOne, &without)?.map(|row| CircuitRow { needed, ..row })))
}

/// The mean effect of the circuits of a kind, each given by the rows of all pairs; `None` without circuits.
fn circuit(kind: Circuit, circuits: &[&Vec<&EdgePairRow>]) -> Result<Option<CircuitRow>> {
    let Some(first) = circuits.first() else { return Ok(None) };
    let seed = first[0].identity.seed;
    let effect = |circuits: &[&Vec<&EdgePairRow>]| -> Result<Estimate> {
        let moved = |i: usize| -> Result<f64> {
            let moved = circuits
                .iter()
                .map(|pairs| Ok(pairs.get(i).context("a circuit lacks a pair")?.found - first[i].corrupt));
            Ok(moved.sum::<Result<f64>>()? / circuits.len() as f64)
        };
        share(seed, first, &(0..first.len()).map(moved).collect::<Result<Vec<_>>>()?)
    };
    let each = || circuits.iter().map(|one| Ok(effect(&[one])?.value)).collect::<Result<Vec<f64>>>();
    let EdgePairRow { identity, form, edges, of, .. } = first[0].clone();
    Ok(Some(CircuitRow {
        identity: Identity { n: first.len(), ..identity },
        form,
        circuit: kind,
        edges,
        of,
        circuits: circuits.len(),
        effect: effect(circuits)?,
        extreme: match kind {
            Circuit::Random => each()?.into_iter().reduce(f64::max),
            Circuit::LessOne => each()?.into_iter().reduce(f64::min),
            _ => None,
        },
        needed: None,
    }))
}
