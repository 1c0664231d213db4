//! `graph`: which of two nodes can be reached? The shape of ProsQA, on 10–16 nodes and 2–4 hops.
//!
//! Question `c > d ; a > c ; … ; ? a > d or k :`, solution `a > c ; c > d ; # d`. What is known after hop j is the
//! breadth-first frontier: every node at distance j from the root, which is more than the one the solution names.
//! Level 1: 2 hops, 10–13 nodes; 2: 2 hops, 14–16; 3: 3 hops, 10–13; 4: 3 hops, 14–16; 5: 4 hops, 10–16.
//!
//! How a graph is made: two rooted halves. The question's root sees only its own half, where each node stands at a
//! chosen distance; the false candidate stands in the other half, at the same depth below its own root as the true one,
//! so that neither its in-degree nor its depth gives it away. Edges from the other half into this one are allowed.
//! The split hash does not change under renaming (Weisfeiler–Lehman colours), so equal graphs never straddle splits.

use anyhow::{Result, ensure};
use rand::Rng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::draw::{Pen, distinct, mix};
use super::{Family, Known, Levels, Program, Split, Written};

const LETTERS: [&str; 26] = [
    "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s",
    "t", "u", "v", "w", "x", "y", "z",
];

/// Settings of the family.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Graph {
    pub levels: Levels,
    /// Share of rows with about one extra edge a node (subject `dense`) instead of one for every two (`sparse`).
    pub dense_probability: f64,
}

impl Default for Graph {
    fn default() -> Self {
        Graph {
            levels: Levels::ALL,
            dense_probability: 0.5,
        }
    }
}

/// A problem without its names. The halves' nodes are numbered together; `path[0]` is the root of the question, its last
/// node the true candidate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub nodes: u32,
    pub edges: Vec<(u32, u32)>,
    pub path: Vec<u32>,
    pub negative: u32,
    /// Nodes at distance 1, 2, … from the root, as far as the answer.
    pub frontiers: Vec<Vec<u32>>,
}

/// A node while the graph is drawn.
#[derive(Clone, Copy)]
struct Node {
    ours: bool,
    depth: u32,
}

impl Family for Graph {
    const NAME: &'static str = "graph";
    type Plan = Plan;

    fn check(&self) -> Result<()> {
        let p = self.dense_probability;
        ensure!(
            (0.0..=1.0).contains(&p),
            "graph.dense_probability: expected 0..=1, found {p}"
        );
        self.levels.check()
    }

    fn levels(&self) -> Levels {
        self.levels
    }

    fn words(&self) -> Vec<String> {
        let marks = [">", ";", "?", "or", ":", "#"];
        marks
            .iter()
            .chain(&LETTERS)
            .map(|word| word.to_string())
            .collect()
    }

    fn subject(&self, rng: &mut ChaCha8Rng, _split: Split) -> &'static str {
        if rng.random_bool(self.dense_probability) {
            "dense"
        } else {
            "sparse"
        }
    }

    fn plan(&self, rng: &mut ChaCha8Rng, subject: &'static str, level: u8) -> Plan {
        let (hops, count) = match level {
            1 => (2, 10..=13),
            2 => (2, 14..=16),
            3 => (3, 10..=13),
            4 => (3, 14..=16),
            _ => (4, 10..=16),
        };
        let count = rng.random_range(count);
        // Node d of each half, d = 0..=hops, holds depth d open; the rest stand anywhere below a root.
        let mut nodes: Vec<Node> = [true, false]
            .into_iter()
            .flat_map(|ours| (0..=hops).map(move |depth| Node { ours, depth }))
            .collect();
        while nodes.len() < count as usize {
            nodes.push(Node {
                ours: rng.random_bool(0.5),
                depth: rng.random_range(1..=hops + 1),
            });
        }

        let mut edges = Edges::default();
        let mut parents = vec![0; nodes.len()];
        for (child, node) in nodes.iter().enumerate().filter(|(_, node)| node.depth > 0) {
            let above = |other: &Node| other.ours == node.ours && other.depth + 1 == node.depth;
            let candidates = nodes.iter().filter(|other| above(other)).count() as u32;
            let chosen = rng.random_range(0..candidates) as usize;
            let parent = nodes
                .iter()
                .enumerate()
                .filter(|(_, other)| above(other))
                .nth(chosen);
            parents[child] = parent.map_or(0, |(index, _)| index);
            edges.add(parents[child], child);
        }
        for _ in 0..if subject == "dense" { count } else { count / 2 } {
            let (from, to) = (
                rng.random_range(0..count) as usize,
                rng.random_range(0..count) as usize,
            );
            let (above, below) = (nodes[from], nodes[to]);
            let inside = above.ours == below.ours && above.depth + 1 == below.depth;
            let across = !above.ours && below.ours && below.depth > 0;
            if inside || across {
                edges.add(from, to);
            }
        }

        let at_depth = |ours: bool, depth: u32| {
            let stands = move |(index, node): (usize, &Node)| {
                (node.ours == ours && node.depth == depth).then_some(index as u32)
            };
            nodes
                .iter()
                .enumerate()
                .filter_map(stands)
                .collect::<Vec<u32>>()
        };
        let frontiers: Vec<Vec<u32>> = (1..=hops).map(|depth| at_depth(true, depth)).collect();
        let (targets, negatives) = (at_depth(true, hops), at_depth(false, hops));
        let mut path = vec![targets[rng.random_range(0..targets.len() as u32) as usize]];
        for _ in 0..hops {
            path.insert(0, parents[path[0] as usize] as u32);
        }
        let negative = negatives[rng.random_range(0..negatives.len() as u32) as usize];
        Plan {
            nodes: count,
            edges: edges.list,
            path,
            negative,
            frontiers,
        }
    }

    fn structure(plan: &Plan) -> u64 {
        let mut colours: Vec<u64> = (0..plan.nodes)
            .map(|node| match node {
                node if node == plan.path[0] => 1,
                node if node == plan.path[plan.path.len() - 1] => 2,
                node if node == plan.negative => 3,
                _ => 4,
            })
            .collect();
        for _ in 0..4 {
            let mut next: Vec<u64> = colours.iter().map(|&colour| mix(colour)).collect();
            for &(from, to) in &plan.edges {
                let (from, to) = (from as usize, to as usize);
                // Sums do not depend on the order of neighbours; the constants tell out-edges from in-edges.
                next[from] = next[from].wrapping_add(mix(colours[to] ^ 0x9e37_79b9_7f4a_7c15));
                next[to] = next[to].wrapping_add(mix(colours[from] ^ 0xd1b5_4a32_d192_ed03));
            }
            colours = next;
        }
        mix(colours
            .iter()
            .fold(0u64, |sum, &colour| sum.wrapping_add(mix(colour))))
    }

    fn write(&self, rng: &mut ChaCha8Rng, plan: &Plan) -> Written {
        let names = distinct(rng, &LETTERS, plan.nodes as usize);
        let name = |node: u32| names[node as usize];
        let mut order = plan.edges.clone();
        order.shuffle(rng);
        let (root, target) = (plan.path[0], plan.path[plan.path.len() - 1]);
        let mut candidates = [target, plan.negative];
        candidates.shuffle(rng);

        let mut question = Pen::default();
        for (from, to) in order {
            for word in [name(from), ">", name(to), ";"] {
                question.word(word);
            }
        }
        for word in [
            "?",
            name(root),
            ">",
            name(candidates[0]),
            "or",
            name(candidates[1]),
            ":",
        ] {
            question.word(word);
        }

        let mut solution = Pen::default();
        let mut steps = Vec::with_capacity(plan.frontiers.len());
        for (hop, frontier) in plan.path.windows(2).zip(&plan.frontiers) {
            let clause = solution.mark();
            solution.word(name(hop[0]));
            solution.word(">");
            let reached = solution.mark();
            solution.word(name(hop[1]));
            let mut known: Vec<String> = frontier
                .iter()
                .map(|&node| name(node).to_string())
                .collect();
            known.sort();
            steps.push(solution.step(clause, reached, Known::Set(known)));
            solution.word(";");
        }
        let mark = solution.mark();
        solution.word("#");
        solution.word(name(target));
        Written {
            answer_words: solution.since(mark),
            question: question.finish(),
            solution: solution.finish(),
            answer: name(target).to_string(),
            steps,
        }
    }

    /// A step holds a set of nodes, not a number: there is nothing to replace it by.
    fn answer_if(_plan: &Plan, _step: usize, _value: i64) -> Option<String> {
        None
    }

    fn program(plan: Plan) -> Program {
        Program::Graph(plan)
    }
}

/// Edges in the order they were added, each once.
#[derive(Default)]
struct Edges {
    list: Vec<(u32, u32)>,
    seen: [u32; 16],
}

impl Edges {
    fn add(&mut self, from: usize, to: usize) {
        if self.seen[from] & (1 << to) == 0 {
            self.seen[from] |= 1 << to;
            self.list.push((from as u32, to as u32));
        }
    }
}
