//! Whether blocks are opened where they help: problems by their stated budget and their number of steps.

use anyhow::Result;

use super::{Identity, SwitchProblemRow};
use crate::stats::{Estimate, Flips, LEVEL, accuracy};

names! {
    /// The way with the higher accuracy in a cell, by the interval of `benefit`.
    pub enum Optimum {
        Block = "block",
        Text = "text",
        Undecided = "undecided",
    }
}

rows! {
    /// Problems with one budget and one number of steps (a cell), with one budget, or all of them.
    pub struct AdaptiveRow {
        /// `n` counts the row's problems.
        #[serde(flatten)]
        pub identity: Identity,
        /// Visible tokens; absent: all budgets.
        pub budget: Option<usize> => "tokens": "visible tokens that a response may have, in rollouts and in evaluation",
        /// Steps of the problem; absent: all.
        pub level: Option<u8> => OutcomeRow,
        pub switch_rate: Estimate => AccuracyRow,
        pub accuracy: Estimate => AccuracyRow,
        pub with_block: Estimate => SwitchBenefitRow,
        pub without_block: Estimate => SwitchBenefitRow,
        /// Accuracy with a block minus without, paired.
        pub benefit: Estimate => SwitchBenefitRow,
        /// Set for cells only.
        pub optimum: Option<Optimum> => "name":
            "what answers a budget and number of steps better, beyond the interval of benefit: block, text, or undecided",
        pub decided: usize => "count": "problems of budgets and numbers of steps at which that is decided",
        /// Share of these on which the optimal policy switches; absent if there are none.
        pub optimal_rate: Option<f64> => "share": "of the decided problems, those on which the optimal policy switches",
        pub as_optimal: Option<Estimate> => "share": "of the decided problems, those on which the model did as the optimal policy does",
        /// Accuracy of the policy that chooses the better option in each cell: chosen on the same problems, so slightly too high.
        pub best_accuracy: Estimate => "share":
            "right answers of the policy that chooses the better option at each budget and number of steps",
    }
}

/// A problem, and the optimal way in its cell.
struct ProblemPlace<'p> {
    problem: &'p SwitchProblemRow,
    budget: usize,
    optimum: Optimum,
    /// Whether a block has the higher accuracy in its cell, decided or not.
    block: bool,
}

/// One row per cell of at least two problems, one per budget, and one for all. `budgets[i]` is the budget of problem `i`.
pub fn by_budget(problems: &[SwitchProblemRow], budgets: &[usize]) -> Result<Vec<AdaptiveRow>> {
    let mut of: Vec<ProblemPlace<'_>> = problems
        .iter()
        .zip(budgets)
        .map(|(problem, &budget)| ProblemPlace { problem, budget, optimum: Optimum::Undecided, block: false })
        .collect();
    of.sort_by_key(|p| (p.budget, p.problem.level));
    let mut rows = vec![];
    for cell in of.chunk_by_mut(|a, b| (a.budget, a.problem.level) == (b.budget, b.problem.level)) {
        let benefit = benefit(cell)?;
        // A way that is not better than guessing is never optimal, even if the other one is worse.
        let learnt = |way: Vec<bool>| {
            let guess = cell[0].problem.guess;
            accuracy(&way).map(|right| guess.is_none_or(|guess| right.low > guess))
        };
        let optimum = match benefit {
            b if b.is_above(0.0) && learnt(bools(cell, |p| p.problem.with_block))? => Optimum::Block,
            b if b.scaled(-1.0).is_above(0.0) && learnt(bools(cell, |p| p.problem.without_block))? => Optimum::Text,
            _ => Optimum::Undecided,
        };
        cell.iter_mut().for_each(|p| (p.optimum, p.block) = (optimum, benefit.value > 0.0));
        let row = row(cell, Some(cell[0].budget), cell[0].problem.level)?;
        rows.extend(row.map(|row| AdaptiveRow { optimum: Some(optimum), ..row }));
    }
    for budget in of.chunk_by(|a, b| a.budget == b.budget) {
        rows.extend(row(budget, Some(budget[0].budget), None)?);
    }
    rows.extend(row(&of, None, None)?);
    Ok(rows)
}

fn bools(of: &[ProblemPlace<'_>], is: impl Fn(&ProblemPlace<'_>) -> bool) -> Vec<bool> {
    of.iter().map(is).collect()
}

fn benefit(of: &[ProblemPlace<'_>]) -> Result<Estimate> {
    Flips::count(&bools(of, |p| p.problem.without_block), &bools(of, |p| p.problem.with_block))?.change(LEVEL)
}

fn row(of: &[ProblemPlace<'_>], budget: Option<usize>, level: Option<u8>) -> Result<Option<AdaptiveRow>> {
    let [first, _, ..] = of else { return Ok(None) };
    let share = |is: &dyn Fn(&ProblemPlace<'_>) -> bool| accuracy(&bools(of, is));
    let right = |p: &ProblemPlace<'_>, block: bool| if block { p.problem.with_block } else { p.problem.without_block };
    let decided: Vec<&ProblemPlace<'_>> = of.iter().filter(|p| p.optimum != Optimum::Undecided).collect();
    let as_optimal: Vec<bool> = decided.iter().map(|p| p.problem.chosen == (p.optimum == Optimum::Block)).collect();
    let blocks = decided.iter().filter(|p| p.optimum == Optimum::Block).count();
    let some = !decided.is_empty();
    Ok(Some(AdaptiveRow {
        identity: Identity { n: of.len(), ..first.problem.identity.clone() },
        budget,
        level,
        switch_rate: share(&|p| p.problem.chosen)?,
        accuracy: share(&|p| right(p, p.problem.chosen))?,
        with_block: share(&|p| p.problem.with_block)?,
        without_block: share(&|p| p.problem.without_block)?,
        benefit: benefit(of)?,
        optimum: None,
        decided: decided.len(),
        optimal_rate: some.then(|| blocks as f64 / decided.len() as f64),
        as_optimal: some.then(|| accuracy(&as_optimal)).transpose()?,
        best_accuracy: share(&|p| right(p, p.block))?,
    }))
}
