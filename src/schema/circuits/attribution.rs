//! Attribution patching: the map that gradients predict, and its agreement with actual patches.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;

use super::patching::{Cell, HeadPatchRow, NodeKey, PatchMode, PatchedNodeRow, shares};
use super::{Component, Form, place_name};
use crate::schema::{Identity, Measurement, ResampledUnit};
use crate::stats::{Bootstrap, Estimate, LEVEL, spearman};

names! {
    /// Where the gradient is taken.
    pub enum GradientAt {
        /// In the corrupt run: predicts `denoise`.
        Corrupt = "corrupt",
        /// In the clean run: predicts `noise`.
        Clean = "clean",
        /// The mean over runs between the two (integrated gradients): predicts both.
        Integrated = "integrated",
    }
}

impl GradientAt {
    /// The patches that it predicts; a cell is compared with the first.
    pub fn predicts(self) -> &'static [PatchMode] {
        match self {
            GradientAt::Corrupt => &[PatchMode::Denoise],
            GradientAt::Clean => &[PatchMode::Noise],
            GradientAt::Integrated => &[PatchMode::Denoise, PatchMode::Noise],
        }
    }
}

rows! {
    /// The effect of a patch on one pair, as a gradient predicts it; without a gradient, the effect of the actual patch.
    pub struct AttributedNodeRow {
        #[serde(flatten)]
        pub node: PatchedNodeRow where moved => "logits": "what the gradient predicts that a patch moves; without one, what it did move",
        pub gradient: Option<GradientAt> => AttributionRow,
    }
}

impl Measurement for AttributedNodeRow {
    type Key = (NodeKey, Option<GradientAt>);

    fn key(&self) -> Self::Key {
        (self.node.key(), self.gradient)
    }

    fn identity(&self) -> &Identity {
        &self.node.identity
    }

    fn unit(&self) -> ResampledUnit {
        self.node.unit()
    }
}

rows! {
    /// One cell of the map; intervals are bootstraps over pairs.
    pub struct AttributionRow {
        #[serde(flatten)]
        pub identity: Identity where n => "count": "pairs of the row",
        pub form: Form => DirectLogitRow,
        pub gradient: GradientAt => "name":
            "the run that the gradient is taken in: corrupt, clean, or integrated (the mean of runs between)",
        pub component: Component => DirectLogitRow,
        pub layer: usize => LensRow,
        pub head: Option<usize> => PatternRow,
        pub place: String => HeadPatchRow,
        pub back: Option<usize> => AttentionRow,
        pub effect: Estimate => "share": "of the difference between clean and corrupt: gradient × (clean − corrupt)",
        pub p_holm: f64 => AccuracyRow,
        /// The effect of the patch itself on the same pairs (`denoise`; `noise` for the clean run's gradient), for sampled cells.
        pub exact: Option<Estimate> => "share": "what the patch itself moves in the same pairs; of cells that were sampled",
    }
}

impl AttributionRow {
    /// The verdict that the node matters here, if the gradient is right.
    pub fn matters(&self) -> bool {
        self.p_holm <= 1.0 - LEVEL
    }
}

rows! {
    /// Agreement of one map with actual patches, over the sampled cells.
    pub struct AttributionAgreementRow {
        #[serde(flatten)]
        pub identity: Identity where n => "count": "pairs of the row",
        pub form: Form => DirectLogitRow,
        pub gradient: GradientAt => AttributionRow,
        pub mode: PatchMode => "name": "the patches that the gradient is compared with: denoise or noise",
        pub cells: usize => "count": "nodes and places that were patched to compare with, in two pairs or more",
        /// Spearman's ρ of predicted and true effects over the cells; the interval resamples pairs.
        pub rank_correlation: Estimate => "rho": "Spearman's, of the gradient's and the patches' effects over these cells",
        pub mean_miss: f64 => "share": "mean over the sampled cells of |gradient's effect − patch's effect|",
        pub worst_miss: f64 => "share": "the largest of them",
        pub worst_cell: String => "name": "the node and place where it is",
        pub worst_predicted: f64 => "share": "the gradient's effect there",
        pub worst_exact: f64 => "share": "the patch's effect there",
    }
}

/// Predicted effects, in the form of patches.
type PredictedEffects = BTreeMap<GradientAt, Vec<PatchedNodeRow>>;

/// The maps of every form and gradient, and their agreement with actual patches; `least` as in [`shares`].
pub(crate) fn attributions(
    rows: &[AttributedNodeRow],
    least: f64,
) -> Result<(Vec<AttributionRow>, Vec<AttributionAgreementRow>)> {
    let (mut predicted, mut exact) = (PredictedEffects::new(), vec![]);
    for AttributedNodeRow { node, gradient } in rows {
        match gradient {
            Some(at) => predicted.entry(*at).or_default().push(node.clone()),
            None => exact.push(node.clone()),
        }
    }
    Ok((maps(&predicted, &exact, least)?, agreements(&predicted, &exact)?))
}

/// The maps of every form and gradient. `exact`: actual patches of the sampled cells, on the same pairs.
fn maps(predicted: &PredictedEffects, exact: &[PatchedNodeRow], least: f64) -> Result<Vec<AttributionRow>> {
    type At = (Form, PatchMode, String, Option<usize>, Component, usize, Option<usize>);
    let at = |r: &HeadPatchRow| -> At { (r.form, r.mode, r.place.clone(), r.back, r.component, r.layer, r.head) };
    let exact: BTreeMap<At, Estimate> = shares(exact, least)?.iter().map(|r| (at(r), r.effect)).collect();
    let mut out = vec![];
    for (&gradient, rows) in predicted {
        for row in shares(rows, least)? {
            let exact = exact.get(&at(&row)).copied();
            let HeadPatchRow { identity, form, component, layer, head, place, back, effect, p_holm, .. } = row;
            out.push(AttributionRow {
                identity,
                form,
                gradient,
                component,
                layer,
                head,
                place,
                back,
                effect,
                p_holm,
                exact,
            });
        }
    }
    Ok(out)
}

/// Compares every map with the patches that it predicts, if at least two pairs and three cells were patched.
fn agreements(predicted: &PredictedEffects, exact: &[PatchedNodeRow]) -> Result<Vec<AttributionAgreementRow>> {
    let mut out = vec![];
    for form in Form::ALL {
        for (&gradient, rows) in predicted {
            for &mode in gradient.predicts() {
                let own: Vec<&PatchedNodeRow> = rows.iter().filter(|r| r.form == form).collect();
                let run: Vec<&PatchedNodeRow> = exact.iter().filter(|r| (r.form, r.mode) == (form, mode)).collect();
                out.extend(compared(gradient, mode, &own, &run)?);
            }
        }
    }
    Ok(out)
}

/// One pair's values of a cell: predicted, true, whole.
type Three = [f64; 3];

fn compared(
    gradient: GradientAt,
    mode: PatchMode,
    own: &[&PatchedNodeRow],
    run: &[&PatchedNodeRow],
) -> Result<Option<AttributionAgreementRow>> {
    let predicted: BTreeMap<(usize, Cell), f64> = own.iter().map(|r| ((r.pair, r.cell()), r.moved)).collect();
    let mut cells: BTreeMap<Cell, BTreeMap<usize, Three>> = BTreeMap::new();
    for r in run {
        let Some(&by_gradient) = predicted.get(&(r.pair, r.cell())) else { continue };
        cells.entry(r.cell()).or_default().insert(r.pair, [by_gradient, r.moved, r.whole]);
    }
    // As in the maps, a cell with a single pair has no interval.
    cells.retain(|_, pairs| pairs.len() > 1);
    let pairs: Vec<usize> =
        cells.values().flat_map(BTreeMap::keys).copied().collect::<BTreeSet<_>>().into_iter().collect();
    let (Some(first), true, true) = (run.first(), cells.len() > 2, pairs.len() > 1) else { return Ok(None) };
    let tables: Vec<Vec<Option<Three>>> =
        cells.values().map(|of| pairs.iter().map(|pair| of.get(pair).copied()).collect()).collect();
    let effects = |counts: &[u32]| -> (Vec<f64>, Vec<f64>) {
        let sums = tables.iter().map(|of| {
            let mut sums = [0.0; 3];
            for (three, &times) in of.iter().zip(counts) {
                sums.iter_mut().zip(three.unwrap_or_default()).for_each(|(sum, x)| *sum += f64::from(times) * x);
            }
            sums
        });
        // A bootstrap draw may have no pair of a cell.
        sums.filter(|sums| sums[2] > 0.0).map(|[by, moved, whole]| (by / whole, moved / whole)).unzip()
    };
    let (by, moved) = effects(&vec![1; pairs.len()]);
    let rho = |counts: &[u32]| {
        let (by, moved) = effects(counts);
        spearman(&by, &moved)
    };
    if !rho(&vec![1; pairs.len()]).is_finite() {
        return Ok(None);
    }
    let rank_correlation = Bootstrap::seeded(first.identity.seed).units(pairs.len(), rho)?;
    let misses = || by.iter().zip(&moved).map(|(a, b)| (a - b).abs());
    let worst = misses().enumerate().max_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(i, _)| i);
    Ok(Some(AttributionAgreementRow {
        identity: Identity { n: pairs.len(), ..first.identity.clone() },
        form: first.form,
        gradient,
        mode,
        cells: cells.len(),
        rank_correlation,
        mean_miss: misses().sum::<f64>() / by.len() as f64,
        worst_miss: misses().fold(0.0, f64::max),
        worst_cell: cells.keys().nth(worst).map(label).unwrap_or_default(),
        worst_predicted: by[worst],
        worst_exact: moved[worst],
    }))
}

/// `L2H0 at latent[1], 1 back`.
fn label(&(place, back, component, layer, head): &Cell) -> String {
    format!("{} at {}", component.label(Some(layer), head), place_name(place, back))
}
