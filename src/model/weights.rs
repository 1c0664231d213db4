//! Between the decoder's parameters and host tensors under Hugging Face names.
//!
//! Burn keeps matrices `[in, out]`, files keep them `[out, in]`; the embedding table is `[V, D]` in both.

use std::collections::BTreeMap;

use anyhow::{Context, Result, anyhow, bail, ensure};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Device, Tensor, TensorData};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::checkpoint::{Checkpoint, EMBED, HEAD, HostTensor, expected_parameters, spread};
use super::config::ModelConfig;
use super::decoder::Decoder;
use super::heads::Heads;
use super::linear::Matrix;
use crate::random::{fnv1a, normal};

impl Decoder {
    /// Builds a decoder from `get(name)`, called once per parameter with its Hugging Face name.
    ///
    /// # Errors
    /// What `get` returns, and a tensor of another shape than the configuration says.
    pub fn from_weights(
        config: &ModelConfig,
        device: &Device,
        get: impl FnMut(&str) -> Result<HostTensor>,
    ) -> Result<Self> {
        Decoder::new(config, device, &mut |_, _| Ok(Matrix::unset(device)))?.filled(device, get)
    }

    /// With every parameter from `get(name)`.
    pub(super) fn filled(self, device: &Device, get: impl FnMut(&str) -> Result<HostTensor>) -> Result<Self> {
        let shapes = expected_parameters(self.config()).into_iter().collect();
        let mut mapper = Fill { names: Names::default(), shapes, device: device.clone(), get, error: None };
        let decoder = self.map(&mut mapper);
        match mapper.error {
            Some(error) => Err(error),
            None => Ok(decoder),
        }
    }

    /// Reads every weight of an opened checkpoint.
    ///
    /// # Errors
    /// A tensor that cannot be read.
    pub fn load(checkpoint: &Checkpoint, device: &Device) -> Result<Self> {
        Self::from_weights(&checkpoint.config, device, |name| {
            checkpoint.tensor(name).with_context(|| format!("{}: reading `{name}`", checkpoint.path.display()))
        })?
        .with_heads_of(&checkpoint.path)
    }

    /// A decoder with random weights: normal, of the standard deviations of [`spread`], norms one.
    ///
    /// # Errors
    /// A configuration that is not valid.
    pub fn random(config: &ModelConfig, seed: u64, device: &Device) -> Result<Self> {
        config.validate("the model settings")?;
        let shapes: BTreeMap<String, Vec<usize>> = expected_parameters(config).into_iter().collect();
        Self::from_weights(config, device, |name| {
            let shape = shapes.get(name).cloned().unwrap_or_default();
            let count = shape.iter().product();
            let data = match spread(name, &shape, config.num_hidden_layers) {
                Some(std) => normals(count, std, seed, name),
                None => vec![1.0; count],
            };
            HostTensor::new(shape, data)
        })
    }

    /// Every parameter's effective value (LoRA merged), by Hugging Face name, `[out, in]`; without the heads.
    ///
    /// # Errors
    /// A device that cannot hand its data over.
    pub fn export(&self) -> Result<Vec<(String, HostTensor)>> {
        Ok(self.host_values()?.1)
    }

    /// The same of the heads, by name.
    ///
    /// # Errors
    /// A device that cannot hand its data over.
    pub fn export_heads(&self) -> Result<Vec<(String, HostTensor)>> {
        Ok(self.host_values()?.0)
    }

    /// Heads, and everything else.
    fn host_values(&self) -> Result<(Tensors, Tensors)> {
        ensure!(!self.is_kept(), "weights that are kept as stored are not written: load them with --dtype f32");
        let mut visitor = Collect { names: Names::default(), out: vec![], error: None };
        self.clone().valid().materialize().visit(&mut visitor);
        match visitor.error {
            Some(error) => Err(error),
            None => Ok(visitor.out.into_iter().partition(|(name, _)| name.starts_with(HEADS))),
        }
    }

    /// Hugging Face name of every parameter, with its id and whether it is trained.
    pub fn parameters(&self) -> Vec<Parameter> {
        let mut visitor = List { names: Names::default(), out: vec![] };
        self.visit(&mut visitor);
        visitor.out
    }

    /// # Errors
    /// A weight with a value that is not finite, by name: every number computed from it would be noise.
    pub(crate) fn ensure_finite(&self) -> Result<()> {
        let mut visitor = NotFinite { names: Names::default(), found: None };
        self.visit(&mut visitor);
        match visitor.found {
            Some(name) => bail!("the weight `{name}` holds a value that is not finite (NaN or infinity)"),
            None => Ok(()),
        }
    }

    /// The same decoder with another number of token rows in embedding and head: cut, or extended with `rows`.
    ///
    /// # Errors
    /// Rows of another width than the model.
    pub fn resize_tokens(
        self,
        vocab_size: usize,
        mut rows: impl FnMut(&HostTensor) -> Result<HostTensor>,
    ) -> Result<Self> {
        let device = self.device();
        let mut config = self.config().clone();
        config.vocab_size = vocab_size;
        let (sizes, heads) = (self.heads.sizes(), self.export_heads()?.into_iter().collect::<BTreeMap<_, _>>());
        let mut held: BTreeMap<String, HostTensor> = self.export()?.into_iter().collect();
        for name in [EMBED, HEAD] {
            if let Some(table) = held.get_mut(name) {
                *table = rows(table)?;
            }
        }
        Self::from_weights(&config, &device, |name| {
            held.remove(name)
                .ok_or_else(|| anyhow!("parameter `{name}` is missing after resizing to {vocab_size} tokens"))
        })?
        .with_heads(sizes, |name| heads.get(name).cloned().with_context(|| format!("parameter `{name}` is missing")))
    }
}

/// Host tensors by name.
type Tensors = Vec<(String, HostTensor)>;

/// One parameter of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Hugging Face name; a LoRA factor carries its own suffix.
    pub name: String,
    pub id: ParamId,
    pub shape: Vec<usize>,
    pub trained: bool,
}

/// `count` normal draws, keyed by seed and name so that they do not depend on the order of construction.
pub(super) fn normals(count: usize, std: f64, seed: u64, name: &str) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ fnv1a(name.bytes()));
    (0..count).map(|_| (normal(&mut rng) * std) as f32).collect()
}

/// Gives heads their values from `get(name)`, called once for each of `parameters`.
///
/// # Errors
/// What `get` returns, and a tensor of another shape.
pub(super) fn fill_heads(
    heads: Heads,
    parameters: Vec<(String, Vec<usize>)>,
    device: &Device,
    get: impl FnMut(&str) -> Result<HostTensor>,
) -> Result<Heads> {
    let names = Names(vec!["heads".to_owned()]);
    let shapes = parameters.into_iter().collect();
    let mut mapper = Fill { names, shapes, device: device.clone(), get, error: None };
    let heads = heads.map(&mut mapper);
    match mapper.error {
        Some(error) => Err(error),
        None => Ok(heads),
    }
}

/// What the names of heads begin with.
const HEADS: &str = "heads.";

/// What Burn calls a matrix of floats in a parameter's path.
pub(super) const DENSE: &str = "Dense";

/// The stack of module names during a traversal.
#[derive(Default)]
pub(super) struct Names(Vec<String>);

impl Names {
    pub(super) fn enter(&mut self, name: &str) {
        self.0.push(name.to_owned());
    }

    pub(super) fn exit(&mut self) {
        self.0.pop();
    }

    /// `layers.0.mlp.up_proj.weight` → `model.layers.0.mlp.up_proj.weight`; which kind of matrix it is has no name.
    pub(super) fn hugging_face(&self) -> String {
        let path = self.0.iter().map(String::as_str).filter(|part| *part != DENSE).collect::<Vec<_>>().join(".");
        match path.as_str() {
            "embed_tokens" => EMBED.to_owned(),
            HEAD => path,
            _ if path.starts_with(HEADS) => path,
            _ => format!("model.{path}"),
        }
    }
}

struct Fill<F> {
    names: Names,
    shapes: BTreeMap<String, Vec<usize>>,
    device: Device,
    get: F,
    error: Option<anyhow::Error>,
}

impl<F: FnMut(&str) -> Result<HostTensor>> Fill<F> {
    fn read<const R: usize>(&mut self, name: &str) -> Result<Tensor<R>> {
        let host = (self.get)(name)?;
        let expected = self.shapes.get(name).with_context(|| format!("`{name}` is not a parameter of this model"))?;
        ensure!(&host.shape == expected, "`{name}` has shape {:?}, expected {expected:?}", host.shape);
        let tensor = Tensor::<R>::from_data(TensorData::new(host.data, host.shape), &self.device);
        let transposed = R == 2 && name != EMBED;
        // A fresh buffer: a transposed view would be re-packed by every matrix product.
        Ok(if transposed { contiguous(tensor.transpose()) } else { tensor })
    }
}

/// The same values laid out in row-major order.
pub(super) fn contiguous<const R: usize>(x: Tensor<R>) -> Tensor<R> {
    let device = x.device();
    Tensor::from_data(x.into_data(), &device)
}

impl<F: FnMut(&str) -> Result<HostTensor>> ModuleMapper for Fill<F> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.names.enter(name);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.names.exit();
    }

    fn map_float<const R: usize>(&mut self, param: Param<Tensor<R>>) -> Param<Tensor<R>> {
        if self.error.is_some() {
            return param;
        }
        let name = self.names.hugging_face();
        match self.read::<R>(&name) {
            Ok(value) => {
                // Ids follow names, so that optimiser state saved by one process fits the next.
                let (_, _, mapper) = param.consume();
                let mut param = Param::from_mapped_value(ParamId::from(fnv1a(name.bytes())), value, mapper);
                param = param.set_require_grad(true);
                param
            }
            Err(error) => {
                self.error = Some(error);
                param
            }
        }
    }
}

struct Collect {
    names: Names,
    out: Vec<(String, HostTensor)>,
    error: Option<anyhow::Error>,
}

impl ModuleVisitor for Collect {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.names.enter(name);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.names.exit();
    }

    fn visit_float<const R: usize>(&mut self, param: &Param<Tensor<R>>) {
        let name = self.names.hugging_face();
        let value = param.val();
        let value = if R == 2 && name != EMBED { value.transpose() } else { value };
        let shape = value.dims().to_vec();
        let data = value.try_into_vec_as::<f32>().map_err(|e| anyhow!("reading parameter `{name}`: {e:?}"));
        match data.and_then(|data| HostTensor::new(shape, data)) {
            Ok(host) => self.out.push((name, host)),
            Err(error) => self.error = Some(error),
        }
    }
}

/// The first parameter that holds a value that is not finite.
struct NotFinite {
    names: Names,
    found: Option<String>,
}

impl ModuleVisitor for NotFinite {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.names.enter(name);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.names.exit();
    }

    fn visit_float<const R: usize>(&mut self, param: &Param<Tensor<R>>) {
        let whole = || param.val().is_finite().all().into_data().iter::<bool>().all(|finite| finite);
        if self.found.is_none() && !whole() {
            self.found = Some(self.names.hugging_face());
        }
    }
}

struct List {
    names: Names,
    out: Vec<Parameter>,
}

impl ModuleVisitor for List {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.names.enter(name);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.names.exit();
    }

    fn visit_float<const R: usize>(&mut self, param: &Param<Tensor<R>>) {
        let value = param.val();
        self.out.push(Parameter {
            name: self.names.hugging_face(),
            id: param.id,
            shape: value.dims().to_vec(),
            trained: value.is_require_grad(),
        });
    }
}

impl Decoder {
    /// The same decoder computing in another float type. Keep f32 masters for training: Burn's operations do not promote.
    #[must_use]
    pub fn cast(self, dtype: burn::tensor::FloatDType) -> Self {
        self.map(&mut CastTo { dtype, frozen_only: false })
    }

    /// The same, of what is not trained only: a frozen base is then held once in the type that is computed in, beside f32 factors.
    #[must_use]
    pub(crate) fn cast_frozen(self, dtype: burn::tensor::FloatDType) -> Self {
        self.map(&mut CastTo { dtype, frozen_only: true })
    }
}

struct CastTo {
    dtype: burn::tensor::FloatDType,
    frozen_only: bool,
}

impl ModuleMapper for CastTo {
    fn map_float<const R: usize>(&mut self, param: Param<Tensor<R>>) -> Param<Tensor<R>> {
        let (id, value, mapper) = param.consume();
        let trained = value.is_require_grad();
        if trained && self.frozen_only {
            return Param::from_mapped_value(id, value, mapper);
        }
        let value = value.detach().cast(self.dtype).detach().set_require_grad(trained);
        Param::from_mapped_value(id, value, mapper)
    }
}
