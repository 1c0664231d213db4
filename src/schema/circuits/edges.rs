//! Circuits: edges with their scores, and the share of the difference between two runs that some edges carry.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::Form;
use crate::schema::Identity;
use crate::stats::{Bootstrap, Estimate, LEVEL, wilson};

/// One edge. Those of the circuit, and the largest of the others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EdgeRow {
    /// `n` counts the pairs in which the circuit was looked for.
    #[serde(flatten)]
    pub identity: Identity,
    pub form: Form,
    /// `input` (embedding or injected state), `L2H0`, `MLP 1`.
    pub sender: String,
    /// `L2H0.q`, `L2H0.k`, `L2H0.v` (of keys and values their own head), `MLP 1`, `latent` (the next position's input), `logits`.
    pub receiver: String,
    /// As in `head_patching`; the rest of the row is `prompt`, `text` and `earlier` (latents of earlier blocks).
    pub place: String,
    pub back: Option<usize>,
    /// Σ integrated gradient · (clean − corrupt) / Σ whole; the interval resamples pairs.
    pub score: Estimate,
    /// From 1, by the size of the score.
    pub rank: usize,
    pub in_circuit: bool,
    /// How much smaller the circuit's effect is without this edge, in the pairs that it is tested on; of edges that were sampled.
    pub needed: Option<Estimate>,
}

names! {
    /// Which edges carry what the run computes.
    pub enum Circuit {
        /// Those that were found.
        Found = "found",
        /// All but those.
        Rest = "rest",
        /// As many as were found, drawn at random.
        Random = "random",
        /// The found ones without one of them.
        LessOne = "less_one",
        /// So many with the largest scores.
        Top = "top",
        /// All: the clean run.
        All = "all",
    }
}

/// What one set of edges does alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CircuitRow {
    /// `n` counts pairs: others than those in which the circuit was looked for.
    #[serde(flatten)]
    pub identity: Identity,
    pub form: Form,
    pub circuit: Circuit,
    pub edges: usize,
    /// Edges that can exist: the logits read at the last place only, a latent's input only where a latent follows.
    pub of: usize,
    /// Circuits that were run and averaged.
    pub circuits: usize,
    /// Σ (lead with these edges alone − corrupt) / Σ (clean − corrupt). Of `found`: faithfulness; of `rest`, near 0 where the circuit
    /// is complete. The interval resamples pairs.
    pub effect: Estimate,
    /// Of `random` the largest effect of a circuit, of `less_one` the smallest.
    pub extreme: Option<f64>,
    /// Of `less_one`: share of the edges without which the effect is smaller (the interval of `needed` lies above 0).
    pub needed: Option<Estimate>,
}

/// One pair's value: of an edge, in a pair on which the circuit was searched; of a set of edges alone, in one on which it is
/// tested.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EdgePairRow {
    /// `n` counts the pairs of the form.
    #[serde(flatten)]
    pub identity: Identity,
    pub form: Form,
    /// Among the pairs of the form; in the even ones the circuit is looked for.
    pub pair: usize,
    /// Which set of edges was run; absent of an edge.
    pub circuit: Option<Circuit>,
    /// Which of several sets of a kind, from 0; of `less_one` the first is the whole circuit. Of an edge its rank.
    pub number: usize,
    /// Edges of the set.
    pub edges: usize,
    /// Of an edge, and of `less_one` that of the edge that is missing.
    pub rank: Option<usize>,
    /// Edges that can exist.
    pub of: usize,
    pub sender: Option<String>,
    pub receiver: Option<String>,
    pub place: Option<String>,
    pub back: Option<usize>,
    pub in_circuit: Option<bool>,
    /// Of an edge, gradient · (clean − corrupt); of a set of edges, the lead with these alone.
    pub found: f64,
    /// The lead in the corrupt run and in the clean one.
    pub corrupt: f64,
    pub clean: f64,
}

measured!(
    EdgePairRow,
    (Form, usize, Option<Circuit>, usize, usize),
    |row| (row.form, row.pair, row.circuit, row.edges, row.number),
    (Some(row.form), row.pair)
);

/// Σ moved / Σ whole of pairs; the interval resamples pairs.
fn share(seed: u64, pairs: &[&EdgePairRow], moved: &[f64]) -> Result<Estimate> {
    Bootstrap::seeded(seed).units(moved.len(), |counts| {
        let sum = |of: &dyn Fn(usize) -> f64| -> f64 {
            counts.iter().enumerate().map(|(i, &times)| f64::from(times) * of(i)).sum()
        };
        sum(&|i| moved[i]) / sum(&|i| pairs[i].clean - pairs[i].corrupt)
    })
}

/// Edges and circuits of every form, from the rows of all pairs in the order of their keys.
///
/// # Errors
/// A circuit that lacks a pair; as the bootstrap's.
pub(crate) fn circuits(rows: &[EdgePairRow]) -> Result<(Vec<EdgeRow>, Vec<CircuitRow>)> {
    let (mut edges, mut circuits) = (vec![], vec![]);
    for form in Form::ALL {
        let mut sets: BTreeMap<(Option<Circuit>, usize, usize), Vec<&EdgePairRow>> = BTreeMap::new();
        for row in rows.iter().filter(|row| row.form == form) {
            sets.entry((row.circuit, row.edges, row.number)).or_default().push(row);
        }
        let of = |circuit: Option<Circuit>| sets.iter().filter(move |(set, _)| set.0 == circuit);
        let (needed, less_one) = needed(&of(Some(Circuit::LessOne)).map(|(set, rows)| (set.2, rows)).collect())?;
        for (&(_, _, rank), pairs) in of(None) {
            edges.push(edge(rank, pairs, needed.get(&Some(rank)).copied())?);
        }
        for kind in [Circuit::Found, Circuit::Rest, Circuit::Random] {
            circuits.extend(circuit(kind, &of(Some(kind)).map(|(_, rows)| rows).collect::<Vec<_>>())?);
        }
        circuits.extend(less_one);
        for (_, rows) in of(Some(Circuit::Top)) {
            circuits.extend(circuit(Circuit::Top, &[rows])?);
        }
        circuits.extend(circuit(Circuit::All, &of(Some(Circuit::All)).map(|(_, rows)| rows).collect::<Vec<_>>())?);
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

/// By the rank of the missing edge, how much smaller the effect is without it; and the circuits without one edge, together.
type EdgeNeed = (BTreeMap<Option<usize>, Estimate>, Option<CircuitRow>);

fn needed(sets: &BTreeMap<usize, &Vec<&EdgePairRow>>) -> Result<EdgeNeed> {
    let Some(whole) = sets.get(&0) else { return Ok((BTreeMap::new(), None)) };
    let without: Vec<_> = sets.iter().filter(|(number, _)| **number > 0).map(|(_, pairs)| *pairs).collect();
    let mut of_edges = BTreeMap::new();
    for &pairs in &without {
        let lost: Vec<f64> = whole.iter().zip(pairs).map(|(whole, less)| whole.found - less.found).collect();
        of_edges.insert(pairs[0].rank, share(whole[0].identity.seed, whole, &lost)?);
    }
    let count = of_edges.values().filter(|lost| lost.low > 0.0).count();
    let needed = Some(wilson(count, without.len(), LEVEL)?);
    Ok((of_edges, circuit(Circuit::LessOne, &without)?.map(|row| CircuitRow { needed, ..row })))
}

/// The effect of the circuits of a kind, averaged: of each the rows of all pairs. Nothing of none.
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
    let each = circuits.iter().map(|one| Ok(effect(&[one])?.value)).collect::<Result<Vec<f64>>>()?;
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
            Circuit::Random => each.into_iter().reduce(f64::max),
            Circuit::LessOne => each.into_iter().reduce(f64::min),
            _ => None,
        },
        needed: None,
    }))
}
