//! `multiply`: n-digit times n-digit numbers with the long-multiplication scratchpad (iCoT's task).
//!
//! Numbers are written digit by digit, least significant first, as iCoT does. Question `2 1 * 3 4 :` requests
//! 12 times 43; its solution is `6 3 0 0 ; + 0 8 4 0 = 6 1 5 0 ; # 6 1 5 0`. Step j adds
//! the partial product of the right factor's digit j; its value is the running sum, which all later steps need.
//! Every product and sum is padded to 2n digits. Level = n. The answer has the digits in the same order, with spaces.
//!
//! The split hashes the unordered pair of factors: a·b and b·a are in the same split. Level 1 has only 45 pairs, a handful
//! of them in the test split.

use anyhow::Result;
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::draw::{Pen, stable_hash, vocabulary};
use super::{Fact, Levels, PlanText, Split, TaskFamily, TaskPlan};

settings! {
    /// Settings of the family.
    pub struct Multiply {
        /// Digits of each factor.
        pub levels: Levels = Levels::ALL,
    }
}

/// The two factors, both of `digits` digits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub digits: u32,
    pub left: i64,
    pub right: i64,
}

impl Plan {
    fn partial(&self, step: u32) -> i64 {
        let place = 10i64.pow(step);
        self.left * (self.right / place % 10) * place
    }

    fn width(&self) -> u32 {
        2 * self.digits
    }
}

/// Writes `value` least significant digit first.
fn digits(pen: &mut Pen, mut value: i64, width: u32) {
    for _ in 0..width {
        pen.number(value % 10);
        value /= 10;
    }
}

fn spelled(value: i64, width: u32) -> String {
    let mut pen = Pen::default();
    digits(&mut pen, value, width);
    pen.finish()
}

impl TaskFamily for Multiply {
    const NAME: &'static str = "multiply";
    type Plan = Plan;

    fn check(&self) -> Result<()> {
        self.levels.check()
    }

    fn levels(&self) -> Levels {
        self.levels
    }

    fn words(&self) -> Vec<String> {
        vocabulary(&["*", ":", ";", "+", "=", "#"], &[], 10)
    }

    /// Nothing is drawn: the level alone determines the problem.
    fn subject(&self, _rng: &mut ChaCha8Rng, _split: Split) -> &'static str {
        "multiply"
    }

    fn plan(&self, rng: &mut ChaCha8Rng, _subject: &'static str, level: u8) -> Plan {
        let digits = u32::from(level);
        let range = 10i64.pow(digits - 1)..10i64.pow(digits);
        Plan { digits, left: rng.random_range(range.clone()), right: rng.random_range(range) }
    }

    fn write(&self, _rng: &mut ChaCha8Rng, plan: &Plan, _subject: &str) -> PlanText {
        let mut question = Pen::default();
        digits(&mut question, plan.left, plan.digits);
        question.word("*");
        digits(&mut question, plan.right, plan.digits);
        question.word(":");

        let mut solution = Pen::default();
        let mut steps = Vec::with_capacity(plan.digits as usize);
        let mut sum = 0;
        for step in 0..plan.digits {
            sum += plan.partial(step);
            let clause = solution.mark();
            if step > 0 {
                solution.word("+");
                digits(&mut solution, plan.partial(step), plan.width());
                solution.word("=");
            }
            let value = solution.mark();
            digits(&mut solution, sum, plan.width());
            steps.push(solution.step(clause, value, Fact::Number(sum)));
            solution.word(";");
        }
        PlanText::new(question, solution, spelled(sum, plan.width()), steps)
    }
}

impl TaskPlan for Plan {
    fn structure(&self) -> u64 {
        let (low, high) = (self.left.min(self.right), self.left.max(self.right));
        stable_hash(low.to_le_bytes().into_iter().chain(high.to_le_bytes()))
    }

    /// `None` if the product would exceed its digits.
    fn answer_if(&self, step: usize, value: i64) -> Option<String> {
        let step = u32::try_from(step).ok().filter(|step| *step < self.digits)?;
        let rest: i64 = (step + 1..self.digits).map(|later| self.partial(later)).sum();
        let product = value.checked_add(rest)?;
        let fits = value >= 0 && product < 10i64.pow(self.width());
        fits.then(|| spelled(product, self.width()))
    }

    /// The running sum before this step; the first step has none.
    fn operand(&self, step: usize) -> Option<i64> {
        let step = u32::try_from(step).ok().filter(|step| (1..self.digits).contains(step))?;
        Some((0..step).map(|before| self.partial(before)).sum())
    }

    /// `None` if the sum would exceed its digits.
    fn apply(&self, step: usize, operand: i64) -> Option<i64> {
        let step = u32::try_from(step).ok().filter(|step| (1..self.digits).contains(step))?;
        let sum = operand.checked_add(self.partial(step))?;
        (operand >= 0 && sum < 10i64.pow(self.width())).then_some(sum)
    }
}
