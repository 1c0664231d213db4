//! Classes of positions at which a model may or may not switch. A position can stand in several.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::{Solution, StagedSolutions};
use crate::schema::Event;

/// One position of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub event: Event,
    pub problem: usize,
    pub position: usize,
}

/// Every class's positions, in the order of the problems. `seed` decides the random ones.
pub fn places(staged: &StagedSolutions, seed: u64) -> Vec<Place> {
    let mut all = vec![];
    for (problem, solution) in staged.solutions.iter().enumerate() {
        let ids = &staged.sequences[problem].ids;
        all.extend(of_solution(solution, ids).map(|(event, position)| Place { event, problem, position }));
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

/// Each class that two problems or more have: its places, and the problem of each.
pub(crate) fn classes(all: &[Place]) -> impl Iterator<Item = (Event, Vec<&Place>, Vec<usize>)> {
    let class = |event: Event| {
        let of: Vec<&Place> = all.iter().filter(|p| p.event == event).collect();
        let problems: Vec<usize> = of.iter().map(|p| p.problem).collect();
        (problems.first() != problems.last()).then_some((event, of, problems))
    };
    Event::ALL.into_iter().filter_map(class)
}

fn of_solution<'a>(solution: &'a Solution, ids: &'a [u32]) -> impl Iterator<Item = (Event, usize)> + 'a {
    let last = ids.len() - 1;
    let starts = &solution.boundaries;
    let same = move |p: usize| starts.iter().any(|&s| ids[s] == ids[p]);
    let closes = move |p: usize| solution.blocks.iter().any(|block| block.end == p);
    let plain = (solution.prompt..last)
        .filter(move |&p| !solution.in_block(p) && !closes(p) && !starts.contains(&p))
        .map(move |p| (if same(p) { Event::SameToken } else { Event::Other }, p));
    let near =
        (solution.prompt..last).filter(move |&p| !solution.in_block(p) && !starts.contains(&p)).filter(move |&p| {
            starts.iter().any(|&s| p < s && s - p <= 2) || solution.blocks.iter().any(|b| p >= b.end && p - b.end <= 1)
        });
    let clauses = solution.clause_starts.iter().filter(|p| !starts.contains(p));
    (starts.iter().map(|&p| (Event::SwiStart, p)))
        .chain(plain)
        .chain(clauses.map(|&p| (Event::ClauseStart, p)))
        .chain(near.map(|p| (Event::NearBoundary, p)))
}
