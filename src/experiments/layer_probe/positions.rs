//! Chooses the positions that a probe for the switch is fitted on. Knows ids and places, not features.

use std::collections::{BTreeMap, BTreeSet};

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::NegativeScope;
use crate::schema::{Event, Negatives};
use crate::study::staging::{StagedSolutions, places};

/// A position is (problem, position).
type At = (usize, usize);

/// The rows of both protocols. Everything is sorted by position, without repetition.
pub(crate) struct Positions {
    /// Every position of any protocol.
    pub all: Vec<At>,
    pub paper: Set,
    pub grouped: Set,
    /// Kind of the grouped protocol's negatives.
    pub negatives: Negatives,
    /// Share of boundaries among them and all positions that could be their negatives.
    pub prevalence: f64,
}

/// The samples of one protocol, as indices into [`Positions::all`].
#[derive(Default)]
pub struct Set {
    pub rows: Vec<usize>,
    pub labels: Vec<bool>,
    /// Unit of a split: the problem, later its group.
    pub groups: Vec<usize>,
    pub tokens: Vec<u32>,
}

/// Boundaries and negatives: random ones of the same number (paper), and matched ones (grouped): of the same token types and, if the
/// task names its clauses, before an untagged clause. Inside a clause there is the same `=` before a result, which a probe can tell from
/// one before an operand without any knowledge of switching. Each type has equally many positives and negatives, so that the type does
/// not predict the label; `matched` selects the candidate positions. At most `max` positions in all.
pub fn choose(staged: &StagedSolutions, seed: u64, max: usize, matched: NegativeScope) -> Positions {
    let mut all = places(staged, seed);
    // Boundaries, equally many random negatives, at most as many matched ones: three samples per boundary.
    let left_out = all.iter().filter(|p| p.event == Event::SwiStart).nth(max / 3).map(|p| p.problem);
    all.retain(|p| left_out.is_none_or(|first| p.problem < first));
    let of = |events: &[Event]| -> Vec<At> {
        all.iter().filter(|p| events.contains(&p.event)).map(|p| (p.problem, p.position)).collect()
    };
    let (starts, plain) = (of(&[Event::SwiStart]), of(&[Event::SameToken, Event::Other]));
    let token = |&(problem, position): &At| staged.sequences[problem].ids[position];
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut draw = |from: &[At], n: usize| -> Vec<At> {
        let mut from = from.to_vec();
        from.shuffle(&mut rng);
        from.truncate(n);
        from
    };
    let random = draw(&plain, starts.len());
    let by_kind = |places: &[At]| {
        let mut kinds: BTreeMap<(u32, Option<usize>), Vec<At>> = BTreeMap::new();
        let among = |at: &At| (matched == NegativeScope::Problem).then_some(at.0);
        places.iter().for_each(|at| kinds.entry((token(at), among(at))).or_default().push(*at));
        kinds
    };
    let (negatives, mut alike) = match staged.named_clauses {
        true => (Negatives::ClauseStart, of(&[Event::ClauseStart])),
        false => (Negatives::SameToken, plain),
    };
    let types: BTreeSet<u32> = starts.iter().map(token).collect();
    alike.retain(|at| types.contains(&token(at)));
    let prevalence = starts.len() as f64 / (starts.len() + alike.len()) as f64;
    let (yes, no) = (by_kind(&starts), by_kind(&alike));
    let (mut kept_yes, mut kept_no) = (vec![], vec![]);
    for (kind, yes) in &yes {
        let no = no.get(kind).map(Vec::as_slice).unwrap_or_default();
        let n = yes.len().min(no.len());
        kept_yes.extend(draw(yes, n));
        kept_no.extend(draw(no, n));
    }
    let read: BTreeSet<At> = [&starts, &random, &kept_no].into_iter().flatten().copied().collect();
    let read = Vec::from_iter(read);
    let set = |yes: &[At], no: &[At]| {
        let mut rows: Vec<(At, bool)> = yes.iter().map(|&at| (at, true)).collect();
        rows.extend(no.iter().map(|&at| (at, false)));
        rows.sort_unstable();
        let mut set = Set::default();
        for (at, label) in rows {
            // Every row was added to `read` above.
            set.rows.push(read.partition_point(|r| *r < at));
            set.labels.push(label);
            set.groups.push(at.0);
            set.tokens.push(token(&at));
        }
        set
    };
    let (paper, grouped) = (set(&starts, &random), set(&kept_yes, &kept_no));
    Positions { paper, grouped, negatives, prevalence, all: read }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latent::Sequence;
    use crate::study::staging::Solution;

    /// Four problems, each `a = 3 + 4 = 2 ; b = <swi> ⟨2 latents⟩ </swi> ; c = 1 + 1 = 2` after a prompt of two: 10 is `=`.
    fn staged(named_clauses: bool) -> StagedSolutions {
        let ids = [1, 2, 20, 10, 3, 11, 4, 10, 2, 12, 21, 10, 90, 92, 92, 91, 12, 22, 10, 1, 11, 1, 10, 2];
        let sequence = |row| Sequence::new(row, ids.to_vec(), 2, Some(92)).expect("a row");
        let block = 12..15;
        let solution = Solution { prompt: 2, boundaries: vec![11], blocks: vec![block], clause_starts: vec![3, 18] };
        StagedSolutions { sequences: (0..4).map(sequence).collect(), solutions: vec![solution; 4], named_clauses }
    }

    /// Positions of the grouped protocol's negatives.
    fn negatives(chosen: &Positions) -> Vec<usize> {
        let rows = chosen.grouped.rows.iter().zip(&chosen.grouped.labels);
        rows.filter(|(_, yes)| !**yes).map(|(&row, _)| chosen.all[row].1).collect()
    }

    #[test]
    fn negatives_of_the_same_type_begin_an_untagged_clause() {
        for (seed, matched) in (0..20).flat_map(|seed| [(seed, NegativeScope::Problem), (seed, NegativeScope::Corpus)])
        {
            let chosen = choose(&staged(true), seed, 1000, matched);
            let found = negatives(&chosen);
            assert_eq!((found.len(), chosen.grouped.rows.len(), chosen.negatives), (4, 8, Negatives::ClauseStart));
            assert!(found.iter().all(|at| [3, 18].contains(at)), "the `=` of a result is no look-alike: {found:?}");
            assert!((chosen.prevalence - 1.0 / 3.0).abs() < 1e-12);
        }
    }

    #[test]
    fn without_named_clauses_they_are_of_the_same_type_only() {
        let found: BTreeSet<usize> =
            (0..20).flat_map(|seed| negatives(&choose(&staged(false), seed, 1000, NegativeScope::Problem))).collect();
        assert_eq!(found, BTreeSet::from([3, 7, 18, 22]));
    }
}
