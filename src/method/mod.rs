//! Methods as values: what a method trains, in which phases, and how its checkpoints reason. One file a method, one line below.
//!
//! A method declares; `train` drives. A [`Phase`] says where its weights come from and what is done; a supervised one
//! ([`SupervisedPhase`]) says how a sample looks at a step (ids, which positions are latent), what the loss is ([`Objective`]), and
//! with which latent source and controller the result is decoded ([`Reasoning`]). A method never sees a run.
//!
//! Phases of the same name are the same work: in a run with several methods each is trained once.

pub mod batches;
pub mod curriculum;
pub mod objective;
mod phase;
pub(crate) mod reads;
mod schedule;
mod stages;

pub use objective::{CrossEntropy, LossSums, Objective};
pub(crate) use phase::stage_name;
pub use phase::{Context, Export, Phase, SupervisedPhase, Work};
pub use schedule::LrSchedule;

use anyhow::{Result, bail};

use crate::recipe::Recipe;

/// A way to train a model to reason.
pub trait Method: Sync {
    /// As in `--method` and in tables.
    fn name(&self) -> &'static str;

    /// What it is, and whose.
    fn about(&self) -> &'static str;

    /// What is done, in order, under this recipe.
    fn phases(&self, recipe: &Recipe) -> Vec<Phase>;
}

macro_rules! methods {
    ($($module:ident :: $method:ident,)*) => {
        $(mod $module;)*

        /// Every method.
        pub const ALL: &[&dyn Method] = &[$(&$module::$method,)*];
    };
}

methods! {
    text_cot::TextCot,
    text_cot_grpo::TextCotGrpo,
    switch::Switch,
    switch_brevity::SwitchBrevity,
    no_cot::NoCot,
    icot::Icot,
    pause::Pause,
    coconut::Coconut,
    codi::Codi,
    colar::Colar,
    coconut_pause::CoconutPause,
    coconut_no_thought::CoconutNoThought,
    coconut_no_curriculum::CoconutNoCurriculum,
    codi_fixed::CodiFixed,
    simcot::SimCot,
    swireasoning::SwiReasoning,
    soft_thinking::SoftThinking,
    soft_grpo::SoftGrpo,
    hrpo::Hrpo,
    latent_sft::LatentSft,
    latent_grpo::LatentGrpo,
    fixed_embedding::FixedEmbedding,
}

/// # Errors
/// An unknown name, with those that exist.
pub fn by_name(name: &str) -> Result<&'static dyn Method> {
    let names = || ALL.iter().map(|m| m.name()).collect::<Vec<_>>().join(", ");
    match ALL.iter().find(|m| m.name() == name) {
        Some(method) => Ok(*method),
        None => bail!("unknown method `{name}`: there are {}", names()),
    }
}

/// The phases of a recipe's methods in order, each once.
///
/// # Errors
/// An unknown method, or none.
pub fn phases(recipe: &Recipe) -> Result<Vec<Phase>> {
    let mut all: Vec<Phase> = vec![];
    for name in &recipe.methods {
        for phase in by_name(name)?.phases(recipe) {
            if !all.iter().any(|have| have.name == phase.name) {
                all.push(phase);
            }
        }
    }
    if all.is_empty() {
        bail!(
            "`methods` names nothing to train: there are {}",
            ALL.iter().map(|m| m.name()).collect::<Vec<_>>().join(", ")
        );
    }
    Ok(all)
}
