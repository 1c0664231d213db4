//! `graph`: which of two nodes can be reached? The shape of ProsQA, on 10–16 nodes and 2–4 hops.
//!
//! Question `c > d ; a > c ; … ; ? a > d or k :`, solution `a > c ; c > d ; # d`. The known value after hop j is the
//! breadth-first frontier: all nodes at distance j from the root, of which this solution names one. With `told = "frontier"`
//! the solution names all of them, `c m ; d q x ; # d`: then no hop has to know which of its nodes leads to a candidate,
//! and the state of a clause has to represent a set.
//! Level 1: 2 hops, 10–13 nodes; 2: 2 hops, 14–16; 3: 3 hops, 10–13; 4: 3 hops, 14–16; 5: 4 hops, 10–16. The setting `nodes`
//! replaces the numbers of nodes.
//!
//! A graph has two halves, each with a root. From the question's root only its own half is reachable, where each node is at
//! a chosen distance; the false candidate is in the other half, at the same depth below its root as the true one. Edges
//! lead from the other half into this one, above the candidates' depth, so that neither depth nor degree reveals the answer.
//! The split hash does not change under renaming (Weisfeiler–Lehman colours), so equal graphs never straddle splits.

use anyhow::{Result, ensure};
use rand::Rng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::draw::{Pen, distinct, mix, vocabulary};
use super::{Fact, Levels, PlanText, Split, TaskFamily, TaskPlan};

const LETTERS: [&str; 26] = [
    "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s", "t", "u", "v", "w",
    "x", "y", "z",
];

settings! {
    /// Settings of the family.
    pub struct Graph {
        pub levels: Levels = Levels::ALL,
        /// Share of rows with up to one extra edge a node (subject `dense`) instead of one for every three (`sparse`).
        pub dense_probability: f64 = 0.5,
        pub told: Told = Told::default(),
        /// Nodes of every graph, instead of the level's.
        pub nodes: Option<Nodes> = None,
        /// Letters that nodes are named with.
        pub letters: u32 = 26,
    }
}

/// Inclusive range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nodes {
    pub min: u32,
    pub max: u32,
}

/// Hops of a level, and its nodes.
fn size(level: u8) -> (u32, Nodes) {
    match level {
        1 => (2, Nodes { min: 10, max: 13 }),
        2 => (2, Nodes { min: 14, max: 16 }),
        3 => (3, Nodes { min: 10, max: 13 }),
        4 => (3, Nodes { min: 14, max: 16 }),
        _ => (4, Nodes { min: 10, max: 16 }),
    }
}

/// Form of a hop in the solution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Told {
    /// The edge that leads to the answer: `a > c`.
    #[default]
    Path,
    /// All nodes at this distance, in the order of their letters: `c m`.
    Frontier,
}

/// A problem without names. The nodes of both halves are numbered together; `path` leads from the question's root to the
/// true candidate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub nodes: u32,
    pub edges: Vec<(u32, u32)>,
    pub path: Vec<u32>,
    pub negative: u32,
}

impl Plan {
    /// Breadth-first search: the nodes at each distance 1, 2, … from the root, up to the answer's.
    fn frontiers(&self) -> Vec<NodeSet> {
        let (mut seen, mut frontier): (NodeSet, NodeSet) = (1 << self.path[0], 1 << self.path[0]);
        let mut frontiers = Vec::with_capacity(self.path.len() - 1);
        for _ in 1..self.path.len() {
            let leaving = self.edges.iter().filter(|(from, _)| frontier >> from & 1 == 1);
            frontier = leaving.fold(0, |reached, (_, to)| reached | 1 << to) & !seen;
            seen |= frontier;
            frontiers.push(frontier);
        }
        frontiers
    }
}

/// The root of a question, and its edges (from, to).
pub(crate) fn edges(question: &str) -> Option<(&str, Vec<(&str, &str)>)> {
    let (stated, asked) = question.split_once('?')?;
    let edge = |text| match str::split_whitespace(text).collect::<Vec<_>>()[..] {
        [from, ">", to] => Some((from, to)),
        _ => None,
    };
    Some((asked.split_whitespace().next()?, stated.split(';').filter_map(edge).collect()))
}

/// A set of nodes, one bit each: there are at most 16.
type NodeSet = u16;

fn members(set: NodeSet) -> impl Iterator<Item = u32> {
    (0..NodeSet::BITS).filter(move |node| set >> node & 1 == 1)
}

/// A random node of a non-empty set.
fn one_of(rng: &mut ChaCha8Rng, set: NodeSet) -> u32 {
    let skipped = rng.random_range(0..set.count_ones());
    let rest = (0..skipped).fold(set, |set, _| set & (set - 1));
    rest.trailing_zeros()
}

impl Graph {
    fn names(&self) -> &'static [&'static str] {
        &LETTERS[..LETTERS.len().min(self.letters as usize)]
    }
}

impl TaskFamily for Graph {
    const NAME: &'static str = "graph";
    const NUMBERS: bool = false;
    type Plan = Plan;

    fn check(&self) -> Result<()> {
        let p = self.dense_probability;
        ensure!((0.0..=1.0).contains(&p), "graph.dense_probability: expected 0..=1, found {p}");
        self.levels.check()?;
        if let Some(Nodes { min, max }) = self.nodes {
            // Two halves, each with a node at every depth.
            let least = 2 * (1 + (self.levels.min..=self.levels.max).map(|level| size(level).0).max().unwrap_or(0));
            ensure!(
                least <= min && min <= max && max <= NodeSet::BITS,
                "graph.nodes: levels {} to {} need {least} <= min <= max <= {}, found min = {min}, max = {max}",
                self.levels.min,
                self.levels.max,
                NodeSet::BITS
            );
        }
        let (most, all) = (self.nodes.map_or(NodeSet::BITS, |nodes| nodes.max), LETTERS.len() as u32);
        ensure!((most..=all).contains(&self.letters), "graph.letters: expected {most}..={all}, found {}", self.letters);
        Ok(())
    }

    fn levels(&self) -> Levels {
        self.levels
    }

    fn words(&self) -> Vec<String> {
        vocabulary(&[">", ";", "?", "or", ":", "#"], self.names(), 0)
    }

    fn subject(&self, rng: &mut ChaCha8Rng, _split: Split) -> &'static str {
        if rng.random_bool(self.dense_probability) { "dense" } else { "sparse" }
    }

    fn plan(&self, rng: &mut ChaCha8Rng, subject: &'static str, level: u8) -> Plan {
        let (hops, nodes) = size(level);
        let Nodes { min, max } = self.nodes.unwrap_or(nodes);
        let count: u32 = rng.random_range(min..=max);
        let hops = hops as usize;
        // stands[half][depth]: node d of each half, d = 0..=hops, ensures that depth d exists; other nodes are at any depth below a root.
        let mut place = [(0, 0); 16];
        let mut stands = [[0 as NodeSet; 6]; 2];
        for (node, place) in place.iter_mut().enumerate().take(count as usize) {
            let mut below = |end: u32| rng.random_range(0..end) as usize;
            let (half, depth) = match node {
                node if node <= hops => (0, node),
                node if node <= 2 * hops + 1 => (1, node - hops - 1),
                _ => (below(2), 1 + below(hops as u32 + 1)),
            };
            *place = (half, depth);
            stands[half][depth] |= 1 << node;
        }

        let mut edges = GraphEdges { list: Vec::with_capacity(2 * count as usize), seen: [0; 16] };
        let mut parents = [0; 16];
        for child in 0..count {
            let (half, depth) = place[child as usize];
            if depth > 0 {
                parents[child as usize] = one_of(rng, stands[half][depth - 1]);
                edges.add(parents[child as usize], child);
            }
        }
        // Edges between the halves neither enter nor leave a candidate: its degree would reveal its half.
        let elsewhere = (0..stands[1].len()).filter(|depth| *depth != hops);
        let others = elsewhere.fold(0, |set, depth| set | stands[1][depth]);
        for _ in 0..if subject == "dense" { count } else { count / 3 } {
            let child = rng.random_range(0..count);
            let (half, depth) = place[child as usize];
            if depth == 0 {
                continue;
            }
            let across = half == 0 && depth < hops && rng.random_bool(0.5);
            let parent = one_of(rng, if across { others } else { stands[half][depth - 1] });
            edges.add(parent, child);
        }

        let mut path = vec![0; hops + 1];
        path[hops] = one_of(rng, stands[0][hops]);
        for hop in (0..hops).rev() {
            path[hop] = parents[path[hop + 1] as usize];
        }
        Plan { nodes: count, edges: edges.list, path, negative: one_of(rng, stands[1][hops]) }
    }

    fn write(&self, rng: &mut ChaCha8Rng, plan: &Plan, _subject: &str) -> PlanText {
        let names = distinct(rng, self.names(), plan.nodes as usize);
        let name = |node: u32| names[node as usize];
        let mut order = plan.edges.clone();
        order.shuffle(rng);
        let (root, target) = (plan.path[0], plan.path[plan.path.len() - 1]);
        let mut candidates = [target, plan.negative];
        candidates.shuffle(rng);

        let mut question = Pen::default();
        for (from, to) in order {
            question.words(&[name(from), ">", name(to), ";"]);
        }
        question.words(&["?", name(root), ">", name(candidates[0]), "or", name(candidates[1]), ":"]);

        let mut solution = Pen::default();
        let mut steps = Vec::with_capacity(plan.path.len() - 1);
        for (hop, frontier) in plan.path.windows(2).zip(plan.frontiers()) {
            let mut known: Vec<String> = members(frontier).map(|node| name(node).to_string()).collect();
            known.sort();
            let clause = solution.mark();
            let reached = match self.told {
                Told::Path => {
                    solution.words(&[name(hop[0]), ">"]);
                    let reached = solution.mark();
                    solution.word(name(hop[1]));
                    reached
                }
                Told::Frontier => {
                    known.iter().for_each(|name| solution.word(name));
                    clause
                }
            };
            steps.push(solution.step(clause, reached, Fact::Set(known)));
            solution.word(";");
        }
        PlanText::new(question, solution, name(target).to_string(), steps)
    }
}

impl TaskPlan for Plan {
    fn structure(&self) -> u64 {
        let nodes = self.nodes as usize;
        let mut colours = [4u64; NodeSet::BITS as usize];
        for (role, node) in [self.path[0], self.path[self.path.len() - 1], self.negative].into_iter().enumerate() {
            colours[node as usize] = role as u64 + 1;
        }
        for _ in 0..3 {
            let mut next = colours.map(mix);
            let seen_from_above = colours.map(|colour| mix(colour ^ 0x9e37_79b9_7f4a_7c15));
            let seen_from_below = colours.map(|colour| mix(colour ^ 0xd1b5_4a32_d192_ed03));
            for &(from, to) in &self.edges {
                let (from, to) = (from as usize, to as usize);
                // Sums do not depend on the order of neighbours; the constants distinguish out-edges from in-edges.
                next[from] = next[from].wrapping_add(seen_from_above[to]);
                next[to] = next[to].wrapping_add(seen_from_below[from]);
            }
            colours = next;
        }
        mix(colours[..nodes].iter().fold(0u64, |sum, &colour| sum.wrapping_add(mix(colour))))
    }

    fn answer_if(&self, _step: usize, _value: i64) -> Option<String> {
        None
    }
}

/// Edges in the order they were added, each once.
struct GraphEdges {
    list: Vec<(u32, u32)>,
    seen: [NodeSet; 16],
}

impl GraphEdges {
    fn add(&mut self, from: u32, to: u32) {
        let seen = &mut self.seen[from as usize];
        if *seen >> to & 1 == 0 {
            *seen |= 1 << to;
            self.list.push((from, to));
        }
    }
}
