//! A mode that did nothing, or a control that did something, is an error.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};

use crate::interventions::RULES;
use crate::schema::{NORMAL, NULLS, Observation};

/// Checks the observations of a whole run, cell by cell.
///
/// # Errors
/// A mode that never fired or moved nothing, a rule that did not take hold, a self-patch that changed something.
pub fn check(observations: &[Observation]) -> Result<()> {
    let mut cells: BTreeMap<usize, Vec<&Observation>> = BTreeMap::new();
    observations.iter().for_each(|o| cells.entry(o.cell).or_default().push(o));
    cells.values().try_for_each(|of| of_cell(of))
}

/// `rotate:30 (2..)`, with the hook where there is one.
fn label(o: &Observation) -> String {
    let dose = o.dose.map(|d| format!(":{d}")).unwrap_or_default();
    let mode = format!("{}{dose}", o.mode);
    match (&o.hook, &o.heads, &o.place) {
        (Some(hook), Some(heads), Some(place)) if place != "latent" => {
            format!("{mode} at {hook}, heads {heads}, {place}")
        }
        (Some(hook), Some(heads), _) => format!("{mode} at {hook}, heads {heads}, latent ({})", o.steps),
        _ => format!("{mode} ({})", o.steps),
    }
}

fn of_cell(of: &[&Observation]) -> Result<()> {
    let mode = of[0].mode.as_str();
    let label = || label(of[0]);
    let count = |wrong: &dyn Fn(&Observation) -> bool| of.iter().filter(|o| wrong(o)).count();
    if RULES.iter().any(|rule| rule.name == mode) {
        let problems = of.iter().filter(|o| o.draw == 0).count();
        let fired = of.iter().any(|o| o.forked);
        ensure!(fired, "{} never fired: all {problems} problems switch of their own accord", label());
        let not = match mode {
            "skip" | "suppress_switch" => count(&|o| o.switched),
            "empty_block" => count(&|o| o.latent_calls > 0),
            _ => count(&|o| !o.switched),
        };
        ensure!(not == 0, "{} did not take hold on {not} of {problems} problems", label());
    } else if mode != NORMAL && !NULLS.contains(&mode) {
        let firings: usize = of.iter().map(|o| o.firings).sum();
        ensure!(firings > 0, "{} never fired: 0 values were replaced", label());
        if mode == "self_patch" {
            let changed = count(&|o| !o.identical);
            ensure!(changed == 0, "{} changed a token or a log-probability of {changed} problems", label());
            return Ok(());
        }
        let moved: f64 = of.iter().map(|o| o.moved).sum();
        ensure!(moved > 0.0, "{} fired {firings} times and moved nothing", label());
    }
    Ok(())
}
