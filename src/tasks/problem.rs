//! A generated problem: its texts, its known intermediate values, and its program.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{Program, Split};

/// Known value after a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Fact {
    Number(i64),
    /// A set of names, sorted (the frontier of a breadth-first search).
    Set(Vec<String>),
    Text(String),
}

impl Fact {
    pub fn number(&self) -> Option<i64> {
        match self {
            Fact::Number(value) => Some(*value),
            _ => None,
        }
    }
}

/// One intermediate value s_j, and its place in the solution.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepValue {
    pub value: Fact,
    /// The part of the step that latents replace: `5 + 5 = 3` of `j = 5 + 5 = 3 ;`.
    pub clause: String,
    /// Range of `clause`, in whitespace-separated words of the solution.
    pub words: Range<usize>,
    /// The words inside `words` that spell the value.
    pub value_words: Range<usize>,
    /// For a step of a file, the calculation of the value: `16-3-4`, or `s1*2` over the first step; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expression: Option<String>,
}

/// A generated problem. Every text is a sequence of vocabulary words with one space between them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskProblem {
    pub id: String,
    pub family: String,
    pub subject: String,
    pub level: u8,
    pub question: String,
    /// The visible chain of thought, closed by `# answer`.
    pub solution: String,
    pub answer: String,
    /// The final answer, in words of the solution: `#` and what follows.
    pub answer_words: Range<usize>,
    pub steps: Vec<StepValue>,
    pub split: Split,
    pub program: Program,
}

impl TaskProblem {
    /// As [`TaskPlan::group`](super::TaskPlan::group).
    pub fn group(&self) -> u64 {
        self.program.plan().group()
    }

    /// As [`TaskPlan::answer_if`](super::TaskPlan::answer_if).
    pub fn answer_if(&self, step: usize, value: i64) -> Option<String> {
        self.program.plan().answer_if(step, value)
    }

    /// As [`TaskPlan::operand`](super::TaskPlan::operand).
    pub fn operand(&self, step: usize) -> Option<i64> {
        self.program.plan().operand(step)
    }

    /// As [`TaskPlan::apply`](super::TaskPlan::apply).
    pub fn apply(&self, step: usize, operand: i64) -> Option<i64> {
        self.program.plan().apply(step, operand)
    }
}
