//! Adaptive switching: does the model switch only if text does not fit? Problems whose question states a budget of visible tokens are
//! decoded with a block and without one under that budget (as in `switch_benefit`), by budget and number of steps.
//!
//! The optimal policy switches in a cell where accuracy with a block exceeds accuracy without one, beyond the interval of their
//! difference, and does not switch where it is below; cells in between are undecided. It is optimal for this checkpoint: training that
//! improves blocks changes it. Compare `as_optimal` with policies that ignore the budget: `optimal_rate` if it always switches, one minus
//! that if it never does. Misleads as `switch_benefit` does: where the model opened no block, one is forced.

use anyhow::{Context, Result};

pub use super::NoSettings as Config;
use super::markdown::table_of;
use super::{About, switch_benefit};
use crate::schema::{AdaptiveRow, Optimum, by_budget};
use crate::stats::by_problem::cell;
use crate::study::Study;
use crate::study::units::measure_in_memory;
use crate::text::said_budget;

pub const ABOUT: About =
    About::asking("adaptive switching: are blocks opened where the question's budget leaves no room for text?")
        .of_grpo_start()
        .on_request()
        .of_switching();

/// One row per budget and number of steps, one per budget, one for all.
pub fn rows(study: &Study, config: &Config) -> Result<Vec<AdaptiveRow>> {
    let why = || "its questions state no budget (task `adaptive`, or data.budgets = true)".into();
    study.require(study.corpus.budgets, why)?;
    let problems = measure_in_memory(|rows| switch_benefit::measure(study, config, rows))?;
    let said = |problem: &usize| said_budget(&study.corpus.test[*problem].question);
    let budgets: Option<Vec<usize>> = problems.iter().map(|row| said(&row.problem)).collect();
    by_budget(&problems, &budgets.context("a question without its budget")?)
}

pub fn table(rows: &[AdaptiveRow]) -> String {
    let columns = "budget | steps | switch rate [95 %] | optimal | as optimal | accuracy | best | with a block | without | benefit";
    let all = |value: Option<String>| value.unwrap_or_else(|| "all".into());
    table_of(columns, rows, |r| {
        let optimal = match (r.optimum, r.optimal_rate) {
            (Some(Optimum::Undecided), _) | (None, None) => Optimum::Undecided.name().to_owned(),
            (_, rate) => rate.map_or_else(String::new, |rate| format!("{rate:.3}")),
        };
        let (budget, steps) = (all(r.budget.map(|b| b.to_string())), all(r.level.map(|l| l.to_string())));
        let as_optimal = cell(r.as_optimal, 3);
        let AdaptiveRow { switch_rate, accuracy, best_accuracy, with_block, without_block, benefit, .. } = r;
        format!(
            "{budget} | {steps} | {switch_rate:.3} | {optimal} | {as_optimal} | {accuracy:.3} | {best_accuracy:.3} | \
             {with_block:.3} | {without_block:.3} | {benefit:.3}"
        )
    })
}
