//! Which positions a probe for the switch is fitted on. Knows ids and places, not features.

use std::collections::{BTreeMap, BTreeSet};

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::Matched;
use crate::schema::Event;
use crate::study::staging::{Place, Staged, places};

/// A position is (problem, position).
type At = (usize, usize);

/// The rows of both protocols. Everything is sorted by position, without repetition.
pub struct Positions {
    /// Every position that any protocol reads.
    pub all: Vec<At>,
    pub paper: Set,
    pub grouped: Set,
    /// Share of boundaries among positions of the token types that boundaries stand on.
    pub prevalence: f64,
}

/// The rows of one protocol, as indices into [`Positions::all`].
#[derive(Default)]
pub struct Set {
    pub rows: Vec<usize>,
    pub labels: Vec<bool>,
    pub problems: Vec<usize>,
    pub tokens: Vec<u32>,
}

/// Boundaries and negatives: as many random ones (paper), and ones of the same token types (grouped). Of every type as
/// many positives as negatives are kept, so that the type says nothing about the label; `matched` says among which
/// positions. At most `max` positions in all.
pub fn choose(staged: &Staged, seed: u64, max: usize, matched: Matched) -> Positions {
    let mut all = places(staged, seed);
    let of = |all: &[Place], event| -> Vec<At> {
        all.iter().filter(|p| p.event == event).map(|p| (p.problem, p.position)).collect()
    };
    // Boundaries, as many random negatives, at most as many matched ones: three rows a boundary.
    let starts = of(&all, Event::SwiStart);
    if let Some(&(first_left_out, _)) = starts.get(max / 3) {
        all.retain(|p| p.problem < first_left_out);
    }
    let starts = of(&all, Event::SwiStart);
    let token = |&(problem, position): &At| staged.sequences[problem].ids[position];
    let mut plain = of(&all, Event::SameToken);
    plain.extend(of(&all, Event::Other));
    plain.sort_unstable();

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
        let among = |at: &At| (matched == Matched::Problem).then_some(at.0);
        places.iter().for_each(|at| kinds.entry((token(at), among(at))).or_default().push(*at));
        kinds
    };
    let (yes, no) = (by_kind(&starts), by_kind(&plain));
    let types: BTreeSet<u32> = starts.iter().map(token).collect();
    let same_type = starts.len() + plain.iter().filter(|at| types.contains(&token(at))).count();
    let (mut kept_yes, mut kept_no) = (vec![], vec![]);
    for (kind, yes) in &yes {
        let no = no.get(kind).map(Vec::as_slice).unwrap_or_default();
        let n = yes.len().min(no.len());
        kept_yes.extend(draw(yes, n));
        kept_no.extend(draw(no, n));
    }
    let mut read: Vec<At> = [&starts, &random, &kept_no].into_iter().flatten().copied().collect();
    read.sort_unstable();
    read.dedup();
    let set = |yes: &[At], no: &[At]| {
        let mut rows: Vec<(At, bool)> = yes.iter().map(|&at| (at, true)).collect();
        rows.extend(no.iter().map(|&at| (at, false)));
        rows.sort_unstable();
        let mut set = Set::default();
        for (at, label) in rows {
            // Every row was put into `read` above.
            set.rows.push(read.partition_point(|r| *r < at));
            set.labels.push(label);
            set.problems.push(at.0);
            set.tokens.push(token(&at));
        }
        set
    };
    let (paper, grouped) = (set(&starts, &random), set(&kept_yes, &kept_no));
    Positions { paper, grouped, prevalence: starts.len() as f64 / same_type as f64, all: read }
}
