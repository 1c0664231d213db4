//! Activation patching: the effect of patching each place of each pair, and the heat maps.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;

use super::Identity;
use super::verdict::ratio_of_sums;
use crate::nth::Nth;
use crate::stats::{Estimate, FEWEST};

/// Effects up to this share of the whole difference count as none.
pub const LEAST_SHARE: f64 = 0.02;

names! {
    /// The token or latent at a position of a row.
    pub enum Place {
        Prompt = "prompt",
        Text = "text",
        Latent = "latent",
    }

    /// Columns of a heat map.
    pub enum Axis {
        /// Latent step of the last block before the read-out, over all pairs.
        Step = "step",
        /// Position of the row, over the pairs with the most common layout.
        Position = "position",
    }
}

rows! {
    /// One patch: one pair, one layer, one position.
    pub struct PatchedPlaceRow {
        /// `n` counts pairs that were requested.
        #[serde(flatten)]
        pub identity: Identity,
        pub pair: usize => "index from 0": "the pair of prompts, among the usable ones",
        pub layer: usize => LensRow,
        pub position: usize => "index from 0": "position of the row that was patched",
        pub place: Place => HeadPatchRow,
        pub text: Option<usize> => "index from 0": "the text token of the response that was patched",
        pub block: Option<Nth> => "block from 1": "the block of latents that was patched",
        pub step: Option<Nth> => LensRow,
        /// For a latent, `latent[block,step]`.
        pub clean: String => "text": "the token there in the clean run",
        pub corrupt: String => "text": "the token there in the corrupt run",
        pub effect: f64 => "logits": "patched minus corrupt, at the read-out",
        pub whole: f64 => "logits": "difference between the whole rows: clean minus corrupt",
    }
}

measured!(PatchedPlaceRow, (usize, usize, usize), |row| (row.pair, row.layer, row.position), (None, row.pair));

rows! {
    /// One cell of a heat map.
    pub struct PatchRow {
        #[serde(flatten)]
        pub identity: Identity where n => "count": "pairs of the row",
        pub axis: Axis => "name": "what `index` counts: step or position",
        pub layer: usize => LensRow,
        pub index: usize => "index": "latent step (from 1) or position (from 0) that was patched, by `axis`",
        /// The token at a position, or `*` if pairs differ; for a latent, `latent[block,step]`.
        pub token: Option<String> => PositionRow,
        pub effect: Estimate => "share": "of the difference between clean and corrupt that the patch restores",
    }
}

impl PatchRow {
    /// The verdict that the place carries some of the difference: its interval lies above [`LEAST_SHARE`] of it.
    pub fn carries(&self) -> bool {
        self.identity.n >= FEWEST && self.effect.low > LEAST_SHARE
    }
}

/// Kinds and numbers of a row's positions.
type Layout = Vec<(Place, Option<usize>, Option<Nth>, Option<Nth>)>;

/// The heat maps over latent steps and over positions; cells have at least two pairs.
pub(crate) fn recovered(places: &[PatchedPlaceRow]) -> Result<Vec<PatchRow>> {
    let mut pairs: BTreeMap<usize, Vec<&PatchedPlaceRow>> = BTreeMap::new();
    places.iter().for_each(|p| pairs.entry(p.pair).or_default().push(p));
    let mut rows = steps(&pairs)?;
    rows.extend(positions(&pairs)?);
    Ok(rows)
}

type Pairs<'a> = BTreeMap<usize, Vec<&'a PatchedPlaceRow>>;

fn steps(pairs: &Pairs<'_>) -> Result<Vec<PatchRow>> {
    let mut cells: BTreeMap<(usize, usize), Vec<&PatchedPlaceRow>> = BTreeMap::new();
    for places in pairs.values() {
        let latents = || places.iter().filter(|p| p.place == Place::Latent);
        let last = latents().filter_map(|p| p.block).max();
        for place in latents().filter(|p| p.block == last) {
            let Some(step) = place.step else { continue };
            cells.entry((place.layer, step.shown())).or_default().push(place);
        }
    }
    let cells = cells.iter().filter(|(_, seen)| seen.len() > 1);
    cells.map(|(&(layer, index), seen)| row(Axis::Step, layer, index, None, seen)).collect()
}

fn positions(pairs: &Pairs<'_>) -> Result<Vec<PatchRow>> {
    let layout = |places: &[&PatchedPlaceRow]| -> Layout {
        let at: BTreeSet<_> = places.iter().map(|p| (p.position, (p.place, p.text, p.block, p.step))).collect();
        at.into_iter().map(|(_, what)| what).collect()
    };
    let mut layouts: BTreeMap<Layout, Vec<&PatchedPlaceRow>> = BTreeMap::new();
    let mut members: BTreeMap<Layout, usize> = BTreeMap::new();
    for places in pairs.values() {
        let layout = layout(places);
        *members.entry(layout.clone()).or_default() += 1;
        layouts.entry(layout).or_default().extend(places);
    }
    let Some((common, _)) = members.into_iter().max_by_key(|(_, pairs)| *pairs).filter(|(_, pairs)| *pairs > 1) else {
        return Ok(vec![]);
    };
    let mut cells: BTreeMap<(usize, usize), Vec<&PatchedPlaceRow>> = BTreeMap::new();
    for place in layouts.remove(&common).unwrap_or_default() {
        cells.entry((place.layer, place.position)).or_default().push(place);
    }
    let token = |seen: &[&PatchedPlaceRow]| {
        let mut tokens = seen.iter().flat_map(|p| [&p.clean, &p.corrupt]);
        let first = tokens.next().cloned().unwrap_or_default();
        if tokens.all(|token| *token == first) { first } else { "*".into() }
    };
    cells.iter().map(|(&(layer, index), seen)| row(Axis::Position, layer, index, Some(token(seen)), seen)).collect()
}

/// Σ effect / Σ whole over pairs.
fn row(axis: Axis, layer: usize, index: usize, token: Option<String>, seen: &[&PatchedPlaceRow]) -> Result<PatchRow> {
    let identity = Identity { n: seen.len(), ..seen[0].identity.clone() };
    let pairs: Vec<[f64; 2]> = seen.iter().map(|s| [s.effect, s.whole]).collect();
    let effect = ratio_of_sums(identity.seed, &pairs)?;
    Ok(PatchRow { identity, axis, layer, index, token, effect })
}
