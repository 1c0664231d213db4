//! Resolves `--model`: a folder, a `.gguf`, or a model on the Hugging Face hub, downloaded once into the usual cache.
//!
//! 1. If the cache has all files of the revision's last known commit, the hub is not contacted.
//! 2. Missing files are downloaded: from that commit if its weights are cached, else from the revision.
//! 3. If that fails and only optional files are missing, the cached files are used.

mod cache;
mod client;
mod files;

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail, ensure};
use serde_json::Value;

use super::safetensors::{INDEX, SINGLE};
use super::{FINGERPRINT, ModelFiles, peft};
use crate::guard::read_text;
use crate::progress::{go_on, say};
use cache::Cache;
use client::Client;
use files::HubFiles;

/// Location of a model, as given on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelRef {
    Folder(PathBuf),
    Gguf(PathBuf),
    /// `org/name` or `org/name/file.gguf`, each also with `@revision`.
    Hub {
        id: String,
        revision: String,
        file: Option<String>,
    },
}

impl ModelRef {
    /// An existing path has precedence over a hub id.
    pub fn parse(text: &str) -> Result<Self> {
        let path = Path::new(text);
        let is_gguf = |name: &str| Path::new(name).extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"));
        if path.is_dir() {
            return Ok(ModelRef::Folder(path.to_path_buf()));
        }
        if path.is_file() {
            ensure!(
                is_gguf(text),
                "--model {text}: expected a folder, a .gguf file or a hub id, found another kind of file: for a model in several files \
                name the folder"
            );
            return Ok(ModelRef::Gguf(path.to_path_buf()));
        }
        let (name, revision) = text.split_once('@').unwrap_or((text, "main"));
        let is_gguf = is_gguf(name);
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
            [org, name, file] if looks_like_id && is_gguf => Ok(ModelRef::Hub {
                id: format!("{org}/{name}"),
                revision: revision.to_string(),
                file: Some(file.to_string()),
            }),
            _ => bail!("--model {text}: no such folder or file, and not a hub id (org/name)"),
        }
    }

    /// The local folder or file, downloaded if necessary.
    pub fn locate(&self) -> Result<PathBuf> {
        match self {
            ModelRef::Folder(path) | ModelRef::Gguf(path) => Ok(path.clone()),
            ModelRef::Hub { id, revision, file } => HubModel { id, revision, file: file.as_deref() }.locate(),
        }
    }
}

impl ModelFiles {
    /// Opens what `--model` names: a folder, a `.gguf` or a hub id.
    pub fn open(model: &str) -> Result<Self> {
        Self::open_path(ModelRef::parse(model)?.locate()?)
    }

    pub(super) fn open_path(path: PathBuf) -> Result<Self> {
        if path.is_dir() { Self::open_folder(path) } else { Self::open_gguf(path) }
    }
}

/// The folder of an adapter that `--adapter` names: a local folder, or a repository of the hub. Any other name is returned unchanged.
pub fn locate_adapter(named: &Path) -> Result<PathBuf> {
    let text = named.display().to_string();
    if named.exists() || named.is_absolute() {
        return Ok(named.to_owned());
    }
    match ModelRef::parse(&text) {
        Ok(repository @ ModelRef::Hub { file: None, .. }) => repository.locate(),
        _ => Ok(named.to_owned()),
    }
}

/// Downloaded if the repository has them.
const OPTIONAL: [&str; 13] = [
    // Its front matter names the licence.
    "README.md",
    "reasoning.json",
    "heads.safetensors",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "tokenizer.model",
    "added_tokens.json",
];

/// A model of the hub on this machine.
struct HubModel<'a> {
    id: &'a str,
    revision: &'a str,
    /// The file name, for a GGUF.
    file: Option<&'a str>,
}

impl HubModel<'_> {
    /// The cached files, completed from the hub.
    fn locate(&self) -> Result<PathBuf> {
        let root = cache::root()?;
        let cache = Cache::new(&root, self.id);
        let commit = cache.commit(self.revision);
        let cached = commit.as_ref().and_then(|commit| self.find_cached(&cache, commit));
        if let Some((path, missing)) = &cached
            && missing.is_empty()
        {
            return Ok(path.clone());
        }
        // Missing files of a cached commit are downloaded from that commit: the branch may have moved.
        let known = commit.filter(|_| cached.is_some());
        let error = match self.fetch(&cache, known.as_deref().unwrap_or(self.revision)) {
            Ok(path) => return Ok(path),
            Err(error) => format!("{error:#}").split_whitespace().collect::<Vec<_>>().join(" "),
        };
        let id = self.id;
        go_on()?;
        if let Some((path, missing)) = cached {
            let missing = missing.join(", ");
            say(&format!("{id}: read from the cache without {missing}, which cannot be downloaded: {error}"));
            return Ok(path);
        }
        let advice = "check the id and the connection (HF_TOKEN for gated models, HF_ENDPOINT for a mirror), or download the folder elsewhere and give its path";
        bail!("--model {id}: not in the cache {} and cannot be downloaded: {error}; {advice}", root.display())
    }

    /// The snapshot, if its weights are complete, and the optional files to download.
    fn find_cached(&self, cache: &Cache, commit: &str) -> Option<(PathBuf, Vec<&'static str>)> {
        let snapshot = cache.snapshot(commit);
        let get = |name: &str| Some(snapshot.join(name)).filter(|path| path.exists());
        if let Some(file) = self.file {
            return Some((get(file)?, vec![]));
        }
        let whole = || {
            get("config.json")?;
            if get(SINGLE).is_none() {
                for shard in shards(&get(INDEX)?).ok()? {
                    get(&shard)?;
                }
            }
            Some(())
        };
        let adapter = || {
            get(peft::SETTINGS)?;
            peft::FILES.iter().find_map(|file| get(file)).map(drop)
        };
        whole().or_else(adapter)?;
        let missing = |name: &&str| get(name).is_none() && !cache.lacks(commit, name);
        Some((snapshot.clone(), OPTIONAL.into_iter().filter(missing).collect()))
    }

    /// Downloads the missing files of one commit. The cache maps the revision to the commit once all files are there.
    fn fetch(&self, cache: &Cache, revision: &str) -> Result<PathBuf> {
        let is_on =
            |name| set(name).is_some_and(|text| ["1", "on", "yes", "true"].contains(&text.to_lowercase().as_str()));
        for name in ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"] {
            ensure!(!is_on(name), "{name} is set");
        }
        let client = Client::from_env(&cache::home()?)?;
        let files = HubFiles::new(&client, cache, self.id, revision)?;
        let path = match self.file {
            Some(file) => files.get(file)?,
            None => fetch_folder(&files, cache)?,
        };
        cache.set_commit(self.revision, &files.commit)?;
        Ok(path)
    }
}

fn fetch_folder(files: &HubFiles, cache: &Cache) -> Result<PathBuf> {
    let is_adapter = files.has(peft::SETTINGS) && !files.has(SINGLE) && !files.has(INDEX);
    ensure!(
        is_adapter || files.has("config.json"),
        "the repository has neither config.json nor {} (for a GGUF give org/name/file.gguf)",
        peft::SETTINGS
    );
    if is_adapter {
        files.get(peft::SETTINGS)?;
    }
    // Optional next to an adapter: the size of its vocabulary, and the fingerprint of its base.
    for name in ["config.json", FINGERPRINT] {
        if files.has(name) {
            files.get(name)?;
        }
    }
    for name in OPTIONAL {
        if files.has(name) {
            files.get(name)?;
        } else {
            cache.note_lack(&files.commit, name)?;
        }
    }
    if is_adapter {
        let weights = peft::FILES.iter().find(|file| files.has(file));
        files.get(weights.ok_or_else(|| anyhow!("the repository has {} and no {}", peft::SETTINGS, peft::WEIGHTS))?)?;
    } else if files.has(SINGLE) {
        files.get(SINGLE)?;
    } else {
        ensure!(files.has(INDEX), "the repository has neither {SINGLE} nor {INDEX}");
        for shard in shards(&files.get(INDEX)?)? {
            files.get(&shard)?;
        }
    }
    Ok(cache.snapshot(&files.commit))
}

/// Names of the files that an index lists.
fn shards(index: &Path) -> Result<Vec<String>> {
    let value: Value = serde_json::from_str(&read_text(index)?)?;
    let map = value["weight_map"].as_object().ok_or_else(|| anyhow!("{}: `weight_map` is missing", index.display()))?;
    let mut names: Vec<String> = map.values().filter_map(|v| v.as_str().map(str::to_string)).collect();
    names.sort();
    names.dedup();
    // Files are written under these names: one with a folder in it could lead out of the cache.
    let plain =
        |name: &String| !name.starts_with('.') && !name.contains(['/', '\\', '\0']) && name.ends_with(".safetensors");
    if let Some(bad) = names.iter().find(|name| !plain(name)) {
        bail!("{}: lists {bad:?}, which is not the plain name of a .safetensors file", index.display());
    }
    Ok(names)
}

/// The value of an environment variable; an empty one counts as unset.
fn set(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.trim().is_empty())
}

/// A folder from an environment variable, with `~`, `$NAME` and `${NAME}` expanded as in Hugging Face's programs, because some
/// variables were not set by a shell.
fn folder(name: &str) -> Option<PathBuf> {
    let home = std::env::home_dir().map(|home| home.display().to_string());
    set(name).map(|text| expand(&text, home.as_deref(), |name| std::env::var(name).ok()).into())
}

/// A variable that is not set is left unexpanded.
fn expand(text: &str, home: Option<&str>, variable: impl Fn(&str) -> Option<String>) -> String {
    let rest = text.strip_prefix('~').filter(|rest| rest.is_empty() || rest.starts_with('/'));
    let text = match (rest, home) {
        (Some(rest), Some(home)) => format!("{home}{rest}"),
        _ => text.to_owned(),
    };
    let mut out = String::new();
    let mut parts = text.split('$');
    out.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let (name, after) = match part.strip_prefix('{').and_then(|inside| inside.split_once('}')) {
            Some(braced) => braced,
            None => part.split_at(part.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(part.len())),
        };
        match variable(name).filter(|_| !name.is_empty()) {
            Some(value) => out.extend([value.as_str(), after]),
            None => out.extend(["$", part]),
        }
    }
    out
}

/// Whether a server's commit or hash has only letters, digits and `-`: it becomes part of a path.
fn is_hash(text: &str) -> bool {
    (1..=128).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_in_the_environment_are_expanded() {
        let of = |text: &str| expand(text, Some("/home/a"), |name| (name == "SCRATCH").then(|| "/scratch".to_owned()));
        for (text, folder) in [
            ("~/hf", "/home/a/hf"),
            ("~", "/home/a"),
            ("$SCRATCH/hf", "/scratch/hf"),
            ("${SCRATCH}x/~", "/scratchx/~"),
            ("/a/$NOT_SET/b$", "/a/$NOT_SET/b$"),
            ("~other/hf", "~other/hf"),
        ] {
            assert_eq!(of(text), folder, "{text}");
        }
    }

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
        let file = ModelRef::parse("org/name/file.gguf@v1").expect("a file of a revision");
        assert!(matches!(file, ModelRef::Hub { revision, file: Some(_), .. } if revision == "v1"));
        for revision in ["../../x", "a//b", "", "a/../b", ".."] {
            let error = ModelRef::parse(&format!("org/name@{revision}")).expect_err("refused").to_string();
            assert!(error.contains("revision"), "{error}");
        }
    }
}
