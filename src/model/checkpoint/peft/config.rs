//! `adapter_config.json`: the settings of a LoRA adapter, with those that change the arithmetic in a way we do not
//! have refused by name.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Which modules have factors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Targets {
    /// A module is meant when its path is one of these or ends in `.` and one of these.
    Names(Vec<String>),
    /// A Python regular expression over the whole path (or `all-linear`). It is kept, not evaluated: the factors in
    /// the file say which modules they are for.
    Pattern(String),
}

impl Targets {
    /// Whether `module` (a path without `.weight`) is meant; `None` where only Python could tell.
    pub fn matches(&self, module: &str) -> Option<bool> {
        match self {
            Targets::Pattern(_) => None,
            Targets::Names(names) => Some(
                names
                    .iter()
                    .any(|n| module == n || module.strip_suffix(n.as_str()).is_some_and(|rest| rest.ends_with('.'))),
            ),
        }
    }
}

/// The part of `adapter_config.json` that decides what is computed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdapterConfig {
    pub r: usize,
    pub alpha: f64,
    /// Scale by α / √r (rank-stabilised) instead of α / r.
    pub use_rslora: bool,
    pub targets: Targets,
    /// Only these layers have factors; `None` for all.
    pub layers: Option<Vec<usize>>,
    pub modules_to_save: Vec<String>,
    /// Ids whose rows of the embedding table and of the head the file holds, in its order. Ids behind the base's last one are new
    /// rows.
    pub token_rows: Vec<usize>,
    pub base_model: Option<String>,
}

/// Keys that must be absent, null, false or empty.
const UNSUPPORTED: [&str; 15] = [
    "use_dora",
    "lora_bias",
    "fan_in_fan_out",
    "rank_pattern",
    "alpha_pattern",
    "use_qalora",
    "use_bdlora",
    "layer_replication",
    "target_parameters",
    "exclude_modules",
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "velora_config",
    "monteclora_config",
];

impl AdapterConfig {
    /// What the product B·A is multiplied by.
    pub fn scaling(&self) -> f64 {
        let r = self.r as f64;
        if self.use_rslora { self.alpha / r.sqrt() } else { self.alpha / r }
    }

    pub fn read(path: &Path) -> Result<Self> {
        let origin = path.display().to_string();
        let text = fs::read_to_string(path).with_context(|| format!("{origin}: cannot read the adapter's settings"))?;
        let value = serde_json::from_str(&text).map_err(|e| anyhow!("{origin}: not valid JSON: {e}"))?;
        Self::from_json(&value, &origin)
    }

    pub fn from_json(value: &Value, origin: &str) -> Result<Self> {
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

        let r = value["r"].as_u64().filter(|r| (1..1 << 20).contains(r));
        let alpha = value["lora_alpha"].as_f64().filter(|a| a.is_finite());
        Ok(Self {
            r: r.ok_or_else(|| anyhow!("{origin}: `r` must be a positive whole number, found {}", value["r"]))?
                as usize,
            alpha: alpha
                .ok_or_else(|| anyhow!("{origin}: `lora_alpha` must be a number, found {}", value["lora_alpha"]))?,
            use_rslora: value["use_rslora"].as_bool().unwrap_or(false),
            targets: match &value["target_modules"] {
                Value::String(pattern) => Targets::Pattern(pattern.clone()),
                list => Targets::Names(strings(list, origin, "target_modules")?),
            },
            layers: match &value["layers_to_transform"] {
                Value::Null => None,
                Value::Array(list) if list.is_empty() => None,
                found => Some(layers(found, origin)?),
            },
            modules_to_save: match &value["modules_to_save"] {
                Value::Null => vec![],
                list => strings(list, origin, "modules_to_save")?,
            },
            token_rows: match &value["trainable_token_indices"] {
                Value::Null => vec![],
                found => token_rows(found, origin)?,
            },
            base_model: value["base_model_name_or_path"].as_str().map(str::to_string),
        })
    }

    /// The file that PEFT loads. `head_rows`: rows of a head of its own are held too.
    pub fn to_json(&self, head_rows: bool) -> Value {
        let saved = if self.modules_to_save.is_empty() { Value::Null } else { json!(self.modules_to_save) };
        let tokens = match (self.token_rows.is_empty(), head_rows) {
            (true, _) => Value::Null,
            (false, false) => json!({ "embed_tokens": self.token_rows }),
            (false, true) => json!({ "embed_tokens": self.token_rows, "lm_head": self.token_rows }),
        };
        json!({
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": self.base_model,
            "r": self.r,
            // PEFT declares an integer; a fraction is written only where there is one.
            "lora_alpha": if self.alpha.fract() == 0.0 { json!(self.alpha as i64) } else { json!(self.alpha) },
            "lora_dropout": 0.0,
            "use_rslora": self.use_rslora,
            "use_dora": false,
            "target_modules": match &self.targets {
                Targets::Names(names) => json!(names),
                Targets::Pattern(pattern) => json!(pattern),
            },
            "layers_to_transform": self.layers,
            "layers_pattern": null,
            "modules_to_save": saved,
            "trainable_token_indices": tokens,
            "bias": "none",
            "fan_in_fan_out": false,
            "init_lora_weights": true,
            "inference_mode": true,
            "rank_pattern": {},
            "alpha_pattern": {},
        })
    }
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
    let list =
        value.as_array().ok_or_else(|| anyhow!("{origin}: `{key}` must be a list of module names, found {value}"))?;
    let names = list.iter().map(|v| v.as_str().map(str::to_string));
    names
        .collect::<Option<_>>()
        .ok_or_else(|| anyhow!("{origin}: `{key}` must be a list of module names, found {value}"))
}

/// A list, or a list under the name of the embedding table, and the same under that of the head.
fn token_rows(value: &Value, origin: &str) -> Result<Vec<usize>> {
    let wanted = || {
        anyhow!(
            "{origin}: `trainable_token_indices` must be token ids of the embedding table, each once, and the same or none of the \
             head, found {value}"
        )
    };
    let list = match value {
        Value::Object(map) if map.is_empty() => return Ok(vec![]),
        Value::Object(map) => {
            let of = |table: &str| map.iter().find(|(name, _)| name.ends_with(table)).map(|(_, v)| v);
            let (embed, head) = (of("embed_tokens"), of("lm_head"));
            let known = map.len() == 1 + usize::from(head.is_some());
            embed.filter(|list| known && head.is_none_or(|head| head == *list))
        }
        Value::Array(_) => Some(value),
        _ => None,
    };
    let list = list.and_then(Value::as_array).ok_or_else(wanted)?;
    let ids: Option<Vec<usize>> = list.iter().map(|id| id.as_u64().map(|id| id as usize)).collect();
    let ids = ids.ok_or_else(wanted)?;
    let distinct: std::collections::BTreeSet<_> = ids.iter().collect();
    ensure!(distinct.len() == ids.len(), wanted());
    Ok(ids)
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
