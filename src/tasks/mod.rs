//! Generated problems whose intermediate values are known. Plain Rust: no tensors, no files, no global state.
//!
//! A problem is a function of (family settings, split, seed, index) alone: the same four give the same problem on any
//! machine and in any order. Splits cannot share a problem: each family hashes the *structure* of a problem (without names,
//! order and distractors), and `hash mod 8` decides the split (0 test, 1 validation, the rest training). A draw of the
//! wrong split is discarded and repeated.
//!
//! A new family is one file that implements [`TaskFamily`], and [`TaskPlan`] for its plan, and one line in the list below.

mod draw;
mod problem;
mod worked;

use std::ops::Range;

use anyhow::{Result, bail, ensure};
use rand_chacha::ChaCha8Rng;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use draw::Pen;
pub(crate) use graph::edges;
pub use graph::{Nodes, Told};
pub use problem::{Fact, StepValue, TaskProblem};
pub(crate) use worked::{StepOperand, WorkedSolution, evaluate, number};

names! {
    /// Split of the data.
    pub enum Split {
        Train = "train",
        Validation = "validation",
        Test = "test",
    }
}

impl Split {
    /// The split of a structure hash.
    pub fn from_structure(structure: u64) -> Split {
        match structure % 8 {
            0 => Split::Test,
            1 => Split::Validation,
            _ => Split::Train,
        }
    }
}

/// Inclusive range of difficulty levels, inside 1..=5 (chains: 1..=7). Problem `i` has level `min + i mod (max - min + 1)`, so that
/// consecutive problems are balanced over levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Levels {
    pub min: u8,
    pub max: u8,
}

impl Levels {
    pub const ALL: Levels = Levels { min: 1, max: 5 };

    fn check(&self) -> Result<()> {
        self.check_up_to(Self::ALL.max)
    }

    fn check_up_to(&self, most: u8) -> Result<()> {
        let Levels { min, max } = *self;
        ensure!(
            1 <= min && min <= max && max <= most,
            "levels: expected 1 <= min <= max <= {most}, found min = {min}, max = {max}"
        );
        Ok(())
    }

    fn at(&self, index: u64) -> u8 {
        self.min + (index % u64::from(self.max - self.min + 1)) as u8
    }
}

/// The text of a drawn plan.
pub struct PlanText {
    pub question: String,
    pub solution: String,
    pub answer: String,
    pub answer_words: Range<usize>,
    pub steps: Vec<StepValue>,
}

impl PlanText {
    /// Closes the solution with `# answer`.
    fn new(question: Pen, mut solution: Pen, answer: String, steps: Vec<StepValue>) -> Self {
        let mark = solution.mark();
        solution.word("#");
        answer.split(' ').for_each(|word| solution.word(word));
        let answer_words = solution.since(mark);
        Self { question: question.finish(), solution: solution.finish(), answer, answer_words, steps }
    }
}

/// One family of problems.
pub trait TaskFamily {
    const NAME: &'static str;
    /// Whether a step's value is a number, which can be replaced by another; false for sets.
    const NUMBERS: bool = true;
    /// Whether each question states a budget of visible tokens.
    const SAYS_BUDGET: bool = false;
    /// A drawn problem without names.
    type Plan: TaskPlan + Clone + std::fmt::Debug + PartialEq + Eq + Serialize + DeserializeOwned;

    /// Refuses settings that allow no problems, naming the setting.
    fn check(&self) -> Result<()>;
    fn levels(&self) -> Levels;
    /// Every word that may occur in a question or a solution, without special tokens.
    fn words(&self) -> Vec<String>;
    fn subject(&self, rng: &mut ChaCha8Rng, split: Split) -> &'static str;
    fn plan(&self, rng: &mut ChaCha8Rng, subject: &'static str, level: u8) -> Self::Plan;
    fn write(&self, rng: &mut ChaCha8Rng, plan: &Self::Plan, subject: &str) -> PlanText;
    /// Number of start values; 0 for a family without them.
    fn starts(&self) -> u32 {
        0
    }
}

/// A drawn problem without names.
pub trait TaskPlan {
    /// Hash of the problem up to renaming.
    fn structure(&self) -> u64;
    /// Hash of what can be memorised, without names: problems of one group are never on both sides of a split between fitting and
    /// testing.
    fn group(&self) -> u64 {
        self.structure()
    }
    /// The answer if step `step` (from 0) had the result `value` and all later steps were recomputed. `None` without such a
    /// step, if its result cannot be `value`, or if steps have no numbers (`graph`).
    fn answer_if(&self, step: usize, value: i64) -> Option<String>;
    /// The first operand of step `step` (from 0): the previous step's result, or the start value. `None` without such a step,
    /// or if steps have no numbers.
    fn operand(&self, _step: usize) -> Option<i64> {
        None
    }
    /// The result of step `step` if its first operand were `operand`. `None` without such a step, or if the operand is
    /// impossible there.
    fn apply(&self, _step: usize, _operand: i64) -> Option<i64> {
        None
    }
    /// The same structure from another start value; `None` if there is no such problem.
    fn with_start(&self, _start: u32) -> Option<Self>
    where
        Self: Sized,
    {
        None
    }
}

macro_rules! families {
    ($($module:ident :: $family:ident,)*) => {
        $(pub mod $module;)*
        $(pub use $module::$family;)*

        /// A family with its settings. In a recipe: `family = "chains"` and the settings next to it.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "family", rename_all = "kebab-case")]
        pub enum Task {
            $($family($family),)*
        }

        /// The structure of a problem, without names.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum Program {
            $($family(<$family as TaskFamily>::Plan),)*
        }

        impl Program {
            fn plan(&self) -> &dyn TaskPlan {
                match self {
                    $(Program::$family(plan) => plan,)*
                }
            }
        }

        impl Task {
            pub fn name(&self) -> &'static str {
                match self {
                    $(Task::$family(_) => $family::NAME,)*
                }
            }

            pub fn check(&self) -> Result<()> {
                match self {
                    $(Task::$family(family) => family.check(),)*
                }
            }

            /// Whether steps have numbers, so that the answer for another value is defined.
            pub fn has_numbers(&self) -> bool {
                match self {
                    $(Task::$family(_) => $family::NUMBERS,)*
                }
            }

            /// Whether each question begins with `budget N ;`, which limits its answer.
            pub fn says_budget(&self) -> bool {
                match self {
                    $(Task::$family(_) => $family::SAYS_BUDGET,)*
                }
            }

            /// Whether [`Task::pair`] can make pairs.
            pub fn has_pairs(&self) -> bool {
                match self {
                    $(Task::$family(family) => family.starts() > 0,)*
                }
            }

            /// The family's vocabulary, for the word-level tokenizer.
            pub fn words(&self) -> Vec<String> {
                match self {
                    $(Task::$family(family) => family.words(),)*
                }
            }

            /// Problem `index` of a split. Fails on settings that `check` refuses, or that leave the split empty.
            pub fn problem(&self, split: Split, seed: u64, index: u64) -> Result<TaskProblem> {
                self.check()?;
                match self {
                    $(Task::$family(family) => generate(family, Program::$family, (split, seed, index)),)*
                }
            }

            /// Problem `index` and its twin: same structure, names and order, another start value and another answer. `None`
            /// for a family without start values, or if all lead to the same answer.
            pub fn pair(&self, split: Split, seed: u64, index: u64) -> Result<Option<(TaskProblem, TaskProblem)>> {
                self.check()?;
                match self {
                    $(Task::$family(family) => generate_pair(family, Program::$family, (split, seed, index)),)*
                }
            }
        }
    };
}

families! {
    chains::Chains,
    adaptive::Adaptive,
    affine::Affine,
    graph::Graph,
    multiply::Multiply,
    organism::Organism,
    stories::Stories,
    sums::Sums,
}

impl Task {
    /// The same task with problems of the level after its hardest; `None` if the family has no such level.
    pub fn deeper(&self) -> Option<Self> {
        let mut table = toml::Table::try_from(self).ok()?;
        let next = table.get("levels")?.get("max")?.as_integer()? + 1;
        table.insert(
            "levels".into(),
            toml::Table::from_iter([("min", next), ("max", next)].map(|(k, v)| (k.into(), v.into()))).into(),
        );
        let deeper: Self = table.try_into().ok()?;
        deeper.check().is_ok().then_some(deeper)
    }

    /// The problems of a range of indices.
    pub fn rows(&self, split: Split, seed: u64, indices: Range<u64>) -> Result<Vec<TaskProblem>> {
        indices.map(|index| self.problem(split, seed, index)).collect()
    }
}

/// Maximum draws of one subject, and of subjects. A level with few programs may have none of one subject in a split
/// (modulus 5, level 1), but of another.
const DRAWS_PER_SUBJECT: usize = 512;
const SUBJECTS_TRIED: usize = 32;

/// Split, seed and index of a problem.
type ProblemKey = (Split, u64, u64);

fn generate<F: TaskFamily>(family: &F, program: fn(F::Plan) -> Program, key: ProblemKey) -> Result<TaskProblem> {
    let (mut rng, subject, plan) = draw_plan(family, key)?;
    Ok(write_problem(family, program, &mut rng, plan, subject, key))
}

fn generate_pair<F: TaskFamily>(
    family: &F,
    program: fn(F::Plan) -> Program,
    key: ProblemKey,
) -> Result<Option<(TaskProblem, TaskProblem)>> {
    if family.starts() == 0 {
        return Ok(None);
    }
    let (rng, subject, plan) = draw_plan(family, key)?;
    let starts: Vec<F::Plan> = (0..family.starts()).filter_map(|start| plan.with_start(start)).collect();
    // The same generator: the same names in the same order.
    let write = |plan| write_problem(family, program, &mut rng.clone(), plan, subject, key);
    let problem = write(plan);
    let mut others: Vec<TaskProblem> =
        starts.into_iter().map(write).filter(|other| other.answer != problem.answer).collect();
    if others.is_empty() {
        return Ok(None);
    }
    let (_, seed, index) = key;
    let pick = draw::mix(seed ^ index) as usize % others.len();
    Ok(Some((problem, others.swap_remove(pick))))
}

/// Draws a plan of this split; the generator continues with its text.
fn draw_plan<F: TaskFamily>(
    family: &F,
    (split, seed, index): ProblemKey,
) -> Result<(ChaCha8Rng, &'static str, F::Plan)> {
    let mut rng = draw::row_rng(F::NAME, split, seed, index);
    let level = family.levels().at(index);
    for _ in 0..SUBJECTS_TRIED {
        let subject = family.subject(&mut rng, split);
        for _ in 0..DRAWS_PER_SUBJECT {
            let plan = family.plan(&mut rng, subject, level);
            if Split::from_structure(plan.structure()) == split {
                return Ok((rng, subject, plan));
            }
        }
    }
    bail!(
        "task {}: no {} problem of level {level} in {} draws; widen the settings",
        F::NAME,
        split.name(),
        SUBJECTS_TRIED * DRAWS_PER_SUBJECT
    )
}

fn write_problem<F: TaskFamily>(
    family: &F,
    program: fn(F::Plan) -> Program,
    rng: &mut ChaCha8Rng,
    plan: F::Plan,
    subject: &str,
    (split, seed, index): ProblemKey,
) -> TaskProblem {
    let text = family.write(rng, &plan, subject);
    TaskProblem {
        id: format!("{}-{}-{seed}-{index}", F::NAME, split.name()),
        family: F::NAME.to_string(),
        subject: subject.to_string(),
        level: family.levels().at(index),
        question: text.question,
        solution: text.solution,
        answer: text.answer,
        answer_words: text.answer_words,
        steps: text.steps,
        split,
        program: program(plan),
    }
}
