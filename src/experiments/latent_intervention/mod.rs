//! The paper's causal experiment (tab:intervention): decodes with replaced latent inputs and compares with *normal* on the same problems.
//! One row per mode, dose and choice of steps; draws of a random mode are pooled.
//!
//! Every problem in every mode is an [`Observation`], on disk as soon as it is decoded; the rows are computed from the observations alone
//! ([`crate::schema::summarise`]). `logit_diff` is the margin of the gold answer's first token over the best other token (nats), at the
//! position of the mode's own response that gives its answer; responses without an answer are not counted in its n. A cell without
//! information is excluded by name; a control that had an effect is an error.

mod observe;

use anyhow::{Result, anyhow, ensure};

use super::intervention_table::{in_memory_summary, strictly, tables};
use super::{About, Files, Journal, Unfit};
use crate::interventions::{At, Later, Steps};
use crate::progress::say;
use crate::schema::{InterventionRow, KnownValueRow, Observation, RowFile, Summary};
use crate::store::Measurements;
use crate::study::Study;
use crate::study::arithmetic::{Arithmetic, is_known, of_study};
use crate::study::modes::{all_modes, default_modes, spell_out};
use crate::study::units::measure_in_memory;
use observe::{list_cells, observe, ready};

pub const ABOUT: About =
    About::asking("effect on answers of replaced latent inputs and other switching rules (tab:intervention)");

settings! {
    pub struct Config {
        /// Empty: the paper's four, the controls it lacks, the nulls and, if values are known, their exchange. `all`: every one.
        pub modes: Vec<String> = vec![],
        /// One row each. Without `all` among them the rows go to separate files, so that they do not replace the main tables.
        pub steps: Vec<Steps> = vec![Steps::All],
        /// Each combined with each of `at`; the first pair has the whole table, the others only replaced inputs.
        pub later: Vec<Later> = vec![Later::Recompute],
        /// What the replaced input changes: both, the output at its position (embedding), or its keys and values (kv).
        pub at: Vec<At> = vec![At::Both],
        /// Draws of a random mode.
        pub draws: usize = 5,
    }
}

impl Config {
    /// With the modes spelled out.
    pub(crate) fn named(&self, study: &Study) -> Self {
        let known = is_known(study);
        let mut modes = if self.modes.is_empty() { default_modes(known) } else { self.modes.clone() };
        spell_out(&mut modes, all_modes(known).into_iter());
        Self { modes, ..self.clone() }
    }

    /// Whether its rows go to separate files: without `all` among the steps.
    pub(crate) fn is_apart(&self) -> bool {
        !self.steps.contains(&Steps::All)
    }
}

pub(crate) const FILES: &[Files] =
    &[(Observation::NAME, InterventionRow::NAME), (Observation::STEPS, InterventionRow::STEPS)];

/// Refuses impossible settings before any work. An impossible mode among others is skipped later.
///
/// # Errors
/// An unknown mode, dose or step; only `known_value`, without known values.
pub fn unfit(study: &Study, config: &Config) -> Result<Unfit> {
    let config = config.named(study);
    list_cells(&config, study.longest_block())?;
    ensure!(!config.later.is_empty() && !config.at.is_empty(), "--later and --at each need a value");
    if config.modes.iter().all(|mode| mode == KnownValueRow::MODE) {
        of_study(study).map(drop)?;
    }
    Ok(None)
}

/// Observes every possible mode that `rows` lacks.
pub fn measure(study: &Study, config: &Config, rows: &mut Measurements<Observation>) -> Result<()> {
    let config = &config.named(study);
    let (asked, skipped) = ready(study, config, None)?;
    skipped.iter().for_each(|why| say(&format!("intervene: {}: skipped: {why}", study.name)));
    observe(study, &asked, rows)
}

pub(crate) fn conclude(config: &Config, rows: Measurements<Observation>, journal: &mut Journal) -> Result<String> {
    let run = |mode: &&String| {
        let name = mode.split(':').next().unwrap_or(mode);
        rows.rows().iter().any(|row| row.mode == name) || *mode == "all"
    };
    let skipped: Vec<String> = config.modes.iter().filter(|mode| !run(mode)).cloned().collect();
    let why = (!skipped.is_empty()).then(|| format!("{} (cannot be run here)", skipped.join(", ")));
    tables(rows, why, journal)
}

/// The tables in memory. `arithmetic` predicts the answers for `known_value`; `None`: that of the problems.
///
/// # Errors
/// Before any work: an unknown mode or step. Later: a mode that is impossible, never fired or changed nothing; a self-patch that changed
/// something; no problem with a block.
pub fn run_on(study: &Study, config: &Config, arithmetic: Option<&dyn Arithmetic>) -> Result<Summary> {
    let config = &config.named(study);
    let (asked, skipped) = ready(study, config, arithmetic)?;
    skipped.into_iter().try_for_each(|why| Err(anyhow!(why)))?;
    strictly(|rows| observe(study, &asked, rows))
}

/// The observations of every possible mode, in memory.
pub(crate) fn observations(study: &Study, config: &Config) -> Result<Vec<Observation>> {
    let (asked, _) = ready(study, &config.named(study), None)?;
    measure_in_memory(|rows| observe(study, &asked, rows))
}

/// The tables of every possible mode with information; for the others the reasons. `arithmetic` as for [`run_on`].
pub fn summary(study: &Study, config: &Config, arithmetic: Option<&dyn Arithmetic>) -> Result<(Summary, Vec<String>)> {
    let config = &config.named(study);
    let (asked, mut skipped) = ready(study, config, arithmetic)?;
    let (summary, silent) = in_memory_summary(|rows| observe(study, &asked, rows))?;
    skipped.extend(silent);
    Ok((summary, skipped))
}

/// Decodes the problems and runs every mode; rows in the order of the settings.
pub fn rows(study: &Study, config: &Config) -> Result<Summary> {
    run_on(study, config, None)
}
