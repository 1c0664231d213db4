//! Arithmetic of a problem: predicts the answer if a step's value changes, to grade exchanged values. Problems are indices into the test
//! problems; steps count from 0.

use anyhow::{Result, ensure};

use crate::study::Study;
use crate::tasks::{Split, TaskProblem, WorkedSolution};
use crate::text::Problem;

/// The arithmetic of a study's problems. A closure (problem, step, value) → answer implements it, without operands.
pub trait Arithmetic: Sync {
    /// The answer if the step had produced `value`.
    fn answer_if(&self, problem: usize, step: usize, value: i64) -> Option<String>;

    /// The first operand of the step.
    fn operand(&self, _problem: usize, _step: usize) -> Option<i64> {
        None
    }

    /// The result of the step for this operand.
    fn apply(&self, _problem: usize, _step: usize, _operand: i64) -> Option<i64> {
        None
    }
}

impl<F: Fn(usize, usize, i64) -> Option<String> + Sync> Arithmetic for F {
    fn answer_if(&self, problem: usize, step: usize, value: i64) -> Option<String> {
        self(problem, step, value)
    }
}

/// A generated task's problems.
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

/// Solutions of a file whose steps are calculations; `None`: unknown.
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

/// Whether answers can be computed from step values: a generated task, or solutions with calculations.
pub(crate) fn is_known(study: &Study) -> bool {
    match &study.recipe.task {
        Some(task) => task.has_numbers(),
        None => study.corpus.test.iter().any(|problem| worked(problem).is_some()),
    }
}

/// The arithmetic of the generated task, or of the file's solutions.
pub(crate) fn of_study(study: &Study) -> Result<Box<dyn Arithmetic>> {
    study.require(is_known(study), || {
        format!(
            "known_value needs a generated task whose steps have numbers, or solutions with `steps` or marks <<a*b=c>> that end in the \
             answer; `{}` has neither",
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
