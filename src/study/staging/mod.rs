//! Held-out solutions as the last stage of the curriculum presents them, and the class of each position.
//!
//! Tagged spans become `<swi>`, latents, `</swi>`; the rest is text. Every experiment on known positions (teacher-forced
//! statistics, the window around `<swi>`, probes, differences between checkpoints) uses these sequences, so that all measure the same
//! positions. Knows ids; [`logits`] and [`capture`] run the model.

pub(crate) mod capture;
pub mod logits;

use std::ops::Range;

use anyhow::Result;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

pub use logits::Reading;

use super::{Study, TaggedSolution};
use crate::latent::{Sequence, SwitchIds};
use crate::method::curriculum::{At, staged};
use crate::schema::Event;
use crate::text::clauses::clause_starts;

/// All held-out solutions, in the order of the problems.
pub(crate) struct StagedSolutions {
    pub sequences: Vec<Sequence>,
    pub solutions: Vec<Solution>,
    /// Whether the task names the clauses of its solutions. If not, clauses are sentences, and a span may begin anywhere.
    pub named_clauses: bool,
}

impl StagedSolutions {
    /// The reading at a position, from [`logits::readings`].
    pub fn reading<'r>(&self, readings: &'r [Vec<Reading>], problem: usize, position: usize) -> &'r Reading {
        &readings[problem][position + 1 - self.solutions[problem].prompt]
    }

    pub fn at(&self, readings: &[Vec<Reading>], places: &[&Place], value: fn(&Reading) -> f64) -> Vec<f64> {
        places.iter().map(|p| value(self.reading(readings, p.problem, p.position))).collect()
    }
}

/// The classes of positions in one sequence. Positions count from the prompt's first token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Solution {
    pub prompt: usize,
    /// Positions whose next token is an annotated `<swi>`, one per span.
    pub boundaries: Vec<usize>,
    /// The blocks, from `<swi>` to before `</swi>`. The decoder cannot emit `<swi>` there.
    pub blocks: Vec<Range<usize>>,
    /// Positions before the first token of an untagged clause (a sentence, where clauses are unknown).
    pub clause_starts: Vec<usize>,
}

impl Solution {
    pub fn in_block(&self, position: usize) -> bool {
        self.blocks.iter().any(|block| block.contains(&position))
    }
}

pub(crate) fn stage(study: &Study, tagged: &[TaggedSolution]) -> Result<StagedSolutions> {
    let (ids, latent) = (study.corpus.switch, &study.recipe.latent);
    let snapped = study.recipe.annotate.spans.snap_to_clause;
    let (mut sequences, mut solutions) = (vec![], vec![]);
    for (problem, (sample, spans)) in tagged.iter().enumerate() {
        let response = staged(&sample.response, spans, &[], At::end(latent), latent, ids);
        let row: Vec<u32> = sample.prompt.iter().chain(&response).copied().collect();
        let prompt = sample.prompt.len();
        solutions.push(lay_out(&row, prompt, spans, &clause_starts(sample, snapped), ids));
        sequences.push(Sequence::new(problem, row, prompt, Some(ids.latent))?);
    }
    let any = solutions.iter().any(|s| !s.boundaries.is_empty());
    study.require(any, || "no boundary in this data: no held-out solution has a tagged span".into())?;
    let named_clauses = tagged.iter().any(|(sample, _)| sample.names_clauses(snapped));
    Ok(StagedSolutions { sequences, solutions, named_clauses })
}

/// Aligns a staged sequence with the tokens of its solution. `starts`: tokens that begin a clause.
fn lay_out(row: &[u32], prompt: usize, spans: &[Range<usize>], starts: &[usize], ids: SwitchIds) -> Solution {
    let mut out = Solution { prompt, boundaries: vec![], blocks: vec![], clause_starts: vec![] };
    let (mut token, mut open) = (0, None);
    for (position, &id) in row.iter().enumerate().skip(prompt) {
        if id == ids.swi {
            open = Some(position);
            // A prompt is never empty: it contains at least the token that opens the response.
            out.boundaries.push(position.saturating_sub(1));
        } else if let (true, Some(start)) = (id == ids.swi_end, open) {
            token = spans.get(out.blocks.len()).map_or(token, |span| span.end);
            out.blocks.push(start..position);
            open = None;
        } else if open.is_none() {
            if starts.contains(&token) && position > prompt {
                out.clause_starts.push(position - 1);
            }
            token += 1;
        }
    }
    out
}

/// One position and its class, among those at which a model may or may not switch. A position can have several classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub event: Event,
    pub problem: usize,
    pub position: usize,
}

/// The positions of every class, in the order of the problems. `seed` draws the random ones.
pub fn places(staged: &StagedSolutions, seed: u64) -> Vec<Place> {
    let mut all = vec![];
    for (problem, solution) in staged.solutions.iter().enumerate() {
        let ids = &staged.sequences[problem].ids;
        all.extend(classify(solution, ids).map(|(event, position)| Place { event, problem, position }));
    }
    let starts = all.iter().filter(|p| p.event == Event::SwiStart).count();
    let mut random: Vec<Place> =
        all.iter().filter(|p| matches!(p.event, Event::SameToken | Event::Other)).copied().collect();
    random.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
    random.truncate(starts);
    random.sort_by_key(|p| (p.problem, p.position));
    all.extend(random.into_iter().map(|p| Place { event: Event::Random, ..p }));
    all
}

/// Each class that occurs in at least two problems: its places, and the problem of each.
pub(crate) fn classes(all: &[Place]) -> impl Iterator<Item = (Event, Vec<&Place>, Vec<usize>)> {
    let class = |event: Event| {
        let of: Vec<&Place> = all.iter().filter(|p| p.event == event).collect();
        let problems: Vec<usize> = of.iter().map(|p| p.problem).collect();
        (problems.first() != problems.last()).then_some((event, of, problems))
    };
    Event::ALL.into_iter().filter_map(class)
}

fn classify<'a>(solution: &'a Solution, ids: &'a [u32]) -> impl Iterator<Item = (Event, usize)> + 'a {
    let last = ids.len() - 1;
    let starts = &solution.boundaries;
    let same = move |p: usize| starts.iter().any(|&s| ids[s] == ids[p]);
    let closes = move |p: usize| solution.blocks.iter().any(|block| block.end == p);
    let outside = (solution.prompt..last).filter(move |&p| !solution.in_block(p) && !starts.contains(&p));
    let plain = outside.clone().filter(move |&p| !closes(p));
    let plain = plain.map(move |p| (if same(p) { Event::SameToken } else { Event::Other }, p));
    let near = outside.filter(move |&p| {
        starts.iter().any(|&s| p < s && s - p <= 2) || solution.blocks.iter().any(|b| p >= b.end && p - b.end <= 1)
    });
    let clauses = solution.clause_starts.iter().filter(|p| !starts.contains(p));
    (starts.iter().map(|&p| (Event::SwiStart, p)))
        .chain(plain)
        .chain(clauses.map(|&p| (Event::ClauseStart, p)))
        .chain(near.map(|p| (Event::NearBoundary, p)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_found_beside_latents() {
        let ids = SwitchIds { swi: 90, swi_end: 91, latent: 92 };
        // Prompt 1 2; response 10..=16 with 11 12 and 16 tagged and clauses at 11, 13, 15 and 16.
        let row = [1, 2, 10, 90, 92, 92, 91, 13, 14, 15, 90, 92, 91];
        let found = lay_out(&row, 2, &[1..3, 6..7], &[1, 3, 5, 6], ids);
        assert_eq!(found.boundaries, [2, 9]);
        assert_eq!(found.blocks, [3..6, 10..12]);
        // Tagged clauses are not among them; the one after a block begins at the position of `</swi>` (6).
        assert_eq!(found.clause_starts, [6, 8]);
        assert!(found.in_block(3) && found.in_block(5) && !found.in_block(6));
    }
}
