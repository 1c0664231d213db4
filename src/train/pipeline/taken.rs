//! Reuses finished phases of another run: a branch of a run trains only what its new settings change.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::inputs;
use super::resume::{differences, read_recipe};
use crate::method::Recipe;
use crate::method::{Phase, Work, reads};
use crate::progress::say;
use crate::store::{copy_folder, file_name, json, list, remove_listed, replace_folder, sha256, write_atomic};
use crate::train::state::PhaseFolder;

/// A run to reuse phases from.
#[derive(Clone, Debug)]
pub struct RunBranch {
    /// The folder of a run, or of a sweep: then the best of its runs.
    pub run: PathBuf,
    /// The last phase to reuse (`--phase`); `None`: every phase with equal settings.
    pub until: Option<String>,
}

/// A phase that can be reused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PlannedPhase {
    name: &'static str,
    /// Whether its weights are reused but its measurement is repeated, because this recipe's evaluation differs.
    measured_again: bool,
}

/// Origin of a reused phase (`taken.json`, later the manifest).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Origin {
    run: PathBuf,
    command: Value,
    commit: Value,
    /// Hash of the finished checkpoint's files, or of the annotation.
    sha256: String,
    measured_again: bool,
    /// Origin in that run, if it reused the phase itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    taken: Option<Box<Origin>>,
}

const FILE: &str = "taken.json";

/// The run with the most reusable phases, then with the fewest to be measured again; the first of equals.
pub(super) fn choose_run(
    recipe: &Recipe,
    phases: &[Phase],
    branches: &[RunBranch],
) -> Result<(PathBuf, Vec<PlannedPhase>)> {
    let (mut best, mut why_not): (Option<(PathBuf, Vec<PlannedPhase>)>, _) = (None, None);
    let worth =
        |planned: &[PlannedPhase]| (planned.len(), planned.iter().filter(|phase| !phase.measured_again).count());
    for branch in branches {
        for run in list_runs(&branch.run)? {
            match plan(recipe, phases, &run, branch.until.as_deref()) {
                Ok(planned) if best.as_ref().is_none_or(|(_, most)| worth(&planned) > worth(most)) => {
                    best = Some((run, planned));
                }
                Ok(_) => {}
                Err(why) => why_not = why_not.or(Some(why)),
            }
        }
    }
    match (best, why_not) {
        (Some(best), _) => Ok(best),
        (None, Some(why)) => Err(why),
        (None, None) => bail!("--from does not name a run"),
    }
}

/// The folder itself, or the runs inside a sweep's folder.
fn list_runs(folder: &Path) -> Result<Vec<PathBuf>> {
    if folder.join("recipe.toml").is_file() || !folder.is_dir() {
        return Ok(vec![folder.to_path_buf()]);
    }
    let mut found = list(folder)?;
    found.retain(|path| path.join("recipe.toml").is_file());
    Ok(if found.is_empty() { vec![folder.to_path_buf()] } else { found })
}

/// The phases of a run that this recipe can reuse, in order, up to `until`.
///
/// # Errors
/// Not a run; no reusable phase, or not the requested one: the reason, by name.
fn plan(recipe: &Recipe, phases: &[Phase], run: &Path, until: Option<&str>) -> Result<Vec<PlannedPhase>> {
    let at = || format!("--from {}", run.display());
    let file = run.join("recipe.toml");
    ensure!(file.is_file(), "{}: has no run (no recipe.toml)", at());
    let held = read_recipe(&file)?;
    let ours = toml::Table::try_from(recipe).context("writing the recipe as TOML")?;
    let mut planned: Vec<PlannedPhase> = vec![];
    let mut why_not = vec![];
    for phase in phases {
        match admit(phase, phases, (&held, &ours, recipe), run, &planned) {
            Ok(measured_again) => planned.push(PlannedPhase { name: phase.name, measured_again }),
            Err(why) => why_not.push((phase.name, why)),
        }
    }
    if let Some(until) = until {
        let known = || phases.iter().map(|phase| phase.name).collect::<Vec<_>>().join(", ");
        let last = phases.iter().find(|phase| phase.name == until);
        let last = last.with_context(|| format!("--phase {until}: this recipe has {}", known()))?;
        if let Some((_, why)) = why_not.iter().find(|(name, _)| *name == until) {
            bail!("{}: phase `{until}` cannot be reused: {why}", at());
        }
        let line = with_ancestors(last, phases);
        planned.retain(|planned| line.contains(&planned.name));
    }
    if let (true, Some((name, why))) = (planned.is_empty(), why_not.first()) {
        bail!("{}: no phase can be reused; `{name}`: {why}", at());
    }
    Ok(planned)
}

/// A phase and its ancestors.
fn with_ancestors(phase: &Phase, phases: &[Phase]) -> Vec<&'static str> {
    let before = |phase: &&Phase| phases.iter().find(|other| Some(other.name) == phase.from);
    std::iter::successors(Some(phase), before).map(|phase| phase.name).collect()
}

/// Whether a phase must be measured again, or why it cannot be reused.
fn admit(
    phase: &Phase,
    phases: &[Phase],
    (held, ours, recipe): (&toml::Table, &toml::Table, &Recipe),
    run: &Path,
    planned: &[PlannedPhase],
) -> Result<bool, String> {
    let folder = run.join(phase.name);
    let last = if matches!(phase.work, Work::Annotate) { "sample.txt" } else { "result.json" };
    if !folder.join(last).is_file() {
        return Err("it is not finished there".into());
    }
    if let Some(parent) = phase.from.filter(|parent| planned.iter().all(|planned| planned.name != *parent)) {
        return Err(format!("it starts from `{parent}`, which is not reused"));
    }
    let others = differences(&phase.settings(held), &phase.settings(ours));
    if !others.is_empty() {
        return Err(others.join("; "));
    }
    if let Some(missing) =
        reads::asked_inside(phase.name, phases, recipe).iter().find(|name| !folder.join(name).is_dir())
    {
        return Err(format!(
            "{} was not stored there (latent.keep_steps, grpo.from_step)",
            folder.join(missing).display()
        ));
    }
    let evaluation = |table: &toml::Table| table.get("evaluation").cloned();
    // The weights of other phases depend on the measurement.
    Ok(matches!(phase.work, Work::Supervised(_)) && evaluation(held) != evaluation(ours))
}

/// Copies phases into the run in `to`, except those that it has. Each copy is complete or absent.
pub(super) fn copy_phases(planned: &[PlannedPhase], from: &Path, to: &Path) -> Result<()> {
    let manifest = inputs::read_manifest(from, &[])?.unwrap_or_default();
    for &PlannedPhase { name, measured_again } in planned {
        let (source, target) = (from.join(name), to.join(name));
        if target.exists() {
            continue;
        }
        let origin = Origin {
            run: from.to_path_buf(),
            command: manifest["command"].clone(),
            commit: manifest["commit"].clone(),
            sha256: sha256(&finished_files(&source)?)?,
            measured_again,
            taken: origin(&source)?.map(Box::new),
        };
        // Checkpoints that GRPO stored during training have their own folders. They come first: the phase's folder marks completion.
        for kept in intermediate_folders(from, name)? {
            copy_whole(&from.join(&kept), to, &kept, |_| Ok(()))?;
        }
        copy_whole(&source, to, name, |copy| {
            if measured_again {
                remove_listed(copy, &["result.json", "traces.jsonl"])
                    .with_context(|| format!("{}: cannot remove its measurements", copy.display()))?;
            }
            write_atomic(&copy.join(FILE), &serde_json::to_vec_pretty(&origin)?)
        })?;
        let how = if measured_again { ", to be measured again: [evaluation] differs" } else { "" };
        say(&format!("{name}: reused from {}{how}", from.display()));
    }
    Ok(())
}

/// Copies a folder completely or not at all; `finish` changes the copy before it gets its name.
fn copy_whole(source: &Path, to: &Path, name: &str, finish: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let target = to.join(name);
    if target.exists() {
        return Ok(());
    }
    replace_folder(&target, false, |new| {
        copy_folder(source, new)?;
        finish(new)
    })
}

/// Folders such as `grpo_step20` of `grpo`.
fn intermediate_folders(run: &Path, phase: &str) -> Result<Vec<String>> {
    let prefix = format!("{phase}_step");
    let is_one = |name: &String| name.strip_prefix(&prefix).is_some_and(|step| step.parse::<usize>().is_ok());
    Ok(list(run)?.iter().map(|path| file_name(path)).filter(is_one).collect())
}

/// The files that identify a finished phase.
fn finished_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let tagged = folder.join("tagged.jsonl");
    if tagged.is_file() {
        return Ok(vec![tagged]);
    }
    let mut files = list(&folder.join("checkpoint"))?;
    files.retain(|path| path.extension().is_some_and(|ending| ending == "safetensors"));
    Ok(files)
}

/// Origin of a reused phase; `None` if it was trained here.
pub(super) fn origin(folder: &Path) -> Result<Option<Origin>> {
    let path = folder.join(FILE);
    path.is_file().then(|| json::read(&path, "the origin of a phase")).transpose()
}

/// The reused phases of a run, for its manifest.
pub(super) fn origins(run: &Path, phases: &[Phase]) -> Result<Map<String, Value>> {
    let mut all = Map::new();
    for phase in phases {
        if let Some(origin) = origin(&run.join(phase.name))? {
            all.insert(phase.name.to_owned(), serde_json::to_value(origin)?);
        }
    }
    Ok(all)
}

/// A note of the summary: reused phases.
pub(super) fn note(run: &Path, phases: &[Phase]) -> Result<Option<String>> {
    let mut from: Vec<(PathBuf, Vec<&str>)> = vec![];
    for phase in phases {
        let Some(origin) = origin(&run.join(phase.name))? else { continue };
        match from.iter_mut().find(|(run, _)| *run == origin.run) {
            Some((_, names)) => names.push(phase.name),
            None => from.push((origin.run, vec![phase.name])),
        }
    }
    let parts: Vec<String> =
        from.iter().map(|(run, names)| format!("{} from {}", names.join(", "), run.display())).collect();
    Ok((!parts.is_empty()).then(|| format!("reused: {}", parts.join("; "))))
}

/// Whether a reused phase still has to be measured.
pub(super) fn awaits_measurement(folder: &PhaseFolder) -> Result<bool> {
    Ok(origin(&folder.path)?.is_some_and(|origin| origin.measured_again) && !folder.path.join("result.json").exists())
}

/// Requires that the other run had the same data, model, threads, processes and float type.
///
/// # Errors
/// The input that differs, by name.
pub(super) fn ensure_same_inputs(ours: &Value, from: &Path, planned: &[PlannedPhase]) -> Result<()> {
    let path = from.join("manifest.json");
    let held = inputs::read_manifest(from, &[])?.with_context(|| format!("{}: cannot read", path.display()))?;
    let mut ours = ours.clone();
    // Settings were compared phase by phase; here only whether its recipe changed since its start.
    let recipe = from.join("recipe.toml");
    let begun = read_recipe(&recipe)?.try_into::<Recipe>();
    let begun = begun.with_context(|| format!("{}: not a recipe", recipe.display()))?;
    ours["settings_sha256"] =
        inputs::hash_settings(&toml::to_string(&begun).context("writing the recipe as TOML")?).into();
    // If everything is measured again, the held-out problems may differ.
    if planned.iter().any(|phase| phase.measured_again) && !held["test_sha256"].is_null() {
        ours["test_sha256"] = held["test_sha256"].clone();
    }
    inputs::compare(&path, &held, &ours, "its weights would differ from this run's: omit --from")
}

/// Requires that the reused phases have not changed since.
///
/// # Errors
/// The first whose weights differ.
pub(super) fn ensure_unchanged(run: &Path, phases: &[Phase]) -> Result<()> {
    for phase in phases {
        let folder = run.join(phase.name);
        let Some(origin) = origin(&folder)? else { continue };
        let now = sha256(&finished_files(&folder)?)?;
        ensure!(
            now == origin.sha256,
            "{}: was reused from {} with the hash {}, now {now}: its weights have changed; put them back, or name another folder \
            with --out",
            folder.display(),
            origin.run.display(),
            origin.sha256
        );
    }
    Ok(())
}
