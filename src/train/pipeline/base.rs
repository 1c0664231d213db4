//! The base of another run, taken over: the runs of a sweep over later phases train it once.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::resume;
use crate::progress::say;
use crate::recipe::Recipe;
use crate::store::copy_folder;

/// The phase that every method begins with.
const BASE: &str = "base";

/// Whether the run in `from` has a finished base with the settings of this recipe.
///
/// # Errors
/// No run, no finished base, or settings that differ, by name.
pub(super) fn same_settings(recipe: &Recipe, from: &Path) -> Result<()> {
    let finished = from.join(BASE).join("result.json");
    ensure!(
        finished.is_file(),
        "--base {}: no finished base ({} is missing); train it with `train --only base --out {}`",
        from.display(),
        finished.display(),
        from.display()
    );
    resume::same_base(recipe, &from.join("recipe.toml"))
}

/// Whether that base was trained on the data, by the threads and processes and in the type of this run.
///
/// # Errors
/// What differs, by name.
pub(super) fn same_work(manifest: &Value, from: &Path) -> Result<()> {
    let path = from.join("manifest.json");
    let text = fs::read_to_string(&path).with_context(|| format!("{}: cannot read", path.display()))?;
    let held: Value = serde_json::from_str(&text).with_context(|| format!("{}: not a manifest", path.display()))?;
    for key in ["threads", "processes", "data_sha256", "dtype"] {
        // Runs of the time before there could be several processes do not name their one.
        let [held, ours] = [&held, manifest].map(|of| of.get(key).cloned().unwrap_or_else(|| 1.into()));
        ensure!(
            held == ours,
            "{}: {key} was {held}, now {ours}: that makes another base; leave --base away",
            path.display()
        );
    }
    Ok(())
}

/// Copies the base of the run in `from` into the run in `to`, unless that has one already (`--resume`).
///
/// # Errors
/// A base that was begun here, files that cannot be copied.
pub(super) fn take(from: &Path, to: &Path) -> Result<()> {
    let base = to.join(BASE);
    if base.join("result.json").is_file() {
        return Ok(());
    }
    ensure!(
        !base.exists(),
        "{}: this run has begun a base of its own; leave --base away to go on with it",
        base.display()
    );
    // Under a name that the next start removes, until it is whole.
    let partial = to.join(format!(".{BASE}.partial-{}", std::process::id()));
    copy_folder(&from.join(BASE), &partial)?;
    fs::rename(&partial, &base).with_context(|| format!("{}: cannot rename to {BASE}", partial.display()))?;
    say(&format!("base: taken over from {}", from.display()));
    Ok(())
}
