//! `affine`: chains of maps x → a·x + b mod m in shuffled statements, so that each hop is retrieval plus arithmetic.
//!
//! Question `c = 3 * b + 1 ; a = 5 ; b = 2 * a + 4 ; ? c :`, solution `b = 2 * 5 + 4 = 0 ; c = 3 * 0 + 1 = 1 ; # 1`.
//! Level = number of hops. Subject `chain` states the path alone; `branch` adds as many distractors, which branch off the
//! path. `a` is a unit of the ring and at least 2, so no hop forgets its input, and adjacent hops never commute, so their
//! order matters. The split hashes start value and maps, not names, order or branches.

use anyhow::{Result, ensure};
use rand::Rng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::draw::{Pen, distinct, stable_hash, vocabulary};
use super::{Fact, Levels, PlanText, Split, TaskFamily, TaskPlan};

const LETTERS: [&str; 12] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];

settings! {
    /// Settings of the family.
    pub struct Affine {
        pub modulus: u32 = 7,
        pub levels: Levels = Levels::ALL,
        /// Share of rows with statements that lead nowhere.
        pub branch_probability: f64 = 0.5,
    }
}

/// x → factor · x + shift.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Map {
    pub factor: u32,
    pub shift: u32,
}

impl Map {
    fn apply(self, x: i64, modulus: i64) -> i64 {
        (i64::from(self.factor) * x + i64::from(self.shift)) % modulus
    }

    fn commutes(self, other: Map, modulus: u32) -> bool {
        // f(g(x)) and g(f(x)) have the same factor: compare their values at 0.
        (self.factor * other.shift + self.shift) % modulus == (other.factor * self.shift + other.shift) % modulus
    }
}

/// A problem without letters and order of statements. A branch applies its map to variable `from` (0 = the start value).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub modulus: u32,
    pub start: u32,
    pub hops: Vec<Map>,
    pub branches: Vec<(u32, Map)>,
}

impl Plan {
    fn values(&self, forced: Option<(usize, i64)>) -> Vec<i64> {
        let mut values = vec![i64::from(self.start)];
        for (index, map) in self.hops.iter().enumerate() {
            values.push(match forced {
                Some((step, value)) if step == index => value,
                _ => map.apply(values[index], i64::from(self.modulus)),
            });
        }
        values
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Affine {
    fn map(&self, rng: &mut ChaCha8Rng) -> Map {
        loop {
            let factor = rng.random_range(2..self.modulus);
            if gcd(factor, self.modulus) == 1 {
                return Map { factor, shift: rng.random_range(1..self.modulus) };
            }
        }
    }
}

impl TaskFamily for Affine {
    const NAME: &'static str = "affine";
    type Plan = Plan;

    fn check(&self) -> Result<()> {
        // With a modulus of at least 5, every map has another that does not commute with it.
        ensure!((5..=100).contains(&self.modulus), "affine.modulus: expected 5..=100, found {}", self.modulus);
        let p = self.branch_probability;
        ensure!((0.0..=1.0).contains(&p), "affine.branch_probability: expected 0..=1, found {p}");
        self.levels.check()
    }

    fn levels(&self) -> Levels {
        self.levels
    }

    fn words(&self) -> Vec<String> {
        vocabulary(&["=", ";", "?", ":", "#", "+", "*"], &LETTERS, self.modulus)
    }

    fn subject(&self, rng: &mut ChaCha8Rng, _split: Split) -> &'static str {
        if rng.random_bool(self.branch_probability) { "branch" } else { "chain" }
    }

    fn plan(&self, rng: &mut ChaCha8Rng, subject: &'static str, level: u8) -> Plan {
        let start = rng.random_range(0..self.modulus);
        let mut hops: Vec<Map> = Vec::with_capacity(level.into());
        while hops.len() < level.into() {
            let map = self.map(rng);
            if hops.last().is_none_or(|before| !before.commutes(map, self.modulus)) {
                hops.push(map);
            }
        }
        let count = if subject == "branch" { level } else { 0 };
        let branches = (0..count).map(|_| (rng.random_range(0..u32::from(level)), self.map(rng))).collect();
        Plan { modulus: self.modulus, start, hops, branches }
    }

    fn write(&self, rng: &mut ChaCha8Rng, plan: &Plan, _subject: &str) -> PlanText {
        let path = plan.hops.len() + 1;
        let names = distinct(rng, &LETTERS, path + plan.branches.len());
        // A statement is its variable, and the variable and map that define it (none for the start value).
        let mut statements = vec![(0, None)];
        statements.extend(plan.hops.iter().enumerate().map(|(i, &map)| (i + 1, Some((i, map)))));
        let branches = plan.branches.iter().enumerate();
        statements.extend(branches.map(|(i, &(from, map))| (path + i, Some((from as usize, map)))));
        statements.shuffle(rng);

        let mut question = Pen::default();
        for (name, definition) in statements {
            question.words(&[names[name], "="]);
            match definition {
                None => question.number(i64::from(plan.start)),
                Some((from, map)) => {
                    question.number(i64::from(map.factor));
                    question.words(&["*", names[from], "+"]);
                    question.number(i64::from(map.shift));
                }
            }
            question.word(";");
        }
        question.words(&["?", names[path - 1], ":"]);

        let values = plan.values(None);
        let mut solution = Pen::default();
        let mut steps = Vec::with_capacity(plan.hops.len());
        for (index, map) in plan.hops.iter().enumerate() {
            solution.words(&[names[index + 1], "="]);
            let clause = solution.mark();
            solution.number(i64::from(map.factor));
            solution.word("*");
            solution.number(values[index]);
            solution.word("+");
            solution.number(i64::from(map.shift));
            solution.word("=");
            let result = solution.mark();
            solution.number(values[index + 1]);
            steps.push(solution.step(clause, result, Fact::Number(values[index + 1])));
            solution.word(";");
        }
        PlanText::new(question, solution, values[path - 1].to_string(), steps)
    }

    fn starts(&self) -> u32 {
        self.modulus
    }
}

impl TaskPlan for Plan {
    fn structure(&self) -> u64 {
        let hops = self.hops.iter().flat_map(|map| [map.factor as u8, map.shift as u8]);
        stable_hash(std::iter::once(self.start as u8).chain(hops))
    }

    fn answer_if(&self, step: usize, value: i64) -> Option<String> {
        let holds = step < self.hops.len() && (0..i64::from(self.modulus)).contains(&value);
        holds.then(|| self.values(Some((step, value)))[self.hops.len()].to_string())
    }

    fn operand(&self, step: usize) -> Option<i64> {
        (step < self.hops.len()).then(|| self.values(None)[step])
    }

    fn apply(&self, step: usize, operand: i64) -> Option<i64> {
        let (map, modulus) = (self.hops.get(step)?, i64::from(self.modulus));
        (0..modulus).contains(&operand).then(|| map.apply(operand, modulus))
    }

    fn with_start(&self, start: u32) -> Option<Self> {
        Some(Self { start, ..self.clone() })
    }
}
