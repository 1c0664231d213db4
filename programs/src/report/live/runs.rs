//! Finds the checkpoints of a folder's records, and whether a browser can run them.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;

use super::weights;
use crate::report::folder::Folder;
use switchyard::guard::read_text;
use switchyard::store::sha256;
use switchyard::tasks::{Split, Task};
use switchyard::text::Template;

/// A run of `train` with the checkpoints that a browser can run.
pub(super) struct Run {
    pub name: String,
    /// Its path in commands.
    pub path: String,
    pub tokenizer: Value,
    /// Text before a question.
    pub prefix: String,
    /// Modulus of the task `chains`.
    pub modulus: Option<u32>,
    pub problems: Vec<String>,
    pub answers: Vec<String>,
    pub models: Vec<Model>,
}

pub(super) struct Model {
    pub phase: String,
    pub weights: PathBuf,
    pub config: Value,
    pub reasoning: Option<Value>,
    pub stop: Vec<Value>,
}

/// Maximum number of problems to choose from.
const MOST_PROBLEMS: u64 = 500;

/// Maximum number of weights that a page runs.
const MOST: usize = 5_000_000;

const FAMILIES: [&str; 5] = ["qwen3", "qwen2", "llama", "gemma", "mistral"];

/// The runs of a folder's records, and why other checkpoints, such as unreadable ones, are left out.
pub(super) fn runs(folder: &Folder) -> (Vec<Run>, Vec<String>) {
    let (mut runs, mut left_out): (Vec<Run>, Vec<String>) = (vec![], vec![]);
    let hashes = weight_hashes(folder);
    // Phases of the main comparison come first: a page may have room for only some.
    let mut names = folder.models();
    let roles = [&folder.sft, &folder.grpo];
    names.sort_by_key(|name| !name.rsplit_once('/').is_some_and(|(_, phase)| roles.iter().any(|role| *role == phase)));
    for name in names {
        let (Some((run, phase)), Some(hash)) = (name.split_once('/'), hashes.get(name)) else { continue };
        let named = [run, phase].into_iter().all(is_name);
        let Some(place) =
            candidate_folders(folder, run).into_iter().find(|place| named && weights_of(place, phase).is_file())
        else {
            continue;
        };
        let known = runs.iter().position(|known| known.name == run);
        let found = model(&place, phase, hash).and_then(|model| {
            let new = if known.is_none() { Some(read_run(run, &place, phase)?) } else { None };
            Ok((model, new))
        });
        match (found, known) {
            (Ok((model, None)), Some(at)) => runs[at].models.push(model),
            (Ok((model, new)), _) => runs.extend(new.map(|run| Run { models: vec![model], ..run })),
            (Err(why), _) => left_out.push(format!("{name} does not run in the page: {why:#}")),
        }
    }
    (runs, left_out)
}

/// Whether this is a single folder name, not a path.
fn is_name(part: &str) -> bool {
    let mut components = Path::new(part).components();
    matches!((components.next(), components.next()), (Some(Component::Normal(_)), None))
}

/// Hash of the weights by checkpoint, from the manifest, without checkpoints whose weights an adapter changes.
fn weight_hashes(folder: &Folder) -> BTreeMap<String, String> {
    let entries = folder.manifest.as_ref().and_then(Value::as_object).into_iter().flatten();
    let hashes = entries.filter_map(|(_, entry)| {
        let setup = entry.get("setup")?;
        let plain = setup.get("adapter").is_none_or(Value::is_null);
        Some((setup.get("checkpoint")?.as_str()?.to_owned(), setup.get("weights")?.as_str()?.to_owned()))
            .filter(|_| plain)
    });
    hashes.collect()
}

/// Candidate folders of a run: the folder of records, its parent, and those of `train` and this repository.
fn candidate_folders(folder: &Folder, run: &str) -> Vec<PathBuf> {
    let fixtures = folder.path.join("..").join("..").join("fixtures").join(run);
    let parent = folder.path.parent().map(Path::to_path_buf);
    let working = ["runs", "fixtures"].map(|name| Path::new(name).join(run));
    [folder.path.clone()].into_iter().chain(parent).chain(working).chain([fixtures]).collect()
}

fn weights_of(run: &Path, phase: &str) -> PathBuf {
    run.join(phase).join("checkpoint").join("model.safetensors")
}

/// A checkpoint, or why it cannot be run.
fn model(run: &Path, phase: &str, hash: &str) -> Result<Model> {
    let weights = weights_of(run, phase);
    let checkpoint = run.join(phase).join("checkpoint");
    let size = weights::count(&weights, MOST)?;
    ensure!(size <= MOST, "{size} weights are more than the {MOST} that a page runs");
    ensure!(sha256(&[&weights])? == hash, "{} does not have the weights of its records", weights.display());
    let config = json(&checkpoint.join("config.json"))?.context("a checkpoint without config.json")?;
    let family = config["model_type"].as_str().unwrap_or_default();
    ensure!(FAMILIES.contains(&family), "the page's decoder does not support the family {family:?}");
    let windowed = config["use_sliding_window"].as_bool().unwrap_or(family == "mistral");
    ensure!(!windowed || config["sliding_window"].is_null(), "the page's decoder does not support sliding windows");
    let reasoning = json(&checkpoint.join("reasoning.json"))?;
    let source = reasoning.as_ref().and_then(|r| r["source"]["kind"].as_str()).unwrap_or_default();
    ensure!(!["projection", "latent_head"].contains(&source), "its latents pass through a separate head ({source})");
    let stop = stop_ids(&checkpoint, &config)?;
    Ok(Model { phase: phase.to_owned(), weights, config, reasoning, stop })
}

/// Reads a run whose task is generated with template `words`; `models` is empty.
fn read_run(name: &str, path: &Path, phase: &str) -> Result<Run> {
    let recipe = path.join("recipe.toml");
    let text = read_text(&recipe).with_context(|| format!("{}: cannot read", recipe.display()))?;
    let recipe: toml::Value = toml::from_str(&text).with_context(|| format!("{}: not a recipe", recipe.display()))?;
    let part = |keys: [&str; 2]| recipe.get(keys[0]).and_then(|part| part.get(keys[1]));
    let template = part(["data", "template"]).and_then(|t| Template::deserialize(t.clone()).ok());
    let task = recipe.get("task").and_then(|task| Task::deserialize(task.clone()).ok());
    let (Some(Template::Words), Some(task)) = (template, task) else {
        bail!("its problems are not those of a generated task with template `words`")
    };
    let tokenizer = json(&path.join(phase).join("checkpoint").join("tokenizer.json"))?.unwrap_or_default();
    ensure!(tokenizer["model"]["type"] == "WordLevel", "its tokenizer does not read whole words");
    let number = |value: Option<&toml::Value>| value?.as_integer().and_then(|n| u64::try_from(n).ok());
    let (seed, count) =
        (number(recipe.get("seed")).unwrap_or(0), number(part(["evaluation", "problems"])).unwrap_or(500));
    let problems = task.rows(Split::Test, seed, 0..count.min(MOST_PROBLEMS))?;
    let modulus = if let Task::Chains(chains) = &task { Some(chains.modulus) } else { None };
    Ok(Run {
        name: name.to_owned(),
        path: path.display().to_string(),
        tokenizer,
        prefix: Template::Words.prompt(""),
        modulus,
        answers: problems.iter().map(|p| p.answer.clone()).collect(),
        problems: problems.into_iter().map(|p| p.question).collect(),
        models: vec![],
    })
}

/// Token ids that end a generation, from config.json and generation_config.json.
fn stop_ids(checkpoint: &Path, config: &Value) -> Result<Vec<Value>> {
    let generation = json(&checkpoint.join("generation_config.json"))?.unwrap_or_default();
    let named = [config, &generation].map(|file| file["eos_token_id"].clone());
    let ids = named.into_iter().flat_map(|ids| if let Value::Array(ids) = ids { ids } else { vec![ids] });
    let mut stops: Vec<Value> = vec![];
    for id in ids.filter(Value::is_u64) {
        if !stops.contains(&id) {
            stops.push(id);
        }
    }
    Ok(stops)
}

/// Reads a JSON file; `None` if it does not exist.
fn json(file: &Path) -> Result<Option<Value>> {
    if !file.is_file() {
        return Ok(None);
    }
    let text = read_text(file).with_context(|| format!("{}: cannot read", file.display()))?;
    serde_json::from_str(&text).map(Some).with_context(|| format!("{}: not valid JSON", file.display()))
}
