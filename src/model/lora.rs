//! LoRA (Hu et al. 2021, arXiv:2106.09685) through Burn's own reparameterisation, or over stored matrices: attach, name the trained
//! parameters, merge.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use burn::module::{Lora, Module, ModuleMapper, Param, ParamGroup, ParamId};
use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use super::checkpoint::HostTensor;
use super::checkpoint::peft::Adapter;
use super::decoder::Decoder;
use super::weights::{DENSE, KEPT, Names, follow_names};
use crate::random::fnv1a;

/// The projections that can carry factors, by Hugging Face name.
pub const TARGETS: [&str; 7] = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];

/// Burn has one generator per process: no other thread may draw between its seeding and the last draw.
static DRAWS: Mutex<()> = Mutex::new(());

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoraSettings {
    pub rank: usize,
    pub alpha: f64,
    /// Subset of [`TARGETS`].
    pub targets: Vec<String>,
    /// Also train the whole embedding table and head.
    pub train_embeddings: bool,
    /// Seed of the factor A; B starts at zero, so the model is unchanged at first.
    pub seed: u64,
}

impl Default for LoraSettings {
    /// The paper's: r 32, alpha 64, all seven projections, embeddings and head in full.
    fn default() -> Self {
        let targets = TARGETS.iter().map(|t| (*t).to_owned()).collect();
        Self { rank: 32, alpha: 64.0, targets, train_embeddings: true, seed: 0 }
    }
}

impl Decoder {
    /// Attaches factors to every target projection; everything else is frozen except what the settings name.
    ///
    /// # Errors
    /// An unknown or empty target list, or a rank of zero.
    pub fn with_lora(self, settings: &LoraSettings) -> Result<Self> {
        ensure!(settings.rank > 0, "lora.rank must be at least 1, found 0");
        ensure!(!settings.targets.is_empty(), "lora.targets is empty: name some of {TARGETS:?}");
        for target in &settings.targets {
            ensure!(
                TARGETS.contains(&target.as_str()),
                "lora.targets: unknown `{target}`, expected some of {TARGETS:?}"
            );
        }
        let sparse = self.config().extras.experts.as_ref().is_some_and(|experts| experts.layers.contains(&true));
        let of_mlp = settings.targets.iter().find(|target| TARGETS[4..].contains(&target.as_str()));
        if let Some(target) = of_mlp.filter(|_| sparse) {
            bail!(
                "lora.targets: `{target}` is an expert's in this model, and experts carry no factors: name some of {:?}",
                &TARGETS[..4]
            );
        }
        let targets = settings.targets.join("|");
        let group =
            ParamGroup::from_regex(format!(r"^layers\.\d+\.(self_attn|mlp\.{DENSE})\.({targets})\.weight\.{DENSE}$"))
                .map_err(|e| anyhow::anyhow!("lora.targets: {e:?}"))?;
        let model = if settings.train_embeddings { self.with_float_tables()? } else { self };
        let alone = DRAWS.lock().unwrap_or_else(PoisonError::into_inner);
        model.device().seed(settings.seed);
        let lora = Lora::new(settings.rank, settings.alpha).set_dtype(FloatDType::F32).set_param_group(group);
        let model = model.apply_lora(lora).with_lora_over_kept(settings);
        drop(alone);
        let mut ids = NameIds { names: Names::default() };
        let model = model.map(&mut ids);
        if !settings.train_embeddings {
            return Ok(model);
        }
        let full = ["embed_tokens", "lm_head.weight"];
        let full = full.map(|matrix| [format!("{matrix}.{DENSE}"), format!("{matrix}.{KEPT}.learnt")]);
        Ok(model.unfreeze_group(ParamGroup::from_paths(full.concat())))
    }

    /// Attaches an adapter's factors, to be trained further. Whole weights that it replaces must be in the decoder already
    /// (`ModelFiles::with_adapter` under `Apply::ReplacedOnly`).
    ///
    /// A projection with factors in some layers gets them in all: missing ones keep their initial value, which changes nothing.
    ///
    /// # Errors
    /// Factors of a matrix outside [`TARGETS`]; values that cannot be read.
    pub fn with_adapter(self, adapter: &Adapter) -> Result<Self> {
        let mut targets = BTreeSet::new();
        let mut factors = BTreeMap::new();
        for name in adapter.factor_names() {
            let target = TARGETS.into_iter().find(|t| name.ends_with(&format!(".{t}.weight")));
            let target = target.with_context(|| {
                format!("{}: factors of `{name}` cannot stay unmerged: merge them", adapter.path.display())
            })?;
            targets.insert(target.to_owned());
            if let Some(f) = adapter.factors(name)? {
                factors.insert(format!("{name}.lora.a"), f.a);
                factors.insert(format!("{name}.lora.b"), f.b);
            }
        }
        let (rank, scaling) = adapter.uniform()?;
        let settings = LoraSettings {
            rank,
            // Burn multiplies by alpha / rank; this also covers PEFT's rank-stabilised scaling.
            alpha: scaling * rank as f64,
            targets: targets.into_iter().collect(),
            train_embeddings: adapter.replaced_names().next().is_some(),
            seed: 0,
        };
        let device = self.device();
        let mut set = SetFactors { names: Names::default(), factors, device };
        let model = self.with_lora(&settings)?.map(&mut set);
        let left: Vec<&String> = set.factors.keys().collect();
        ensure!(left.is_empty(), "{}: no place for the factors {left:?}", adapter.path.display());
        Ok(model)
    }
}

/// Derives the id of each LoRA factor from its name, as for all other parameters.
struct NameIds {
    names: Names,
}

impl ModuleMapper for NameIds {
    follow_names!();

    fn map_float<const R: usize>(&mut self, mut param: Param<Tensor<R>>) -> Param<Tensor<R>> {
        let name = self.names.hugging_face();
        if name.contains("lora") {
            param.id = ParamId::from(fnv1a(name.bytes()));
        }
        param
    }
}

/// Copies factors from PEFT's layout to Burn's transposed one.
struct SetFactors {
    names: Names,
    factors: BTreeMap<String, HostTensor>,
    device: Device,
}

impl ModuleMapper for SetFactors {
    follow_names!();

    fn map_float<const R: usize>(&mut self, param: Param<Tensor<R>>) -> Param<Tensor<R>> {
        let Some(host) = self.factors.remove(&self.names.hugging_face()) else { return param };
        let (id, old, mapper) = param.consume();
        let host = host.transposed();
        let value = Tensor::<R>::from_data(TensorData::new(host.data, host.shape), &self.device);
        Param::from_mapped_value(id, value.set_require_grad(old.is_require_grad()), mapper)
    }
}
