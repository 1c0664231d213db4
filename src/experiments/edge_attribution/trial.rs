//! A found circuit on pairs that it was not looked for in: alone, without one of its edges, beside all other edges and beside
//! random circuits of its size.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::scores::{Edges, Recorded};
use super::share;
use crate::schema::{Circuit, CircuitRow, Form, Identity};
use crate::stats::{Estimate, LEVEL, wilson};
use crate::study::circuits::alive::Edge;

/// Shares of all edges whose top is run.
const TOPS: [f64; 7] = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5];

/// What is tested, and in which pairs.
pub struct Trial<'a> {
    pub edges: &'a Edges<'a>,
    pub tests: &'a [Recorded<'a>],
    pub ranked: &'a [(Edge, f64)],
    pub found: &'a BTreeSet<Edge>,
    pub identity: &'a Identity,
    pub form: Form,
}

/// What the circuit loses without one of its edges.
pub struct Needed {
    pub of_edges: BTreeMap<Edge, Estimate>,
    /// The circuits without one edge, together.
    row: CircuitRow,
}

impl Trial<'_> {
    /// Takes edges of a sample out of the circuit, one at a time; `None` for a circuit without edges.
    ///
    /// # Errors
    /// As the model's.
    pub fn needed(&self, most: usize) -> Result<Option<Needed>> {
        let mut sample: Vec<Edge> = self.found.iter().copied().collect();
        let mut rng = ChaCha8Rng::seed_from_u64(self.identity.seed);
        let sample = sample.partial_shuffle(&mut rng, most).0.to_vec();
        if sample.is_empty() {
            return Ok(None);
        }
        let without = |edge: &Edge| self.found.iter().filter(|other| *other != edge).copied().collect();
        let mut circuits: Vec<BTreeSet<Edge>> = sample.iter().map(without).collect();
        circuits.push(self.found.clone());
        let mut leads = self.edges.alone(self.tests, &circuits)?;
        let whole = leads.pop().unwrap_or_default();
        let mut of_edges = BTreeMap::new();
        for (edge, leads) in sample.iter().zip(&leads) {
            let lost: Vec<f64> = whole.iter().zip(leads).map(|(whole, less)| whole - less).collect();
            of_edges.insert(*edge, share(self.identity.seed, &lost, self.tests)?);
        }
        let count = of_edges.values().filter(|lost| lost.low > 0.0).count();
        let row = CircuitRow {
            extreme: self.each(&leads)?.into_iter().reduce(f64::min),
            needed: Some(wilson(count, sample.len(), LEVEL)?),
            ..self.row(Circuit::LessOne, self.found.len() - 1, &leads)?
        };
        Ok(Some(Needed { of_edges, row }))
    }

    /// One row a kind of circuit; of `top` one a size.
    ///
    /// # Errors
    /// As the model's.
    pub fn circuits(&self, random: usize, needed: Option<&Needed>) -> Result<Vec<CircuitRow>> {
        let all: BTreeSet<Edge> = self.ranked.iter().map(|(edge, _)| *edge).collect();
        let rest = all.difference(self.found).copied().collect();
        let mut rows = vec![];
        for (circuit, edges) in [(Circuit::Found, self.found.clone()), (Circuit::Rest, rest)] {
            rows.push(self.row(circuit, edges.len(), &self.edges.alone(self.tests, &[edges])?)?);
        }
        let mut rng = ChaCha8Rng::seed_from_u64(self.identity.seed);
        let mut edges: Vec<Edge> = all.iter().copied().collect();
        let mut drawn =
            || -> BTreeSet<Edge> { edges.partial_shuffle(&mut rng, self.found.len()).0.iter().copied().collect() };
        let drawn: Vec<BTreeSet<Edge>> = (0..random).map(|_| drawn()).collect();
        let leads = self.edges.alone(self.tests, &drawn)?;
        let extreme = self.each(&leads)?.into_iter().reduce(f64::max);
        rows.push(CircuitRow { extreme, ..self.row(Circuit::Random, self.found.len(), &leads)? });
        rows.extend(needed.map(|needed| needed.row.clone()));
        for part in TOPS {
            let n = ((part * all.len() as f64) as usize).max(1);
            let top = self.ranked[..n].iter().map(|(edge, _)| *edge).collect();
            rows.push(self.row(Circuit::Top, n, &self.edges.alone(self.tests, &[top])?)?);
        }
        let n = all.len();
        rows.push(self.row(Circuit::All, n, &self.edges.alone(self.tests, &[all])?)?);
        Ok(rows)
    }

    /// The effect of circuits of one size, averaged: of each the lead in every pair.
    fn row(&self, circuit: Circuit, edges: usize, circuits: &[Vec<f64>]) -> Result<CircuitRow> {
        let moved = |i: usize| {
            let moved = circuits.iter().map(|leads| leads[i] - self.tests[i].leads[0]);
            moved.sum::<f64>() / circuits.len() as f64
        };
        let moved: Vec<f64> = (0..self.tests.len()).map(moved).collect();
        Ok(CircuitRow {
            identity: self.identity.clone(),
            form: self.form,
            circuit,
            edges,
            of: self.ranked.len(),
            circuits: circuits.len(),
            effect: share(self.identity.seed, &moved, self.tests)?,
            extreme: None,
            needed: None,
        })
    }

    /// The effect of each circuit.
    fn each(&self, circuits: &[Vec<f64>]) -> Result<Vec<f64>> {
        circuits
            .iter()
            .map(|leads| Ok(self.row(Circuit::Random, 0, std::slice::from_ref(leads))?.effect.value))
            .collect()
    }
}
