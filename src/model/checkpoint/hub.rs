//! What `--model` names: a folder, a `.gguf`, or a model on the Hugging Face hub, fetched once into its usual cache.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail, ensure};
use hf_hub::api::sync::ApiBuilder;
use hf_hub::{Cache, Repo, RepoType};
use serde_json::Value;

use super::Checkpoint;
use super::download::{Files, with_files};
use super::safetensors::{INDEX, SINGLE};

/// A model's place, as given on a command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelRef {
    Folder(PathBuf),
    Gguf(PathBuf),
    /// `org/name`, `org/name@revision`, or with a file: `org/name/file.gguf`.
    Hub {
        id: String,
        revision: String,
        file: Option<String>,
    },
}

impl ModelRef {
    /// What exists on disk is meant first; a hub id only where nothing does.
    pub fn parse(text: &str) -> Result<Self> {
        let path = Path::new(text);
        let is_gguf = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"));
        if path.is_dir() {
            return Ok(ModelRef::Folder(path.to_path_buf()));
        }
        if path.is_file() {
            ensure!(is_gguf, "--model {text}: expected a folder, a .gguf file or a hub id, found another kind of file");
            return Ok(ModelRef::Gguf(path.to_path_buf()));
        }
        let (name, revision) = text.split_once('@').unwrap_or((text, "main"));
        let parts: Vec<&str> = name.split('/').collect();
        let plain = |s: &str| {
            let mut chars = s.chars();
            chars.next().is_some_and(char::is_alphanumeric) && chars.all(|c| c.is_alphanumeric() || "-_.".contains(c))
        };
        ensure!(
            revision.split('/').all(plain),
            "--model {text}: the revision {revision:?} is not a branch, tag or commit (letters, digits, '-', '_', '.', '/')"
        );
        let looks_like_id = (2..=3).contains(&parts.len()) && parts.iter().all(|p| plain(p));
        match parts.as_slice() {
            [org, name] if looks_like_id && !is_gguf => {
                Ok(ModelRef::Hub { id: format!("{org}/{name}"), revision: revision.to_string(), file: None })
            }
            [org, name, file] if looks_like_id && file.ends_with(".gguf") => Ok(ModelRef::Hub {
                id: format!("{org}/{name}"),
                revision: revision.to_string(),
                file: Some(file.to_string()),
            }),
            _ => bail!("--model {text}: no such folder or file, and not a hub id (org/name)"),
        }
    }

    /// The folder or file on this machine, downloading it if need be.
    pub(crate) fn locate(&self) -> Result<PathBuf> {
        match self {
            ModelRef::Folder(path) | ModelRef::Gguf(path) => Ok(path.clone()),
            ModelRef::Hub { id, revision, file } => locate_on_hub(id, revision, file.as_deref()),
        }
    }
}

impl Checkpoint {
    /// Opens what `--model` names: a folder, a `.gguf` or a hub id.
    pub fn open(model: &str) -> Result<Self> {
        let path = ModelRef::parse(model)?.locate()?;
        if path.is_dir() { Self::open_folder(path) } else { Self::open_gguf(path) }
    }
}

/// Fetched when the repository has them.
const OPTIONAL: [&str; 10] = [
    "reasoning.json",
    "heads.safetensors",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "added_tokens.json",
];

fn locate_on_hub(id: &str, revision: &str, file: Option<&str>) -> Result<PathBuf> {
    let repo = || Repo::with_revision(id.to_string(), RepoType::Model, revision.to_string());
    let cache = Cache::from_env().repo(repo());
    if let Some(path) = complete_in_cache(|name| cache.get(name), file) {
        return Ok(path);
    }
    let advice = "check the id and the connection (HF_TOKEN for gated models, HF_ENDPOINT for a mirror), or download the folder elsewhere and give its path";
    let failed = |e: String| {
        anyhow!(
            "--model {id}: not in the cache {} and cannot be downloaded: {}; {advice}",
            Cache::from_env().path().display(),
            one_line(&e)
        )
    };
    let offline = std::env::var("HF_HUB_OFFLINE").is_ok_and(|v| !v.is_empty() && v != "0");
    ensure!(!offline, failed("HF_HUB_OFFLINE is set".to_string()));
    let api = ApiBuilder::from_env().build().map_err(|e| failed(e.to_string()))?;
    let file = file.map(str::to_owned);
    with_files(api, repo(), move |files| fetch(files, file.as_deref())).map_err(|e| failed(format!("{e:#}")))
}

/// The snapshot, if everything that opening it needs is there already.
fn complete_in_cache(get: impl Fn(&str) -> Option<PathBuf>, file: Option<&str>) -> Option<PathBuf> {
    if let Some(file) = file {
        return get(file);
    }
    let config = get("config.json")?;
    if get(SINGLE).is_none() {
        for shard in shards(&get(INDEX)?).ok()? {
            get(&shard)?;
        }
    }
    config.parent().map(Path::to_path_buf)
}

fn fetch(files: &Files, file: Option<&str>) -> Result<PathBuf> {
    if let Some(file) = file {
        return files.get(file);
    }
    let there = files.names()?;
    let has = |name: &str| there.iter().any(|n| n == name);
    ensure!(has("config.json"), "the repository has no config.json (for a GGUF give org/name/file.gguf)");
    for name in OPTIONAL.iter().filter(|name| has(name)) {
        files.get(name)?;
    }
    if has(SINGLE) {
        files.get(SINGLE)?;
    } else {
        ensure!(has(INDEX), "the repository has neither {SINGLE} nor {INDEX}");
        for shard in shards(&files.get(INDEX)?)? {
            files.get(&shard)?;
        }
    }
    // Last, so that its presence in the cache means the rest is there too.
    let config = files.get("config.json")?;
    config.parent().map(Path::to_path_buf).ok_or_else(|| anyhow!("the cache has no folder for it"))
}

/// Names of the files that an index lists.
fn shards(index: &Path) -> Result<Vec<String>> {
    let value: Value = serde_json::from_slice(&std::fs::read(index)?)?;
    let map = value["weight_map"].as_object().ok_or_else(|| anyhow!("{}: `weight_map` is missing", index.display()))?;
    let mut names: Vec<String> = map.values().filter_map(|v| v.as_str().map(str::to_string)).collect();
    names.sort();
    names.dedup();
    // hf-hub writes to where a name leads: one with a folder in it could lead out of the cache.
    let plain =
        |name: &String| !name.starts_with('.') && !name.contains(['/', '\\', '\0']) && name.ends_with(".safetensors");
    if let Some(bad) = names.iter().find(|name| !plain(name)) {
        bail!("{}: lists {bad:?}, which is not the plain name of a .safetensors file", index.display());
    }
    Ok(names)
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_and_revisions_stay_in_the_cache() {
        let folder = tempfile::tempdir().expect("a folder");
        let index = folder.path().join(INDEX);
        let list = |name: &str| {
            let text = serde_json::json!({ "weight_map": { "a": name, "b": "model-00002.safetensors" } }).to_string();
            std::fs::write(&index, text).expect("an index");
            shards(&index)
        };
        assert_eq!(list("model-00001.safetensors").expect("plain").len(), 2);
        for hostile in
            ["../../evil.safetensors", "/etc/evil.safetensors", "a/b.safetensors", ".hidden.safetensors", "run.sh"]
        {
            let error = list(hostile).expect_err("refused").to_string();
            assert!(error.contains(hostile), "{error}");
        }
        assert!(ModelRef::parse("org/name@v1.0/rc-2").is_ok());
        for revision in ["../../x", "a//b", "", "a/../b", ".."] {
            let error = ModelRef::parse(&format!("org/name@{revision}")).expect_err("refused").to_string();
            assert!(error.contains("revision"), "{error}");
        }
    }
}
