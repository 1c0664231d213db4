//! Conversion between the decoder's parameters and host tensors under Hugging Face names.
//!
//! Burn stores matrices as `[in, out]`, files as `[out, in]`; tables of tokens and positions are `[V, D]` in both.

use std::collections::BTreeMap;

use anyhow::{Context, Result, anyhow, bail, ensure};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{DType, Device, FloatDType, GradientCheckpointingStrategy, Tensor, TensorData};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::checkpoint::{EMBED, HEAD, HostTensor, ModelFiles, POSITIONS, expected_parameters, spread};
use super::config::ModelConfig;
use super::decoder::Decoder;
use super::heads::Heads;
use super::linear::Matrix;
use crate::ops;
use crate::random::{fnv1a, normal};

impl Decoder {
    /// Builds a decoder from `get(name)`, called once per parameter with its Hugging Face name.
    ///
    /// # Errors
    /// Failures of `get`; a tensor of another shape than the configuration's.
    pub fn from_weights(
        config: &ModelConfig,
        device: &Device,
        get: impl FnMut(&str) -> Result<HostTensor>,
    ) -> Result<Self> {
        Decoder::new(config, device, &mut |_, _| Ok(Matrix::unset(device)))?.filled(FloatDType::F32, device, get)
    }

    /// With every parameter from `get(name)`, in this type but for the tables of tokens.
    pub(super) fn filled(
        self,
        dtype: FloatDType,
        device: &Device,
        get: impl FnMut(&str) -> Result<HostTensor>,
    ) -> Result<Self> {
        let shapes = expected_parameters(self.config()).into_iter().collect();
        let mut mapper = Fill { names: Names::default(), shapes, dtype, device: device.clone(), get, error: None };
        let decoder = self.map(&mut mapper);
        mapper.error.map_or(Ok(decoder), Err)
    }

    /// Reads every weight of an opened checkpoint.
    pub fn load(checkpoint: &ModelFiles, device: &Device) -> Result<Self> {
        Self::load_in(checkpoint, FloatDType::F32, device)
    }

    /// Loads weights in this type, so that the device never has a copy in another. Embedding table and head are in f32: rows may be added to
    /// them, and they may be trained.
    pub(crate) fn load_in(checkpoint: &ModelFiles, dtype: FloatDType, device: &Device) -> Result<Self> {
        let get = |name: &str| {
            checkpoint.tensor(name).with_context(|| format!("{}: reading `{name}`", checkpoint.path.display()))
        };
        Decoder::new(&checkpoint.config, device, &mut |_, _| Ok(Matrix::unset(device)))?
            .filled(dtype, device, get)?
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
    pub fn export(&self) -> Result<Vec<(String, HostTensor)>> {
        self.tensors()?.collect()
    }

    /// The parameters, layer by layer: at most one is merged, or on the host, before the next is requested.
    ///
    /// # Errors
    /// Weights in their stored type; for each item, a failed copy from the device.
    pub(crate) fn tensors(&self) -> Result<impl Iterator<Item = Result<(String, HostTensor)>>> {
        ensure!(!self.is_kept(), "weights in their file format are not written whole: load them with --dtype f32");
        let outside = self.outside().into_iter().filter(|tensor| !is_of_heads(tensor));
        Ok(outside.chain((0..self.layers.len()).flat_map(|layer| self.layer(layer))))
    }

    /// The parameters of the heads, by name.
    pub fn export_heads(&self) -> Result<Vec<(String, HostTensor)>> {
        self.outside().into_iter().filter(|tensor| tensor.is_err() || is_of_heads(tensor)).collect()
    }

    fn layer(&self, layer: usize) -> Vec<Result<(String, HostTensor)>> {
        let names = Names(vec!["layers".to_owned(), layer.to_string()]);
        let mut visitor = Collect { names, out: vec![] };
        self.layers[layer].valid().materialize().visit(&mut visitor);
        visitor.out
    }

    /// Parameters outside the blocks: embeddings, final norm, head.
    fn outside(&self) -> Vec<Result<(String, HostTensor)>> {
        let mut visitor = Collect { names: Names::default(), out: vec![] };
        Decoder { layers: vec![], ..self.clone() }.valid().materialize().visit(&mut visitor);
        visitor.out
    }

    /// Hugging Face name of every parameter, with its id and whether it is trained.
    pub fn parameters(&self) -> Vec<Parameter> {
        let mut visitor = List { names: Names::default(), out: vec![] };
        self.visit(&mut visitor);
        visitor.out
    }

    /// # Errors
    /// A weight with a value that is not finite, by name: all results would be meaningless.
    pub(crate) fn ensure_finite(&self) -> Result<()> {
        let mut visitor = NotFinite { names: Names::default(), found: None };
        self.visit(&mut visitor);
        match visitor.found {
            Some(name) => bail!("the weight `{name}` has a value that is not finite (NaN or infinity)"),
            None => Ok(()),
        }
    }

    /// LoRA factors merged in f32, then everything in this type, outside autodiff. Layer by layer, so that the merged model is never whole in
    /// f32.
    pub(crate) fn merged(&self, dtype: FloatDType) -> Self {
        let mut cast = CastTo { dtype, frozen_only: false };
        let layers = self.layers.iter().map(|block| block.valid().materialize().map(&mut cast)).collect();
        let outside = Decoder { layers: vec![], ..self.clone() }.valid().materialize().map(&mut cast);
        Decoder { layers, ..outside }.folded()
    }

    /// Prepares it for training all weights on a device with autodiff and its activation checkpointing.
    #[must_use]
    pub(crate) fn trained_on(self, device: &Device) -> Self {
        let strategy = device.gradient_checkpointing_strategy().unwrap_or_default();
        self.map(&mut TrainableMap { strategy, whole: true })
    }

    /// Moves it back to a device with autodiff and its activation checkpointing: formerly trained parameters are trained again
    /// ([`Module::train`]).
    #[must_use]
    pub(crate) fn trained_again_on(self, device: &Device) -> Self {
        let strategy = device.gradient_checkpointing_strategy().unwrap_or_default();
        self.train().map(&mut TrainableMap { strategy, whole: false })
    }
}

fn is_of_heads(tensor: &Result<(String, HostTensor)>) -> bool {
    tensor.as_ref().is_ok_and(|(name, _)| name.starts_with(HEADS))
}

struct TrainableMap {
    strategy: GradientCheckpointingStrategy,
    whole: bool,
}

impl ModuleMapper for TrainableMap {
    fn map_float<const R: usize>(&mut self, param: Param<Tensor<R>>) -> Param<Tensor<R>> {
        let trained = self.whole || param.is_require_grad();
        let (id, value, mapper) = param.consume();
        let value = value.without_autodiff().autodiff().with_gradient_checkpointing_strategy(self.strategy);
        Param::from_mapped_value(id, value, mapper).set_require_grad(trained)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Hugging Face name; a LoRA factor has its own suffix.
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

/// Fills heads from `get(name)`, called once for each of `parameters`.
///
/// # Errors
/// Failures of `get`; a tensor of another shape.
pub(super) fn fill_heads(
    heads: Heads,
    parameters: Vec<(String, Vec<usize>)>,
    device: &Device,
    get: impl FnMut(&str) -> Result<HostTensor>,
) -> Result<Heads> {
    let names = Names(vec!["heads".to_owned()]);
    let shapes = parameters.into_iter().collect();
    let mut mapper = Fill { names, shapes, dtype: FloatDType::F32, device: device.clone(), get, error: None };
    let heads = heads.map(&mut mapper);
    mapper.error.map_or(Ok(heads), Err)
}

/// Prefix of the heads' names.
const HEADS: &str = "heads.";
/// Prefix of an auxiliary decoder's parameters.
pub(super) const AUXILIARY: &str = "heads.auxiliary.0.";

/// Burn's path segments of a float matrix (or a dense MLP), a stored matrix, and experts.
pub(super) const DENSE: &str = "Dense";
pub(super) const KEPT: &str = "Kept";
const SPARSE: &str = "Sparse";

/// Whether files and Burn store a matrix in the same layout: rows by token or by position.
pub(super) fn is_table(name: &str) -> bool {
    [EMBED, POSITIONS].contains(&name.strip_prefix(AUXILIARY).unwrap_or(name))
}

/// The stack of module names during a traversal.
#[derive(Default)]
pub(super) struct Names(Vec<String>);

/// Methods of a mapper or visitor that keep its `names` in step with the traversal.
macro_rules! follow_names {
    () => {
        fn enter_module(&mut self, name: &str, _container: &str) {
            self.names.enter(name);
        }

        fn exit_module(&mut self, _name: &str, _container: &str) {
            self.names.exit();
        }
    };
}
pub(super) use follow_names;

impl Names {
    pub(super) fn enter(&mut self, name: &str) {
        self.0.push(name.to_owned());
    }

    pub(super) fn exit(&mut self) {
        self.0.pop();
    }

    /// `layers.0.mlp.up_proj.weight` → `model.layers.0.mlp.up_proj.weight`; which kind of matrix or of
    /// feed-forward it is has no name.
    pub(super) fn hugging_face(&self) -> String {
        let path = self
            .0
            .iter()
            .map(String::as_str)
            .filter(|part| ![DENSE, KEPT, SPARSE].contains(part))
            .collect::<Vec<_>>()
            .join(".");
        match path.strip_prefix(AUXILIARY) {
            Some(inner) => format!("{AUXILIARY}{}", Self::of_decoder(inner)),
            None => Self::of_decoder(&path),
        }
    }

    fn of_decoder(path: &str) -> String {
        match path {
            "embed_tokens" => EMBED.to_owned(),
            "embed_positions" => POSITIONS.to_owned(),
            "embed_tokens.learnt" => format!("{EMBED}.learnt"),
            _ if path.starts_with(HEAD) || path.starts_with(HEADS) => path.to_owned(),
            _ => format!("model.{path}"),
        }
    }
}

struct Fill<F> {
    names: Names,
    shapes: BTreeMap<String, Vec<usize>>,
    /// Type of all weights except embedding tables and heads.
    dtype: FloatDType,
    device: Device,
    get: F,
    error: Option<anyhow::Error>,
}

impl<F: FnMut(&str) -> Result<HostTensor>> Fill<F> {
    fn read<const R: usize>(&mut self, name: &str) -> Result<Tensor<R>> {
        let host = (self.get)(name)?;
        let expected = self.shapes.get(name).with_context(|| format!("`{name}` is not a parameter of this model"))?;
        ensure!(&host.shape == expected, "`{name}` has shape {:?}, expected {expected:?}", host.shape);
        let in_f32 = [EMBED, HEAD].contains(&name) || name.starts_with(HEADS);
        let dtype = DType::from(if in_f32 { FloatDType::F32 } else { self.dtype });
        ops::ensure_fits(|| format!("`{name}`"), (host.data.len() * dtype.size()) as u64, &self.device)?;
        // On the host: a transposed view would be brought into order again by every matrix product.
        let host = if R == 2 && !is_table(name) { host.transposed() } else { host };
        Ok(Tensor::<R>::from_data(TensorData::new(host.data, host.shape), (&self.device, dtype)))
    }
}

impl<F: FnMut(&str) -> Result<HostTensor>> ModuleMapper for Fill<F> {
    follow_names!();

    fn map_float<const R: usize>(&mut self, param: Param<Tensor<R>>) -> Param<Tensor<R>> {
        if self.error.is_some() {
            return param;
        }
        let name = self.names.hugging_face();
        match self.read::<R>(&name) {
            Ok(value) => {
                // Ids are derived from names, so that optimiser state saved by one process fits the next.
                let (_, _, mapper) = param.consume();
                Param::from_mapped_value(ParamId::from(fnv1a(name.bytes())), value, mapper).set_require_grad(true)
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
    out: Vec<Result<(String, HostTensor)>>,
}

impl ModuleVisitor for Collect {
    follow_names!();

    fn visit_float<const R: usize>(&mut self, param: &Param<Tensor<R>>) {
        let name = self.names.hugging_face();
        let value = param.val();
        let value = if R == 2 && !is_table(&name) { value.transpose() } else { value };
        let shape = value.dims().to_vec();
        let data = value.try_into_vec_as::<f32>().map_err(|e| anyhow!("reading parameter `{name}`: {e:?}"));
        self.out.push(data.and_then(|data| HostTensor::new(shape, data)).map(|host| (name, host)));
    }
}

/// Finds the first parameter with a value that is not finite.
struct NotFinite {
    names: Names,
    found: Option<String>,
}

impl ModuleVisitor for NotFinite {
    follow_names!();

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
    follow_names!();

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
    /// The same decoder in another float type. Use f32 masters for training: Burn's operations do not promote.
    #[must_use]
    pub fn cast(self, dtype: FloatDType) -> Self {
        self.map(&mut CastTo { dtype, frozen_only: false })
    }

    /// Casts frozen parameters, and trained ones to f32: a frozen base is then stored once, in its compute type, next to f32 factors.
    #[must_use]
    pub(crate) fn cast_frozen(self, dtype: FloatDType) -> Self {
        self.map(&mut CastTo { dtype, frozen_only: true })
    }
}

struct CastTo {
    dtype: FloatDType,
    frozen_only: bool,
}

impl ModuleMapper for CastTo {
    fn map_float<const R: usize>(&mut self, param: Param<Tensor<R>>) -> Param<Tensor<R>> {
        let (id, value, mapper) = param.consume();
        let trained = value.is_require_grad();
        let dtype = if trained && self.frozen_only { FloatDType::F32 } else { self.dtype };
        if value.dtype() == DType::from(dtype) {
            return Param::from_mapped_value(id, value, mapper);
        }
        let value = value.detach().cast(dtype).detach().set_require_grad(trained);
        Param::from_mapped_value(id, value, mapper)
    }
}
