//! `sums`: running sums mod m of rows of digits; with m = 2, the default, the parity of a string of bits.
//!
//! Question `c = 1 0 1 1 0 ; f = 0 1 1 0 1 ; ? :`, solution `c = 1 1 0 1 1 ; f = 1 0 1 1 0 ; # 0`: each digit is replaced by the
//! sum of all digits so far. Level = number of rows. The text has one token per digit; the next row needs only the last token
//! of this one, so one latent state per row suffices.
//!
//! The split hashes the digits in order, not the letters. **Level 1 is small**: five bits give 32 programs, 4 of them in the
//! test split.

use anyhow::{Result, ensure};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::draw::{Pen, distinct, stable_hash, vocabulary};
use super::{Fact, Levels, PlanText, Split, TaskFamily, TaskPlan};

const LETTERS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

settings! {
    /// Settings of the family.
    pub struct Sums {
        /// Digits are 0..modulus, one word each.
        pub modulus: u32 = 2,
        /// Digits of a row.
        pub row: u32 = 5,
        pub levels: Levels = Levels::ALL,
    }
}

/// A problem without letters: rows of digits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub modulus: u32,
    pub rows: Vec<Vec<u32>>,
}

impl Plan {
    fn reduced(&self, sum: i64) -> i64 {
        sum.rem_euclid(i64::from(self.modulus))
    }

    /// The sum of a row.
    fn total(&self, row: &[u32]) -> i64 {
        self.reduced(row.iter().map(|digit| i64::from(*digit)).sum())
    }

    /// The sum before this row.
    fn before(&self, row: usize) -> i64 {
        self.reduced(self.rows[..row].iter().map(|row| self.total(row)).sum())
    }

    fn holds(&self, value: i64) -> bool {
        (0..i64::from(self.modulus)).contains(&value)
    }
}

impl TaskFamily for Sums {
    const NAME: &'static str = "sums";
    type Plan = Plan;

    fn check(&self) -> Result<()> {
        ensure!((2..=100).contains(&self.modulus), "sums.modulus: expected 2..=100, found {}", self.modulus);
        // Four bits give 16 programs at level 1: with fewer a split would be empty.
        ensure!((4..=32).contains(&self.row), "sums.row: expected 4..=32 digits, found {}", self.row);
        self.levels.check()
    }

    fn levels(&self) -> Levels {
        self.levels
    }

    fn words(&self) -> Vec<String> {
        vocabulary(&["=", ";", "?", ":", "#"], &LETTERS, self.modulus)
    }

    fn subject(&self, _rng: &mut ChaCha8Rng, _split: Split) -> &'static str {
        if self.modulus == 2 { "parity" } else { "sum" }
    }

    fn plan(&self, rng: &mut ChaCha8Rng, _subject: &'static str, level: u8) -> Plan {
        let row = |_| (0..self.row).map(|_| rng.random_range(0..self.modulus)).collect();
        Plan { modulus: self.modulus, rows: (0..level).map(row).collect() }
    }

    fn write(&self, rng: &mut ChaCha8Rng, plan: &Plan, _subject: &str) -> PlanText {
        let names = distinct(rng, &LETTERS, plan.rows.len());
        let (mut question, mut solution) = (Pen::default(), Pen::default());
        let mut steps = Vec::with_capacity(plan.rows.len());
        let mut sum = 0;
        for (row, name) in plan.rows.iter().zip(names) {
            question.words(&[name, "="]);
            solution.words(&[name, "="]);
            let clause = solution.mark();
            let mut last = clause;
            for &digit in row {
                question.number(digit.into());
                sum = plan.reduced(sum + i64::from(digit));
                last = solution.mark();
                solution.number(sum);
            }
            steps.push(solution.step(clause, last, Fact::Number(sum)));
            question.word(";");
            solution.word(";");
        }
        question.words(&["?", ":"]);
        PlanText::new(question, solution, sum.to_string(), steps)
    }

    fn starts(&self) -> u32 {
        self.modulus
    }
}

impl TaskPlan for Plan {
    fn structure(&self) -> u64 {
        stable_hash(self.rows.iter().flatten().map(|&digit| digit as u8))
    }

    fn answer_if(&self, step: usize, value: i64) -> Option<String> {
        let rest = self.rows.get(step + 1..).filter(|_| step < self.rows.len() && self.holds(value))?;
        Some(self.reduced(value + rest.iter().map(|row| self.total(row)).sum::<i64>()).to_string())
    }

    fn operand(&self, step: usize) -> Option<i64> {
        (step < self.rows.len()).then(|| self.before(step))
    }

    fn apply(&self, step: usize, operand: i64) -> Option<i64> {
        let row = self.rows.get(step).filter(|_| self.holds(operand))?;
        Some(self.reduced(operand + self.total(row)))
    }

    /// The first digit is the start value.
    fn with_start(&self, start: u32) -> Option<Self> {
        let mut other = self.clone();
        *other.rows.first_mut()?.first_mut()? = start;
        Some(other)
    }
}
