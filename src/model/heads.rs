//! Extra heads that a method trains with the decoder. They are part of the decoder, so that the trainer, its saved state and every program
//! include them. On disk they are in a separate file next to the weights ([`FILE`]), so that `transformers` can still load the folder.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, activation};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use safetensors::tensor::TensorView;

use super::checkpoint::{HostTensor, SafetensorsFile, expected_parameters};
use super::config::ModelConfig;
use super::decoder::Decoder;
use super::linear::Matrix;
use super::weights::{AUXILIARY, fill_heads, normals};
use crate::ops::linear;
use crate::random::fnv1a;

/// Their file in a checkpoint folder; names as [`HeadSizes::parameters`], matrices `[out, in]`.
pub const FILE: &str = "heads.safetensors";

/// `y = x W + b` with W `[d_in, d_out]`.
#[derive(Module, Debug)]
pub struct Affine {
    pub weight: Param<Tensor<2>>,
    pub bias: Param<Tensor<1>>,
}

/// PyTorch's LayerNorm over the last axis.
#[derive(Module, Debug)]
pub struct LayerNorm {
    pub weight: Param<Tensor<1>>,
    pub bias: Param<Tensor<1>>,
}

/// `LayerNorm(down(gelu(up(x))))`, with output width D. CODI's recurrence uses one.
#[derive(Module, Debug)]
pub struct Projection {
    pub up: Affine,
    pub down: Affine,
    pub norm: LayerNorm,
}

/// CoLaR's: a normal distribution of the next latent input, in standard deviations of embeddings.
#[derive(Module, Debug)]
pub struct LatentHead {
    pub body: Projection,
    pub mean: Affine,
    pub log_std: Affine,
    /// `[1]`: the standard deviation of embeddings; a constant.
    pub scale: Param<Tensor<1>>,
}

/// HRPO's gate: per dimension, the shares of a token's embedding and of a state (Yue et al. 2025, after the recurrence of Griffin, De et
/// al. 2024).
#[derive(Module, Debug)]
pub struct Gate {
    /// r = σ(·) of the embedding: how far `lambda` is felt.
    pub keep: Affine,
    /// i = σ(·) of the embedding: input gate of the state.
    pub admit: Affine,
    /// `[D]`: a = σ(Λ)^(c·r).
    pub lambda: Param<Tensor<1>>,
}

/// The heads of a decoder; none by default.
#[derive(Module, Debug, Default)]
pub struct Heads {
    pub projection: Option<Projection>,
    pub latent: Option<LatentHead>,
    pub gate: Option<Gate>,
    /// SIM-CoT's decoder of the model's own shape, or none: it spells out the content of latents. Used only in training; checkpoints do not
    /// contain it.
    pub auxiliary: Vec<Decoder>,
}

/// Kinds of heads, and their inner widths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeadSizes {
    pub projection: Option<usize>,
    pub latent: Option<usize>,
    /// As wide as the model.
    pub gate: bool,
    pub auxiliary: bool,
}

impl Affine {
    fn zeros(d_in: usize, d_out: usize, device: &Device) -> Self {
        let (weight, bias) = (Tensor::zeros([d_in, d_out], device), Tensor::zeros([d_out], device));
        Self { weight: Param::from_tensor(weight), bias: Param::from_tensor(bias) }
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        linear(x, self.weight.val()) + self.bias.val().unsqueeze()
    }
}

impl LayerNorm {
    /// PyTorch's default.
    const EPS: f64 = 1e-5;

    fn zeros(width: usize, device: &Device) -> Self {
        let zeros = || Param::from_tensor(Tensor::zeros([width], device));
        Self { weight: zeros(), bias: zeros() }
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let x = x.clone() - x.mean_dim(2);
        let scale = (x.clone().square().mean_dim(2) + Self::EPS).sqrt();
        x / scale * self.weight.val().unsqueeze() + self.bias.val().unsqueeze()
    }
}

impl Projection {
    fn zeros([d_in, inside, d_out]: [usize; 3], device: &Device) -> Self {
        Self {
            up: Affine::zeros(d_in, inside, device),
            down: Affine::zeros(inside, d_out, device),
            norm: LayerNorm::zeros(d_out, device),
        }
    }

    /// `[B, L, d_in]` → `[B, L, d_out]`.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        self.norm.forward(self.down.forward(activation::gelu(self.up.forward(x))))
    }
}

impl LatentHead {
    fn zeros(width: usize, inside: usize, device: &Device) -> Self {
        Self {
            body: Projection::zeros([width, inside, inside], device),
            mean: Affine::zeros(inside, width, device),
            log_std: Affine::zeros(inside, width, device),
            scale: Param::from_tensor(Tensor::zeros([1], device)),
        }
    }

    /// Mean and log of the standard deviation: `[B, L, D]` → twice `[B, L, D]`.
    pub fn forward(&self, x: Tensor<3>) -> (Tensor<3>, Tensor<3>) {
        let x = self.body.forward(x);
        (self.mean.forward(x.clone()), self.log_std.forward(x))
    }
}

impl Gate {
    /// c.
    const POWER: f64 = 8.0;
    /// Under the root, so that the slope at a = 1 is finite.
    const EPS: f64 = 1e-8;
    /// Standard deviation of new matrices: `initializer_range` of the public code's models.
    const SPREAD: f64 = 0.02;

    fn zeros(width: usize, device: &Device) -> Self {
        Self {
            keep: Affine::zeros(width, width, device),
            admit: Affine::zeros(width, width, device),
            lambda: Param::from_tensor(Tensor::zeros([width], device)),
        }
    }

    /// Embeddings and states → the input `a ⊙ e + √(1 − a² + ε) ⊙ (i ⊙ h)`, and a; all `[B, L, D]`.
    pub fn forward(&self, e: Tensor<3>, h: Tensor<3>) -> (Tensor<3>, Tensor<3>) {
        let r = activation::sigmoid(self.keep.forward(e.clone()));
        let i = activation::sigmoid(self.admit.forward(e.clone()));
        let x = self.lambda.val().neg();
        let softplus = x.clone().clamp_min(0.0) + x.abs().neg().exp().log1p();
        let u = (r * softplus.unsqueeze()).mul_scalar(Self::POWER);
        let a = u.clone().neg().exp();
        // 1 − a² for a = e⁻ᵘ: the plain difference would lose its digits near a = 1, where training begins.
        let rest = u.tanh() * (a.clone().square() + 1.0);
        (a.clone() * e + (rest + Self::EPS).sqrt() * (i * h), a)
    }

    /// The Λ that gives a at r = 1.
    fn lambda_of(a: f64) -> f64 {
        -(a.powf(-1.0 / Self::POWER) - 1.0).ln()
    }
}

impl Heads {
    fn zeros(sizes: HeadSizes, config: &ModelConfig, device: &Device) -> Result<Self> {
        let width = config.hidden_size;
        let auxiliary = sizes.auxiliary.then(|| Decoder::new(config, device, &mut |_, _| Ok(Matrix::unset(device))));
        Ok(Self {
            projection: sizes.projection.map(|inside| Projection::zeros([width, inside, width], device)),
            latent: sizes.latent.map(|inside| LatentHead::zeros(width, inside, device)),
            gate: sizes.gate.then(|| Gate::zeros(width, device)),
            auxiliary: auxiliary.into_iter().collect::<Result<_>>()?,
        })
    }

    pub fn sizes(&self) -> HeadSizes {
        let inside = |projection: &Projection| projection.up.weight.val().dims()[1];
        HeadSizes {
            projection: self.projection.as_ref().map(inside),
            latent: self.latent.as_ref().map(|head| inside(&head.body)),
            gate: self.gate.is_some(),
            auxiliary: !self.auxiliary.is_empty(),
        }
    }
}

/// Name of [`LatentHead::scale`].
const SCALE: &str = "heads.latent.scale";
/// Name of [`Gate::lambda`].
const LAMBDA: &str = "heads.gate.lambda";

impl HeadSizes {
    /// Name and shape of every parameter next to a model of this shape, matrices `[out, in]`.
    pub fn parameters(&self, config: &ModelConfig) -> Vec<(String, Vec<usize>)> {
        let width = config.hidden_size;
        let auxiliary = self.auxiliary.then(|| expected_parameters(config)).into_iter().flatten();
        let mut out: Vec<_> = auxiliary.map(|(name, shape)| (format!("{AUXILIARY}{name}"), shape)).collect();
        let mut affine = |name: &str, d_in: usize, d_out: usize| {
            out.push((format!("heads.{name}.weight"), vec![d_out, d_in]));
            out.push((format!("heads.{name}.bias"), vec![d_out]));
        };
        let mut bodies = vec![];
        if let Some(inside) = self.projection {
            bodies.push(("projection", inside, width));
        }
        if let Some(inside) = self.latent {
            bodies.push(("latent.body", inside, inside));
            affine("latent.mean", inside, width);
            affine("latent.log_std", inside, width);
        }
        if self.gate {
            affine("gate.keep", width, width);
            affine("gate.admit", width, width);
        }
        for &(name, inside, d_out) in &bodies {
            affine(&format!("{name}.up"), width, inside);
            affine(&format!("{name}.down"), inside, d_out);
        }
        for (name, _, d_out) in bodies {
            out.extend(["weight", "bias"].map(|part| (format!("heads.{name}.norm.{part}"), vec![d_out])));
        }
        out.extend(self.latent.map(|_| (SCALE.to_owned(), vec![1])));
        out.extend(self.gate.then(|| (LAMBDA.to_owned(), vec![width])));
        out
    }

    /// Sizes of the heads that are next to a model's weights; none without the file.
    pub fn read(folder: &Path) -> Result<Self> {
        Ok(heads_of(folder)?.map_or_else(Self::default, |(_, sizes)| sizes))
    }

    /// Adds those of `others` that are missing here.
    fn and(self, others: Self) -> Self {
        Self {
            projection: self.projection.or(others.projection),
            latent: self.latent.or(others.latent),
            gate: self.gate || others.gate,
            auxiliary: self.auxiliary || others.auxiliary,
        }
    }
}

impl Decoder {
    /// Adds heads of these sizes, from `get(name)`, called once per parameter.
    ///
    /// # Errors
    /// Failures of `get`; a tensor of another shape.
    pub fn with_heads(mut self, sizes: HeadSizes, get: impl FnMut(&str) -> Result<HostTensor>) -> Result<Self> {
        let device = self.device();
        let zeros = Heads::zeros(sizes, self.config(), &device)?;
        self.heads = fill_heads(zeros, sizes.parameters(self.config()), &device, get)?;
        Ok(self)
    }

    /// Adds random heads that are missing: matrices of standard deviation `in^-½`, norms one, biases zero, the scale of latents equal to that
    /// of the embeddings, an auxiliary decoder as a copy of the model.
    ///
    /// # Errors
    /// Heads of another size than the existing ones; an auxiliary decoder with weights in their stored type.
    pub fn with_new_heads(self, sizes: HeadSizes, seed: u64) -> Result<Self> {
        let have = self.heads.sizes();
        let all = have.and(sizes);
        ensure!(all.and(have) == sizes.and(all), "the checkpoint has heads {have:?}, the method needs {sizes:?}");
        let begins = all.latent.is_some() && have.latent.is_none();
        let spread = if begins { self.embed_tokens.spread() * self.config().embed_scale() as f32 } else { 0.0 };
        let mut held: BTreeMap<String, HostTensor> = self.export_heads()?.into_iter().collect();
        if all.auxiliary && !have.auxiliary {
            held.extend(self.export()?.into_iter().map(|(name, tensor)| (format!("{AUXILIARY}{name}"), tensor)));
        }
        self.with_drawn_heads(all, &held, |name, shape, count| match shape {
            [_, d_in] => normals(count, (*d_in as f64).powf(-0.5), seed, name),
            _ if name.ends_with("norm.weight") => vec![1.0; count],
            _ if name == SCALE => vec![spread],
            _ => vec![0.0; count],
        })
    }

    /// Heads with the `held` values; the values of others, from name, shape and count, are `drawn`.
    fn with_drawn_heads(
        self,
        sizes: HeadSizes,
        held: &BTreeMap<String, HostTensor>,
        drawn: impl Fn(&str, &[usize], usize) -> Vec<f32>,
    ) -> Result<Self> {
        let shapes: BTreeMap<String, Vec<usize>> = sizes.parameters(self.config()).into_iter().collect();
        self.with_heads(sizes, |name| {
            if let Some(value) = held.get(name) {
                return Ok(value.clone());
            }
            let shape = shapes.get(name).cloned().unwrap_or_default();
            let data = drawn(name, &shape, shape.iter().product());
            HostTensor::new(shape, data)
        })
    }

    /// Adds a random gate if missing: a at r = 1 is uniform between these bounds; matrices of standard deviation .02, biases zero.
    ///
    /// # Errors
    /// A bound that is not between 0 and 1; the device cannot be read.
    pub fn with_new_gate(self, [least, most]: [f64; 2], seed: u64) -> Result<Self> {
        ensure!(
            0.0 < least && least <= most && most < 1.0,
            "a gate's initial shares of the token must lie strictly between 0 and 1, found {least} and {most}"
        );
        if self.heads.gate.is_some() {
            return Ok(self);
        }
        let sizes = HeadSizes { gate: true, ..self.heads.sizes() };
        let held: BTreeMap<String, HostTensor> = self.export_heads()?.into_iter().collect();
        self.with_drawn_heads(sizes, &held, |name, shape, count| match shape {
            [_, _] => normals(count, Gate::SPREAD, seed, name),
            _ if name == LAMBDA => {
                let mut rng = ChaCha8Rng::seed_from_u64(seed ^ fnv1a(name.bytes()));
                let mut share = || least + (most - least) * rng.random::<f64>();
                (0..count).map(|_| Gate::lambda_of(share()) as f32).collect()
            }
            _ => vec![0.0; count],
        })
    }

    /// With the heads of a folder, if it has some.
    pub(crate) fn with_heads_of(self, folder: &Path) -> Result<Self> {
        let Some((file, sizes)) = heads_of(folder)? else { return Ok(self) };
        self.with_heads(sizes, |name| file.tensor(name))
            .with_context(|| format!("{}: reading the heads", folder.join(FILE).display()))
    }

    /// The bytes of [`FILE`]; `None` without heads that reasoning needs.
    pub(crate) fn heads_file(&self) -> Result<Option<Vec<u8>>> {
        let mut tensors = self.export_heads()?;
        tensors.retain(|(name, _)| !name.starts_with(AUXILIARY));
        (!tensors.is_empty()).then(|| packed(&tensors)).transpose()
    }
}

/// [`FILE`] of a folder with the sizes of its heads, if it has one.
fn heads_of(folder: &Path) -> Result<Option<(SafetensorsFile, HeadSizes)>> {
    let path = folder.join(FILE);
    if !path.is_file() {
        return Ok(None);
    }
    let file = SafetensorsFile::open(&path)?;
    let inside = |name: &str| file.shape(name).and_then(|shape| shape.first().copied());
    let sizes = HeadSizes {
        projection: inside("heads.projection.up.weight"),
        latent: inside("heads.latent.body.up.weight"),
        gate: file.shape(LAMBDA).is_some(),
        auxiliary: false,
    };
    Ok(Some((file, sizes)))
}

/// The bytes of [`FILE`] for these parameters, by the names of [`HeadSizes::parameters`].
pub fn packed(tensors: &[(String, HostTensor)]) -> Result<Vec<u8>> {
    let bytes = |tensor: &HostTensor| tensor.data.iter().flat_map(|x| x.to_le_bytes()).collect();
    let held: Vec<(&String, &HostTensor, Vec<u8>)> = tensors.iter().map(|(name, t)| (name, t, bytes(t))).collect();
    let mut views = vec![];
    for (name, tensor, bytes) in &held {
        views.push((name, TensorView::new(safetensors::Dtype::F32, tensor.shape.clone(), bytes)?));
    }
    safetensors::serialize(views, None).context("packing the heads")
}
