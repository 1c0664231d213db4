//! One file per experiment: its `Config`, its typed rows, how it runs. Knows checkpoints, not training.
//!
//! To add one: a file here with `ABOUT`, `Config` and `run`, and its name in the list below. `probe` then runs it, `--only`
//! knows it, and `[settings.<name>]` of a recipe sets its `Config`. What experiments share (the model, the tagged
//! solutions, the greedy traces) is the [`Study`]; each writes its rows as they come and returns a Markdown summary.

pub mod activation_patching;
pub mod latent_intervention;
pub mod phases;
pub mod switch_benefit;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::store::RowWriter;
use crate::study::Study;

/// One line of the list below.
pub struct Experiment {
    /// As in `--only` and in file names.
    pub name: &'static str,
    /// What it asks, and which table or figure of the paper.
    pub about: &'static str,
    run: fn(&Study, &Settings, &mut RowWriter) -> Result<String>,
    settings: fn(&Settings) -> serde_json::Value,
}

impl Experiment {
    /// Runs it; returns a Markdown summary.
    ///
    /// # Errors
    /// Whatever the experiment refuses (data without a boundary, say), and a disk that cannot be written.
    pub fn run(&self, study: &Study, settings: &Settings, rows: &mut RowWriter) -> Result<String> {
        (self.run)(study, settings, rows)
    }

    /// Its own settings, for the manifest.
    pub fn settings(&self, settings: &Settings) -> serde_json::Value {
        (self.settings)(settings)
    }
}

macro_rules! experiments {
    ($($name:ident),* $(,)?) => {
        $(pub mod $name;)*

        /// Settings of every experiment, each under its own name.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Settings {
            $(pub $name: $name::Config,)*
        }

        /// What `probe` runs, in this order.
        pub const ALL: &[Experiment] = &[$(Experiment {
            name: stringify!($name),
            about: $name::ABOUT,
            run: |study, settings, rows| $name::run(study, &settings.$name, rows),
            // Plain structs of numbers and strings: they always have a JSON form.
            settings: |settings| serde_json::to_value(&settings.$name).unwrap_or_default(),
        },)*];
    };
}

experiments! {
    accuracy,
    outcomes,
    traces,
    entropy,
    positions,
    logit_lens,
    teacher_forced,
    switch_window,
    exit_probability,
    layer_probe,
}
