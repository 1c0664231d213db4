//! The edges of a decoder: from each component that writes to the residual stream to each that reads it, at one position.
//!
//! The stream is a sum, so that the input of a head or an MLP is a sum over all earlier writers: one term is an edge. Information
//! moves between positions only inside a head (from keys and values to its output) and through the recurrence: the *latent input* of
//! a position reads the stream after the last block at the position before. This file has the names, their order, and the weights on
//! the host.

use anyhow::{Context, Result};
use ndarray::{Array1, Array2, ArrayView1, s};

use crate::model::config::ModelConfig;
use crate::model::{self, Attention, Decoder, Linear};
use crate::study::readout::{host, matrix, writes};

/// A component that writes to the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sender {
    /// The token's embedding or, at a latent step, the injected state.
    Input,
    /// Layer and head.
    Head(usize, usize),
    Mlp(usize),
}

/// A component that reads the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Receiver {
    /// Layer and head.
    Query(usize, usize),
    /// Layer and head of the keys; the heads of a group share them.
    Key(usize, usize),
    Value(usize, usize),
    Mlp(usize),
    /// The input of the next position, if that is a latent step.
    Latent,
    /// Logits at the readout.
    Logits,
}

impl Sender {
    /// Its name in records: `input`, `L2H0`, `MLP 1`.
    pub fn label(self) -> String {
        match self {
            Sender::Input => "input".into(),
            Sender::Head(layer, head) => format!("L{layer}H{head}"),
            Sender::Mlp(layer) => format!("MLP {layer}"),
        }
    }
}

impl Receiver {
    /// Its name in records: `L2H0.q`, `L2H0.k`, `L2H0.v`, `MLP 1`, `latent`, `logits`. Keys and values have the index of the KV head.
    pub fn label(self) -> String {
        match self {
            Receiver::Query(layer, head) => format!("L{layer}H{head}.q"),
            Receiver::Key(layer, head) => format!("L{layer}H{head}.k"),
            Receiver::Value(layer, head) => format!("L{layer}H{head}.v"),
            Receiver::Mlp(layer) => format!("MLP {layer}"),
            Receiver::Latent => "latent".into(),
            Receiver::Logits => "logits".into(),
        }
    }
}

/// Dimensions that determine the edges at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EdgeGraph {
    pub layers: usize,
    pub heads: usize,
    /// KV heads.
    pub groups: usize,
}

impl EdgeGraph {
    pub fn new(config: &ModelConfig) -> Self {
        let ModelConfig { num_hidden_layers, num_attention_heads, num_key_value_heads, .. } = *config;
        Self { layers: num_hidden_layers, heads: num_attention_heads, groups: num_key_value_heads }
    }

    /// All senders in write order.
    pub fn senders(&self) -> Vec<Sender> {
        let of_layer = |l| (0..self.heads).map(move |h| Sender::Head(l, h)).chain([Sender::Mlp(l)]);
        std::iter::once(Sender::Input).chain((0..self.layers).flat_map(of_layer)).collect()
    }

    /// All receivers in read order.
    pub fn receivers(&self) -> Vec<Receiver> {
        let Self { layers, heads, groups } = *self;
        let of_layer = |l| {
            let queries = (0..heads).map(move |h| Receiver::Query(l, h));
            let keys = (0..groups).map(move |g| Receiver::Key(l, g));
            queries.chain(keys).chain((0..groups).map(move |g| Receiver::Value(l, g))).chain([Receiver::Mlp(l)])
        };
        (0..layers).flat_map(of_layer).chain([Receiver::Latent, Receiver::Logits]).collect()
    }

    /// Index of a sender.
    pub fn sender(&self, sender: Sender) -> usize {
        match sender {
            Sender::Input => 0,
            Sender::Head(layer, head) => 1 + layer * (self.heads + 1) + head,
            Sender::Mlp(layer) => (layer + 1) * (self.heads + 1),
        }
    }

    /// The senders that are heads of a group.
    pub(super) fn readers(self, layer: usize, group: usize) -> impl Iterator<Item = usize> {
        let own = move |head: &usize| head * self.groups / self.heads == group;
        (0..self.heads).filter(own).map(move |head| self.sender(Sender::Head(layer, head)))
    }

    /// Index of a receiver.
    pub fn receiver(&self, receiver: Receiver) -> usize {
        let Self { layers, heads, groups } = *self;
        let first = |layer: usize| layer * (heads + 2 * groups + 1);
        match receiver {
            Receiver::Query(layer, head) => first(layer) + head,
            Receiver::Key(layer, group) => first(layer) + heads + group,
            Receiver::Value(layer, group) => first(layer) + heads + groups + group,
            Receiver::Mlp(layer) => first(layer) + heads + 2 * groups,
            Receiver::Latent => first(layers),
            Receiver::Logits => first(layers) + 1,
        }
    }

    /// Number of senders (in their order) that write before the receiver reads.
    pub fn reads(&self, receiver: Receiver) -> usize {
        match receiver {
            Receiver::Query(layer, _) | Receiver::Key(layer, _) | Receiver::Value(layer, _) => {
                1 + layer * (self.heads + 1)
            }
            Receiver::Mlp(layer) => 1 + layer * (self.heads + 1) + self.heads,
            Receiver::Latent | Receiver::Logits => 1 + self.layers * (self.heads + 1),
        }
    }
}

/// A norm on the host.
pub(super) struct EdgeNorm {
    weight: Array1<f32>,
    eps: f32,
}

impl EdgeNorm {
    fn new(norm: &model::Norm) -> Result<Self> {
        Ok(Self { weight: host(norm.gain())?.into(), eps: norm.eps as f32 })
    }

    fn scale(&self, x: ArrayView1<f32>) -> f32 {
        (x.dot(&x) / x.len() as f32 + self.eps).sqrt()
    }

    /// `x` divided by its scale, before the weight.
    pub fn unit(&self, x: ArrayView1<f32>) -> Array1<f32> {
        &x / self.scale(x)
    }

    pub fn forward(&self, x: ArrayView1<f32>) -> Array1<f32> {
        self.unit(x) * &self.weight
    }

    /// Gradient at `x`, for gradient `g` at [`Self::unit`].
    pub fn backward_unit(&self, x: ArrayView1<f32>, g: ArrayView1<f32>) -> Array1<f32> {
        let scale = self.scale(x);
        let along = x.dot(&g) / (x.len() as f32 * scale.powi(3));
        &g / scale - &x * along
    }

    /// The gradient through [`Self::forward`].
    pub fn backward(&self, x: ArrayView1<f32>, g: ArrayView1<f32>) -> Array1<f32> {
        self.backward_unit(x, (&g * &self.weight).view())
    }
}

/// A projection from the stream on the host.
pub(super) struct Projection {
    /// `[D, H · dh]` (`H` is the number of KV heads for keys and values).
    pub weight: Array2<f32>,
    /// `[H · dh]`, zero if the model has no bias.
    pub bias: Array1<f32>,
}

impl Projection {
    fn new(model: &Decoder, linear: &Linear) -> Result<Self> {
        let weight = matrix(model, linear)?;
        let bias = match &linear.bias {
            Some(bias) => host(bias.val())?.into(),
            None => Array1::zeros(weight.ncols()),
        };
        Ok(Self { weight, bias })
    }

    /// The output `[dh]` of one head for the normalised stream `[D]`.
    pub fn project_head(&self, head: usize, head_dim: usize, x: ArrayView1<f32>) -> Array1<f32> {
        let own = head * head_dim..(head + 1) * head_dim;
        x.dot(&columns(&self.weight, head, head_dim)) + self.bias.slice(s![own])
    }
}

/// The weights along edges, on the host.
pub struct EdgeWeights {
    pub graph: EdgeGraph,
    pub width: usize,
    pub head_dim: usize,
    /// By layer.
    pub(super) query: Vec<Projection>,
    pub(super) key: Vec<Projection>,
    pub(super) value: Vec<Projection>,
    /// `[H · dh, D]`.
    write: Vec<Array2<f32>>,
    pub(super) before_attention: Vec<EdgeNorm>,
    pub(super) before_mlp: Vec<EdgeNorm>,
    pub(super) last: EdgeNorm,
}

impl EdgeWeights {
    pub fn new(model: &Decoder) -> Result<Self> {
        let config = model.config();
        let all = |of: fn(&Attention) -> &Linear| {
            model.layers.iter().map(|layer| Projection::new(model, of(&layer.self_attn))).collect::<Result<Vec<_>>>()
        };
        let norms = |place: usize| -> Result<Vec<EdgeNorm>> {
            let norms = model.layers.iter().map(|layer| layer.norms()[place]);
            let lacks = "the blocks of this model have no norms before attention and MLP";
            norms.map(|norm| EdgeNorm::new(norm.context(lacks)?)).collect()
        };
        Ok(Self {
            graph: EdgeGraph::new(config),
            width: config.hidden_size,
            head_dim: config.head_dim,
            query: all(|attention| &attention.q_proj)?,
            key: all(|attention| &attention.k_proj)?,
            value: all(|attention| &attention.v_proj)?,
            write: (0..model.layers.len()).map(|l| writes(model, l)).collect::<Result<_>>()?,
            before_attention: norms(0)?,
            before_mlp: norms(2)?,
            last: EdgeNorm::new(&model.norm)?,
        })
    }

    /// The stream contribution of a head's `z` (`[dh]`).
    pub(super) fn head_output(&self, layer: usize, head: usize, z: &[f32]) -> Array1<f32> {
        let rows = head * self.head_dim..(head + 1) * self.head_dim;
        ArrayView1::from(z).dot(&self.write[layer].slice(s![rows, ..]))
    }
}

pub(super) fn columns(matrix: &Array2<f32>, head: usize, head_dim: usize) -> ndarray::ArrayView2<'_, f32> {
    matrix.slice(s![.., head * head_dim..(head + 1) * head_dim])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_in_the_order_of_the_forward_pass() {
        let graph = EdgeGraph { layers: 3, heads: 4, groups: 2 };
        let (senders, receivers) = (graph.senders(), graph.receivers());
        assert!(senders.iter().enumerate().all(|(i, &sender)| graph.sender(sender) == i));
        assert!(receivers.iter().enumerate().all(|(i, &receiver)| graph.receiver(receiver) == i));
        let before = |receiver| senders[..graph.reads(receiver)].last().copied();
        assert_eq!(before(Receiver::Value(0, 1)), Some(Sender::Input));
        assert_eq!(before(Receiver::Query(2, 0)), Some(Sender::Mlp(1)));
        assert_eq!(before(Receiver::Mlp(1)), Some(Sender::Head(1, 3)));
        assert_eq!(before(Receiver::Latent), Some(Sender::Mlp(2)));
    }
}
