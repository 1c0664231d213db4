//! Attribution patching (Nanda 2023; Syed et al. 2023): the map of `head_patching` from backward passes instead of one run per cell.
//! The gradient of the margin at the readout × (clean − corrupt) of every node at every place is the first-order effect of a patch.
//! Gradients pass through the recurrence: a node at an early latent step includes its effect on all later ones.
//!
//! Pairs, places, nodes and `effect` are those of `head_patching`. `gradient` is one of:
//! - `corrupt`: in the corrupt run; predicts `denoise`.
//! - `clean`: in the clean run; predicts `noise`.
//! - `integrated`: the mean over `steps` runs whose token embeddings are interpolated between the two, at the midpoints of equal
//!   intervals (EAP-IG, Hanna et al. 2024). Summed over the differing inputs it converges to the whole difference as `steps` grows; on
//!   `micro` that needs hundreds (`tests/circuits.rs`).
//!
//! `exact` and the agreement rows compare the maps with real patches on a sample of the cells, in the same pairs.
//!
//! Misleads if the model is saturated: a gate or an attention at 0 or 1 has no slope at either end, and a node that acts through it
//! gets 0 from `corrupt` and `clean`; `integrated` detects it if a step falls on the slope. The agreement rows measure how far to trust a
//! map; `head_patching` is the reference.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::head_patching::{cells, row};
use super::markdown::{largest, table_of, titled};
use super::{About, Files, Journal, Unfit, check_of};
use crate::recipe::Range::NotNegative;
use crate::schema::{
    AttributedNodeRow, AttributionAgreementRow, AttributionRow, Component, Form, GradientAt, Identity, LEAST_SHARE,
    PatchMode, PatchedNodeRow, RowFile, attributions, place_name,
};
use crate::store::Measurements;
use crate::study::Study;
use crate::study::circuits::gradient::{Slope, TargetRow, slopes};
use crate::study::circuits::pairs::{Pair, PairChoice, no_pairs, read_prompts};
use crate::study::circuits::patch::{Node, Patch, RowCapture, leads, points};
use crate::study::circuits::places::{Place, Placed, named_places};
use crate::study::units::measure_in_memory;

pub const ABOUT: About =
    About::asking("the map of head_patching by one backward pass, and how far it agrees with patches").on_request();

settings! {
    pub struct Config {
        /// Pairs that are drawn; not all are usable.
        pub candidates: usize = 300,
        /// Usable pairs, at most.
        pub pairs: usize = 48,
        /// A file of pairs instead of the task's, as in `head_patching`.
        pub pairs_file: Option<PathBuf> = None,
        /// Of latents and text: blocks as latent steps, or their clauses written out.
        pub forms: Vec<Form> = Form::ALL.to_vec(),
        /// Number of last blocks (in text, clauses) before the readout whose places are included.
        pub blocks: usize = 2,
        /// Runs of integrated gradients; 0: the plain gradients only.
        pub steps: usize = 8,
        /// Number of cells per form that are also patched, for comparison; 0: none.
        pub sample: usize = 150,
        /// The test ignores effects up to this share of the whole difference.
        pub least: f64 = LEAST_SHARE => NotNegative,
    }
}

impl Config {
    fn check(&self) -> Result<()> {
        check_of("attribution_patching", self, Self::RANGES)?;
        ensure!(!self.forms.is_empty(), "attribution_patching.forms is empty: name latents or text");
        Ok(())
    }
}

/// Needs a generated task or a file for its pairs.
pub fn unfit(study: &Study, config: &Config) -> Result<Unfit> {
    config.check()?;
    Ok(no_pairs(study, "attribution_patching", config.pairs_file.as_deref()))
}

pub(crate) const FILES: &[Files] = &[(AttributedNodeRow::NAME, AttributionRow::NAME)];

/// Attributes the pairs that `rows` lacks, and patches their sampled cells.
pub fn measure(study: &Study, config: &Config, rows: &mut Measurements<AttributedNodeRow>) -> Result<()> {
    study.say("attribution patching");
    config.check()?;
    let given = read_prompts(study, config.pairs_file.as_deref())?;
    let nodes = Node::all_nodes(study.model.config());
    let &Config { ref forms, candidates, pairs: limit, .. } = config;
    let choice = PairChoice { forms, given: given.as_deref(), candidates, limit, alike: false };
    choice.each(study, false, |form, pairs| {
        let identity = study.identity(pairs.len());
        let attributing = AttributionRun { study, identity: &identity, form, nodes: &nodes, steps: config.steps };
        let placed = |pair| (pair, named_places(pair, study.corpus.switch, config.blocks));
        let places: Vec<PairPlaces> = pairs.iter().map(placed).collect();
        let sample = attributing.sample(&places, config.sample);
        let expected = |placed: &PairPlaces| ((Some(form), placed.0.number), attributing.rows(placed, &sample));
        study.measure(rows, &identity, (&places, attributing.pairs_at_once()), expected, |some| {
            attributing.of_pairs(some, &sample)
        })
    })
}

pub(crate) fn conclude(
    config: &Config,
    rows: Measurements<AttributedNodeRow>,
    journal: &mut Journal,
) -> Result<String> {
    let (rows, agreement) = attributions(&journal.finish(rows, false)?, config.least)?;
    if !agreement.is_empty() {
        journal.save(AttributionAgreementRow::NAME, &agreement)?;
    }
    journal.save(AttributionRow::NAME, &rows)?;
    Ok(table(&rows, &agreement))
}

/// The maps and how they agree with patches, in memory.
pub fn rows(study: &Study, config: &Config) -> Result<(Vec<AttributionRow>, Vec<AttributionAgreementRow>)> {
    attributions(&measure_in_memory(|rows| measure(study, config, rows))?, config.least)
}

/// Approximate number of floats in the graph of one batch.
const GRAPH: usize = 1 << 25;

type PairPlaces<'p> = (&'p Pair, Vec<Placed>);

/// The cells that are patched.
type NodeSample = BTreeSet<(Place, Node)>;

struct AttributionRun<'a> {
    study: &'a Study,
    identity: &'a Identity,
    form: Form,
    nodes: &'a [Node],
    /// Runs of integrated gradients.
    steps: usize,
}

/// The two ends of a pair, and the mean gradient between them.
struct Ends {
    clean: Slope,
    corrupt: Slope,
    between: Option<RowCapture>,
}

impl AttributionRun<'_> {
    /// Pairs that go through one backward pass.
    fn pairs_at_once(&self) -> usize {
        let config = self.study.model.config();
        let prompts = self.study.corpus.test_prompts.iter().map(Vec::len).max().unwrap_or(0);
        let row = prompts + self.study.recipe.evaluation.max_new_tokens;
        // A block stores about 16 rows of the stream's width and 4 of the MLP's.
        let a_layer = 16 * config.hidden_size + 4 * config.intermediate_size;
        (GRAPH / (row * config.num_hidden_layers * a_layer).max(1)).clamp(1, 8)
    }

    /// `n` cells among those of the pairs.
    fn sample(&self, pairs: &[PairPlaces], n: usize) -> NodeSample {
        let seed = self.study.seed;
        let places: BTreeSet<&Place> = pairs.iter().flat_map(|pair| pair.1.iter().map(|(place, _)| place)).collect();
        let of = |place: &'_ Place| self.nodes.iter().map(|&node| (place.clone(), node)).collect::<Vec<_>>();
        let mut cells: Vec<(Place, Node)> = places.into_iter().flat_map(of).collect();
        let (chosen, _) = cells.partial_shuffle(&mut ChaCha8Rng::seed_from_u64(seed), n);
        chosen.iter().cloned().collect()
    }

    /// Number of records per pair.
    fn rows(&self, (_, places): &PairPlaces, sample: &NodeSample) -> usize {
        let gradients = if self.steps > 0 { 3 } else { 2 };
        gradients * places.len() * self.nodes.len() + 2 * self.sampled(places, sample).count()
    }

    fn sampled<'s>(&'s self, places: &'s [Placed], sample: &'s NodeSample) -> impl Iterator<Item = (&'s Placed, Node)> {
        cells(places, self.nodes).filter(|((place, _), node)| sample.contains(&(place.clone(), *node)))
    }

    /// Every cell with every gradient, and the sampled cells patched both ways.
    fn of_pairs(&self, pairs: &[PairPlaces], sample: &NodeSample) -> Result<Vec<AttributedNodeRow>> {
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
        let of = |held| Patch::from_run(held, node, positions, self.study.model.config()).map(|patch| patch.values);
        let (clean, corrupt) = (of(&ends.clean.values)?, of(&ends.corrupt.values)?);
        let mut sum = 0.0;
        for (((_, clean), (_, corrupt)), (_, gradient)) in clean.iter().zip(&corrupt).zip(of(gradients)?) {
            let differences = clean.iter().zip(corrupt).map(|(a, b)| f64::from(a - b));
            sum += gradient.iter().zip(differences).map(|(g, d)| f64::from(*g) * d).sum::<f64>();
        }
        Ok(sum)
    }

    /// The sampled cells of a pair, patched as `head_patching` does.
    fn patched(&self, (pair, places): &PairPlaces, ends: &Ends, sample: &NodeSample) -> Result<Vec<PatchedNodeRow>> {
        let cells: Vec<(&Placed, Node)> = self.sampled(places, sample).collect();
        let config = self.study.model.config();
        let mut rows = vec![];
        for (mode, from, into) in
            [(PatchMode::Denoise, &ends.clean, &pair.corrupt), (PatchMode::Noise, &ends.corrupt, &pair.clean)]
        {
            let patch =
                |((_, positions), node): &(&Placed, Node)| Patch::from_run(&from.values, *node, positions, config);
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

/// Markdown: the agreement of every map, and the largest heads and MLPs of each form and gradient.
pub fn table(rows: &[AttributionRow], agreement: &[AttributionAgreementRow]) -> String {
    let columns = "form | gradient | patch | cells | rank correlation | mean miss | worst miss";
    let agreement = table_of(columns, agreement, |a| {
        let AttributionAgreementRow { form, gradient, mode, cells, rank_correlation, mean_miss, .. } = a;
        let AttributionAgreementRow { worst_miss, worst_predicted, worst_exact, worst_cell, .. } = a;
        format!(
            "{form} | {gradient} | {mode} | {cells} | {rank_correlation:.2} | {mean_miss:.3} | \
            {worst_miss:.2}: {worst_predicted:.2} instead of {worst_exact:.2}, {worst_cell}"
        )
    });
    let kinds = Form::ALL.into_iter().flat_map(|form| GradientAt::ALL.map(|at| (form, at)));
    let found = kinds.flat_map(|kind| {
        let same = move |r: &&AttributionRow| (r.form, r.gradient) == kind && r.component != Component::Resid;
        largest(rows.iter().filter(same), 5, |r| r.effect.value.abs())
    });
    let found = table_of("form | gradient | node | place | effect | p (Holm) | patch", found, |r| {
        let (node, place) = (r.component.label(Some(r.layer), r.head), place_name(&r.place, r.back));
        let exact = r.exact.map_or_else(String::new, |exact| format!("{exact:.2}"));
        let AttributionRow { form, gradient, effect, p_holm, .. } = r;
        format!("{form} | {gradient} | {node} | {place} | {effect:.2} | {p_holm:.1e} | {exact}")
    });
    titled(
        "How well gradients predict patches, over a sample of cells [95 %]; misses are shares of the whole difference.",
        &agreement,
    ) + &titled("\nLargest heads and MLPs by form and gradient [95 %]; p: sign test over pairs.", &found)
}
