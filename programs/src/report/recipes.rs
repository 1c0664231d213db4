//! Recipes of `experiments/`: the commands for each of the paper's tables and figures. Parses them; runs nothing.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use switchyard::schema::{KNOWN, METRICS, RAW};

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExhibitRecipe {
    /// LaTeX labels of the paper, or of ours.
    pub reproduces: Vec<String>,
    /// The question that the table or figure answers.
    pub about: String,
    /// A drawing without data, without commands.
    #[serde(default)]
    pub diagram: bool,
    /// Command lines, from scratch to the page.
    #[serde(default)]
    pub command: Vec<String>,
    /// Files of records that it needs, `<experiment>-<checkpoint>`.
    #[serde(default)]
    pub needs: Vec<String>,
    /// Parts that the default model can and cannot show.
    #[serde(default)]
    pub scale: String,
    /// The command lines that would test it on the paper's model.
    #[serde(default)]
    pub at_scale: Vec<String>,
    /// Settings of experiments, for `probe --recipe`.
    #[serde(default)]
    pub settings: toml::Table,
    /// Hypotheses and decision rules, committed before the first run.
    #[serde(default)]
    pub preregistration: Option<Preregistration>,
}

/// Preregistration: the plan of a study, in sentences.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preregistration {
    pub hypotheses: Vec<String>,
    pub settings: Vec<String>,
    /// Seeds used to choose settings, and seeds of the tests.
    pub seeds: Vec<String>,
    pub outcomes: Vec<String>,
    pub tests: Vec<String>,
    pub decision: Vec<String>,
    pub order: Vec<String>,
    /// Deviations from the plan, with reasons.
    pub deviations: Vec<String>,
}

/// Its keys in TOML.
pub const KEYS: [&str; 9] =
    ["reproduces", "about", "diagram", "command", "needs", "scale", "at_scale", "settings", "preregistration"];

macro_rules! recipes {
    ($($name:literal),* $(,)?) => {
        /// Name and text of every recipe, embedded so that a report can name commands anywhere.
        pub const EMBEDDED: &[(&str, &str)] =
            &[$(($name, include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../experiments/", $name, ".toml")))),*];
    };
}

recipes! {
    "activation-patching", "calibration", "fig-calibration", "fig-calibration-full", "fig-injection", "fig-intervention", "fig-layer-probe",
    "fig-overview", "fig-pareto", "fig-per-subject", "fig-swi-window", "fig-token-cdf", "fig-token-dist", "intervention-ladder",
    "known-value", "lens-grid", "phases", "rl-fate", "rl-fate-floor", "rl-fate-floor-16", "rl-fate-smollm2", "switch-benefit", "tab-appendix-sweep", "tab-exit", "tab-gen-analysis", "tab-intervention", "tab-main",
    "tab-per-subject", "tab-probe", "tab-sft-vs-rl", "tab-swi-window", "tab-tf", "traces",
}

/// Parses a recipe and checks what needs no run.
pub fn parse(text: &str) -> Result<ExhibitRecipe> {
    let recipe: ExhibitRecipe = toml::from_str(text)?;
    ensure!(!recipe.reproduces.is_empty(), "`reproduces` is empty: name a label");
    ensure!(recipe.diagram == recipe.command.is_empty(), "a recipe has either `command` or `diagram = true`");
    if let Some(plan) = &recipe.preregistration {
        ensure!(
            !plan.hypotheses.is_empty() && !plan.tests.is_empty(),
            "`preregistration` needs `hypotheses` and `tests`"
        );
    }
    for need in &recipe.needs {
        let experiment = need.split('-').next().unwrap_or_default();
        ensure!(is_written(experiment), "`needs`: no experiment `{experiment}` (in `{need}`)");
    }
    Ok(recipe)
}

/// Whether an experiment or `train` writes records of this name.
fn is_written(name: &str) -> bool {
    name == METRICS || RAW.contains(&name) || KNOWN.iter().any(|known| known.name == name)
}

/// All embedded recipes, with their names.
pub fn all() -> Result<Vec<(&'static str, ExhibitRecipe)>> {
    EMBEDDED
        .iter()
        .map(|(name, text)| Ok((*name, parse(text).with_context(|| format!("experiments/{name}.toml"))?)))
        .collect()
}

/// The recipe of a label.
pub fn find_recipe<'a>(recipes: &'a [(&'static str, ExhibitRecipe)], label: &str) -> Option<&'a ExhibitRecipe> {
    recipes.iter().find(|(_, r)| r.reproduces.iter().any(|l| l == label)).map(|(_, r)| r)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_of_a_recipe_is_known() {
        for (name, text) in EMBEDDED {
            let table: toml::Table = text.parse().expect("TOML");
            table.keys().for_each(|key| assert!(KEYS.contains(&key.as_str()), "{name}: {key}"));
            let _: ExhibitRecipe = toml::from_str(text).expect("a recipe");
        }
    }
}
