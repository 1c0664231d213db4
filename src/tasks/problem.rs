//! A generated problem: its texts, its known intermediate values, and the program after them.

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
    /// The part of the step worth replacing by latents: `5 + 5 = 3` of `j = 5 + 5 = 3 ;`.
    pub clause: String,
    /// Range of `clause`, in whitespace-separated words of the solution.
    pub words: Range<usize>,
    /// The words inside `words` that spell the value.
    pub value_words: Range<usize>,
    /// Of a file's step, the calculation that makes the value: `16-3-4`, or `s1*2` over the first step; empty where it is not known.
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
    /// Where the final answer is in the solution's words: the marker `#` and what follows it.
    pub answer_words: Range<usize>,
    pub steps: Vec<StepValue>,
    pub split: Split,
    pub program: Program,
}

impl TaskProblem {
    /// The group of the problem, see [`Family::group`](super::Family::group).
    pub fn group(&self) -> u64 {
        self.program.group()
    }

    /// What the answer would be if step `step` (from 0) had produced `value` and everything after it were recomputed.
    /// None where there is no such step, where the step cannot hold `value`, or where steps hold no number (`graph`).
    pub fn answer_if(&self, step: usize, value: i64) -> Option<String> {
        self.program.answer_if(step, value)
    }

    /// The value that step `step` (from 0) works on: the result of the step before it, or what the chain starts from. None
    /// where there is no such step, or where steps work on no number.
    pub fn operand(&self, step: usize) -> Option<i64> {
        self.program.operand(step)
    }

    /// What step `step` would produce if it worked on `operand`: its own operation, with all else as it is. None where there
    /// is no such step, or where it cannot have that operand.
    pub fn apply(&self, step: usize, operand: i64) -> Option<i64> {
        self.program.apply(step, operand)
    }
}
