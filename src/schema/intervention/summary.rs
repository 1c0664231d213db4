//! Summarises observations: each cell against the normal run on the same problems, draws pooled, with intervals. The result does
//! not depend on the order of observations.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};

use super::{Holds, Identity, InterventionRow, KnownValueRow, NORMAL, NULL_SEED, NULLS, Observation, dosed};
use crate::schema::verdict::{adjust, beyond_chance, by_luck};
use crate::stats::{Bootstrap, Estimate, Flips, LEVEL, by_problem, sign_flip, wilson};

/// Results of a run of interventions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// One row per cell, in order.
    pub rows: Vec<InterventionRow>,
    /// One row per cell of `known_value` and assumption about the block's content.
    pub known: Vec<KnownValueRow>,
}

/// One draw of every problem, in order.
type GradedDraw<'a> = Vec<&'a Observation>;

/// Summarises each cell in one row.
///
/// # Errors
/// No observation of the normal run; a cell that lacks problems or has one twice.
pub fn summarise(observations: &[Observation]) -> Result<Summary> {
    let mut cells: BTreeMap<usize, BTreeMap<usize, BTreeMap<usize, &Observation>>> = BTreeMap::new();
    for o in observations {
        let draw = cells.entry(o.cell).or_default().entry(o.draw).or_default();
        ensure!(draw.insert(o.problem, o).is_none(), "{}: problem {} occurs twice", called(o), o.problem);
    }
    let draws = |cell: BTreeMap<usize, BTreeMap<_, _>>| cell.into_values().map(|draw| draw.into_values().collect());
    let cells: Vec<Vec<GradedDraw>> = cells.into_values().map(|cell| draws(cell).collect()).collect();
    let normal = cells.iter().find_map(|draws| draws.first().filter(|d| d[0].mode == NORMAL));
    let normal = normal.context("no observation of the normal run: nothing to compare with")?;
    let mut summary = Summary::default();
    for draws in &cells {
        for draw in draws {
            let same = draw.len() == normal.len() && draw.iter().zip(normal).all(|(a, b)| a.problem == b.problem);
            let (there, all) = (draw.len(), normal.len());
            ensure!(same, "{}: {there} problems, the normal run has {all}; add the missing ones", called(draw[0]));
        }
        let (before, draws) = match draws.as_slice() {
            [first, others @ ..] if first[0].mode == NULL_SEED && !others.is_empty() => (first, others),
            all => (normal, all),
        };
        summary.rows.push(row(before, draws)?);
        summary.known.extend(known(draws)?);
    }
    // The normal run and the nulls are not interventions.
    let tested = summary.rows.iter_mut().filter(|r| r.mode != NORMAL && !NULLS.contains(&r.mode.as_str()));
    adjust(tested.map(|row| &mut row.p_holm))?;
    Ok(summary)
}

/// For messages: `rotate:30 (2..), draw 1`.
fn called(o: &Observation) -> String {
    format!("{} ({}), draw {}", dosed(&o.mode, o.dose), o.steps, o.draw)
}

/// Compares the draws of a cell with `before`.
fn row(before: &GradedDraw, draws: &[GradedDraw]) -> Result<InterventionRow> {
    let (n, first) = (before.len(), draws[0][0]);
    let seed = first.identity.seed;
    let pairs = || draws.iter().flat_map(|d| (0..n).map(move |i| (i, d[i])));
    // Problems × draws, pooled; one draw is a plain share.
    let share = |keep: &dyn Fn(usize) -> bool, yes: &dyn Fn(usize, &Observation) -> bool| -> Result<Option<Estimate>> {
        let events: Vec<(usize, bool)> = pairs().filter(|(i, _)| keep(*i)).map(|(i, o)| (i, yes(i, o))).collect();
        pooled(seed, &events, draws.len())
    };
    let all = |_: usize| true;
    let right = |_: usize, o: &Observation| o.correct;
    let some = |estimate: Option<Estimate>| estimate.context("no problems");
    // The majority of draws decides; with a tie the problem counts as unchanged.
    let majority: Vec<bool> = (0..n)
        .map(|i| {
            let correct = draws.iter().filter(|d| d[i].correct).count();
            if 2 * correct == draws.len() { before[i].correct } else { 2 * correct > draws.len() }
        })
        .collect();
    let flips = Flips::count(&before.iter().map(|o| o.correct).collect::<Vec<_>>(), &majority)?;
    let (accuracy_change, p_value) = change(before, draws, &flips)?;
    let leads = pairs().filter_map(|(i, o)| Some((i, o.margin?)));
    let lead_changes = pairs().filter_map(|(i, o)| Some((i, o.margin? - before[i].margin?)));
    let is_normal = first.mode == NORMAL;
    let is_changed = |i: usize| if is_normal { before[i].switched } else { draws.iter().any(|d| d[i].forked) };
    let of_normal = |keep: &dyn Fn(usize) -> bool| {
        let right: Vec<bool> = (0..n).filter(|i| keep(*i)).map(|i| before[i].correct).collect();
        (right.iter().filter(|right| **right).count(), right.len())
    };
    let (right_before, changed) = of_normal(&is_changed);
    let (diagnostic, switched) = of_normal(&|i| before[i].switched);
    let firings: usize = pairs().map(|(_, o)| o.firings).sum();
    let moved: f64 = pairs().map(|(_, o)| o.moved).sum();
    Ok(InterventionRow {
        identity: Identity { n, ..first.identity.clone() },
        mode: first.mode.clone(),
        dose: first.dose,
        steps: first.steps,
        later: first.later,
        at: first.at,
        blocks: first.blocks,
        hook: first.hook.clone(),
        heads: first.heads.clone(),
        place: first.place.clone(),
        draws: draws.len(),
        accuracy: some(share(&all, &right)?)?,
        accuracy_change,
        answer_changed: some(share(&all, &|i, o| o.answer != before[i].answer)?)?,
        guess: first.guess,
        before: (changed > 0).then(|| wilson(right_before, changed, LEVEL)).transpose()?,
        diagnostic_by_luck: first.guess.filter(|_| diagnostic > 0).map(|guess| by_luck(diagnostic, switched, guess)),
        diagnostic_accuracy: share(&|i| before[i].switched && before[i].correct, &right)?,
        wrong_to_right: share(&|i| !before[i].correct, &right)?,
        lost: flips.lost,
        gained: flips.gained,
        p_value,
        p_holm: p_value,
        logit_diff: by_problem::mean(seed, leads)?,
        logit_diff_change: by_problem::mean(seed, lead_changes)?,
        firings,
        mean_change: moved / firings.max(1) as f64,
    })
}

/// Change in accuracy against `before`, and the exact p-value of no change. If the draws of every problem agree: McNemar's test,
/// with the score interval consistent with it. Otherwise: the sign-flip test on each problem's draws together, and a bootstrap
/// over problems that excludes 0 only if the test does.
fn change(before: &GradedDraw, draws: &[GradedDraw], flips: &Flips) -> Result<(Estimate, f64)> {
    if draws[0][0].mode == NORMAL {
        return Ok((Estimate { value: 0.0, low: 0.0, high: 0.0, n: before.len() }, 1.0));
    }
    let of_problem = |i: usize| draws.iter().map(|d| i64::from(d[i].correct) - i64::from(before[i].correct)).sum();
    let changes: Vec<i64> = (0..before.len()).map(of_problem).collect();
    if changes.iter().all(|sum| [0, draws.len() as u64].contains(&sum.unsigned_abs())) {
        return Ok((flips.change(LEVEL)?, flips.p_value()));
    }
    let p_value = sign_flip(&changes);
    let means: Vec<f64> = changes.iter().map(|&sum| sum as f64 / draws.len() as f64).collect();
    let change = Bootstrap::seeded(before[0].identity.seed).mean(&means)?;
    Ok((if p_value > 1.0 - LEVEL { change.reaching(0.0) } else { change }, p_value))
}

/// Wilson interval or, with several draws per problem, the interval of clustered events.
fn pooled(seed: u64, events: &[(usize, bool)], draws: usize) -> Result<Option<Estimate>> {
    if events.is_empty() {
        return Ok(None);
    }
    let yes = events.iter().filter(|(_, yes)| *yes).count();
    if draws == 1 {
        return wilson(yes, events.len(), LEVEL).map(Some);
    }
    if events.len() > draws {
        return by_problem::share(seed, events);
    }
    // One problem, of which some draws were right: its interval holds those of a right and of a wrong one.
    let (none, all) = (wilson(0, 1, LEVEL)?, wilson(1, 1, LEVEL)?);
    let value = yes as f64 / events.len() as f64;
    let (low, high) = (if yes < draws { none.low } else { all.low }, if yes > 0 { all.high } else { none.high });
    Ok(Some(Estimate { value, low, high, n: 1 }))
}

/// Rate of the predicted answer for each assumption about the block's content; intervals resample problems. Empty for another mode.
fn known(draws: &[GradedDraw]) -> Result<Vec<KnownValueRow>> {
    if draws[0][0].mode != KnownValueRow::MODE {
        return Ok(vec![]);
    }
    let exchanged = |o: &Observation| o.predicted.clone().zip(o.chance);
    let problems: BTreeSet<usize> =
        draws.iter().flatten().filter(|o| exchanged(o).is_some()).map(|o| o.problem).collect();
    ensure!(
        problems.len() > 1,
        "known_value: {} problem with a block to exchange; a rate needs 2, use more problems",
        problems.len()
    );
    let by_value = graded(draws, Holds::Value, &exchanged)?;
    let by_operand = graded(draws, Holds::Operand, &|o| o.operand_predicted.clone().zip(o.operand_chance))?;
    Ok(by_value.into_iter().chain(by_operand).collect())
}

/// The row of one assumption: `exchanged` returns the predicted answer and its chance. `None` for fewer than two problems.
fn graded(
    draws: &[GradedDraw],
    holds: Holds,
    exchanged: &dyn Fn(&Observation) -> Option<(String, f64)>,
) -> Result<Option<KnownValueRow>> {
    let first = draws[0][0];
    let (mut hits, mut kept) = (vec![], vec![]);
    for o in draws.iter().flatten() {
        let Some((predicted, chance)) = exchanged(o) else { continue };
        hits.push((o.problem, o.answer.as_ref() == Some(&predicted), chance));
        kept.push((o.problem, o.correct));
    }
    let seed = first.identity.seed;
    let rates = beyond_chance(seed, &hits)?.zip(by_problem::share(seed, &kept)?);
    let Some(([hit_rate, chance, above_chance], kept)) = rates else { return Ok(None) };
    Ok(Some(KnownValueRow {
        identity: Identity { n: hit_rate.n, ..first.identity.clone() },
        steps: first.steps,
        later: first.later,
        at: first.at,
        holds,
        draws: draws.len(),
        hit_rate,
        chance,
        above_chance,
        kept,
        firings: draws.iter().flatten().map(|o| o.firings).sum(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_one_problem_counts_its_draws() {
        let of = |right: usize| {
            pooled(0, &[0, 1, 2, 3, 4].map(|draw| (7, draw < right)), 5).expect("a share").expect("events")
        };
        for (right, value) in [(0, 0.0), (2, 0.4), (3, 0.6), (5, 1.0)] {
            let share = of(right);
            assert!((share.value - value).abs() < 1e-12 && share.covers(value) && share.n == 1, "{right}: {share:?}");
        }
        assert_eq!((of(0), of(5)), (wilson(0, 1, LEVEL).expect("none"), wilson(1, 1, LEVEL).expect("all")));
        assert!(of(2).low <= of(0).low && of(2).high >= of(5).high);
    }
}
