//! A cell that says nothing is left out by name; a control that did something is an error.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};

use crate::interventions::RULES;
use crate::schema::{KnownValueRow, NORMAL, NULLS, Observation, dosed};

/// Cells that say nothing, and why: `embedding_argmax (all) fired 40 times and moved nothing`.
pub type Silent = BTreeMap<usize, String>;

/// Checks the observations of a whole run, cell by cell.
///
/// # Errors
/// A rule that did not take hold, a self-patch that changed something.
pub fn check(observations: &[Observation]) -> Result<Silent> {
    let mut cells: BTreeMap<usize, Vec<&Observation>> = BTreeMap::new();
    observations.iter().for_each(|o| cells.entry(o.cell).or_default().push(o));
    cells.into_iter().filter_map(|(cell, of)| of_cell(&of).transpose().map(|why| Ok((cell, why?)))).collect()
}

/// `rotate:30 (2..)`, with the hook where there is one.
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

/// Why a cell says nothing, if it does not.
fn of_cell(of: &[&Observation]) -> Result<Option<String>> {
    let mode = of[0].mode.as_str();
    let label = || label(of[0]);
    let count = |wrong: &dyn Fn(&Observation) -> bool| of.iter().filter(|o| wrong(o)).count();
    if RULES.iter().any(|rule| rule.name == mode) {
        let problems = of.iter().filter(|o| o.draw == 0).count();
        if !of.iter().any(|o| o.forked) {
            return Ok(Some(format!("{} never fired: all {problems} problems switch of their own accord", label())));
        }
        let not = match mode {
            "skip" | "suppress_switch" => count(&|o| o.switched),
            "empty_block" => count(&|o| o.latent_calls > 0),
            _ => count(&|o| !o.switched),
        };
        ensure!(not == 0, "{} did not take hold on {not} of {problems} problems", label());
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
            return Ok(Some(format!("{} fired {firings} times and moved nothing", label())));
        }
        let exchanged: BTreeSet<usize> = of.iter().filter(|o| o.predicted.is_some()).map(|o| o.problem).collect();
        if mode == KnownValueRow::MODE && exchanged.len() < 2 {
            let (label, n) = (label(), exchanged.len());
            let why = format!("{label}: {n} problem with a block to exchange; a rate needs 2, ask more problems");
            return Ok(Some(why));
        }
    }
    Ok(None)
}
