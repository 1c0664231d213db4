//! Checks that a run can be resumed: compares its settings with the current ones.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::guard::read_text;
use crate::method::Recipe;

/// Compares a recipe with the one stored in the run.
///
/// # Errors
/// Settings that differ, by key and with both values.
pub(super) fn ensure_same_settings(recipe: &Recipe, file: &Path) -> Result<()> {
    let ours = toml::Table::try_from(recipe).context("writing the recipe as TOML")?;
    let others = differences(&read_recipe(file)?, &ours);
    ensure!(
        others.is_empty(),
        "{}: the run was started with other settings: {}; repeat them, or name another folder with --out",
        file.display(),
        others.join("; ")
    );
    Ok(())
}

/// Reads a run's recipe as a TOML table.
pub(super) fn read_recipe(file: &Path) -> Result<toml::Table> {
    let text = read_text(file).with_context(|| format!("{}: cannot read", file.display()))?;
    text.parse().with_context(|| format!("{}: not a recipe", file.display()))
}

/// Settings that differ, by key and with both values.
pub(super) fn differences(held: &toml::Table, ours: &toml::Table) -> Vec<String> {
    let mut found = vec![];
    compare("", &held.clone().into(), &ours.clone().into(), &mut found);
    found
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
    } else if held != ours && !same_file(key, held, ours) {
        out.push(format!("{key} was {held}, now {ours}"));
    }
}

/// Whether two paths are the same file: older versions stored paths of problems and models relative to the current folder.
fn same_file(key: &str, held: &toml::Value, ours: &toml::Value) -> bool {
    let whole = |value: &toml::Value| std::path::absolute(value.as_str()?).ok();
    ["data.path", "data.test_path", "data.grpo_path", "pretrained"].contains(&key)
        && whole(held).is_some()
        && whole(held) == whole(ours)
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
        ensure_same_settings(&recipe(&["base.steps=7"]), &file).expect("the same");
        let said = ensure_same_settings(&recipe(&["base.steps=9", "seed=3"]), &file).expect_err("others").to_string();
        assert!(said.contains("base.steps was 7, now 9") && said.contains("seed was 0, now 3"), "{said}");
    }
}
