//! The paper's causal experiment (tab:intervention): decode with the latent inputs replaced, compare with *normal* on
//! the same problems. Per mode, dose and choice of steps one row; draws of a random mode are pooled.
//!
//! Every problem under every mode is an [`Observation`], on disk as soon as it is decoded; the rows are computed from the
//! observations alone ([`crate::schema::summarise`]). `logit_diff` is the lead of the gold answer's first token over the best
//! other token (difference of logits, nats), at the position of the mode's own response that gives its answer; responses that
//! give none are left out (its n says so).

mod arithmetic;
pub(super) mod check;
pub(crate) mod known_value;
mod observe;
pub(super) mod record;
mod table;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::{About, Files, Fit, Journal};
use crate::interventions::{Later, Steps};
use crate::latent::Channel;
use crate::schema::{InterventionRow, KnownValueRow, Measurement, Named, Observation, Summary, summarise};
use crate::store::Measurements;
use crate::study::Study;
use crate::study::modes::{all_modes, default_modes};
use crate::tasks::Task;
pub use arithmetic::Arithmetic;
pub(crate) use arithmetic::of_task;
use check::check;
pub(crate) use known_value::{Held, by_chance, held};
use observe::{Asked, observe};
pub use table::table;

/// What it asks.
pub const ABOUT: About =
    About::asking("what replaced latent inputs and other rules of switching do to answers (tab:intervention)");

/// Settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Empty: the paper's four, the controls it lacks, the nulls and, where values are known, their exchange. `all`: every one.
    pub modes: Vec<String>,
    /// One row each. Without `all` among them the rows go to files of their own, so that they do not replace the main tables.
    pub steps: Vec<Steps>,
    /// Each with each of `at`; the first pair has the whole table, the others the replaced inputs only.
    pub later: Vec<Later>,
    pub at: Vec<Channel>,
    /// Draws of a random mode.
    pub draws: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            modes: vec![],
            steps: vec![Steps::All],
            later: vec![Later::Recompute],
            at: vec![Channel::Both],
            draws: 5,
        }
    }
}

impl Config {
    /// With the modes spelled out.
    pub(crate) fn named(&self, study: &Study) -> Self {
        let known = study.recipe.task.as_ref().is_some_and(Task::has_numbers);
        let modes = match self.modes.as_slice() {
            [] => default_modes(known),
            [all] if all == "all" => all_modes(known),
            named => named.to_vec(),
        };
        Self { modes, ..self.clone() }
    }

    /// Whether its rows go to files of their own: without `all` among the steps.
    pub(crate) fn is_apart(&self) -> bool {
        !self.steps.contains(&Steps::All)
    }
}

pub(crate) const FILES: &[Files] =
    &[(Observation::NAME, InterventionRow::NAME), (Observation::STEPS, InterventionRow::STEPS)];

/// Refuses what cannot be run on this checkpoint, before any work.
///
/// # Errors
/// An unknown mode, dose or step; `known_value` without a generated task.
pub fn fits(study: &Study, config: &Config) -> Result<Fit> {
    check_modes(study, &config.named(study)).map(|()| Fit::Yes)
}

fn check_modes(study: &Study, config: &Config) -> Result<()> {
    let asked = Asked::all(config, k_cap(study))?;
    ensure!(!config.later.is_empty() && !config.at.is_empty(), "--later and --at each need a value");
    if asked.iter().any(|a| a.cell.is(KnownValueRow::MODE)) {
        of_task(study).map(drop)?;
    }
    Ok(())
}

/// Observes every mode, so far as it is not there yet.
///
/// # Errors
/// As [`run_on`]; unfinished observations of another run.
pub fn measure(study: &Study, config: &Config, rows: &mut Measurements<Observation>) -> Result<()> {
    let config = &config.named(study);
    observe(study, &Asked::all(config, k_cap(study))?, None, rows)
}

pub(crate) fn conclude(_config: &Config, rows: Measurements<Observation>, journal: &mut Journal) -> Result<String> {
    tables(rows, journal)
}

/// Writes the observations of a whole run and the tables that follow from them.
pub(super) fn tables(rows: Measurements<Observation>, journal: &mut Journal) -> Result<String> {
    check(rows.rows())?;
    let summary = summarise(&journal.finish(rows, false)?)?;
    let table_of = journal.files.1;
    if !summary.known.is_empty() {
        let known = if table_of == InterventionRow::STEPS { KnownValueRow::STEPS } else { KnownValueRow::NAME };
        journal.save(known, &summary.known)?;
    }
    journal.save(table_of, &summary.rows)?;
    Ok(table(&summary))
}

fn k_cap(study: &Study) -> usize {
    study.recipe.evaluation.k_cap
}

/// The tables in memory. `arithmetic` is what `known_value` compares with; `None` takes that of the recipe's task.
///
/// # Errors
/// An unknown mode or step before any work; a mode that never fired or moved nothing; a self-patch that changed something; no
/// problem on which the model switched.
pub fn run_on(study: &Study, config: &Config, arithmetic: Option<&dyn Arithmetic>) -> Result<Summary> {
    let config = &config.named(study);
    let asked = Asked::all(config, k_cap(study))?;
    let mut rows = Measurements::in_memory();
    observe(study, &asked, arithmetic, &mut rows)?;
    check(rows.rows())?;
    summarise(&rows.sorted(Observation::key)?)
}

/// Decodes the problems and runs every mode; rows in the order of the settings.
///
/// # Errors
/// As [`run_on`].
pub fn rows(study: &Study, config: &Config) -> Result<Summary> {
    if config.modes.iter().any(|m| m == KnownValueRow::MODE) {
        check_modes(study, config)?;
    }
    run_on(study, config, None)
}
