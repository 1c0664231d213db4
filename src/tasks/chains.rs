//! `chains`: modular arithmetic, one variable per step; the task of the default preset.
//!
//! Question `a = 5 ; j = a + 4 ; c = j - a ; ? c :`, solution `j = 5 + 4 = 2 ; c = 2 - 5 = 4 ; # 4` (modulus 7).
//! Level = number of steps. The first operand of a step is the variable before it; in subject `vars` the second is, with
//! probability .6, an earlier variable than that, so never in the first step.
//!
//! The split hashes the program without letters (start value, then operation / is-variable / argument of each step), not
//! the subject. **Level 1 is small**: with modulus 7 it has 7 · 3 · 6 = 126 programs, 18 of them in the test split, so a
//! hundred level-1 test problems repeat those with other letters.

use anyhow::{Result, ensure};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::draw::{Pen, distinct, stable_hash, vocabulary, weighted};
use super::{Fact, Levels, PlanText, Split, StepValue, TaskFamily, TaskPlan};

pub(super) const LETTERS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
const SUBJECTS: [&str; 5] = ["sum", "sumdiff", "prod", "mix", "vars"];

settings! {
    /// Settings of the family.
    pub struct Chains {
        /// Values are 0..modulus, one word each.
        pub modulus: u32 = 7,
        pub levels: Levels = Levels::ALL,
        /// How often each subject is drawn in training rows.
        pub weights: SubjectWeights = SubjectWeights { vars: 2.0, ..EVEN },
        /// How often each is drawn in validation and test rows.
        pub held_out_weights: SubjectWeights = EVEN,
        /// Probability of a variable as second operand, in subject `vars`, from the second step on.
        pub variable_probability: f64 = 0.6,
        /// Probability that the constant of a product is drawn from 2.. instead of 1.. (a product by 1 tests nothing).
        pub skip_one_probability: f64 = 0.9,
    }
}

const EVEN: SubjectWeights = SubjectWeights { sum: 1.0, sumdiff: 1.0, prod: 1.0, mix: 1.0, vars: 1.0 };

/// One weight a subject.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubjectWeights {
    pub sum: f64,
    pub sumdiff: f64,
    pub prod: f64,
    pub mix: f64,
    pub vars: f64,
}

impl SubjectWeights {
    fn list(&self) -> [f64; 5] {
        [self.sum, self.sumdiff, self.prod, self.mix, self.vars]
    }

    fn check(&self, name: &str) -> Result<()> {
        let list = self.list();
        ensure!(
            list.iter().all(|w| w.is_finite() && *w >= 0.0) && list.iter().sum::<f64>() > 0.0,
            "chains.{name}: expected weights >= 0, not all zero, found {list:?}"
        );
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    #[serde(rename = "+")]
    Add,
    #[serde(rename = "-")]
    Subtract,
    #[serde(rename = "*")]
    Multiply,
}

impl Op {
    pub fn word(self) -> &'static str {
        match self {
            Op::Add => "+",
            Op::Subtract => "-",
            Op::Multiply => "*",
        }
    }

    pub(super) fn of(self, left: i64, right: i64) -> i64 {
        match self {
            Op::Add => left + right,
            Op::Subtract => left - right,
            Op::Multiply => left * right,
        }
    }

    fn apply(self, left: i64, right: i64, modulus: i64) -> i64 {
        self.of(left, right).rem_euclid(modulus)
    }
}

/// Second operand of a step. Variable 0 is the start value, variable i the result of step i - 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operand {
    Constant(u32),
    Variable(u32),
}

impl Operand {
    /// The operand's value; `values` are those of the variables so far.
    pub(super) fn of(self, values: &[i64]) -> i64 {
        match self {
            Operand::Constant(constant) => i64::from(constant),
            Operand::Variable(variable) => values[variable as usize],
        }
    }
}

/// A problem without letters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub modulus: u32,
    pub start: u32,
    pub steps: Vec<(Op, Operand)>,
}

impl Plan {
    /// Start value and the result of every step, with the result of step `forced.0` replaced by `forced.1`.
    fn values(&self, forced: Option<(usize, i64)>) -> Vec<i64> {
        let mut values = vec![i64::from(self.start)];
        for (index, &(op, operand)) in self.steps.iter().enumerate() {
            let result = op.apply(values[index], operand.of(&values), i64::from(self.modulus));
            values.push(match forced {
                Some((step, value)) if step == index => value,
                _ => result,
            });
        }
        values
    }
}

/// Hash of a program without its names.
pub(super) fn structure(start: u32, steps: &[(Op, Operand)]) -> u64 {
    let steps = steps.iter().flat_map(|&(op, operand)| match operand {
        Operand::Constant(value) => [op as u8, 0, value as u8],
        Operand::Variable(index) => [op as u8, 1, index as u8],
    });
    stable_hash(std::iter::once(start as u8).chain(steps))
}

/// Writes a chain. `behind` receives the values up to and including a step's and returns another number for its clause, if any.
pub(super) fn write_chain(plan: &Plan, names: &[&str], behind: impl Fn(&[i64]) -> Option<i64>) -> PlanText {
    let values = plan.values(None);
    let (mut question, mut solution) = (Pen::default(), Pen::default());
    question.words(&[names[0], "="]);
    question.number(values[0]);
    question.word(";");
    let mut steps = Vec::with_capacity(plan.steps.len());
    for (index, &(op, operand)) in plan.steps.iter().enumerate() {
        question.words(&[names[index + 1], "=", names[index], op.word()]);
        solution.words(&[names[index + 1], "="]);
        let clause = solution.mark();
        solution.number(values[index]);
        solution.word(op.word());
        match operand {
            Operand::Constant(constant) => {
                question.number(i64::from(constant));
                solution.number(i64::from(constant));
            }
            Operand::Variable(variable) => {
                question.word(names[variable as usize]);
                solution.number(values[variable as usize]);
            }
        }
        question.word(";");
        solution.word("=");
        let result = solution.mark();
        solution.number(values[index + 1]);
        let mut step = solution.step(clause, result, Fact::Number(values[index + 1]));
        if let Some(register) = behind(&values[..=index + 1]) {
            let value_words = step.value_words;
            solution.number(register);
            step = StepValue { value_words, ..solution.step(clause, result, step.value) };
        }
        steps.push(step);
        solution.word(";");
    }
    question.words(&["?", names[plan.steps.len()], ":"]);
    PlanText::new(question, solution, values[plan.steps.len()].to_string(), steps)
}

impl TaskFamily for Chains {
    const NAME: &'static str = "chains";
    type Plan = Plan;

    fn check(&self) -> Result<()> {
        ensure!((3..=100).contains(&self.modulus), "chains.modulus: expected 3..=100, found {}", self.modulus);
        // One letter for the start value and one for each step.
        self.levels.check_up_to(LETTERS.len() as u8 - 1)?;
        self.weights.check("weights")?;
        self.held_out_weights.check("held_out_weights")?;
        for (name, p) in
            [("variable_probability", self.variable_probability), ("skip_one_probability", self.skip_one_probability)]
        {
            ensure!((0.0..=1.0).contains(&p), "chains.{name}: expected 0..=1, found {p}");
        }
        Ok(())
    }

    fn levels(&self) -> Levels {
        self.levels
    }

    fn words(&self) -> Vec<String> {
        vocabulary(&["=", ";", "?", ":", "#", "+", "-", "*"], &LETTERS, self.modulus)
    }

    fn subject(&self, rng: &mut ChaCha8Rng, split: Split) -> &'static str {
        let weights = if split == Split::Train { &self.weights } else { &self.held_out_weights };
        SUBJECTS[weighted(rng, &weights.list())]
    }

    fn plan(&self, rng: &mut ChaCha8Rng, subject: &'static str, level: u8) -> Plan {
        let ops: &[Op] = match subject {
            "sum" => &[Op::Add],
            "sumdiff" => &[Op::Add, Op::Subtract],
            "prod" => &[Op::Multiply],
            _ => &[Op::Add, Op::Subtract, Op::Multiply],
        };
        let start = rng.random_range(0..self.modulus);
        let steps = (0..u32::from(level))
            .map(|step| {
                let op = ops[rng.random_range(0..ops.len() as u32) as usize];
                if subject == "vars" && step > 0 && rng.random_bool(self.variable_probability) {
                    return (op, Operand::Variable(rng.random_range(0..step)));
                }
                let low = 1 + u32::from(op == Op::Multiply && rng.random_bool(self.skip_one_probability));
                (op, Operand::Constant(rng.random_range(low..self.modulus)))
            })
            .collect();
        Plan { modulus: self.modulus, start, steps }
    }

    fn write(&self, rng: &mut ChaCha8Rng, plan: &Plan, _subject: &str) -> PlanText {
        write_chain(plan, &distinct(rng, &LETTERS, plan.steps.len() + 1), |_| None)
    }

    fn starts(&self) -> u32 {
        self.modulus
    }
}

impl TaskPlan for Plan {
    fn structure(&self) -> u64 {
        structure(self.start, &self.steps)
    }

    fn answer_if(&self, step: usize, value: i64) -> Option<String> {
        let holds = step < self.steps.len() && (0..i64::from(self.modulus)).contains(&value);
        holds.then(|| self.values(Some((step, value)))[self.steps.len()].to_string())
    }

    fn operand(&self, step: usize) -> Option<i64> {
        (step < self.steps.len()).then(|| self.values(None)[step])
    }

    fn apply(&self, step: usize, operand: i64) -> Option<i64> {
        let &(op, second) = self.steps.get(step)?;
        let modulus = i64::from(self.modulus);
        (0..modulus).contains(&operand).then(|| op.apply(operand, second.of(&self.values(None)), modulus))
    }

    fn with_start(&self, start: u32) -> Option<Self> {
        Some(Self { start, ..self.clone() })
    }
}
