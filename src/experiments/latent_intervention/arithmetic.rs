//! What answers must become when a step of a problem is changed: the arithmetic that exchanges are graded by. Knows problems by
//! their index among the test problems, and steps from 0.

use anyhow::{Context, Result, ensure};

use crate::study::Study;
use crate::tasks::{Split, TaskProblem};

/// The arithmetic of a checkpoint's problems. A closure from (problem, step, value) to the answer is one whose steps have no
/// known operand.
pub trait Arithmetic: Sync {
    /// What the answer would be if the step had produced `value`.
    fn answer_if(&self, problem: usize, step: usize, value: i64) -> Option<String>;

    /// The value that the step works on.
    fn operand(&self, _problem: usize, _step: usize) -> Option<i64> {
        None
    }

    /// What the step would produce from this operand.
    fn apply(&self, _problem: usize, _step: usize, _operand: i64) -> Option<i64> {
        None
    }
}

impl<F: Fn(usize, usize, i64) -> Option<String> + Sync> Arithmetic for F {
    fn answer_if(&self, problem: usize, step: usize, value: i64) -> Option<String> {
        self(problem, step, value)
    }
}

/// That of a generated task.
pub(crate) struct OfTask(Vec<TaskProblem>);

impl Arithmetic for OfTask {
    fn answer_if(&self, problem: usize, step: usize, value: i64) -> Option<String> {
        self.0.get(problem)?.answer_if(step, value)
    }

    fn operand(&self, problem: usize, step: usize) -> Option<i64> {
        self.0.get(problem)?.operand(step)
    }

    fn apply(&self, problem: usize, step: usize, operand: i64) -> Option<i64> {
        self.0.get(problem)?.apply(step, operand)
    }
}

/// The generated task's own arithmetic.
///
/// # Errors
/// A checkpoint whose problems are not generated, or not by its recipe.
pub(crate) fn of_task(study: &Study) -> Result<OfTask> {
    let task = study.recipe.task.as_ref().filter(|task| task.has_numbers());
    let task = task.with_context(|| {
        format!(
            "{}: known_value needs a generated task whose steps hold numbers: those of `{}` are not known, or are none",
            study.name,
            study.dataset()
        )
    })?;
    let n = study.corpus.test.len() as u64;
    let problems: Vec<TaskProblem> = task.rows(Split::Test, study.recipe.seed, 0..n)?;
    let same = problems.iter().zip(&study.corpus.test).all(|(a, b)| a.id == b.id);
    ensure!(same, "{}: known_value needs the problems of the recipe's own task", study.name);
    Ok(OfTask(problems))
}
