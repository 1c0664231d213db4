//! Whether a run may be gone on with, or its base taken over: the settings that it was started with, against those of now.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::recipe::Recipe;

/// Settings that a base does not depend on: what comes after it, and names.
const AFTER_THE_BASE: [&str; 15] = [
    "name",
    "methods",
    "annotate",
    "boundary",
    "latent",
    "grpo",
    "no_cot",
    "icot",
    "pause",
    "coconut",
    "codi",
    "colar",
    "swireasoning",
    "soft_thinking",
    "checkpoint",
];

/// Compares a recipe with the one that a run has on disk.
///
/// # Errors
/// Settings that differ, by their keys and with both values.
pub(super) fn same_settings(recipe: &Recipe, file: &Path) -> Result<()> {
    same(recipe, file, &[], "the run was started with other settings", "repeat them, or name another folder with --out")
}

/// Compares what a base depends on.
///
/// # Errors
/// Settings that differ, by their keys and with both values.
pub(super) fn same_base(recipe: &Recipe, file: &Path) -> Result<()> {
    same(recipe, file, &AFTER_THE_BASE, "its base was trained with other settings", "repeat them, or leave --base away")
}

fn same(recipe: &Recipe, file: &Path, except: &[&str], found: &str, remedy: &str) -> Result<()> {
    let held = std::fs::read_to_string(file).with_context(|| format!("{}: cannot read", file.display()))?;
    let mut held: toml::Table = held.parse().with_context(|| format!("{}: not a recipe", file.display()))?;
    let mut ours = toml::Table::try_from(recipe).context("writing the recipe as TOML")?;
    for key in except {
        held.remove(*key);
        ours.remove(*key);
    }
    let mut differences = vec![];
    compare("", &held.into(), &ours.into(), &mut differences);
    if !differences.is_empty() {
        bail!("{}: {found}: {}; {remedy}", file.display(), differences.join("; "));
    }
    Ok(())
}

/// `base.steps was 200, now 100` for every setting that differs.
fn compare(key: &str, held: &toml::Value, ours: &toml::Value, out: &mut Vec<String>) {
    if let (Some(held), Some(ours)) = (held.as_table(), ours.as_table()) {
        let new = ours.keys().filter(|name| !held.contains_key(*name));
        for name in held.keys().chain(new) {
            let inner = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
            match (held.get(name), ours.get(name)) {
                (Some(held), Some(ours)) => compare(&inner, held, ours, out),
                (held, ours) => out.push(format!("{inner} was {}, now {}", shown(held), shown(ours))),
            }
        }
    } else if held != ours {
        out.push(format!("{key} was {held}, now {ours}"));
    }
}

fn shown(value: Option<&toml::Value>) -> String {
    value.map_or_else(|| "not set".into(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe(set: &[&str]) -> Recipe {
        Recipe::resolve("smoke", &set.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>()).expect("a recipe")
    }

    #[test]
    fn every_setting_that_differs_is_named_with_both_values() {
        let folder = tempfile::tempdir().expect("a folder");
        let held = toml::to_string(&recipe(&["base.steps=7"])).expect("TOML");
        let file = folder.path().join("recipe.toml");
        std::fs::write(&file, held).expect("written");
        same_settings(&recipe(&["base.steps=7"]), &file).expect("the same");
        let said = same_settings(&recipe(&["base.steps=9", "seed=3"]), &file).expect_err("others").to_string();
        assert!(said.contains("base.steps was 7, now 9") && said.contains("seed was 0, now 3"), "{said}");
    }

    #[test]
    fn what_comes_after_the_base_may_differ_and_is_a_setting() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("recipe.toml");
        std::fs::write(&file, toml::to_string(&recipe(&[])).expect("TOML")).expect("written");
        same_base(&recipe(&["coconut.c=3", "latent.learning_rate=1e-4"]), &file).expect("the same base");
        let said = same_base(&recipe(&["coconut.c=3", "base.steps=9"]), &file).expect_err("another").to_string();
        assert!(said.contains("base.steps was ") && !said.contains("coconut"), "{said}");
        let all = toml::Table::try_from(recipe(&[])).expect("a table");
        let unknown: Vec<_> = AFTER_THE_BASE.iter().filter(|key| !all.contains_key(**key)).collect();
        assert!(unknown.is_empty(), "not settings: {unknown:?}");
    }
}
