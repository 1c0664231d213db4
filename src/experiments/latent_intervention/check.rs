//! A mode that did nothing, or a control that did something, is an error.

use anyhow::{Result, ensure};

use crate::schema::Observation;
use crate::study::modes::{Action, Cell};

/// Checks the observations of one cell, all draws.
///
/// # Errors
/// A mode that never fired or moved nothing, a rule that did not take hold, a self-patch that changed something.
pub fn check(cell: &Cell, observations: &[&Observation]) -> Result<()> {
    let label = cell.label();
    let problems = observations.iter().filter(|o| o.draw == 0).count();
    let count = |wrong: &dyn Fn(&Observation) -> bool| observations.iter().filter(|o| wrong(o)).count();
    match cell.action {
        Action::Rule(rule) => {
            ensure!(
                observations.iter().any(|o| o.forked),
                "{label} never fired: all {problems} problems switch of their own accord"
            );
            let not = match rule.name {
                "skip" | "suppress_switch" => count(&|o| o.switched),
                "empty_block" => count(&|o| o.latent_calls > 0),
                _ => count(&|o| !o.switched),
            };
            ensure!(not == 0, "{label} did not take hold on {not} of {problems} problems");
        }
        Action::Replace(_) => {
            let firings: usize = observations.iter().map(|o| o.firings).sum();
            ensure!(firings > 0, "{label} never fired: 0 latent positions were replaced");
            if cell.is("self_patch") {
                let changed = count(&|o| !o.identical);
                ensure!(changed == 0, "{label} changed a token or a log-probability of {changed} problems");
                return Ok(());
            }
            let moved: f64 = observations.iter().map(|o| o.moved).sum();
            ensure!(moved > 0.0, "{label} fired {firings} times and moved nothing");
        }
        _ => {}
    }
    Ok(())
}
