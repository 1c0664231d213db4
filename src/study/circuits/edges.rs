//! The edges of a decoder: what each part that writes to the residual stream hands to each part that reads it, at one position.
//!
//! The stream is a sum, so that an input of a head or an MLP is a sum over all that wrote before it: one term is an edge. Between
//! positions nothing flows but inside a head (from its keys and values to its output) and through the recurrence: what stands
//! after the last block at one position is read by the *latent input* of the next one. Here: names and their order, and the weights
//! on the host.

use anyhow::{Context, Result};
use ndarray::{Array1, Array2, ArrayView1, s};

use crate::model::config::ModelConfig;
use crate::model::{self, Attention, Decoder, Linear};
use crate::study::readout::{host, matrix, writes};

/// What writes to the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sender {
    /// The token's embedding or, at a latent step, the injected state.
    Input,
    /// Layer and head.
    Head(usize, usize),
    Mlp(usize),
}

/// What reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Receiver {
    /// Layer and head.
    Query(usize, usize),
    /// Layer and head of the keys; the heads of a group share them.
    Key(usize, usize),
    Value(usize, usize),
    Mlp(usize),
    /// The input of the next position, where that is a latent step.
    Latent,
    /// At the read-out.
    Logits,
}

impl Sender {
    /// As rows name it: `input`, `L2H0`, `MLP 1`.
    pub fn label(self) -> String {
        match self {
            Sender::Input => "input".into(),
            Sender::Head(layer, head) => format!("L{layer}H{head}"),
            Sender::Mlp(layer) => format!("MLP {layer}"),
        }
    }
}

impl Receiver {
    /// As rows name it: `L2H0.q`, `L2H0.k`, `L2H0.v`, `MLP 1`, `latent`, `logits`; of keys and values the head is that of the keys.
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

/// Which edges there are at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Graph {
    pub layers: usize,
    pub heads: usize,
    /// Heads of keys and values.
    pub groups: usize,
}

impl Graph {
    pub fn new(config: &ModelConfig) -> Self {
        let ModelConfig { num_hidden_layers, num_attention_heads, num_key_value_heads, .. } = *config;
        Self { layers: num_hidden_layers, heads: num_attention_heads, groups: num_key_value_heads }
    }

    /// In the order in which they write.
    pub fn senders(&self) -> Vec<Sender> {
        let of_layer = |l| (0..self.heads).map(move |h| Sender::Head(l, h)).chain([Sender::Mlp(l)]);
        std::iter::once(Sender::Input).chain((0..self.layers).flat_map(of_layer)).collect()
    }

    /// In the order in which they read.
    pub fn receivers(&self) -> Vec<Receiver> {
        let Self { layers, heads, groups } = *self;
        let of_layer = |l| {
            let queries = (0..heads).map(move |h| Receiver::Query(l, h));
            let keys = (0..groups).map(move |g| Receiver::Key(l, g));
            queries.chain(keys).chain((0..groups).map(move |g| Receiver::Value(l, g))).chain([Receiver::Mlp(l)])
        };
        (0..layers).flat_map(of_layer).chain([Receiver::Latent, Receiver::Logits]).collect()
    }

    /// Its place among the senders.
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

    /// Its place among the receivers.
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

    /// How many senders, in their order, have written before it reads.
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
pub(super) struct Norm {
    weight: Array1<f32>,
    eps: f32,
}

impl Norm {
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

    /// The gradient at `x` of what has the gradient `g` at [`Self::unit`].
    pub fn back_unit(&self, x: ArrayView1<f32>, g: ArrayView1<f32>) -> Array1<f32> {
        let scale = self.scale(x);
        let along = x.dot(&g) / (x.len() as f32 * scale.powi(3));
        &g / scale - &x * along
    }

    /// The gradient through [`Self::forward`].
    pub fn back(&self, x: ArrayView1<f32>, g: ArrayView1<f32>) -> Array1<f32> {
        self.back_unit(x, (&g * &self.weight).view())
    }
}

/// A projection from the stream on the host.
pub(super) struct Projection {
    /// `[D, H · dh]` (keys and values: of their heads).
    pub weight: Array2<f32>,
    /// `[H · dh]`, zero where the model has none.
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

    /// A head's output, `[dh]`, for the normalised stream `[D]`.
    pub fn of_head(&self, head: usize, head_dim: usize, x: ArrayView1<f32>) -> Array1<f32> {
        let own = head * head_dim..(head + 1) * head_dim;
        x.dot(&columns(&self.weight, head, head_dim)) + self.bias.slice(s![own])
    }
}

/// The weights that edges pass through, on the host.
pub struct Weights {
    pub graph: Graph,
    pub width: usize,
    pub head_dim: usize,
    /// By layer.
    pub(super) query: Vec<Projection>,
    pub(super) key: Vec<Projection>,
    pub(super) value: Vec<Projection>,
    /// `[H · dh, D]`.
    write: Vec<Array2<f32>>,
    pub(super) before_attention: Vec<Norm>,
    pub(super) before_mlp: Vec<Norm>,
    pub(super) last: Norm,
}

impl Weights {
    /// # Errors
    /// Blocks without norms before attention and MLP, and a device that cannot hand its data over.
    pub fn new(model: &Decoder) -> Result<Self> {
        let config = model.config();
        let all = |of: fn(&Attention) -> &Linear| {
            model.layers.iter().map(|layer| Projection::new(model, of(&layer.self_attn))).collect::<Result<Vec<_>>>()
        };
        let norms = |place: usize| -> Result<Vec<Norm>> {
            let norms = model.layers.iter().map(|layer| layer.norms()[place]);
            let lacks = "the blocks of this model have no norms before what they do";
            norms.map(|norm| Norm::new(norm.context(lacks)?)).collect()
        };
        Ok(Self {
            graph: Graph::new(config),
            width: config.hidden_size,
            head_dim: config.head_dim,
            query: all(|attention| &attention.q_proj)?,
            key: all(|attention| &attention.k_proj)?,
            value: all(|attention| &attention.v_proj)?,
            write: (0..model.layers.len()).map(|l| writes(model, l)).collect::<Result<_>>()?,
            before_attention: norms(0)?,
            before_mlp: norms(2)?,
            last: Norm::new(&model.norm)?,
        })
    }

    /// What a head's `z` (`[dh]`) adds to the stream.
    pub(super) fn written(&self, layer: usize, head: usize, z: &[f32]) -> Array1<f32> {
        let rows = head * self.head_dim..(head + 1) * self.head_dim;
        ArrayView1::from(z).dot(&self.write[layer].slice(s![rows, ..]))
    }
}

/// The columns of a head in a matrix of all heads.
pub(super) fn columns(matrix: &Array2<f32>, head: usize, head_dim: usize) -> ndarray::ArrayView2<'_, f32> {
    matrix.slice(s![.., head * head_dim..(head + 1) * head_dim])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_in_the_order_of_the_forward_pass() {
        let graph = Graph { layers: 3, heads: 4, groups: 2 };
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
