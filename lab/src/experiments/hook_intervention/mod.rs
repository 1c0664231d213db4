//! The interventions of `latent_intervention` at any hook point: `zero`, `mean`, `resample`, … on a head's `z`, an MLP's output, the
//! stream, at latent steps or at positions of text, and what that does to answers.
//!
//! `intervene --hook 'blocks.2.attn.hook_z[head=0]@latent[*,2]=resample'` is one row, and with `add:FILE` or `swap:FILE` the values are
//! those of a file. `intervene --hook 'blocks.2.attn.hook_z' --heads 0,3 --steps 1,2 --modes zero,mean,resample`: one row for each point × mode × choice
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
mod run;

use anyhow::Result;

use super::{About, Files, Journal, Unfit, latent_intervention};
pub use crate::interventions::Heads;
use crate::interventions::Steps;
use crate::model::Select;
use crate::schema::{InterventionRow, Observation, Summary};
use crate::store::Measurements;
use crate::study::Study;
use cells::{HookCell, asked};
use run::observe;

pub const ABOUT: About =
    About::asking("what replaced values at any hook point (--hook) do to answers, by head, latent step or position")
        .on_request();

settings! {
    pub struct Config {
        /// Changes, `blocks.2.attn.hook_z[head=0,3]@latent[*,2]=resample`; or hook points alone, or patterns of them, of which what
        /// they leave open is said below. None: nothing is run.
        pub hooks: Vec<String> = vec![],
        /// One row each; none: all heads together.
        pub heads: Vec<Heads> = vec![],
        /// Latent steps, one row each; none, and no positions: all.
        pub steps: Vec<Steps> = vec![],
        /// Other positions, one row each.
        pub positions: Vec<Select> = vec![],
        pub modes: Vec<String> = ["zero", "mean", "resample", "self_patch"].map(str::to_owned).to_vec(),
        /// Draws of a random mode.
        pub draws: usize = 5,
    }
}

fn all(study: &Study, config: &Config) -> Result<Vec<HookCell>> {
    asked(config, study.model.config(), study.recipe.evaluation.k_cap)
}

/// Needs a hook. Refuses what does not exist, before any work.
///
/// # Errors
/// An unknown hook, head, step or mode.
pub fn unfit(study: &Study, config: &Config) -> Result<Unfit> {
    if config.hooks.is_empty() {
        return Ok(Some("hook_intervention needs a hook point: intervene --hook 'blocks.2.attn.hook_z'".into()));
    }
    all(study, config).map(|_| None)
}

pub(crate) const FILES: &[Files] = &[(Observation::HOOKS, InterventionRow::HOOKS)];

/// Observes every cell, so far as it is not there yet.
///
/// # Errors
/// As [`rows`]; unfinished observations of another run.
pub fn measure(study: &Study, config: &Config, rows: &mut Measurements<Observation>) -> Result<()> {
    observe(study, &all(study, config)?, rows)
}

pub(crate) fn conclude(_config: &Config, rows: Measurements<Observation>, journal: &mut Journal) -> Result<String> {
    latent_intervention::tables(rows, None, journal)
}

/// The rows in memory.
///
/// # Errors
/// What does not exist, before any work; a mode that never fired or moved nothing; a self-patch that changed something; as the
/// decoder's.
pub fn rows(study: &Study, config: &Config) -> Result<Summary> {
    latent_intervention::strictly(|rows| measure(study, config, rows))
}
