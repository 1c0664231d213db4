//! `adapter_config.json`: the settings of a LoRA adapter. Settings that change the arithmetic in an unsupported way are refused by
//! name.

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::super::ModelRef;
use super::reach::{MOST_PATTERNS, check_patterns, ends_in, matches_all};
use crate::config::keys::{Keys, brief};
use crate::guard::read_text;

/// Names of modules in `target_modules` or `exclude_modules`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Targets {
    /// Matches a module whose path is one of these or ends in `.` and one of these.
    Names(Vec<String>),
    /// A Python regular expression over the whole path, or `all-linear`.
    Pattern(String),
    /// Not set: PEFT's default for this kind of model.
    Usual,
}

/// The settings that determine the arithmetic.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdapterConfig {
    pub r: usize,
    pub alpha: f64,
    /// Ranks and alphas of single modules: a pattern for the end of the path; the first match wins.
    pub rank_pattern: Vec<(String, usize)>,
    pub alpha_pattern: Vec<(String, f64)>,
    /// Scale by α / √r (rank-stabilised) instead of α / r.
    pub use_rslora: bool,
    pub targets: Targets,
    /// Modules without factors even if `targets` names them.
    pub exclude: Option<Targets>,
    /// Layers with factors; `None`: all.
    pub layers: Option<Vec<usize>>,
    /// Patterns for the name before a layer's number; empty: any name.
    pub layers_pattern: Vec<String>,
    pub modules_to_save: Vec<String>,
    /// Embedding and head stay tied if the base ties them.
    pub ensure_weight_tying: bool,
    /// Ids whose rows of the embedding table are in the file, in its order. Ids after the base's last one are new rows.
    pub token_rows: Vec<usize>,
    /// Ids whose rows of the head are in the file, in its order.
    pub head_rows: Vec<usize>,
    pub base_model: Option<String>,
    /// Branch, tag or commit of a base on the hub.
    pub revision: Option<String>,
}

/// PEFT's default.
const DEFAULT_R: usize = 8;
const DEFAULT_ALPHA: f64 = 8.0;

/// Keys that must be absent, null, false or empty.
const UNSUPPORTED: [&str; 11] = [
    "use_dora",
    "lora_bias",
    "use_qalora",
    "use_bdlora",
    "layer_replication",
    "target_parameters",
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "velora_config",
    "monteclora_config",
];

impl Default for AdapterConfig {
    /// PEFT's defaults.
    fn default() -> Self {
        Self {
            r: DEFAULT_R,
            alpha: DEFAULT_ALPHA,
            rank_pattern: vec![],
            alpha_pattern: vec![],
            use_rslora: false,
            targets: Targets::Usual,
            exclude: None,
            layers: None,
            layers_pattern: vec![],
            modules_to_save: vec![],
            ensure_weight_tying: false,
            token_rows: vec![],
            head_rows: vec![],
            base_model: None,
            revision: None,
        }
    }
}

impl AdapterConfig {
    /// Rank of a module's factors.
    pub fn rank_of(&self, module: &str) -> usize {
        self.rank_pattern.iter().find(|(pattern, _)| ends_in(pattern, module)).map_or(self.r, |(_, r)| *r)
    }

    /// Scale of the product B·A of a module.
    pub fn scaling_of(&self, module: &str) -> f64 {
        let own = self.alpha_pattern.iter().find(|(pattern, _)| ends_in(pattern, module));
        let (alpha, r) = (own.map_or(self.alpha, |(_, alpha)| *alpha), self.rank_of(module) as f64);
        if self.use_rslora { alpha / r.sqrt() } else { alpha / r }
    }

    /// The base's name for `--model`: a hub id gets the `revision`, as in PEFT's `AutoPeftModel`; a folder has none.
    pub(in crate::checkpoint) fn base_at(&self, name: &str) -> String {
        let on_hub = ModelRef::parse(name).is_ok_and(|base| matches!(base, ModelRef::Hub { file: None, .. }));
        match &self.revision {
            Some(revision) if on_hub && !name.contains('@') => format!("{name}@{revision}"),
            _ => name.to_owned(),
        }
    }

    pub fn read(path: &Path) -> Result<Self> {
        let origin = path.display().to_string();
        let text = read_text(path).with_context(|| format!("{origin}: cannot read the adapter's settings"))?;
        let value = serde_json::from_str(&text).map_err(|e| anyhow!("{origin}: not valid JSON: {e}"))?;
        Self::from_json(&value, &origin)
    }

    pub fn from_json(value: &Value, origin: &str) -> Result<Self> {
        let map =
            value.as_object().ok_or_else(|| anyhow!("{origin}: expected a JSON object, found {}", brief(value)))?;
        let keys = Keys { origin, path: "", map };
        let kind = &value["peft_type"];
        ensure!(kind == "LORA", "{origin}: `peft_type` is not supported: expected \"LORA\", found {kind}");
        let task = &value["task_type"];
        ensure!(
            task.is_null() || task == "CAUSAL_LM",
            "{origin}: `task_type` is not supported: expected \"CAUSAL_LM\", found {task}"
        );
        for key in UNSUPPORTED {
            let found = &value[key];
            ensure!(is_neutral(found), "{origin}: `{key}` is not supported: expected it unset, found {found}");
        }
        let bias = &value["bias"];
        ensure!(bias.is_null() || bias == "none", "{origin}: `bias` is not supported: expected \"none\", found {bias}");
        // Other initialisations change the base weights as well, which the adapter file does not record.
        let init = &value["init_lora_weights"];
        let plain =
            init.is_null() || init.is_boolean() || ["gaussian", "eva", "orthogonal"].iter().any(|known| init == known);
        ensure!(
            plain,
            "{origin}: `init_lora_weights` is not supported: expected true, false or \"gaussian\", found {init} (it changes the base weights; convert the adapter to plain LoRA)"
        );

        let (token_rows, head_rows) = match &value["trainable_token_indices"] {
            Value::Null => (vec![], vec![]),
            found => token_rows(found, origin)?,
        };
        let config = Self {
            r: or(&value["r"], DEFAULT_R, |v| rank(v, origin, "r"))?,
            alpha: or(&value["lora_alpha"], DEFAULT_ALPHA, |v| alpha(v, origin, "lora_alpha"))?,
            rank_pattern: patterns(value, origin, "rank_pattern", rank)?,
            alpha_pattern: patterns(value, origin, "alpha_pattern", alpha)?,
            use_rslora: keys.bool("use_rslora")?.unwrap_or(false),
            targets: modules(&value["target_modules"], origin, "target_modules")?.unwrap_or(Targets::Usual),
            exclude: match modules(&value["exclude_modules"], origin, "exclude_modules")? {
                Some(Targets::Names(names)) if names.is_empty() => None,
                other => other,
            },
            layers: match &value["layers_to_transform"] {
                Value::Null => None,
                Value::Array(list) if list.is_empty() => None,
                found => Some(layers(found, origin)?),
            },
            layers_pattern: match &value["layers_pattern"] {
                Value::String(one) if one.is_empty() => vec![],
                Value::String(one) => vec![one.clone()],
                found => or(found, vec![], |list| strings(list, origin, "layers_pattern"))?,
            },
            modules_to_save: or(&value["modules_to_save"], vec![], |list| strings(list, origin, "modules_to_save"))?,
            ensure_weight_tying: keys.bool("ensure_weight_tying")?.unwrap_or(false),
            token_rows,
            head_rows,
            base_model: keys.string("base_model_name_or_path")?.map(str::to_owned),
            revision: keys.string("revision")?.map(str::to_owned),
        };
        config.check_patterns(origin)?;
        Ok(config)
    }

    /// Checks that the regular expressions compile; they are matched with every module later.
    fn check_patterns(&self, origin: &str) -> Result<()> {
        let pattern = |targets: &Targets| if let Targets::Pattern(p) = targets { Some(p.clone()) } else { None };
        let keys = [
            ("target_modules", pattern(&self.targets).into_iter().collect()),
            ("exclude_modules", self.exclude.as_ref().and_then(pattern).into_iter().collect::<Vec<_>>()),
            ("layers_pattern", self.layers_pattern.clone()),
            ("modules_to_save", self.modules_to_save.clone()),
            ("rank_pattern", self.rank_pattern.iter().map(|(p, _)| p.clone()).collect()),
            ("alpha_pattern", self.alpha_pattern.iter().map(|(p, _)| p.clone()).collect()),
        ];
        let all = keys.iter().flat_map(|(_, patterns)| patterns.iter().map(String::as_str));
        check_patterns(all).with_context(|| origin.to_owned())?;
        ensure!(
            self.layers_pattern.len() <= MOST_PATTERNS,
            "{origin}: `layers_pattern` has {} patterns, at most {MOST_PATTERNS} are read",
            self.layers_pattern.len()
        );
        for (key, patterns) in keys {
            for pattern in patterns {
                matches_all(&pattern, "").map_err(|e| {
                    anyhow!("{origin}: `{key}` has {pattern:?}, which is not a supported regular expression: {e}")
                })?;
            }
        }
        Ok(())
    }

    /// The file that PEFT loads.
    pub fn to_json(&self) -> Value {
        let listed = |names: &[String]| if names.is_empty() { Value::Null } else { json!(names) };
        let mut tokens = Map::new();
        for (table, rows) in [("embed_tokens", &self.token_rows), ("lm_head", &self.head_rows)] {
            if !rows.is_empty() {
                tokens.insert(table.into(), json!(rows));
            }
        }
        let names = |targets: &Targets| match targets {
            Targets::Names(names) => json!(names),
            Targets::Pattern(pattern) => json!(pattern),
            Targets::Usual => Value::Null,
        };
        // PEFT declares an integer; a fraction is written only if needed.
        let number = |alpha: f64| if alpha.fract() == 0.0 { json!(alpha as i64) } else { json!(alpha) };
        let alphas = self.alpha_pattern.iter().map(|(pattern, alpha)| (pattern.clone(), number(*alpha)));
        json!({
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": self.base_model,
            "revision": self.revision,
            "r": self.r,
            "lora_alpha": number(self.alpha),
            "lora_dropout": 0.0,
            "use_rslora": self.use_rslora,
            "use_dora": false,
            "target_modules": names(&self.targets),
            "exclude_modules": self.exclude.as_ref().map(names),
            "layers_to_transform": self.layers,
            "layers_pattern": listed(&self.layers_pattern),
            "modules_to_save": listed(&self.modules_to_save),
            "ensure_weight_tying": self.ensure_weight_tying,
            "trainable_token_indices": if tokens.is_empty() { Value::Null } else { Value::Object(tokens) },
            "bias": "none",
            "fan_in_fan_out": false,
            "init_lora_weights": true,
            "inference_mode": true,
            "rank_pattern": self.rank_pattern.iter().map(|(p, r)| (p.clone(), json!(r))).collect::<Map<_, _>>(),
            "alpha_pattern": alphas.collect::<Map<_, _>>(),
        })
    }
}

fn or<T>(value: &Value, default: T, read: impl FnOnce(&Value) -> Result<T>) -> Result<T> {
    if value.is_null() { Ok(default) } else { read(value) }
}

fn rank(value: &Value, origin: &str, key: &str) -> Result<usize> {
    let r = value.as_u64().filter(|r| (1..1 << 20).contains(r));
    r.map(|r| r as usize).ok_or_else(|| anyhow!("{origin}: `{key}` must be a positive whole number, found {value}"))
}

fn alpha(value: &Value, origin: &str, key: &str) -> Result<f64> {
    let alpha = value.as_f64().filter(|a| a.is_finite());
    alpha.ok_or_else(|| anyhow!("{origin}: `{key}` must be a number, found {value}"))
}

fn patterns<T>(
    value: &Value,
    origin: &str,
    key: &str,
    read: impl Fn(&Value, &str, &str) -> Result<T>,
) -> Result<Vec<(String, T)>> {
    match &value[key] {
        Value::Null => Ok(vec![]),
        Value::Object(map) => map
            .iter()
            .map(|(pattern, v)| Ok((pattern.clone(), read(v, origin, &format!("{key}.{pattern}"))?)))
            .collect(),
        found => bail!("{origin}: `{key}` must be an object, found {found}"),
    }
}

/// `None` if the key is missing.
fn modules(value: &Value, origin: &str, key: &str) -> Result<Option<Targets>> {
    Ok(match value {
        Value::Null => None,
        Value::String(pattern) => Some(Targets::Pattern(pattern.clone())),
        list => Some(Targets::Names(strings(list, origin, key)?)),
    })
}

fn is_neutral(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

fn strings(value: &Value, origin: &str, key: &str) -> Result<Vec<String>> {
    let names: Option<Vec<String>> =
        value.as_array().and_then(|list| list.iter().map(|v| v.as_str().map(str::to_string)).collect());
    names.ok_or_else(|| anyhow!("{origin}: `{key}` must be a list of module names, found {value}"))
}

/// Ids of the embedding table and of the head: a list for the first, or lists under their names.
fn token_rows(value: &Value, origin: &str) -> Result<(Vec<usize>, Vec<usize>)> {
    let wanted = || {
        anyhow!(
            "{origin}: `trainable_token_indices` must be token ids of the embedding table, of the head or of both, each once, \
             found {value}"
        )
    };
    let ids = |list: &Value| -> Result<Vec<usize>> {
        let ids = list.as_array().map(|list| list.iter().map(|id| id.as_u64().map(|id| id as usize)).collect());
        let ids: Vec<usize> = ids.flatten().ok_or_else(wanted)?;
        let distinct: std::collections::BTreeSet<_> = ids.iter().collect();
        ensure!(distinct.len() == ids.len(), wanted());
        Ok(ids)
    };
    let Value::Object(map) = value else { return Ok((ids(value)?, vec![])) };
    let (mut embed, mut head) = (None, None);
    for (name, list) in map {
        let rows = match name.rsplit('.').next() {
            Some("embed_tokens" | "wte") => &mut embed,
            Some("lm_head") => &mut head,
            _ => return Err(wanted()),
        };
        ensure!(rows.is_none(), wanted());
        *rows = Some(ids(list)?);
    }
    Ok((embed.unwrap_or_default(), head.unwrap_or_default()))
}

fn layers(value: &Value, origin: &str) -> Result<Vec<usize>> {
    let one = std::slice::from_ref(value);
    let mut out = Vec::new();
    for layer in value.as_array().map_or(one, Vec::as_slice) {
        match layer.as_u64() {
            Some(n) => out.push(n as usize),
            None => bail!("{origin}: `layers_to_transform` must be layer numbers, found {value}"),
        }
    }
    Ok(out)
}
