//! Methods as values: their phases, objectives and the way their checkpoints reason. One file per method, one line below.
//!
//! A file declares all of its methods; `train` drives them and `report` shows them. A [`Phase`] says where its weights come from, what
//! they depend on and what is done; a supervised one ([`SupervisedPhase`]) says how a sample looks at a step (ids, which positions are
//! latent), what the loss is ([`Objective`]), and with which latent source and controller the result is decoded ([`Reasoning`]). A method
//! never sees a run.
//!
//! Phases of the same name are the same work: in a run with several methods each is trained once.

pub mod batches;
pub mod curriculum;
pub mod objective;
mod phase;
pub(crate) mod reads;
mod recipe;
mod schedule;
mod stages;

pub use objective::{CrossEntropy, LossSums, Objective};
pub(crate) use phase::stage_name;
pub use phase::{Context, Export, Panel, Phase, SupervisedPhase, TableRow, Work};
pub use recipe::settings;
pub use schedule::LrSchedule;

use anyhow::{Context as _, Result, bail, ensure};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::recipe::ranges::Part;
use crate::recipe::{CheckpointEvery, Evaluation, Shared, is_default};

/// A way to train a model to reason.
pub struct Method {
    /// As in `--method` and in tables.
    pub name: &'static str,
    /// What it is, and whose.
    pub about: &'static str,
    /// What is done, in order; GRPO only where `grpo.steps` is above 0.
    pub phases: &'static [Phase],
    /// Adapts the phases to a recipe.
    pub adjust: fn(&Recipe, &mut Vec<Phase>),
    /// The setting without which a recipe gives it nothing to do.
    pub lacks: fn(&Recipe) -> Option<&'static str>,
    /// Checks the method's settings; the error names those that contradict each other.
    pub check: fn(&Recipe) -> Result<()>,
}

impl Method {
    /// To be filled in: a method without phases.
    pub const PLAIN: Self =
        Self { name: "", about: "", phases: &[], adjust: |_, _| (), lacks: |_| None, check: |_| Ok(()) };

    /// What is done, in order, under this recipe.
    pub fn phases(&self, recipe: &Recipe) -> Vec<Phase> {
        let trains = |phase: &&Phase| recipe.grpo.steps > 0 || !matches!(phase.work, Work::Grpo(_));
        let mut phases = self.phases.iter().filter(trains).copied().collect();
        (self.adjust)(recipe, &mut phases);
        phases
    }
}

/// Files of methods. In parentheses the key of a file's `Settings` in recipes; with `?` they are left out of a recipe at their defaults,
/// so that runs which are older than the method keep the hash of their settings.
macro_rules! methods {
    ($($module:ident $(($key:ident $($optional:tt)?))?,)*) => {
        $(mod $module;)*

        /// The methods of each file.
        const FILES: &[&[Method]] = &[$($module::METHODS,)*];

        /// The settings of each method.
        const PARTS: &[Part] = &[$($((concat!(stringify!($key), "."), $module::Settings::RANGES),)?)*];

        /// Everything that a training run depends on.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Recipe {
            pub shared: Shared,
            $($(pub $key: $module::Settings,)?)*
        }

        impl Serialize for Recipe {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                #[derive(Serialize)]
                struct Written<'a> {
                    #[serde(flatten)]
                    shared: &'a Shared,
                    $($(
                        #[serde(skip_serializing_if = "Option::is_none")]
                        $key: Option<&'a $module::Settings>,
                    )?)*
                    evaluation: &'a Evaluation,
                    checkpoint: &'a CheckpointEvery,
                }
                let Self { shared, $($($key,)?)* } = self;
                let Shared { evaluation, checkpoint, .. } = shared;
                let written = Written {
                    $($($key: Some($key)$(.filter(|set| methods! { @left_out $optional set }))?,)?)*
                    shared,
                    evaluation,
                    checkpoint,
                };
                written.serialize(to)
            }
        }

        impl<'de> Deserialize<'de> for Recipe {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let mut table = toml::Table::deserialize(from)?;
                Ok(Self {
                    $($($key: recipe::take(&mut table, stringify!($key)).map_err(D::Error::custom)?,)?)*
                    shared: toml::Value::Table(table).try_into().map_err(D::Error::custom)?,
                })
            }
        }
    };
    (@left_out ? $set:ident) => {
        !is_default(*$set)
    };
}

methods! {
    text_cot,
    text_cot_grpo,
    switch(brevity?),
    switch_evasion(evasion?),
    no_cot(no_cot),
    icot(icot),
    pause(pause),
    coconut(coconut),
    simcot(simcot),
    codi(codi),
    colar(colar),
    swireasoning(swireasoning),
    soft_thinking(soft_thinking),
    soft_grpo,
    hrpo(hrpo),
    latent_sft(latent_sft),
    latent_grpo(latent_grpo),
}

/// Every method.
pub fn all() -> impl Iterator<Item = &'static Method> {
    FILES.iter().copied().flatten()
}

/// Every phase that a method may have, each once, in the order in which tables and figures show them.
pub fn declared() -> Vec<&'static Phase> {
    let mut phases: Vec<&Phase> = vec![];
    for phase in all().flat_map(|method| method.phases) {
        if phases.iter().all(|have| have.name != phase.name) {
            phases.push(phase);
        }
    }
    phases
}

fn names() -> String {
    all().map(|method| method.name).collect::<Vec<_>>().join(", ")
}

/// # Errors
/// An unknown name, with those that exist.
pub fn by_name(name: &str) -> Result<&'static Method> {
    all().find(|method| method.name == name).with_context(|| format!("unknown method `{name}`: there are {}", names()))
}

/// The phases of a recipe's methods in order, each once.
///
/// # Errors
/// An unknown method, or none.
pub fn phases(recipe: &Recipe) -> Result<Vec<Phase>> {
    let mut all: Vec<Phase> = vec![];
    for name in &recipe.methods {
        let method = by_name(name)?;
        if let Some(key) = (method.lacks)(recipe) {
            bail!("{key} where `methods` has {name}: set it, or leave the method out");
        }
        for phase in method.phases(recipe) {
            if !all.iter().any(|have| have.name == phase.name) {
                all.push(phase);
            }
        }
    }
    ensure!(!all.is_empty(), "`methods` names nothing to train: there are {}", names());
    Ok(all)
}
