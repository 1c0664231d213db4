//! What gradients say of every cell of some pairs, and what patches of sampled cells do. Knows nothing of intervals.

use std::collections::BTreeSet;

use anyhow::Result;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use crate::experiments::head_patching::{cells, row};
use crate::schema::{AttributedNodeRow, Form, GradientAt, Identity, PatchMode, PatchedNodeRow};
use crate::study::Study;
use crate::study::circuits::gradient::{Slope, TargetRow, slopes};
use crate::study::circuits::pairs::Pair;
use crate::study::circuits::patch::{Node, Patch, RowCapture, leads, points};
use crate::study::circuits::places::{Place, Placed};

/// Floats that the graph of one batch may hold, roughly.
const GRAPH: usize = 1 << 25;

pub type PairPlaces<'p> = (&'p Pair, Vec<Placed>);

/// The cells that are patched.
pub type Sample = BTreeSet<(Place, Node)>;

pub struct AttributionRun<'a> {
    pub study: &'a Study,
    pub identity: &'a Identity,
    pub form: Form,
    pub nodes: &'a [Node],
    /// Runs of integrated gradients.
    pub steps: usize,
}

/// The two ends of a pair, and the mean gradient between them.
struct Ends {
    clean: Slope,
    corrupt: Slope,
    between: Option<RowCapture>,
}

impl AttributionRun<'_> {
    /// Pairs that go through one backward pass.
    pub fn pairs_at_once(&self) -> usize {
        let config = self.study.model.config();
        let prompts = self.study.corpus.test_prompts.iter().map(Vec::len).max().unwrap_or(0);
        let row = prompts + self.study.recipe.evaluation.max_new_tokens;
        // A block keeps about 16 rows of the stream's width and 4 of the MLP's.
        let a_layer = 16 * config.hidden_size + 4 * config.intermediate_size;
        (GRAPH / (row * config.num_hidden_layers * a_layer).max(1)).clamp(1, 8)
    }

    /// `n` cells of those that the pairs have.
    pub fn sample(&self, pairs: &[PairPlaces], n: usize) -> Sample {
        let seed = self.study.seed;
        let places: BTreeSet<&Place> = pairs.iter().flat_map(|pair| pair.1.iter().map(|(place, _)| place)).collect();
        let of = |place: &'_ Place| self.nodes.iter().map(|&node| (place.clone(), node)).collect::<Vec<_>>();
        let mut cells: Vec<(Place, Node)> = places.into_iter().flat_map(of).collect();
        let (chosen, _) = cells.partial_shuffle(&mut ChaCha8Rng::seed_from_u64(seed), n);
        chosen.iter().cloned().collect()
    }

    /// How many rows a pair gives.
    pub fn rows(&self, (_, places): &PairPlaces, sample: &Sample) -> usize {
        let gradients = if self.steps > 0 { 3 } else { 2 };
        gradients * places.len() * self.nodes.len() + 2 * self.sampled(places, sample).count()
    }

    fn sampled<'s>(&'s self, places: &'s [Placed], sample: &'s Sample) -> impl Iterator<Item = (&'s Placed, Node)> {
        cells(places, self.nodes).filter(|((place, _), node)| sample.contains(&(place.clone(), *node)))
    }

    /// Every cell by every gradient, and the sampled cells patched both ways.
    pub fn of_pairs(&self, pairs: &[PairPlaces], sample: &Sample) -> Result<Vec<AttributedNodeRow>> {
        let mut rows = vec![];
        for (placed @ (pair, places), ends) in pairs.iter().zip(self.ends(pairs)?) {
            let whole = ends.clean.lead - ends.corrupt.lead;
            let gradients = [
                (GradientAt::Corrupt, Some(&ends.corrupt.gradients)),
                (GradientAt::Clean, Some(&ends.clean.gradients)),
                (GradientAt::Integrated, ends.between.as_ref()),
            ];
            for (at, gradients) in gradients {
                let Some(gradients) = gradients else { continue };
                for ((place, positions), node) in cells(places, self.nodes) {
                    let moved = self.predicted(&ends, gradients, node, positions)?;
                    let of = (pair.number, at.predicts()[0]);
                    let node = row(self.identity, self.form, of, (place, node), [moved, whole]);
                    rows.push(AttributedNodeRow { node, gradient: Some(at) });
                }
            }
            let patched = self.patched(placed, &ends, sample)?.into_iter();
            rows.extend(patched.map(|node| AttributedNodeRow { node, gradient: None }));
        }
        Ok(rows)
    }

    fn ends(&self, pairs: &[PairPlaces]) -> Result<Vec<Ends>> {
        let clean = self.slopes(pairs, |pair| TargetRow { row: &pair.clean, says: pair.says, toward: None })?;
        let corrupt = self.slopes(pairs, |pair| TargetRow { row: &pair.corrupt, says: pair.says, toward: None })?;
        let ends = clean.into_iter().zip(corrupt).map(|(clean, corrupt)| Ends { clean, corrupt, between: None });
        let mut ends: Vec<Ends> = ends.collect();
        for step in 0..self.steps {
            let share = (step as f64 + 0.5) / self.steps as f64;
            for (ends, slope) in ends.iter_mut().zip(self.slopes(pairs, |pair| pair.on_the_way(share))?) {
                let sum = ends.between.get_or_insert_default();
                for (at, gradient) in slope.gradients {
                    let sum = sum.entry(at).or_insert_with(|| vec![0.0; gradient.len()]);
                    sum.iter_mut().zip(gradient).for_each(|(sum, g)| *sum += g / self.steps as f32);
                }
            }
        }
        Ok(ends)
    }

    fn slopes<'p>(&self, pairs: &[PairPlaces<'p>], aim: impl Fn(&'p Pair) -> TargetRow<'p>) -> Result<Vec<Slope>> {
        let aimed: Vec<TargetRow> = pairs.iter().map(|placed| aim(placed.0)).collect();
        let points = points(self.nodes.iter().copied());
        let wanted = |row: usize, position: usize| pairs[row].1.iter().any(|(_, at)| at.contains(&position));
        slopes(&self.study.model, &self.study.reasoning.source, &aimed, &points, wanted)
    }

    /// Σ gradient · (clean − corrupt) over the positions of a place.
    fn predicted(&self, ends: &Ends, gradients: &RowCapture, node: Node, positions: &[usize]) -> Result<f64> {
        let of = |held| Patch::from(held, node, positions, self.study.model.config()).map(|patch| patch.values);
        let (clean, corrupt) = (of(&ends.clean.values)?, of(&ends.corrupt.values)?);
        let mut sum = 0.0;
        for (((_, clean), (_, corrupt)), (_, gradient)) in clean.iter().zip(&corrupt).zip(of(gradients)?) {
            let differences = clean.iter().zip(corrupt).map(|(a, b)| f64::from(a - b));
            sum += gradient.iter().zip(differences).map(|(g, d)| f64::from(*g) * d).sum::<f64>();
        }
        Ok(sum)
    }

    /// The sampled cells of a pair, patched as `head_patching` does.
    fn patched(&self, (pair, places): &PairPlaces, ends: &Ends, sample: &Sample) -> Result<Vec<PatchedNodeRow>> {
        let cells: Vec<(&Placed, Node)> = self.sampled(places, sample).collect();
        let config = self.study.model.config();
        let mut rows = vec![];
        for (mode, from, into) in
            [(PatchMode::Denoise, &ends.clean, &pair.corrupt), (PatchMode::Noise, &ends.corrupt, &pair.clean)]
        {
            let patch = |((_, positions), node): &(&Placed, Node)| Patch::from(&from.values, *node, positions, config);
            let patches: Vec<Patch> = cells.iter().map(patch).collect::<Result<_>>()?;
            for (((place, _), node), lead) in cells.iter().zip(leads(self.study, into, &patches, pair.says)?) {
                let moved = if mode == PatchMode::Denoise { lead - ends.corrupt.lead } else { ends.clean.lead - lead };
                let whole = ends.clean.lead - ends.corrupt.lead;
                rows.push(row(self.identity, self.form, (pair.number, mode), (place, *node), [moved, whole]));
            }
        }
        Ok(rows)
    }
}
