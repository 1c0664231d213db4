//! One file per experiment: its `Config` and its run; its rows are structs of [`crate::schema`]. Knows checkpoints, not training.
//!
//! An experiment is a function of a [`Study`], its settings and a [`Journal`]. To add one: a file here with `ABOUT` and `Config`,
//! and its name in the list below:
//! - `one` checkpoint: `run` computes rows and saves them in the journal. With `=> table` after its name, `rows` replaces `run`: its
//!   result is saved, and `table` is its summary. The same holds for a `pair` of phases of one run. `probe` runs these.
//! - `measured`: `measure` adds records of units (pairs, problems) as they arrive, and `conclude` makes tables from the records alone.
//!   So it can be resumed and shared by several processes. `intervene` runs these; `unfit` returns why it cannot run, if so.
//!
//! `--only` and `--list` include it, and `[settings.<name>]` of a recipe sets its `Config`. Each returns a Markdown summary.

pub mod decodes;
mod intervention_table;
mod journal;
pub(crate) mod markdown;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use journal::Journal;

use crate::nth::Nth;
use crate::recipe::{MOST_ROWS, Range, set};
use crate::schema::stream_name;
use crate::store::FlatRow;
use crate::study::Study;
use crate::{Described, Setting};

/// Description of an experiment, and when it runs.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// Its question, and the paper's table or figure.
    pub asks: &'static str,
    /// Runs only if `--only` names it, so that `probe` and `intervene` without arguments are short.
    pub on_request: bool,
    /// Whether it also measures the checkpoint that GRPO started from if no phases or experiments are named: for claims about RL.
    pub of_grpo_start: bool,
    /// Whether it reads decoded responses, which shards of `probe` save.
    pub reads_responses: bool,
    /// Whether it reads decoded text alone, neither states nor gradients: it may compute with coarsely rounded inputs (`stored-q8`).
    pub only_decodes: bool,
    /// Whether it measures `<swi>` itself: on a model that never learnt it, it runs only if `--only` names it, and its summary is marked.
    pub of_switching: bool,
    /// Whether `probe` runs it by default: seconds on a small model, and a finding by itself.
    pub first_look: bool,
}

impl About {
    pub const fn asking(asks: &'static str) -> Self {
        Self {
            asks,
            on_request: false,
            of_grpo_start: false,
            reads_responses: false,
            only_decodes: false,
            of_switching: false,
            first_look: false,
        }
    }

    pub const fn on_request(self) -> Self {
        Self { on_request: true, ..self }
    }

    pub const fn of_grpo_start(self) -> Self {
        Self { of_grpo_start: true, ..self }
    }

    pub const fn of_responses(self) -> Self {
        Self { reads_responses: true, ..self }
    }

    pub const fn of_text_alone(self) -> Self {
        Self { only_decodes: true, ..self }
    }

    pub const fn of_switching(self) -> Self {
        Self { of_switching: true, ..self }
    }

    pub const fn at_first(self) -> Self {
        Self { first_look: true, ..self }
    }
}

/// One line of the list below.
pub struct Experiment {
    /// As in `--only` and in file names.
    pub name: &'static str,
    pub about: About,
    pub run: Run,
    /// For a measured one: file of measurements and file of the main table; the first pair by default.
    files: &'static [Files],
    /// Why it cannot run on a checkpoint, if so. Invalid settings are an error.
    pub unfit: fn(&Study, &Settings) -> Result<Unfit>,
    /// Its settings, for the manifest.
    pub settings: fn(&Settings) -> Value,
    /// Names and descriptions of its settings.
    pub described: &'static [Setting],
    /// Joins the measurements of all shards into the output of a single process.
    pub merge: fn(&mut Journal, &[FlatRow]) -> Result<String>,
}

/// Settings that are counts: 0 would mean no work.
const COUNTS: [&str; 10] =
    ["problems", "candidates", "pairs", "samples", "updates", "batch", "top", "folds", "together", "judged"];

/// Settings by their names, with the ranges that `settings!` declares.
type Ranges = &'static [(&'static str, Range)];

/// `Config::RANGES` of settings without a declared range; the inherent constant of the others shadows it.
trait WithoutRanges {
    const RANGES: Ranges = &[];
}

impl<C: Described> WithoutRanges for C {}

/// [`Settings::check`] of one experiment, also for calls of the library.
fn check_of<C: Default + Serialize>(place: &str, config: &C, ranges: Ranges) -> Result<()> {
    let [given, plain] = [config, &C::default()].map(serde_json::to_value);
    check_values(place, &given?, &plain?)?;
    let settings = toml::Table::try_from(config)?;
    for (key, range) in ranges {
        let Some(value) = settings.get(*key) else { continue };
        ensure!(range.admits(value), "{place}.{key} must be {}, found {value}", range.said());
    }
    Ok(())
}

/// Checks that numbers are finite (JSON has null for others) and counts in range, and that lists have no duplicates.
fn check_values(place: &str, given: &Value, plain: &Value) -> Result<()> {
    let key = place.rsplit('.').next().unwrap_or_default();
    match given {
        Value::Object(fields) => fields.iter().try_for_each(|(key, value)| {
            check_values(&format!("{place}.{key}"), value, plain.get(key).unwrap_or(&Value::Null))
        }),
        Value::Array(values) => values.iter().enumerate().try_for_each(|(at, value)| {
            ensure!(!values[..at].contains(value), "{place}: {} is named twice", value.to_string().replace('"', ""));
            check_values(place, value, &Value::Bool(true))
        }),
        Value::Null if !plain.is_null() => bail!("{place} must be a finite number"),
        value => match value.as_u64() {
            Some(count) if count > MOST_ROWS as u64 => bail!("{place} must be at most {MOST_ROWS}, found {count}"),
            Some(0) if COUNTS.contains(&key) => bail!("{place} must be at least 1, found 0"),
            _ => Ok(()),
        },
    }
}

/// The named layers of the stream, by default all: 0 is the embedding, l the output of `blocks.{l-1}`.
fn layers_named(experiment: &str, named: &[usize], blocks: usize) -> Result<Vec<usize>> {
    if let Some(layer) = named.iter().find(|layer| **layer > blocks) {
        bail!(
            "{experiment}.layers: layer {layer} does not exist, the model has 0 to {blocks} (0: the embedding, {blocks}: {})",
            stream_name(blocks)
        );
    }
    Ok(if named.is_empty() { (0..=blocks).collect() } else { named.to_vec() })
}

/// The named latent steps as indices, by default all.
fn steps_named(experiment: &str, named: &[Nth], longest: usize) -> Result<Vec<usize>> {
    if let Some(step) = named.iter().find(|step| step.index() >= longest) {
        bail!("{experiment}.steps: no block has a step {step}; the longest has {longest}");
    }
    Ok(if named.is_empty() { (0..longest).collect() } else { named.iter().map(|step| step.index()).collect() })
}

/// The file of measurements and the file of the main table.
pub(crate) type Files = (&'static str, &'static str);

/// Inputs of an experiment's function, which returns a Markdown summary.
#[derive(Clone, Copy)]
pub enum Run {
    /// One checkpoint.
    One(fn(&Study, &Settings, &mut Journal) -> Result<String>),
    /// Two phases of one run.
    Pair(fn(&Study, &Study, &Settings, &mut Journal) -> Result<String>),
}

/// Why an experiment cannot run on a checkpoint, if so; it is skipped unless the user named it.
pub type Unfit = Option<String>;

impl Settings {
    /// With `experiment.key=value` pairs.
    ///
    /// # Errors
    /// A pair without `=`; an unknown experiment, key or value.
    pub fn with(self, pairs: &[String]) -> Result<Self> {
        let change = |settings: Self, pair: &String| -> Result<Self> {
            let mut table = toml::Table::try_from(&settings)?;
            set(&mut table, pair)?;
            table.try_into().with_context(|| format!("--set {pair}"))
        };
        pairs.iter().try_fold(self, change)
    }

    /// For the checkpoint that GRPO started from: `layer_probe` probes for the switch only.
    pub fn of_grpo_start(&self) -> Self {
        let mut settings = self.clone();
        settings.layer_probe.values = false;
        settings
    }

    /// With explicit modes of interventions, so that manifests can be compared.
    pub fn named(&self, study: &Study) -> Self {
        let (latent_intervention, hook_intervention) =
            (self.latent_intervention.named(study), self.hook_intervention.named());
        Self { latent_intervention, hook_intervention, ..self.clone() }
    }
}

impl Experiment {
    /// Whether it adds records of units as they arrive, so that it can be resumed and shared by several processes.
    pub(crate) fn is_measured(&self) -> bool {
        !self.files.is_empty()
    }

    /// The program that runs it.
    pub fn program(&self) -> &'static str {
        if self.is_measured() { "intervene" } else { "probe" }
    }

    /// The files that it writes with these settings: measurements, if any, and the main table.
    pub fn files(&self, settings: &Settings) -> (Option<&'static str>, &'static str) {
        let apart = self.files.len() > 1 && settings.latent_intervention.is_apart();
        let files = self.files.get(usize::from(apart));
        files.map_or((None, self.name), |&(measured, table)| (Some(measured), table))
    }

    /// The experiment whose shards write this file of measurements, and the file of its main table.
    pub fn measuring(file: &str) -> Option<(&'static Self, Files)> {
        let all = ALL.iter().chain([&decodes::DECODES]);
        all.flat_map(|e| e.files.iter().map(move |files| (e, *files))).find(|(_, files)| files.0 == file)
    }
}

settings! {
    /// Settings of an experiment that has none.
    pub struct NoSettings {}
}

macro_rules! experiments {
    (one: $($one:ident $(=> $table:ident)?),*; pair: $($pair:ident),*; measured: $($measured:ident),* $(,)?) => {
        $(pub mod $one;)*
        $(pub mod $pair;)*
        $(pub mod $measured;)*

        /// Settings of all experiments by name.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Settings {
            $(pub $one: $one::Config,)*
            $(pub $pair: $pair::Config,)*
            $(pub $measured: $measured::Config,)*
        }

        impl Settings {
            /// Checks of each experiment's settings alone; [`Experiment::unfit`] has those that depend on the checkpoint.
            ///
            /// # Errors
            /// A number out of its range; a count of 0 or beyond [`MOST_ROWS`]; a list with duplicates; a setting without effect.
            pub fn check(&self) -> Result<()> {
                $(check_of(concat!("settings.", stringify!($one)), &self.$one, $one::Config::RANGES)?;)*
                $(check_of(concat!("settings.", stringify!($measured)), &self.$measured, $measured::Config::RANGES)?;)*
                self.decoded_trace.check()
            }
        }

        /// All experiments in the order of execution.
        pub const ALL: &[Experiment] = &[
            $(experiments!(@ $one, Run::One(|study, settings, journal| {
                journal.observed(|journal| experiments!(@run $one $($table)?, study, &settings.$one, journal))
            })),)*
            $(experiments!(@ $pair, Run::Pair(|a, b, _, journal| {
                journal.observed(|journal| journal.tell(&$pair::rows(a, b)?, $pair::table))
            })),)*
            $(Experiment {
                files: $measured::FILES,
                unfit: |study, settings| $measured::unfit(study, &settings.$measured),
                merge: |journal, rows| {
                    let config = serde_json::from_value(journal.setup["settings"].clone()).context("the settings")?;
                    journal.merged(rows, |rows, journal| $measured::conclude(&config, rows, journal))
                },
                ..experiments!(@ $measured, Run::One(|study, settings, journal| {
                    let config = &settings.$measured;
                    journal.measured(
                        |rows| $measured::measure(study, config, rows),
                        |rows, journal| $measured::conclude(config, rows, journal),
                    )
                }))
            },)*
        ];
    };
    (@run $name:ident, $study:expr, $config:expr, $journal:expr) => {
        $name::run($study, $config, $journal)
    };
    (@run $name:ident $table:ident, $study:expr, $config:expr, $journal:expr) => {
        $journal.tell(&$name::rows($study, $config)?, $name::$table)
    };
    (@ $name:ident, $run:expr) => {
        Experiment {
            name: stringify!($name),
            about: $name::ABOUT,
            run: $run,
            files: &[],
            unfit: |_, _| Ok(None),
            // Plain structs of numbers and strings: they always have a JSON form.
            settings: |settings| serde_json::to_value(&settings.$name).unwrap_or_default(),
            described: <$name::Config as Described>::SETTINGS,
            merge: |_, _| bail!(concat!(stringify!($name), " has no shards to merge")),
        }
    };
}

experiments! {
    one: accuracy, outcomes => table, traces => table, entropy => table, positions => table, logit_lens => table, teacher_forced => table,
        switch_window => table, exit_probability, layer_probe, direct_logit => table, attention_to_latents => table, patterns,
        token_lens, jacobian_lens => table, early_stop => table, decoded_trace => table, subspace, pass_at_k => table, monitor,
        adaptive => table, card, film => table;
    pair: phases, part_swap;
    measured: latent_intervention, switch_benefit, activation_patching, head_patching, pair_patching, attribution_patching,
        edge_attribution, steering, hook_intervention, normal_run
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_settings_are_refused_for_every_experiment() {
        Settings::default().check().expect("the defaults");
        let none = subspace::Config { batch: 0, ..Default::default() };
        let error = check_of("subspace", &none, subspace::Config::RANGES).expect_err("no batch");
        assert_eq!(error.to_string(), "subspace.batch must be at least 1, found 0");
        for (written, wrong) in [
            ("latent_intervention = { draws = 100000000000 }", "settings.latent_intervention.draws must be at most"),
            ("subspace = { ranks = [2, 10000001] }", "settings.subspace.ranks must be at most"),
            ("subspace = { learning_rate = nan }", "settings.subspace.learning_rate must be a finite number"),
            ("pass_at_k = { temperature = inf }", "settings.pass_at_k.temperature must be a finite number"),
            ("card = { margin = 0.6 }", "settings.card.margin must be a number above 0 and at most 0.5, found 0.6"),
            ("film = { steps = 0 }", "settings.film.steps must be a whole number from 1 to"),
            ("pass_at_k = { temperature = 0 }", "settings.pass_at_k.temperature must be a number above 0, found 0.0"),
            ("monitor = { doses = [0.5, 1.0] }", "settings.monitor.doses must be each a number above 0 and below 1"),
            ("decoded_trace = { probe = { draws = 5 } }", "decoded_trace.probe.draws has no effect"),
            ("steering = { problems = 0 }", "settings.steering.problems must be at least 1, found 0"),
            ("steering = { layers = [2, 1, 2] }", "settings.steering.layers: 2 is named twice"),
            (
                "latent_intervention = { later = ['frozen', 'frozen'] }",
                "latent_intervention.later: frozen is named twice",
            ),
        ] {
            let settings: Settings = toml::from_str(written).expect("settings");
            let error = settings.check().expect_err(written).to_string();
            assert!(error.contains(wrong), "{error}");
        }
    }
}
