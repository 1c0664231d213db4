//! Head patching: the effect of patching each node of each pair, and the maps over nodes.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use ndarray::Array2;

use super::{Component, Form};
use crate::schema::Identity;
use crate::stats::special::binomial_half_cdf;
use crate::stats::{Bootstrap, Estimate, LEVEL, holm, spearman};

names! {
    /// Which run is patched into which.
    pub enum PatchMode {
        /// The clean run's value into the corrupt run: does it restore the clean answer?
        Denoise = "denoise",
        /// The corrupt run's value into the clean run: does it break the clean answer?
        Noise = "noise",
        /// The mean of all runs at that place into the clean run: is the difference between runs at the place needed?
        Mean = "mean",
    }
}

rows! {
    /// One patch of one pair.
    pub struct PatchedNodeRow {
        /// `n` counts the pairs of the form.
        #[serde(flatten)]
        pub identity: Identity,
        pub form: Form => DirectLogitRow,
        pub pair: usize => "index from 0": "the pair, among all candidates (of a file: its distinct pairs); the same in both forms",
        pub mode: PatchMode => HeadPatchRow,
        pub component: Component => DirectLogitRow,
        pub layer: usize => LensRow,
        pub head: Option<usize> => PatternRow,
        /// `source` (prompt positions where the two rows differ), `swi`, `latent[k]`, `swi_end`, of plain text `clause[k]`,
        /// `readout` (the last position); `position[i]` where every position was requested.
        pub place: String => HeadPatchRow,
        /// Blocks (or clauses) between the place and the read-out, 0 for the last; absent outside blocks.
        pub back: Option<usize> => AttentionRow,
        /// Change of the lead of the clean row's token over the corrupt row's, in the direction of the mode.
        pub moved: f64 => "logits": "change of the lead in the mode's direction",
        pub whole: f64 => PatchedPlaceRow,
    }
}

/// A cell of the map: place, blocks back, component, layer, head.
pub(super) type Cell<'a> = (&'a str, Option<usize>, Component, usize, Option<usize>);

impl PatchedNodeRow {
    /// The file of pairs that a user gave.
    pub const PAIRS: &'static str = "patched_pairs";

    pub(super) fn cell(&self) -> Cell<'_> {
        (&self.place, self.back, self.component, self.layer, self.head)
    }
}

/// Identity of a row within its pair.
pub(super) type NodeKey = (Form, usize, PatchMode, String, Option<usize>, Component, usize, Option<usize>);

measured!(
    PatchedNodeRow,
    NodeKey,
    |row| {
        let Self { form, pair, mode, place, back, component, layer, head, .. } = row;
        (*form, *pair, *mode, place.clone(), *back, *component, *layer, *head)
    },
    (Some(row.form), row.pair)
);

rows! {
    /// One cell of a map; intervals are bootstraps over pairs.
    pub struct HeadPatchRow {
        #[serde(flatten)]
        pub identity: Identity where n => "count": "pairs of the row",
        pub form: Form => DirectLogitRow,
        pub mode: PatchMode => "name": "denoise, noise or mean: which run the patch comes from",
        pub component: Component => DirectLogitRow,
        pub layer: usize => LensRow,
        pub head: Option<usize> => PatternRow,
        pub place: String => "name": "place of the patch: source (prompt positions where the two prompts differ), swi, latent[k], swi_end, in plain text \
                                  clause[k], readout (the last position), or position[i]; k counts from 1, i from 0",
        pub back: Option<usize> => AttentionRow,
        /// Σ moved / Σ whole.
        pub effect: Estimate => PatchRow,
        /// Sign test that more than half of the pairs move by more than `least` to one side, Holm-adjusted over the cells of a form and mode.
        pub p_holm: f64 => AccuracyRow,
    }
}

impl HeadPatchRow {
    /// The file of pairs that a user gave.
    pub const PAIRS: &'static str = "pair_patching";

    /// The verdict that the node matters here, by the sign test.
    pub fn matters(&self) -> bool {
        self.p_holm <= 1.0 - LEVEL
    }
}

/// A note if no cell can be significant: the smallest p is 2 · ½ⁿ, and Holm multiplies it by the number of cells.
pub(crate) fn too_few(rows: &[HeadPatchRow]) -> Option<String> {
    let n = rows.iter().map(|row| row.identity.n).max()?;
    let mut maps: BTreeMap<(Form, PatchMode), usize> = BTreeMap::new();
    rows.iter().for_each(|row| *maps.entry((row.form, row.mode)).or_default() += 1);
    let cells = maps.into_values().min()?;
    let least = 2.0 * 0.5f64.powi(i32::try_from(n).unwrap_or(i32::MAX));
    (least * cells as f64 > 1.0 - LEVEL).then(|| {
        format!(
            "n = {n} pairs can never be significant here: the smallest p of the sign test is {least:.2e}, times {cells} cells \
             (Holm) {:.2e}. Run more pairs, or fewer cells.\n",
            (least * cells as f64).min(1.0)
        )
    })
}

/// The maps of every form and mode. `least`: effects up to this share count as none in the test.
pub(crate) fn shares(rows: &[PatchedNodeRow], least: f64) -> Result<Vec<HeadPatchRow>> {
    let mut maps: BTreeMap<(Form, PatchMode), Vec<&PatchedNodeRow>> = BTreeMap::new();
    rows.iter().for_each(|row| maps.entry((row.form, row.mode)).or_default().push(row));
    let mut out = vec![];
    for ((form, mode), rows) in maps {
        let pairs: Vec<usize> = rows.iter().map(|r| r.pair).collect::<BTreeSet<_>>().into_iter().collect();
        let cells: Vec<Cell> = rows.iter().map(|r| r.cell()).collect::<BTreeSet<_>>().into_iter().collect();
        let mut moved = Array2::zeros((pairs.len(), cells.len()));
        let mut whole = moved.clone();
        for row in &rows {
            if let (Ok(pair), Ok(cell)) = (pairs.binary_search(&row.pair), cells.binary_search(&row.cell())) {
                (moved[[pair, cell]], whole[[pair, cell]]) = (row.moved, row.whole);
            }
        }
        let identity = &rows[0].identity;
        let effects = Bootstrap::seeded(identity.seed).columns(moved.view(), whole.view())?;
        let of_cell = |c: usize| moved.column(c).into_iter().zip(whole.column(c)).filter(|(_, whole)| **whole > 0.0);
        let p: Vec<f64> = (0..cells.len()).map(|c| sign_test(of_cell(c).map(|(m, w)| m / w), least)).collect();
        for (((place, back, component, layer, head), effect), p_holm) in cells.into_iter().zip(effects).zip(holm(&p)?) {
            let Some(effect) = effect else { continue };
            let identity = Identity { n: effect.n, ..identity.clone() };
            let place = place.to_owned();
            out.push(HeadPatchRow { identity, form, mode, component, layer, head, place, back, effect, p_holm });
        }
    }
    Ok(out)
}

/// Exact two-sided p-value that more than half of the effects are above `least`, or more than half below −`least`.
fn sign_test(effects: impl Iterator<Item = f64>, least: f64) -> f64 {
    let (mut n, mut above, mut below) = (0, 0, 0);
    for effect in effects {
        n += 1;
        above += usize::from(effect > least);
        below += usize::from(effect < -least);
    }
    (2.0 * binomial_half_cdf(n - above.max(below), n)).min(1.0)
}

rows! {
    /// Whether the same heads and MLPs matter at latent k as at token k of the clause.
    pub struct FormsRow {
        /// `n` counts problems whose pairs are usable in both forms.
        #[serde(flatten)]
        pub identity: Identity,
        /// Cells (node × k) of the last block that both forms have.
        pub cells: usize => "count": "nodes and steps that both forms have",
        /// Spearman's ρ of the `denoise` effects of the two forms over these cells; the interval resamples problems.
        pub rank_correlation: Estimate => "rho": "Spearman's, of the effects in both forms",
    }
}

/// Compares the forms. `None` with fewer than two problems, or three cells, in both.
pub fn agreement(rows: &[PatchedNodeRow]) -> Result<Option<FormsRow>> {
    type At = (usize, Component, usize, Option<usize>);
    let step = |place: &str| place.split_once('[').and_then(|(_, k)| k.trim_end_matches(']').parse::<usize>().ok());
    let counts =
        |r: &&PatchedNodeRow| r.mode == PatchMode::Denoise && r.back == Some(0) && r.component != Component::Resid;
    let mut problems: BTreeMap<usize, [BTreeMap<At, f64>; 2]> = BTreeMap::new();
    for row in rows.iter().filter(counts) {
        let Some(k) = step(&row.place) else { continue };
        let forms = problems.entry(row.pair).or_default();
        forms[usize::from(row.form == Form::Text)]
            .insert((k, row.component, row.layer, row.head), row.moved / row.whole);
    }
    let maps: Vec<_> = problems.into_values().filter(|forms| forms.iter().all(|map| !map.is_empty())).collect();
    let cells: BTreeSet<At> =
        maps.iter().flat_map(|[a, b]| a.keys().filter(|at| b.contains_key(*at))).copied().collect();
    let (Some(first), true, true) = (rows.first(), maps.len() > 1, cells.len() > 2) else { return Ok(None) };
    let rank_correlation = Bootstrap::seeded(first.identity.seed).units(maps.len(), |counts| {
        // Means over the drawn problems that have the cell in both forms; a draw may have no such problem.
        let means = |at: &At| {
            let mut sums = [0.0; 3];
            for ([latents, text], &times) in maps.iter().zip(counts) {
                if let (Some(&latent), Some(&word)) = (latents.get(at), text.get(at)) {
                    sums.iter_mut().zip([latent, word, 1.0]).for_each(|(sum, x)| *sum += f64::from(times) * x);
                }
            }
            (sums[2] > 0.0).then(|| (sums[0] / sums[2], sums[1] / sums[2]))
        };
        let (latents, text): (Vec<f64>, Vec<f64>) = cells.iter().filter_map(means).unzip();
        spearman(&latents, &text)
    })?;
    let identity = Identity { n: maps.len(), ..first.identity.clone() };
    Ok(Some(FormsRow { identity, cells: cells.len(), rank_correlation }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(form: Form, pair: usize, layer: usize, moved: f64) -> PatchedNodeRow {
        let identity = Identity { checkpoint: "m/x".into(), dataset: "d".into(), n: 12, seed: 0 };
        let place = if form == Form::Latents { "latent[1]" } else { "clause[1]" }.to_owned();
        let (mode, component) = (PatchMode::Denoise, Component::Mlp);
        PatchedNodeRow {
            identity,
            form,
            pair,
            mode,
            component,
            layer,
            head: None,
            place,
            back: Some(0),
            moved,
            whole: 2.0,
        }
    }

    #[test]
    fn a_share_is_of_the_whole_and_small_effects_are_none() {
        let rows: Vec<_> = (0..12)
            .flat_map(|pair| {
                [row(Form::Latents, pair, 0, 1.0), row(Form::Latents, pair, 1, 0.01 * (pair as f64 - 3.0))]
            })
            .collect();
        let found = shares(&rows, 0.1).expect("maps");
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].layer, found[0].effect.value, found[0].effect.n), (0, 0.5, 12));
        // 2 cells · 2 · 0.5¹².
        assert!((found[0].p_holm - 4.0 / 4096.0).abs() < 1e-12);
        assert_eq!(found[1].p_holm, 1.0);
    }

    #[test]
    fn forms_are_compared_on_problems_that_both_have() {
        let of = |form, pair| (0..4).map(move |layer| row(form, pair, layer, layer as f64 + 0.1 * pair as f64));
        let both = |pair| of(Form::Latents, pair).chain(of(Form::Text, pair));
        let rows: Vec<_> = (0..3).flat_map(both).chain(of(Form::Text, 9)).collect();
        let found = agreement(&rows).expect("a comparison").expect("three problems");
        assert_eq!((found.identity.n, found.cells, found.rank_correlation.value), (3, 4, 1.0));
        let alone: Vec<_> = of(Form::Text, 1).chain(of(Form::Latents, 2)).collect();
        assert_eq!(agreement(&alone).expect("no comparison"), None);
    }

    #[test]
    fn a_cell_that_few_problems_have_counts_with_its_mean() {
        // Layer l occurs in 6 − l of six problems. Effects rise with the layer in one form and fall in the other.
        let of = |pair: usize| {
            (0..6 - pair).flat_map(move |layer| {
                let effect = layer as f64;
                [row(Form::Latents, pair, layer, effect), row(Form::Text, pair, layer, 10.0 - effect)]
            })
        };
        let rows: Vec<_> = (0..6).flat_map(of).collect();
        let found = agreement(&rows).expect("a comparison").expect("six problems");
        assert_eq!((found.cells, found.rank_correlation.value), (6, -1.0));
    }
}
