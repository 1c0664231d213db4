//! Names of positions that are comparable between pairs of sequences, so that effects can be averaged by name.

use std::ops::Range;

use super::pairs::Pair;
use crate::latent::SwitchIds;
use crate::model::Step;
use crate::nth::Nth;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// `source` (prompt positions where clean and corrupt differ), `swi`, `latent[k]`, `swi_end`; in plain text `clause[k]`; `readout`
    /// (the last position). k counts from 1. `position[i]`, from 0, if places are single positions ([`every_position`]).
    pub name: String,
    /// Number of later blocks (or clauses); `None` outside blocks.
    pub back: Option<usize>,
}

/// A place and its positions in a sequence.
pub(crate) type Placed = (Place, Vec<usize>);

/// The places of a pair in order of position, inside blocks only those of the last `blocks` blocks.
pub fn named_places(pair: &Pair, ids: SwitchIds, blocks: usize) -> Vec<Placed> {
    let row = &pair.clean;
    let last = row.ids.len() - 1;
    let differ = |p: &usize| row.steps[*p] == Step::Prompt && row.ids[*p] != pair.corrupt.ids[*p];
    let source: Vec<usize> = (0..=last).filter(differ).collect();
    let mut out = vec![(Place { name: "source".into(), back: None }, source)];
    let inside = if pair.clauses.is_empty() { block_places(pair, ids) } else { clause_places(pair) };
    let count = inside.iter().map(|(_, block, _)| block + 1).max().unwrap_or(0);
    for (name, block, position) in inside {
        let back = count - 1 - block;
        let place = Place { name, back: Some(back) };
        // A user's prompt may repeat a marker in a block: one place with two positions.
        match out.iter_mut().find(|(other, _)| *other == place) {
            Some((_, positions)) => positions.push(position),
            None if back < blocks => out.push((place, vec![position])),
            None => {}
        }
    }
    if out.iter().all(|(_, positions)| !positions.contains(&last)) {
        out.push((Place { name: "readout".into(), back: None }, vec![last]));
    }
    out.retain(|(_, positions)| !positions.is_empty());
    out
}

/// The place of every position: those of [`named_places`], else `prompt`, `text` or `earlier` (latents of earlier blocks).
pub fn place_of_each(pair: &Pair, ids: SwitchIds, blocks: usize) -> Vec<Place> {
    let rest = |step: &Step| match step {
        Step::Prompt => "prompt",
        Step::Text(_) => "text",
        Step::Latent { .. } => "earlier",
    };
    let mut out: Vec<Place> =
        pair.clean.steps.iter().map(|step| Place { name: rest(step).into(), back: None }).collect();
    for (place, positions) in named_places(pair, ids, blocks) {
        positions.iter().for_each(|&position| out[position] = place.clone());
    }
    out
}

/// One place per position, named by its index.
pub fn every_position(pair: &Pair) -> Vec<Placed> {
    (0..pair.clean.ids.len()).map(|i| (Place { name: format!("position[{i}]"), back: None }, vec![i])).collect()
}

/// Name, block and position of each place in a block.
fn block_places(pair: &Pair, ids: SwitchIds) -> Vec<(String, usize, usize)> {
    // In a user's prompt latents may occur before any `<swi>`: they count with the first block.
    let (mut begun, mut out) = (0_usize, vec![]);
    for (position, (&id, step)) in pair.clean.ids.iter().zip(&pair.clean.steps).enumerate() {
        if let Step::Latent { step, .. } = step {
            out.push((format!("latent[{}]", Nth::new(*step)), begun.saturating_sub(1), position));
        } else if id == ids.swi {
            begun += 1;
            out.push(("swi".into(), begun - 1, position));
        } else if id == ids.swi_end && begun > 0 {
            out.push(("swi_end".into(), begun - 1, position));
        }
    }
    out
}

fn clause_places(pair: &Pair) -> Vec<(String, usize, usize)> {
    let name = |k| format!("clause[{}]", Nth::new(k));
    let of = |(block, clause): (usize, &Range<usize>)| {
        clause.clone().enumerate().map(move |(k, position)| (name(k), block, position))
    };
    pair.clauses.iter().enumerate().flat_map(of).collect()
}
