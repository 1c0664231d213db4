//! A claim of the paper in words, as comparisons between numbers. Knows names of cells; the caller supplies the numbers (the paper's or ours).

use anyhow::Result;
use serde::Deserialize;

use super::verdicts::Need;

/// A claim made in words.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    pub id: String,
    pub text: String,
    /// Labels of the tables and figures it rests on.
    pub rests_on: Vec<String>,
    /// Properties without which it cannot be tested.
    #[serde(default)]
    pub needs: Vec<Need>,
    #[serde(default)]
    pub note: String,
    /// Outcome of the comparisons on the paper's own numbers; absent without comparisons.
    pub holds_in_paper: Option<bool>,
    /// The claim holds if all of them do.
    #[serde(default)]
    pub compare: Vec<Comparison>,
    /// The claim without the paper's absolute numbers, for other models; `compare` if empty.
    #[serde(default)]
    pub compare_here: Vec<Comparison>,
    /// Whether it is about RL: compared with the checkpoint that GRPO started from.
    #[serde(default)]
    pub rl: bool,
    /// The part of the text that no comparison tests.
    #[serde(default)]
    pub untested: String,
    /// Fewest steps of Switch-GRPO for a test of the claim.
    #[serde(default)]
    pub grpo_steps: usize,
}

/// `left op times · right + plus`, within `tolerance`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Comparison {
    pub left: Term,
    pub op: Op,
    pub right: Term,
    #[serde(default = "one")]
    pub times: f64,
    #[serde(default)]
    pub plus: f64,
    /// Slack in favour of the claim, in the column's unit.
    #[serde(default)]
    pub tolerance: f64,
    /// Only the problems on which both checkpoints switch, pair by pair.
    #[serde(default)]
    pub shared: bool,
    /// A control: the comparison is meaningful only if the right side, a rival method, is above this cell, that is, has learnt the task.
    pub learnt_above: Option<String>,
}

fn one() -> f64 {
    1.0
}

/// A cell by name, or a number in the unit of the other side.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Term {
    Number(f64),
    Cell(String),
}

impl Term {
    /// The cell's name.
    pub(crate) fn cell(&self) -> Option<&str> {
        if let Self::Cell(name) = self { Some(name) } else { None }
    }

    /// The label that the cell is under.
    pub(crate) fn label(&self) -> Option<&str> {
        self.cell()?.split('/').next()
    }
}

/// Relation between left and right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Op {
    #[serde(rename = ">")]
    Above,
    #[serde(rename = ">=")]
    AtLeast,
    #[serde(rename = "<")]
    Below,
    #[serde(rename = "<=")]
    AtMost,
    #[serde(rename = "=")]
    About,
}

impl Claim {
    /// The comparisons for a model that is not the paper's.
    pub fn comparisons_here(&self) -> &[Comparison] {
        if self.compare_here.is_empty() { &self.compare } else { &self.compare_here }
    }

    /// Whether all comparisons hold on the numbers `cell` gives, in the paper's units; `None` if the claim compares nothing.
    pub fn check(&self, cell: impl Fn(&str) -> Result<f64>) -> Result<Option<bool>> {
        let mut all = None;
        for comparison in &self.compare {
            all = Some(all.unwrap_or(true) & comparison.check(&cell)?);
        }
        Ok(all)
    }
}

impl Comparison {
    /// Every cell that it names.
    pub(crate) fn cells(&self) -> impl Iterator<Item = &str> {
        [&self.left, &self.right].into_iter().filter_map(Term::cell).chain(self.learnt_above.as_deref())
    }

    /// Whether it compares cells of ours that no table of the paper has.
    pub(crate) fn is_ours(&self) -> bool {
        [&self.left, &self.right].iter().any(|term| term.cell().is_some_and(|name| name.starts_with("ours:")))
    }

    /// Whether the comparison holds on the numbers `cell` gives.
    pub fn check(&self, cell: impl Fn(&str) -> Result<f64>) -> Result<bool> {
        let value = |term: &Term| match term {
            Term::Number(x) => Ok(*x),
            Term::Cell(name) => cell(name),
        };
        let (left, right) = (value(&self.left)?, self.times * value(&self.right)? + self.plus);
        // Sums of decimals miss by a rounding error; a claim must not fail on it.
        let slack = self.tolerance + 1e-9 * right.abs().max(1.0);
        Ok(match self.op {
            Op::Above => left > right - self.tolerance,
            Op::AtLeast => left >= right - slack,
            Op::Below => left < right + self.tolerance,
            Op::AtMost => left <= right + slack,
            Op::About => (left - right).abs() <= slack,
        })
    }
}
