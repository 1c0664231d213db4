//! Every cell of every pair: node × place, patched in up to three ways. Knows pairs and runs; nothing of intervals.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use crate::schema::{Form, Identity, PatchMode, PatchedNodeRow};
use crate::stats::MeanVector;
use crate::store::Measurements;
use crate::study::Study;
use crate::study::circuits::pairs::Pair;
use crate::study::circuits::patch::{Node, Patch, RowCapture, leads, points, record};
use crate::study::circuits::places::{Place, Placed};

/// Patches the pairs of a form that are not there yet: every node × place, in every mode.
///
/// # Errors
/// Rows of another run, and as the model's.
pub fn patch_form(
    study: &Study,
    (form, pairs): (Form, &[Pair]),
    (nodes, modes): (&[Node], &[PatchMode]),
    places: impl Fn(&Pair) -> Vec<Placed> + Sync,
    rows: &mut Measurements<PatchedNodeRow>,
) -> Result<()> {
    let identity = study.identity(pairs.len());
    let points = points(nodes.iter().copied());
    let recorded = study.each("pairs run", pairs, |pair| {
        let places = places(pair);
        let wanted = |_: usize, position: usize| places.iter().any(|(_, at)| at.contains(&position));
        let mut held = record(study, &[pair.clean.clone(), pair.corrupt.clone()], &points, wanted)?;
        let (corrupt, clean) = held.pop().zip(held.pop()).context("a pair without runs")?;
        Ok(RecordedPair { pair, places, clean, corrupt })
    })?;
    let means = means(study, &recorded, nodes)?;
    let patching = PatchPlan { study, identity: &identity, form, nodes, modes, means: &means };
    let expected = |r: &RecordedPair| ((Some(form), r.pair.number), r.places.len() * nodes.len() * modes.len());
    study.measure(rows, &identity, (&recorded, 1), expected, |some| {
        Ok(some.iter().map(|r| patching.of_pair(r)).collect::<Result<Vec<_>>>()?.concat())
    })
}

/// A pair with its places and what its two runs held there.
struct RecordedPair<'p> {
    pair: &'p Pair,
    places: Vec<Placed>,
    clean: RowCapture,
    corrupt: RowCapture,
}

/// The mean of a node's output at a place over all runs.
type Means = BTreeMap<(Place, Node), Vec<f32>>;

/// The mean of every cell over the runs, both of a pair, and over the positions of a place.
fn means(study: &Study, recorded: &[RecordedPair], nodes: &[Node]) -> Result<Means> {
    let mut sums: BTreeMap<(Place, Node), MeanVector> = BTreeMap::new();
    for r in recorded {
        for ((place, positions), node) in cells(&r.places, nodes) {
            for held in [&r.clean, &r.corrupt] {
                for (_, values) in Patch::from(held, node, positions, study.model.config())?.values {
                    sums.entry((place.clone(), node)).or_default().add(&values);
                }
            }
        }
    }
    Ok(sums.into_iter().map(|(cell, sum)| (cell, sum.mean_f32())).collect())
}

/// Every node at every place.
pub fn cells<'p>(places: &'p [Placed], nodes: &'p [Node]) -> impl Iterator<Item = (&'p Placed, Node)> + Clone {
    places.iter().flat_map(|place| nodes.iter().map(move |&node| (place, node)))
}

struct PatchPlan<'a> {
    study: &'a Study,
    identity: &'a Identity,
    form: Form,
    nodes: &'a [Node],
    modes: &'a [PatchMode],
    means: &'a Means,
}

impl PatchPlan<'_> {
    /// Every cell of a pair in every mode.
    fn of_pair(&self, r: &RecordedPair) -> Result<Vec<PatchedNodeRow>> {
        let cells = cells(&r.places, self.nodes);
        let (mut into_clean, mut into_corrupt) = (vec![Patch::NONE], vec![Patch::NONE]);
        for &mode in self.modes {
            for (placed, node) in cells.clone() {
                let into = if mode == PatchMode::Denoise { &mut into_corrupt } else { &mut into_clean };
                into.push(self.patch(r, mode, node, placed)?);
            }
        }
        let mut clean = leads(self.study, &r.pair.clean, &into_clean, r.pair.says)?.into_iter();
        let mut corrupt = leads(self.study, &r.pair.corrupt, &into_corrupt, r.pair.says)?.into_iter();
        let (from, to) = clean.next().zip(corrupt.next()).context("a pair without runs")?;
        let mut rows = vec![];
        for &mode in self.modes {
            for ((place, _), node) in cells.clone() {
                let moved = match mode {
                    PatchMode::Denoise => corrupt.next().context("a patch without a run")? - to,
                    PatchMode::Noise | PatchMode::Mean => from - clean.next().context("a patch without a run")?,
                };
                rows.push(row(self.identity, self.form, (r.pair.number, mode), (place, node), [moved, from - to]));
            }
        }
        Ok(rows)
    }

    fn patch(&self, r: &RecordedPair, mode: PatchMode, node: Node, (place, positions): &Placed) -> Result<Patch> {
        let config = self.study.model.config();
        match mode {
            PatchMode::Denoise => Patch::from(&r.clean, node, positions, config),
            PatchMode::Noise => Patch::from(&r.corrupt, node, positions, config),
            PatchMode::Mean => {
                let mean = self.means.get(&(place.clone(), node)).context("a place without a mean")?;
                Ok(Patch { node, values: positions.iter().map(|&p| (p, mean.clone())).collect() })
            }
        }
    }
}

/// What a patch of a node at a place of a pair `moved`, of the `whole` difference.
pub fn row(
    identity: &Identity,
    form: Form,
    (pair, mode): (usize, PatchMode),
    (place, node): (&Place, Node),
    [moved, whole]: [f64; 2],
) -> PatchedNodeRow {
    let (component, layer, head) = node.named();
    let Place { name: place, back } = place.clone();
    PatchedNodeRow { identity: identity.clone(), form, pair, mode, component, layer, head, place, back, moved, whole }
}
