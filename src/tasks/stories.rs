//! `stories`: chains of arithmetic in English, for pretrained models.
//!
//! Question `Tom has five apples . Ann has three more than Tom . Ben has twice as many as Ann . How many does Ben have ?`,
//! solution `Ann : five plus three is eight . Ben : eight times two is sixteen . # sixteen`. Level = number of steps. Every
//! number from zero to `most` is one English word, and the drawn operations never leave that range.
//!
//! The first operand of a step is the previous person's number; in subject `together` the second operand of a sum may be
//! another person's. Training has the subjects `compare`, `story` and `together`. Validation and test have two more:
//! `reworded` (other sentences) and `renamed` (the sentences of `compare`, with other names and things).
//!
//! The split hashes the program without words (start value, then operation / is-variable / argument of each step).

use anyhow::{Result, ensure};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::chains::{Op, Operand, structure};
use super::draw::{Pen, distinct, stable_hash};
use super::{Fact, Levels, PlanText, Split, TaskFamily, TaskPlan};

const NUMBERS: [&str; 21] = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
    "twenty",
];
const NAMES: [&str; 8] = ["Tom", "Ann", "Ben", "Sam", "Eva", "Max", "Leo", "Amy"];
const THINGS: [&str; 4] = ["apples", "coins", "books", "cards"];
/// Names of subject `renamed`.
const OTHER_NAMES: [&str; 6] = ["Dan", "Kim", "Roy", "Jack", "Lucy", "Paul"];
const OTHER_THINGS: [&str; 2] = ["stamps", "shells"];
/// All words of sentences except names, things and numbers.
const PHRASES: &str = "has have owns own How many does now ? . : # plus minus times is more fewer than twice three as \
    and together finds loses Then the number of doubles triples beyond short what";

const TRAINED: [&str; 3] = ["compare", "story", "together"];
const HELD_OUT: [&str; 5] = ["compare", "story", "together", "reworded", "renamed"];

/// The largest constant that is added or subtracted.
const LARGEST: u32 = 9;
/// Probability of another person's number in a sum of subject `together`, if one is possible.
const VARIABLE_PROBABILITY: f64 = 0.6;

settings! {
    /// Settings of the family.
    pub struct Stories {
        /// Values are 0..=most, at most 20.
        pub most: u32 = 20,
        pub levels: Levels = Levels { min: 1, max: 4 },
    }
}

/// A problem without words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub most: u32,
    pub start: u32,
    pub steps: Vec<(Op, Operand)>,
}

impl Plan {
    /// Start value and the result of every step, with the result of step `forced.0` replaced by `forced.1`. `None` if one of
    /// them has no word.
    fn values(&self, forced: Option<(usize, i64)>) -> Option<Vec<i64>> {
        let mut values = vec![i64::from(self.start)];
        for (index, &(op, operand)) in self.steps.iter().enumerate() {
            let result = match forced {
                Some((step, value)) if step == index => value,
                _ => op.of(values[index], operand.of(&values)),
            };
            values.push(result);
        }
        values.iter().all(|value| self.has(*value)).then_some(values)
    }

    fn has(&self, value: i64) -> bool {
        (0..=i64::from(self.most)).contains(&value)
    }

    /// The possible second operands of an operation on the last value, so that the result has a word: constants or, with
    /// `persons`, variables before the last one.
    fn operands(&self, op: Op, values: &[i64], persons: bool) -> Vec<Operand> {
        let last = values[values.len() - 1];
        let constants = match op {
            // A multiple of zero tests nothing.
            Op::Multiply if last > 0 => 2..=3,
            Op::Multiply => return vec![],
            _ => 1..=LARGEST,
        };
        let all: Vec<Operand> = match persons {
            true => (0..values.len() as u32 - 1).map(Operand::Variable).collect(),
            false => constants.map(Operand::Constant).collect(),
        };
        all.into_iter().filter(|operand| self.has(op.of(last, operand.of(values)))).collect()
    }
}

impl TaskFamily for Stories {
    const NAME: &'static str = "stories";
    type Plan = Plan;

    fn check(&self) -> Result<()> {
        ensure!((9..=20).contains(&self.most), "stories.most: expected 9..=20, found {}", self.most);
        self.levels.check()
    }

    fn levels(&self) -> Levels {
        self.levels
    }

    fn words(&self) -> Vec<String> {
        let numbers = &NUMBERS[..=self.most as usize];
        let lists = [numbers, &NAMES, &THINGS, &OTHER_NAMES, &OTHER_THINGS];
        let mut words: Vec<&str> = lists.into_iter().flatten().copied().collect();
        // "three" is a number too.
        words.extend(PHRASES.split_whitespace().filter(|word| !NUMBERS.contains(word)));
        words.into_iter().map(str::to_owned).collect()
    }

    fn subject(&self, rng: &mut ChaCha8Rng, split: Split) -> &'static str {
        let subjects: &[&str] = if split == Split::Train { &TRAINED } else { &HELD_OUT };
        subjects[rng.random_range(0..subjects.len() as u32) as usize]
    }

    fn plan(&self, rng: &mut ChaCha8Rng, subject: &'static str, level: u8) -> Plan {
        let mut plan = Plan { most: self.most, start: rng.random_range(0..=self.most / 2), steps: vec![] };
        let mut values = vec![i64::from(plan.start)];
        for _ in 0..level {
            let persons = subject == "together" && rng.random_bool(VARIABLE_PROBABILITY);
            let mut choices: Vec<(Op, Vec<Operand>)> = match persons {
                true => vec![(Op::Add, plan.operands(Op::Add, &values, true))],
                false => vec![],
            };
            choices.retain(|(_, operands)| !operands.is_empty());
            if choices.is_empty() {
                choices =
                    [Op::Add, Op::Subtract, Op::Multiply].map(|op| (op, plan.operands(op, &values, false))).into();
                choices.retain(|(_, operands)| !operands.is_empty());
            }
            // Never empty: one can be added to the least value and taken from every other.
            let (op, operands) = &choices[rng.random_range(0..choices.len() as u32) as usize];
            let operand = operands[rng.random_range(0..operands.len() as u32) as usize];
            values.push(op.of(values[values.len() - 1], operand.of(&values)));
            plan.steps.push((*op, operand));
        }
        plan
    }

    fn write(&self, rng: &mut ChaCha8Rng, plan: &Plan, subject: &str) -> PlanText {
        let (names, things): (&[&str], &[&str]) = match subject {
            "renamed" => (&OTHER_NAMES, &OTHER_THINGS),
            _ => (&NAMES, &THINGS),
        };
        let names = distinct(rng, names, plan.steps.len() + 1);
        let things = things[rng.random_range(0..things.len() as u32) as usize];
        // Drawn plans and those of `with_start` stay in range.
        let values = plan.values(None).unwrap_or_default();
        let mut question = Pen::default();
        let mut solution = Pen::default();
        let teller = Teller { subject, names: &names, things };
        teller.opens(&mut question, plan.start);
        let mut steps = Vec::with_capacity(plan.steps.len());
        for (index, &(op, operand)) in plan.steps.iter().enumerate() {
            teller.tells(&mut question, index, op, operand);
            solution.words(&[teller.person(index + 1), ":"]);
            let clause = solution.mark();
            solution.words(&[number(values[index]), spoken(op), number(operand.of(&values)), "is"]);
            let result = solution.mark();
            solution.word(number(values[index + 1]));
            steps.push(solution.step(clause, result, Fact::Number(values[index + 1])));
            solution.word(".");
        }
        teller.asks(&mut question, plan.steps.len());
        PlanText::new(question, solution, number(values[plan.steps.len()]).to_string(), steps)
    }

    fn starts(&self) -> u32 {
        self.most + 1
    }
}

impl TaskPlan for Plan {
    fn structure(&self) -> u64 {
        structure(self.start, &self.steps)
    }

    /// The template: the operations in order, whatever the numbers.
    fn group(&self) -> u64 {
        stable_hash(self.steps.iter().flat_map(|&(op, operand)| match operand {
            Operand::Constant(_) => [op as u8, 0, 0],
            Operand::Variable(index) => [op as u8, 1, index as u8],
        }))
    }

    fn answer_if(&self, step: usize, value: i64) -> Option<String> {
        let values = (step < self.steps.len()).then(|| self.values(Some((step, value))))??;
        Some(number(values[self.steps.len()]).to_string())
    }

    fn operand(&self, step: usize) -> Option<i64> {
        (step < self.steps.len()).then(|| self.values(None))?.map(|values| values[step])
    }

    fn apply(&self, step: usize, operand: i64) -> Option<i64> {
        let &(op, second) = self.steps.get(step)?;
        let result = op.of(operand, second.of(&self.values(None)?));
        (self.has(operand) && self.has(result)).then_some(result)
    }

    fn with_start(&self, start: u32) -> Option<Self> {
        let plan = Self { start, ..self.clone() };
        plan.values(None).is_some().then_some(plan)
    }
}

/// Writes the sentences of one subject.
struct Teller<'a> {
    subject: &'a str,
    names: &'a [&'a str],
    things: &'a str,
}

impl Teller<'_> {
    /// The person with value `index`; a story has one person.
    fn person(&self, index: usize) -> &str {
        self.names[if self.subject == "story" { 0 } else { index }]
    }

    fn opens(&self, pen: &mut Pen, start: u32) {
        let has = if self.subject == "reworded" { "owns" } else { "has" };
        pen.words(&[self.names[0], has, number(start.into()), self.things, "."]);
    }

    fn tells(&self, pen: &mut Pen, index: usize, op: Op, operand: Operand) {
        let (before, person) = (self.person(index), self.person(index + 1));
        match (self.subject, op, operand) {
            (_, _, Operand::Variable(other)) => {
                pen.words(&[person, "has", "as", "many", "as", before, "and", self.person(other as usize), "together"]);
            }
            ("story", Op::Add, Operand::Constant(c)) => pen.words(&[person, "finds", number(c.into()), "more"]),
            ("story", Op::Subtract, Operand::Constant(c)) => pen.words(&[person, "loses", number(c.into())]),
            ("story", Op::Multiply, Operand::Constant(c)) => {
                pen.words(&["Then", "the", "number", if c == 2 { "doubles" } else { "triples" }]);
            }
            ("reworded", Op::Multiply, Operand::Constant(c)) => {
                pen.words(&[person, "owns", number(c.into()), "times", "what", before, "owns"]);
            }
            ("reworded", _, Operand::Constant(c)) => {
                pen.words(&[person, "owns", number(c.into())]);
                pen.words(if op == Op::Add { &["beyond"] } else { &["short", "of"] });
                pen.words(&[before]);
            }
            (_, Op::Multiply, Operand::Constant(c)) => {
                pen.words(&[person, "has"]);
                pen.words(if c == 2 { &["twice"] } else { &["three", "times"] });
                pen.words(&["as", "many", "as", before]);
            }
            (_, _, Operand::Constant(c)) => {
                let than = if op == Op::Add { "more" } else { "fewer" };
                pen.words(&[person, "has", number(c.into()), than, "than", before]);
            }
        }
        pen.word(".");
    }

    fn asks(&self, pen: &mut Pen, steps: usize) {
        let person = self.person(steps);
        match self.subject {
            "story" => pen.words(&["How", "many", "does", person, "have", "now", "?"]),
            "reworded" => pen.words(&["How", "many", "does", person, "own", "?"]),
            _ => pen.words(&["How", "many", "does", person, "have", "?"]),
        }
    }
}

fn spoken(op: Op) -> &'static str {
    match op {
        Op::Add => "plus",
        Op::Subtract => "minus",
        Op::Multiply => "times",
    }
}

/// The word of a value in 0..=20.
fn number(value: i64) -> &'static str {
    usize::try_from(value).ok().and_then(|value| NUMBERS.get(value)).copied().unwrap_or("?")
}
