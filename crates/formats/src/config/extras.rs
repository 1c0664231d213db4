//! Settings that only a few models have; all off by default.

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::keys::Keys;

/// Parts that only some models have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Extras {
    /// `None`: every layer attends to all earlier positions.
    pub sliding: Option<SlidingWindow>,
    /// Scores are divided by the root of this instead of the head width's.
    pub query_pre_attn_scalar: Option<f64>,
    /// Scores x become `c · tanh(x / c)` before they are masked (Bello et al. 2016, arXiv:1611.09940).
    pub attention_cap: Option<f64>,
    /// Logits likewise.
    pub logit_cap: Option<f64>,
    /// Experts in place of some layers' feed-forward.
    pub experts: Option<Experts>,
}

/// A mixture of experts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Experts {
    pub count: usize,
    /// Experts per position.
    pub per_token: usize,
    /// Hidden width of one expert.
    pub width: usize,
    /// Whether the weights of a position's experts are normalised to sum to one.
    pub normalised: bool,
    /// Whether each layer has experts.
    pub layers: Vec<bool>,
}

impl Experts {
    /// Reads Qwen3-MoE's keys, with transformers' defaults.
    pub(super) fn read(keys: &Keys, layers: usize) -> Result<Self> {
        let or = |key: &str, default| Ok::<usize, anyhow::Error>(keys.usize(key)?.unwrap_or(default));
        let step = or("decoder_sparse_step", 1)?;
        ensure!(step > 0, "{}: `decoder_sparse_step` must be at least 1, found 0", keys.origin);
        let dense = match keys.get("mlp_only_layers") {
            None => vec![],
            Some(found) => {
                let one = |layer: &Value| layer.as_u64().and_then(|layer| usize::try_from(layer).ok());
                let listed: Option<Vec<usize>> = found.as_array().and_then(|list| list.iter().map(one).collect());
                listed.ok_or_else(|| keys.refuse("mlp_only_layers", "a list of layers", found))?
            }
        };
        Ok(Self {
            count: keys.either("num_local_experts", "num_experts")?.unwrap_or(128),
            per_token: or("num_experts_per_tok", 8)?,
            width: or("moe_intermediate_size", 768)?,
            normalised: keys.bool("norm_topk_prob")?.unwrap_or(false),
            layers: (0..layers).map(|layer| (layer + 1).is_multiple_of(step) && !dense.contains(&layer)).collect(),
        })
    }

    /// The keys of `config.json`.
    pub(super) fn to_json(&self) -> impl Iterator<Item = (&'static str, Value)> + use<> {
        let dense = (0..self.layers.len()).filter(|&layer| !self.layers[layer]).collect::<Vec<_>>();
        let keys = [
            ("num_experts", json!(self.count)),
            ("num_experts_per_tok", json!(self.per_token)),
            ("moe_intermediate_size", json!(self.width)),
            ("norm_topk_prob", json!(self.normalised)),
            ("decoder_sparse_step", json!(1)),
            ("mlp_only_layers", json!(dense)),
        ];
        keys.into_iter()
    }

    fn validate(&self, origin: &str) -> Result<()> {
        // The names of all parameters are listed before the weights are read.
        let (most, most_in_all) = (1 << 16, 1 << 18);
        for (key, found) in [("num_experts", self.count), ("moe_intermediate_size", self.width)] {
            ensure!((1..=most).contains(&found), "{origin}: `{key}` must be between 1 and {most}, found {found}");
        }
        ensure!(
            (1..=self.count).contains(&self.per_token),
            "{origin}: `num_experts_per_tok` must be between 1 and the {} experts, found {}",
            self.count,
            self.per_token
        );
        let routed = self.layers.iter().filter(|&&routed| routed).count();
        ensure!(
            routed * self.count <= most_in_all,
            "{origin}: {routed} layers of `num_experts` {} have more than {most_in_all} experts",
            self.count
        );
        Ok(())
    }
}

/// Layers whose positions attend only to the last few (Beltagy et al. 2020, arXiv:2004.05150, as in Mistral).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlidingWindow {
    /// Number of positions attended to, itself included.
    pub window: usize,
    /// Whether each layer has the window.
    pub layers: Vec<bool>,
}

const SLIDING: &str = "sliding_attention";
const FULL: &str = "full_attention";

impl SlidingWindow {
    /// `layer_types` of `config.json`, if present: which layers slide.
    pub(super) fn listed(keys: &Keys) -> Result<Option<Vec<bool>>> {
        let Some(found) = keys.get("layer_types") else { return Ok(None) };
        let one = |kind: &Value| match kind.as_str() {
            Some(SLIDING) => Some(true),
            Some(FULL) => Some(false),
            _ => None,
        };
        let layers: Option<Vec<bool>> = found.as_array().and_then(|list| list.iter().map(one).collect());
        let known = format!("a list of \"{FULL}\" and \"{SLIDING}\"");
        layers.map(Some).ok_or_else(|| keys.refuse("layer_types", &known, found))
    }

    /// `None` if no layer slides.
    pub(super) fn new(window: usize, layers: Vec<bool>) -> Option<Self> {
        layers.contains(&true).then_some(Self { window, layers })
    }

    /// `layer_types`.
    pub(super) fn to_json(&self) -> Value {
        json!(self.layers.iter().map(|&slides| if slides { SLIDING } else { FULL }).collect::<Vec<_>>())
    }

    /// Layers before the first that slides.
    pub(super) fn full_before(&self) -> usize {
        self.layers.iter().position(|&slides| slides).unwrap_or(self.layers.len())
    }
}

/// A whole number as an integer: `transformers` rejects floats here.
pub(super) fn plain(x: f64) -> Value {
    if x.fract() == 0.0 && x.abs() < 1e15 { json!(x as i64) } else { json!(x) }
}

impl Extras {
    pub(super) fn validate(&self, layers: usize, origin: &str) -> Result<()> {
        if let Some(SlidingWindow { window, layers: listed }) = &self.sliding {
            ensure!(*window > 0, "{origin}: `sliding_window` must be null (full attention) or at least 1, found 0");
            ensure!(
                listed.len() == layers,
                "{origin}: `layer_types` must have one entry for each of the {layers} layers, found {}",
                listed.len()
            );
        }
        if let Some(experts) = &self.experts {
            experts.validate(origin)?;
        }
        let numbers = [
            ("query_pre_attn_scalar", self.query_pre_attn_scalar),
            ("attn_logit_softcapping", self.attention_cap),
            ("final_logit_softcapping", self.logit_cap),
        ];
        for (key, found) in numbers {
            let Some(found) = found else { continue };
            ensure!(found.is_finite() && found > 0.0, "{origin}: `{key}` must be a positive number, found {found}");
        }
        Ok(())
    }
}
