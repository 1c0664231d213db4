//! What answers must become when a step of a problem is changed: the arithmetic that exchanges are graded by. Knows problems by
//! their index among the test problems, and steps from 0.

use anyhow::{Result, ensure};

use crate::study::Study;
use crate::tasks::{Split, TaskProblem, WorkedSolution};
use crate::text::Problem;

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

/// That of a generated task's problems.
impl Arithmetic for Vec<TaskProblem> {
    fn answer_if(&self, problem: usize, step: usize, value: i64) -> Option<String> {
        self.get(problem)?.answer_if(step, value)
    }

    fn operand(&self, problem: usize, step: usize) -> Option<i64> {
        self.get(problem)?.operand(step)
    }

    fn apply(&self, problem: usize, step: usize, operand: i64) -> Option<i64> {
        self.get(problem)?.apply(step, operand)
    }
}

/// That of solutions whose steps a file brings as calculations; `None` where it is not known.
impl Arithmetic for Vec<Option<WorkedSolution>> {
    fn answer_if(&self, problem: usize, step: usize, value: i64) -> Option<String> {
        self.get(problem)?.as_ref()?.answer_if(step, value)
    }

    fn operand(&self, problem: usize, step: usize) -> Option<i64> {
        self.get(problem)?.as_ref()?.operand(step)
    }

    fn apply(&self, problem: usize, step: usize, operand: i64) -> Option<i64> {
        self.get(problem)?.as_ref()?.apply(step, operand)
    }
}

fn worked(problem: &Problem) -> Option<WorkedSolution> {
    WorkedSolution::new(&problem.question, &problem.steps, &problem.answer)
}

/// Whether answers follow from the values of steps: those of a generated task, or of solutions that bring calculations.
pub(crate) fn is_known(study: &Study) -> bool {
    match &study.recipe.task {
        Some(task) => task.has_numbers(),
        None => study.corpus.test.iter().any(|problem| worked(problem).is_some()),
    }
}

/// The generated task's own arithmetic, or that of a file's solutions.
///
/// # Errors
/// Problems whose steps hold no known numbers; generated problems that are not those of the recipe.
pub(crate) fn of_study(study: &Study) -> Result<Box<dyn Arithmetic>> {
    study.needs(is_known(study), || {
        format!(
            "known_value needs a generated task whose steps hold numbers, or solutions with `steps` or marks <<a*b=c>> that end \
             in the answer: those of `{}` are not known, or are none",
            study.recipe.dataset()
        )
    })?;
    let test = &study.corpus.test;
    let Some(task) = &study.recipe.task else { return Ok(Box::new(test.iter().map(worked).collect::<Vec<_>>())) };
    let problems: Vec<TaskProblem> = task.rows(Split::Test, study.recipe.seed, 0..test.len() as u64)?;
    let same = problems.iter().zip(test).all(|(a, b)| a.id == b.id);
    ensure!(same, "{}: known_value needs the problems of the recipe's own task", study.name);
    Ok(Box::new(problems))
}
