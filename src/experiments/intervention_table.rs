//! Tables from observations of replaced values, at latent inputs or at any hook point. Checks the effect of each cell, and excludes by
//! name a cell without information.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, anyhow, ensure};

use super::Journal;
use super::markdown::{largest, table_of};
use crate::interventions::RULES;
use crate::schema::{
    InterventionRow, KnownValueRow, NORMAL, NULLS, Observation, RowFile, Summary, dosed, never, summarise,
};
use crate::stats::by_problem::cell;
use crate::store::Measurements;
use crate::study::units::measure_in_memory;

/// Writes the observations of a whole run and their tables. `why` says what was skipped before; cells without information are added.
pub(super) fn tables(rows: Measurements<Observation>, why: Option<String>, journal: &mut Journal) -> Result<String> {
    let mut skipped = Vec::from_iter(why);
    let silent = check(rows.rows())?;
    let mut observations = journal.finish(rows, false)?;
    leave_out(&mut observations, silent, &mut skipped);
    let others = observations.iter().any(|row| row.mode != NORMAL && !NULLS.contains(&row.mode.as_str()));
    ensure!(others || skipped.is_empty(), "no mode is informative: {}", skipped.join("; "));
    let summary = summarise(&observations)?;
    let table_of = journal.files.1;
    if !summary.known.is_empty() {
        let known = if table_of == InterventionRow::STEPS { KnownValueRow::STEPS } else { KnownValueRow::NAME };
        journal.save(known, &summary.known)?;
    }
    journal.save(table_of, &summary.rows)?;
    let skipped: String = skipped.iter().map(|why| format!("\nskipped: {why}\n")).collect();
    Ok(table(&summary) + &skipped)
}

/// Cells without information, and why: `embedding_argmax (all) fired 40 times and changed nothing`.
type Silent = BTreeMap<usize, String>;

/// Checks the observations of a whole run, cell by cell.
fn check(observations: &[Observation]) -> Result<Silent> {
    let mut cells: BTreeMap<usize, Vec<&Observation>> = BTreeMap::new();
    observations.iter().for_each(|o| cells.entry(o.cell).or_default().push(o));
    cells.into_iter().filter_map(|(cell, of)| of_cell(&of).transpose().map(|why| Ok((cell, why?)))).collect()
}

/// `rotate:30 (2..)`, with the hook if there is one.
fn label(o: &Observation) -> String {
    let mode = dosed(&o.mode, o.dose);
    match (&o.hook, &o.heads, &o.place) {
        (Some(hook), Some(heads), Some(place)) if place != "latent" => {
            format!("{mode} at {hook}, heads {heads}, {place}")
        }
        (Some(hook), Some(heads), _) => format!("{mode} at {hook}, heads {heads}, latent ({})", o.steps),
        _ => format!("{mode} ({})", o.steps),
    }
}

/// Why a cell has no information; `None` if it has.
fn of_cell(of: &[&Observation]) -> Result<Option<String>> {
    let mode = of[0].mode.as_str();
    let label = || label(of[0]);
    let count = |wrong: &dyn Fn(&Observation) -> bool| of.iter().filter(|o| wrong(o)).count();
    if RULES.iter().any(|rule| rule.name == mode) {
        let problems = of.iter().filter(|o| o.draw == 0).count();
        if !of.iter().any(|o| o.forked) {
            return Ok(Some(format!("{} never fired: all {problems} problems switch by themselves", label())));
        }
        let not = match mode {
            "skip" | "suppress_switch" => count(&|o| o.switched),
            "empty_block" => count(&|o| o.latent_calls > 0),
            _ => count(&|o| !o.switched),
        };
        ensure!(not == 0, "{} had no effect on {not} of {problems} problems", label());
    } else if mode != NORMAL && !NULLS.contains(&mode) {
        let firings: usize = of.iter().map(|o| o.firings).sum();
        if firings == 0 {
            return Ok(Some(format!("{} never fired: 0 values were replaced", label())));
        }
        if mode == "self_patch" {
            let changed = count(&|o| !o.identical);
            ensure!(changed == 0, "{} changed a token or a log-probability of {changed} problems", label());
            return Ok(None);
        }
        let moved: f64 = of.iter().map(|o| o.moved).sum();
        if moved <= 0.0 {
            return Ok(Some(format!("{} fired {firings} times and changed nothing", label())));
        }
        let exchanged: BTreeSet<usize> = of.iter().filter(|o| o.predicted.is_some()).map(|o| o.problem).collect();
        if mode == KnownValueRow::MODE && exchanged.len() < 2 {
            let (label, n) = (label(), exchanged.len());
            let why = format!("{label}: {n} problem with a block to exchange; a rate needs 2: use more problems");
            return Ok(Some(why));
        }
    }
    Ok(None)
}

/// Removes the observations of cells without information; appends the reasons to `skipped`.
fn leave_out(observations: &mut Vec<Observation>, silent: Silent, skipped: &mut Vec<String>) {
    observations.retain(|row| !silent.contains_key(&row.cell));
    skipped.extend(silent.into_values());
}

/// The tables of the observations that `measure` makes, and the excluded cells with reasons.
pub(super) fn in_memory_summary(
    measure: impl FnOnce(&mut Measurements<Observation>) -> Result<()>,
) -> Result<(Summary, Vec<String>)> {
    let (mut observations, mut skipped) = (measure_in_memory(measure)?, vec![]);
    let silent = check(&observations)?;
    leave_out(&mut observations, silent, &mut skipped);
    Ok((summarise(&observations)?, skipped))
}

/// The tables of the observations that `measure` makes, in memory.
///
/// # Errors
/// A mode that never fired or changed nothing; a self-patch that changed something; failures of `measure`.
pub(super) fn strictly(measure: impl FnOnce(&mut Measurements<Observation>) -> Result<()>) -> Result<Summary> {
    let rows = measure_in_memory(measure)?;
    check(&rows)?.into_values().try_for_each(|why| Err(anyhow!(why)))?;
    summarise(&rows)
}

/// The normal run, then the largest changes of accuracy.
fn ranked(rows: &[InterventionRow]) -> Vec<&InterventionRow> {
    let (normal, others): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.mode == NORMAL);
    let others = largest(others.into_iter(), rows.len(), |row| row.accuracy_change.value.abs());
    normal.into_iter().chain(others).collect()
}

pub fn table(Summary { rows, known }: &Summary) -> String {
    let columns = "mode | where | later, at | draws | accuracy [95 %] | change | answer changed | diagnostic accuracy | diagnostic by chance | \
    lost / gained | p (Holm) | verdict | margin of gold (nats) | firings | mean ‖Δ‖";
    let mut out = table_of(columns, ranked(rows), |r| {
        let InterventionRow { later, at, draws, accuracy, accuracy_change, answer_changed, .. } = r;
        let InterventionRow { lost, gained, p_holm, firings, mean_change, .. } = r;
        let (mode, place, verdict) = (dosed(&r.mode, r.dose), r.acts_at(), r.verdict_or_same());
        let (diagnostic, lead) = (cell(r.diagnostic_accuracy, 3), cell(r.logit_diff, 2));
        let luck = r.diagnostic_by_luck.map_or_else(String::new, |luck| format!("{luck:.0}"));
        format!(
            "{mode} | {place} | {later}, {at} | {draws} | {accuracy:.3} | {accuracy_change:.3} | {answer_changed:.3} | \
             {diagnostic} | {luck} | {lost} / {gained} | {p_holm:.1e} | {verdict} | {lead} | {firings} | {mean_change:.2}"
        )
    });
    for r in known {
        let KnownValueRow { steps, later, at, holds, hit_rate, chance, above_chance, kept, .. } = r;
        let said = match (r.follows(), r.avoids()) {
            (true, _) => "follows",
            (false, true) => "becomes, less often than by chance,",
            (false, false) => "is not seen to follow",
        };
        out += &format!(
            "\nknown_value ({steps}, {later}, {at}; if blocks hold the {holds}): the answer became the predicted one in \
             {hit_rate:.3}; chance {chance:.3}; above it {above_chance:.3}; it stayed in {kept:.3}: it {said} that\n"
        );
    }
    let n = rows.iter().filter(|r| r.mode != NORMAL).map(|r| r.identity.n).min();
    out + &n.and_then(never).unwrap_or_default()
}
