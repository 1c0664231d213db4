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

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::{Files, Fit};
use crate::interventions::{Later, Steps};
use crate::latent::Channel;
use crate::schema::{InterventionRow, KnownValueRow, Named, Observation, Summary, summarise};
use crate::store::{FlatRow, Journal};
use crate::study::modes::{all_modes, default_modes};
use crate::study::sweep::Sweep;
use crate::study::{Causal, Study};
use crate::tasks::Task;
pub use arithmetic::Arithmetic;
pub(crate) use arithmetic::of_task;
pub(crate) use known_value::{Held, by_chance, held};
use observe::{Asked, checked, observe};
pub use table::table;

/// What it asks.
pub const ABOUT: &str = "what replaced latent inputs and other rules of switching do to answers (tab:intervention)";

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
        let known = study.subject.recipe.task.as_ref().is_some_and(Task::has_numbers);
        let modes = match self.modes.as_slice() {
            [] => default_modes(known),
            [all] if all == "all" => all_modes(known),
            named => named.to_vec(),
        };
        Self { modes, ..self.clone() }
    }

    /// The name of the main file: without `all` among the steps one of its own.
    pub(crate) fn rows_name(&self) -> &'static str {
        if self.steps.contains(&Steps::All) { InterventionRow::NAME } else { InterventionRow::STEPS }
    }
}

/// Refuses what cannot be run on this checkpoint, before any work.
///
/// # Errors
/// An unknown mode, dose or step; `known_value` without a generated task.
pub fn fits(causal: &Causal, config: &Config) -> Result<Fit> {
    check_modes(causal.study, &config.named(causal.study)).map(|()| Fit::Yes)
}

fn check_modes(study: &Study, config: &Config) -> Result<()> {
    let asked = Asked::all(config, k_cap(study))?;
    ensure!(!config.later.is_empty() && !config.at.is_empty(), "--later and --at each need a value");
    if asked.iter().any(|a| a.cell.is(KnownValueRow::MODE)) {
        of_task(&study.subject).map(drop)?;
    }
    Ok(())
}

/// Runs every mode, goes on with the observations of a run that was stopped, and writes observations and rows.
///
/// # Errors
/// As [`run_on`]; unfinished observations of another run; a disk that cannot be written.
pub fn run(causal: &Causal, config: &Config, files: &Files) -> Result<String> {
    let config = &config.named(causal.study);
    let [observations, rows, _] = names(config);
    if files.done_from(observations, rows)? {
        return Ok("done before\n".into());
    }
    let journal: Journal<Observation> = files.journal(observations)?;
    let asked = Asked::all(config, k_cap(causal.study))?;
    let seen = observe(causal, &asked, None, journal, files.weights())?;
    match files.shard {
        Some(shard) => files.finish_shard(shard, (observations, "observations"), seen, Observation::key),
        None => conclude(config, &asked, files, seen),
    }
}

/// The files of observations that its shards write.
pub(crate) const SHARDS: &[&str] = &[Observation::NAME, Observation::STEPS];

/// Files of observations, modes and exchanged values.
fn names(config: &Config) -> [&'static str; 3] {
    if config.steps.contains(&Steps::All) {
        [Observation::NAME, InterventionRow::NAME, KnownValueRow::NAME]
    } else {
        [Observation::STEPS, InterventionRow::STEPS, KnownValueRow::STEPS]
    }
}

fn k_cap(study: &Study) -> usize {
    study.subject.recipe.evaluation.k_cap
}

/// Makes the tables of the observations of all shards. `config` has its modes spelled out.
///
/// # Errors
/// Observations that are not those of a whole run, and as [`run`].
pub(crate) fn merge(config: &Config, files: &Files, name: &str, rows: &[FlatRow]) -> Result<String> {
    let k_cap = files.setup["decode"]["k_cap"].as_u64().context("the setup does not say decode.k_cap")?;
    let asked = Asked::all(config, usize::try_from(k_cap)?)?;
    let seen: Journal<Observation> = files.gathered(name, rows)?;
    files.all_problems(seen.rows().iter().map(|o| o.problem))?;
    conclude(config, &asked, files, seen)
}

/// Writes the observations of a whole run and the tables that follow from them.
fn conclude(config: &Config, asked: &[Asked], files: &Files, seen: Journal<Observation>) -> Result<String> {
    let [observations, rows, known] = names(config);
    checked(asked, seen.rows())?;
    let summary = summarise(&files.finish(observations, seen, Observation::key, false)?)?;
    if !summary.known.is_empty() {
        files.save(known, &summary.known)?;
    }
    files.save(rows, &summary.rows)?;
    Ok(table(&summary))
}

/// The same in memory. `arithmetic` is what `known_value` compares with; `None` takes that of the recipe's task.
///
/// # Errors
/// An unknown mode or step before any work; a mode that never fired or moved nothing; a self-patch that changed something; no
/// problem on which the model switched.
pub fn run_on(causal: &Causal, config: &Config, arithmetic: Option<&dyn Arithmetic>) -> Result<Summary> {
    let config = &config.named(causal.study);
    let asked = Asked::all(config, k_cap(causal.study))?;
    let seen = observe(causal, &asked, arithmetic, Journal::in_memory(), "")?;
    checked(&asked, seen.rows())?;
    summarise(&seen.sorted(Observation::key)?)
}

/// Decodes the problems and runs every mode; rows in the order of the settings.
///
/// # Errors
/// As [`run_on`].
pub fn rows(study: &Study, config: &Config) -> Result<Summary> {
    if config.modes.iter().any(|m| m == KnownValueRow::MODE) {
        check_modes(study, config)?;
    }
    let settings = Sweep::settings(study);
    run_on(&Causal::new(study, &settings, Default::default(), &|_| {}), config, None)
}
