//! The feed-forward part of a layer: dense, or a mixture of experts.

use std::ops::Range;

use anyhow::Result;
use burn::module::Module;
use burn::tensor::activation::{gelu_approximate, silu, softmax};
use burn::tensor::{Device, FloatDType, Tensor};

use super::config::{ActivationFunction, ModelConfig};
use super::decoder::Make;
use super::hooks::{HookPoint, Hooks, PointKind};
use super::kept::matrix::index;
use super::linear::{Linear, Matrix};
use super::span::Span;
use crate::ops;

#[derive(Module, Debug)]
pub struct Mlp {
    /// `None` in a family without a gate: the up projection is then activated.
    pub gate_proj: Option<Linear>,
    pub up_proj: Linear,
    pub down_proj: Linear,
    #[module(skip)]
    activation: ActivationFunction,
}

/// Positions per chunk in the MLP of a model in its stored type: its activations are several times the stream's width, and a batch of long
/// prompts has thousands of positions.
const TOGETHER: usize = 512;

impl Mlp {
    /// Makes the MLP `name` of a decoder with inner width `width`.
    fn named(name: &str, width: usize, config: &ModelConfig, device: &Device, make: Make) -> Result<Self> {
        let (d, f, biased) = (config.hidden_size, width, config.family.other_biases);
        let mut linear = |part: &str, shape| Linear::named(&format!("{name}.{part}"), shape, make);
        Ok(Self {
            gate_proj: config.family.is_gated.then(|| linear("gate_proj", [f, d])).transpose()?,
            up_proj: linear("up_proj", [f, d])?.biased(biased, f, device),
            down_proj: linear("down_proj", [d, f])?.biased(biased, d, device),
            activation: config.family.activation,
        })
    }

    /// Without hooks: `[B, L, D]` → `[B, L, D]`.
    fn apply(&self, x: Tensor<3>) -> Tensor<3> {
        let Some(gate) = &self.gate_proj else {
            return self.down_proj.forward(self.activated_alone(self.up_proj.forward(x)));
        };
        let [gate, up] = Linear::forward_two([gate, &self.up_proj], x);
        self.down_proj.forward(self.activated(gate, up))
    }

    fn activated(&self, gate: Tensor<3>, up: Tensor<3>) -> Tensor<3> {
        match self.activation {
            ActivationFunction::Silu => ops::swiglu(gate, up),
            ActivationFunction::GeluTanh => ops::geglu(gate, up),
        }
    }

    fn activated_alone(&self, x: Tensor<3>) -> Tensor<3> {
        match self.activation {
            ActivationFunction::Silu => silu(x),
            ActivationFunction::GeluTanh => gelu_approximate(x),
        }
    }

    /// `[B, L, D]` → inputs of the down projection, `[B, L, F]`; hooks as in TransformerLens: without a gate, `pre` is the activation's input.
    fn inner(&self, x: Tensor<3>, layer: usize, span: &Span, hooks: &mut Hooks) -> Result<Tensor<3>> {
        let at = |kind| HookPoint::at(layer, kind);
        let Some(gate) = &self.gate_proj else {
            // One value with both names: TransformerLens' bridge uses that of the up projection.
            let pre = hooks.apply(at(PointKind::MlpPreLinear), span, self.up_proj.forward(x))?;
            let pre = hooks.apply(at(PointKind::MlpPre), span, pre)?;
            return Ok(self.activated_alone(pre));
        };
        let [gate, up] = Linear::forward_two([gate, &self.up_proj], x);
        let gate = hooks.apply(at(PointKind::MlpPre), span, gate)?;
        let up = hooks.apply(at(PointKind::MlpPreLinear), span, up)?;
        Ok(self.activated(gate, up))
    }

    /// Whether to chunk positions: in a model in its stored type they are independent to the last bit.
    fn is_cut(&self, x: &Tensor<3>) -> bool {
        let [b, l, _] = x.dims();
        b * l > TOGETHER && self.up_proj.weight.param().is_none() && !x.is_autodiff()
    }

    /// `[B, L, D]` → `[B, L, D]`, in chunks of positions.
    fn in_parts(&self, x: Tensor<3>) -> Tensor<3> {
        let [b, l, d] = x.dims();
        let all = b * l;
        let x = x.reshape([1, all, d]);
        let part = |part: Range<usize>| self.apply(x.clone().narrow(1, part.start, part.len()));
        Tensor::cat(ops::like_parts(all, TOGETHER).map(part).collect(), 1).reshape([b, l, d])
    }
}

/// A mixture of experts (Shazeer et al. 2017, arXiv:1701.06538): each position's output is that of the few experts that the router finds
/// most probable, weighted by their probabilities. Field names follow Hugging Face's parameter names.
#[derive(Module, Debug)]
pub struct ExpertMlps {
    /// The router, `[D, E]`.
    pub gate: Linear,
    pub experts: Vec<Mlp>,
    /// Experts per position.
    #[module(skip)]
    per_token: usize,
    /// Whether the weights of a position's experts are normalised to sum to one.
    #[module(skip)]
    normalised: bool,
}

impl ExpertMlps {
    /// `[B, L, D]` → `[B, L, D]`; a hook can observe or replace the router's probabilities `[B, L, E]`, which select the experts.
    fn forward(&self, x: Tensor<3>, layer: usize, span: &Span, hooks: &mut Hooks) -> Result<Tensor<3>> {
        let ([b, l, d], (e, k)) = (x.dims(), (self.experts.len(), self.per_token));
        let (n, dtype) = (b * l, x.dtype());
        let probs = softmax(self.gate.forward(x.clone()).cast(FloatDType::F32), 2);
        let probs = hooks.apply(HookPoint::at(layer, PointKind::ExpertWeights), span, probs)?;
        let read = probs.clone().try_into_vec_as::<f32>();
        let read = read.map_err(|e| anyhow::anyhow!("reading the router's probabilities: {e:?}"))?;
        let taken: Vec<Vec<usize>> = read.chunks(e).map(|of_position| largest(of_position, k)).collect();

        // Gathers each expert's positions, one expert after another; then scatters back, k rows per position.
        let (mut place, mut done, mut outputs) = (vec![0; n * k], 0, vec![]);
        let (x, device) = (x.reshape([n, d]), probs.device());
        for (number, expert) in self.experts.iter().enumerate() {
            let mut own = vec![];
            for (position, taken) in taken.iter().enumerate() {
                if let Some(nth) = taken.iter().position(|&expert| expert == number) {
                    place[position * k + nth] = done + own.len();
                    own.push(position);
                }
            }
            if own.is_empty() {
                continue;
            }
            done += own.len();
            let y = expert.apply(x.clone().select(0, index(&own, &device)).unsqueeze_dim(0));
            outputs.push(y.squeeze_dim::<2>(0));
        }
        let at: Vec<usize> =
            taken.iter().enumerate().flat_map(|(p, taken)| taken.iter().map(move |t| p * e + t)).collect();
        let weights = probs.reshape([n * e]).select(0, index(&at, &device)).reshape([n, k]);
        let weights = if self.normalised { weights.clone() / weights.sum_dim(1) } else { weights };
        let weights = weights.cast(FloatDType::from(dtype)).reshape([n, k, 1]);
        let outputs = Tensor::cat(outputs, 0).select(0, index(&place, &device)).reshape([n, k, d]);
        Ok((outputs * weights).sum_dim(1).reshape([b, l, d]))
    }
}

/// Indices of the k largest, the first of equals first.
fn largest(values: &[f32], k: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[b].total_cmp(&values[a]));
    order.truncate(k);
    order
}

#[allow(clippy::large_enum_variant)]
#[derive(Module, Debug)]
pub enum FeedForward {
    Dense(Mlp),
    Sparse(ExpertMlps),
}

impl FeedForward {
    pub(super) fn new(config: &ModelConfig, layer: usize, device: &Device, make: Make) -> Result<Self> {
        let name = format!("model.layers.{layer}.mlp");
        let Some(settings) = config.experts(layer) else {
            return Ok(Self::Dense(Mlp::named(&name, config.intermediate_size, config, device, make)?));
        };
        let gate = Linear::named(&format!("{name}.gate"), [settings.count, config.hidden_size], make)?;
        let one = |number| Mlp::named(&format!("{name}.experts.{number}"), settings.width, config, device, make);
        Ok(Self::Sparse(ExpertMlps {
            gate,
            experts: (0..settings.count).map(one).collect::<Result<_>>()?,
            per_token: settings.per_token,
            normalised: settings.normalised,
        }))
    }

    /// `[B, L, D]` → `[B, L, D]`.
    pub(super) fn forward(&self, x: Tensor<3>, layer: usize, span: &Span, hooks: &mut Hooks) -> Result<Tensor<3>> {
        let mlp = match self {
            Self::Dense(mlp) => mlp,
            Self::Sparse(experts) => return experts.forward(x, layer, span, hooks),
        };
        let inside = [PointKind::MlpPre, PointKind::MlpPreLinear, PointKind::MlpPost];
        if mlp.is_cut(&x) && !inside.iter().any(|&kind| hooks.wants(HookPoint::at(layer, kind))) {
            return Ok(mlp.in_parts(x));
        }
        let post = mlp.inner(x, layer, span, hooks)?;
        Ok(mlp.down_proj.forward(hooks.apply(HookPoint::at(layer, PointKind::MlpPost), span, post)?))
    }

    pub fn dense(&self) -> Option<&Mlp> {
        match self {
            Self::Dense(mlp) => Some(mlp),
            Self::Sparse(_) => None,
        }
    }

    /// Gate, up and down of the dense MLP, mutable.
    pub(super) fn linears_mut(&mut self) -> [Option<&mut Linear>; 3] {
        match self {
            Self::Dense(mlp) => [mlp.gate_proj.as_mut(), Some(&mut mlp.up_proj), Some(&mut mlp.down_proj)],
            Self::Sparse(_) => [None, None, None],
        }
    }

    /// Every matrix of experts and their router.
    pub(super) fn experts_matrices(&self) -> impl Iterator<Item = &Matrix> {
        let experts = match self {
            Self::Dense(_) => None,
            Self::Sparse(experts) => Some(experts),
        };
        fn dense_matrices(mlp: &Mlp) -> impl Iterator<Item = &Matrix> {
            let all = [mlp.gate_proj.as_ref(), Some(&mlp.up_proj), Some(&mlp.down_proj)];
            all.into_iter().flatten().map(|linear| &linear.weight)
        }
        experts
            .into_iter()
            .flat_map(|all| std::iter::once(&all.gate.weight).chain(all.experts.iter().flat_map(dense_matrices)))
    }

    /// Whether several CPU threads share its products with so few rows.
    pub(crate) fn is_shared(&self, rows: usize) -> bool {
        match self {
            Self::Dense(mlp) => mlp.up_proj.is_shared(rows),
            Self::Sparse(all) => all.experts.first().is_some_and(|mlp| mlp.up_proj.is_shared(rows)),
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_largest_come_first() {
        assert_eq!(super::largest(&[0.1, 0.4, 0.1, 0.4], 3), [1, 3, 0]);
    }
}
