//! One file per experiment: its `Config`, how it runs; its rows are structs of [`crate::schema`]. Knows checkpoints, not
//! training.
//!
//! To add one: a file here with `ABOUT`, `Config` and `run`, and its name in the list below, under what `run` takes: `one`
//! checkpoint, a `pair` of phases of one run, or what `causal` experiments share (then also `fits`). `probe` runs the first
//! two, `intervene` the last; `--only` and `--list` know it, and `[settings.<name>]` of a recipe sets its `Config`. Experiments
//! on one checkpoint share what the [`Study`] computes once; causal ones share the normal run too ([`Causal`]). Each writes
//! its rows as they come and returns a Markdown summary. One that several processes can share stands under `sharded` too: it
//! writes rows of its own problems or pairs first, and its tables follow from the rows of all (`SHARDS`, `merge`).

mod files;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

pub use files::Files;

use crate::schema::{InterventionRow, Named};
use crate::store::{FlatRow, RowWriter};
use crate::study::{Causal, Study};

/// One line of the list below.
pub struct Experiment {
    /// As in `--only` and in file names.
    pub name: &'static str,
    /// What it asks, and which table or figure of the paper.
    pub about: &'static str,
    pub run: Run,
    settings: fn(&Settings) -> serde_json::Value,
}

/// What an experiment is run on; returns a Markdown summary.
pub enum Run {
    /// One checkpoint.
    One(fn(&Study, &Settings, &mut RowWriter) -> Result<String>),
    /// Two phases of one run.
    Pair(fn(&Study, &Study, &Settings, &mut RowWriter) -> Result<String>),
    /// One checkpoint and its normal run, which is forked.
    Causal { fits: fn(&Causal, &Settings) -> Result<Fit>, run: fn(&Causal, &Settings, &Files) -> Result<String> },
}

/// Whether an experiment can be run on a checkpoint. What is wrong with its settings is an error instead.
pub enum Fit {
    Yes,
    /// Why not; it is then left out unless the user named it.
    No(String),
}

impl From<Option<String>> for Fit {
    /// From what is missing, if anything.
    fn from(missing: Option<String>) -> Self {
        missing.map_or(Fit::Yes, Fit::No)
    }
}

/// What is measured of the checkpoint that GRPO started from where nobody names phases or experiments: what claims about RL
/// compare. The others cost minutes and ask nothing about RL.
const OF_GRPO_START: &[&str] = &[
    "accuracy",
    "outcomes",
    "traces",
    "teacher_forced",
    "switch_window",
    "exit_probability",
    "layer_probe",
    "phases",
    "switch_benefit",
];

impl Settings {
    /// For the checkpoint that GRPO started from: probes for the switch, not for values.
    pub(crate) fn of_grpo_start(&self) -> Self {
        let mut settings = self.clone();
        settings.layer_probe.values = false;
        settings
    }

    /// With the modes of interventions spelled out, so that two manifests can be compared.
    pub(crate) fn named(&self, study: &Study) -> Self {
        Self { latent_intervention: self.latent_intervention.named(study), ..self.clone() }
    }
}

/// An experiment that several processes can share.
pub(crate) struct Sharded {
    experiment: &'static str,
    /// The files that a shard writes.
    pub rows: &'static [&'static str],
    /// Makes what one process would write, under the file's name, of the rows of all shards.
    pub merge: fn(&Files, &str, &[FlatRow]) -> Result<String>,
}

impl Sharded {
    /// The experiment whose shards write these rows.
    pub fn of(rows: &str) -> Option<&'static Self> {
        SHARDED.iter().find(|sharded| sharded.rows.contains(&rows))
    }
}

impl Experiment {
    /// Whether several processes can share it.
    pub(crate) fn is_sharded(&self) -> bool {
        SHARDED.iter().any(|sharded| sharded.experiment == self.name)
    }

    /// Whether it reads decoded responses, which several processes can share.
    pub(crate) fn reads_responses(&self) -> bool {
        OF_RESPONSES.contains(&self.name)
    }

    /// Whether the checkpoint that GRPO started from is measured by it unasked.
    pub(crate) fn is_of_grpo_start(&self) -> bool {
        OF_GRPO_START.contains(&self.name)
    }

    /// The name of the main file that it writes under these settings.
    pub(crate) fn rows(&self, settings: &Settings) -> &'static str {
        let interventions = self.name == InterventionRow::NAME;
        if interventions { settings.latent_intervention.rows_name() } else { self.name }
    }

    /// The program that runs it.
    pub fn program(&self) -> &'static str {
        if matches!(self.run, Run::Causal { .. }) { "intervene" } else { "probe" }
    }

    /// Its own settings, for the manifest.
    pub fn settings(&self, settings: &Settings) -> serde_json::Value {
        (self.settings)(settings)
    }
}

macro_rules! experiments {
    (one: $($one:ident),*; pair: $($pair:ident),*; causal: $($causal:ident),*; sharded: $($sharded:ident),* $(,)?) => {
        $(pub mod $one;)*
        $(pub mod $pair;)*
        $(pub mod $causal;)*

        /// Settings of every experiment, each under its own name.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Settings {
            $(pub $one: $one::Config,)*
            $(pub $pair: $pair::Config,)*
            $(pub $causal: $causal::Config,)*
        }

        /// What shards of them write, and what becomes of it.
        const SHARDED: &[Sharded] = &[$(Sharded {
            experiment: stringify!($sharded),
            rows: $sharded::SHARDS,
            merge: |files, name, rows| {
                let config = serde_json::from_value(files.setup["settings"].clone()).context("the settings")?;
                $sharded::merge(&config, files, name, rows)
            },
        }),*];

        /// Every experiment, in the order in which it is run.
        pub const ALL: &[Experiment] = &[
            $(experiments!($one, Run::One(|study, settings, rows| $one::run(study, &settings.$one, rows))),)*
            $(experiments!($pair, Run::Pair(|a, b, settings, rows| $pair::run(a, b, &settings.$pair, rows))),)*
            $(experiments!($causal, Run::Causal {
                fits: |causal, settings| $causal::fits(causal, &settings.$causal),
                run: |causal, settings, files| $causal::run(causal, &settings.$causal, files),
            }),)*
        ];
    };
    ($name:ident, $run:expr) => {
        Experiment {
            name: stringify!($name),
            about: $name::ABOUT,
            run: $run,
            // Plain structs of numbers and strings: they always have a JSON form.
            settings: |settings| serde_json::to_value(&settings.$name).unwrap_or_default(),
        }
    };
}

experiments! {
    one: accuracy, outcomes, traces, entropy, positions, logit_lens, teacher_forced, switch_window, exit_probability, layer_probe,
        direct_logit, attention_to_latents, patterns, token_lens;
    pair: phases;
    causal: latent_intervention, switch_benefit, activation_patching, head_patching, pair_patching, attribution_patching, edge_attribution, steering, hook_intervention, normal_run;
    sharded: normal_run, latent_intervention, switch_benefit, activation_patching, head_patching
}

/// What reads decoded responses: shards of `probe` save them.
const OF_RESPONSES: &[&str] = &[
    "accuracy",
    "outcomes",
    "traces",
    "entropy",
    "positions",
    "logit_lens",
    "exit_probability",
    "patterns",
    "token_lens",
];

/// What only `--only` runs, so that `probe` and `intervene` without arguments stay short.
pub(crate) const ON_REQUEST: [&str; 8] = [
    "patterns",
    "token_lens",
    "normal_run",
    "pair_patching",
    "attribution_patching",
    "edge_attribution",
    "steering",
    "hook_intervention",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_list_of_names_names_experiments() {
        for name in OF_GRPO_START.iter().chain(OF_RESPONSES).chain(&ON_REQUEST) {
            assert!(ALL.iter().any(|experiment| experiment.name == *name), "{name}");
        }
    }
}
