//! The interventions of `latent_intervention` at any hook point: `zero`, `mean`, `resample`, … on a head's `z`, an MLP's output, the
//! stream, at latent steps or at positions of text, and what that does to answers.
//!
//! `intervene --hook 'blocks.2.attn.hook_z' --heads 0,3 --steps 1,2 --modes zero,mean,resample`: one row for each point × mode × choice
//! of positions × heads, each against *normal* on the same problems. Every problem is decoded from its prompt with the one hook
//! set; what follows is recomputed. The values to put in are those of a normal run at the same point. Outside latents an
//! intervention knows the t-th token of the response (or the position of the prompt) as it knows latent step t: `mean` is the mean
//! over problems of the same t, `resample` takes another problem's value of the same t, and leaves a place alone that its donor lacks.
//!
//! Every problem under every mode is an [`Observation`], as there; the rows follow from the observations.
//!
//! Misleads: a place that two heads write is not seen by replacing one. `zero` and `mean` are off the distribution. A mode whose
//! change follows from the tokens themselves (`mean` over prompts) removes the question, not a use of it. Text positions of two
//! responses with the same t need not say the same thing.

mod cells;
mod region;
mod run;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::latent_intervention::check::check;
use super::latent_intervention::table;
use super::{Files, Fit};
use crate::interventions::Steps;
use crate::schema::{InterventionRow, Observation, Summary, summarise};
use crate::store::Journal;
use crate::study::Causal;
use cells::{Hooked, asked};
pub use region::{Heads, Positions};
use run::observe;

/// What it asks.
pub const ABOUT: &str =
    "what replaced values at any hook point (--hook) do to answers, by head, latent step or position";

/// The modes that make sense at a hook point.
pub const MODES: [&str; 9] =
    ["zero", "random_norm", "self_patch", "mean", "mean_global", "gaussian", "resample", "scale", "rotate"];

/// Settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Hook points, or patterns of them: `blocks.*.attn.hook_z`. None: nothing is run.
    pub hooks: Vec<String>,
    /// One row each; none: all heads together.
    pub heads: Vec<Heads>,
    /// Latent steps, one row each; none, and no positions: all.
    pub steps: Vec<Steps>,
    /// Other positions, one row each.
    pub positions: Vec<Positions>,
    pub modes: Vec<String>,
    /// Draws of a random mode.
    pub draws: usize,
}

impl Default for Config {
    fn default() -> Self {
        let modes = ["zero", "mean", "resample", "self_patch"].map(str::to_owned).to_vec();
        Self { hooks: vec![], heads: vec![], steps: vec![], positions: vec![], modes, draws: 5 }
    }
}

fn all(causal: &Causal, config: &Config) -> Result<Vec<Hooked>> {
    let subject = &causal.study.subject;
    asked(config, subject.model.config(), subject.recipe.evaluation.k_cap)
}

/// Needs a hook. Refuses what does not exist, before any work.
///
/// # Errors
/// An unknown hook, head, step or mode.
pub fn fits(causal: &Causal, config: &Config) -> Result<Fit> {
    if config.hooks.is_empty() {
        return Ok(Fit::No("hook_intervention needs a hook point: intervene --hook 'blocks.2.attn.hook_z'".into()));
    }
    all(causal, config).map(|_| Fit::Yes)
}

/// Runs every cell, goes on with the observations of a run that was stopped, and writes observations and rows.
///
/// # Errors
/// As [`rows`]; unfinished observations of another run; a disk that cannot be written.
pub fn run(causal: &Causal, config: &Config, files: &Files) -> Result<String> {
    if files.done(InterventionRow::HOOKS)? {
        return Ok("done before\n".into());
    }
    let asked = all(causal, config)?;
    let seen = observe(causal, &asked, files.journal(Observation::HOOKS)?, files.weights())?;
    checked(&asked, seen.rows())?;
    let summary = summarise(&files.finish(Observation::HOOKS, seen, Observation::key, false)?)?;
    files.save(InterventionRow::HOOKS, &summary.rows)?;
    Ok(table(&summary))
}

/// The rows in memory.
///
/// # Errors
/// What does not exist, before any work; a mode that never fired or moved nothing; a self-patch that changed something; as the
/// decoder's.
pub fn rows(causal: &Causal, config: &Config) -> Result<Summary> {
    let asked = all(causal, config)?;
    let seen = observe(causal, &asked, Journal::in_memory(), "")?;
    checked(&asked, seen.rows())?;
    summarise(&seen.sorted(Observation::key)?)
}

/// Cell 0 is the normal run.
fn checked(asked: &[Hooked], observations: &[Observation]) -> Result<()> {
    for (number, hooked) in asked.iter().enumerate() {
        let of: Vec<&Observation> = observations.iter().filter(|o| o.cell == number + 1).collect();
        check(&hooked.cell, &of).with_context(|| hooked.label())?;
    }
    Ok(())
}
