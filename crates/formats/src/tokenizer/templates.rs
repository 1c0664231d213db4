//! Chat templates (Jinja) of a model, by name. Places in the order of precedence of `transformers`: `chat_template.jinja` with
//! `additional_chat_templates/*.jinja`, `tokenizer_config.json`, `chat_template.json`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value};

use super::folder::read_object;
use crate::guard::read_text;

const FILE: &str = "chat_template.jinja";
const MORE: &str = "additional_chat_templates";
const DEFAULT: &str = "default";

/// The templates of one model; a single one is called `default`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Templates {
    named: Vec<(String, String)>,
    /// The file that they come from, for messages and manifests.
    pub origin: String,
}

impl Templates {
    /// The template of this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.named.iter().find(|(known, _)| known == name).map(|(_, jinja)| jinja.as_str())
    }

    /// The template of this name, or the default.
    ///
    /// # Errors
    /// An unknown name; several templates without a default.
    pub fn choose(&self, name: Option<&str>) -> Result<&str> {
        if let Some(jinja) = self.get(name.unwrap_or(DEFAULT)) {
            return Ok(jinja);
        }
        let names: Vec<&str> = self.named.iter().map(|(name, _)| name.as_str()).collect();
        match name {
            Some(name) => bail!("{}: has no chat template {name:?}: it has {}", self.origin, names.join(", ")),
            None => bail!(
                "{}: has several chat templates and none is the default: name one with --chat-template: {}",
                self.origin,
                names.join(", ")
            ),
        }
    }

    /// The files that store them, as `transformers` writes them.
    pub fn files(&self) -> Vec<(String, Vec<u8>)> {
        let name = |name: &str| if name == DEFAULT { FILE.to_owned() } else { format!("{MORE}/{name}.jinja") };
        self.named.iter().map(|(known, jinja)| (name(known), jinja.clone().into_bytes())).collect()
    }

    /// `chat_template` of a JSON object: a template, a list of named ones, or an object of them.
    pub fn from_object(object: &Map<String, Value>, origin: &str) -> Result<Option<Self>> {
        let wrong = || format!("{origin}: `chat_template` must be a template, or a list or an object of named ones");
        let text = |value: &Value| value.as_str().map(str::to_owned).with_context(wrong);
        let named = match object.get("chat_template") {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::Array(list)) => {
                let mut named: Vec<(String, String)> = vec![];
                for entry in list {
                    let (name, jinja) = (text(&entry["name"])?, text(&entry["template"])?);
                    // The last of a name, as in transformers.
                    named.retain(|(known, _)| *known != name);
                    named.push((name, jinja));
                }
                named
            }
            Some(Value::Object(map)) => {
                let one = |(name, jinja): (&String, &Value)| Ok((name.clone(), text(jinja)?));
                map.iter().map(one).collect::<Result<Vec<_>>>()?
            }
            Some(single) => vec![(DEFAULT.to_owned(), text(single)?)],
        };
        ensure!(!named.is_empty(), wrong());
        Ok(Some(Self { named, origin: origin.to_owned() }))
    }

    /// The templates of a folder, whose `tokenizer_config.json` has been read.
    pub(super) fn from_folder(folder: &Path, config: &Map<String, Value>) -> Result<Option<Self>> {
        let mut named = vec![];
        let file = folder.join(FILE);
        if file.is_file() {
            named.push((DEFAULT.to_owned(), read(&file)?));
        }
        let more = folder.join(MORE);
        if more.is_dir() {
            let listed = fs::read_dir(&more).with_context(|| format!("{}: cannot read", more.display()))?;
            let mut paths: Vec<_> = listed.flatten().map(|entry| entry.path()).collect();
            paths.retain(|path| path.extension().is_some_and(|e| e == "jinja"));
            paths.sort();
            for path in paths {
                let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
                named.push((name, read(&path)?));
            }
        }
        if !named.is_empty() {
            return Ok(Some(Self { named, origin: FILE.to_owned() }));
        }
        if let Some(found) = Self::from_object(config, "tokenizer_config.json")? {
            return Ok(Some(found));
        }
        let legacy = "chat_template.json";
        let object = read_object(&folder.join(legacy))?.unwrap_or_default();
        Self::from_object(&object, legacy)
    }
}

fn read(path: &Path) -> Result<String> {
    read_text(path).with_context(|| format!("{}: cannot read", path.display()))
}
