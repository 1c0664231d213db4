//! The readout: the direction in the residual stream that adds to a logit.
//!
//! With s the scale of the final norm at a position, w its weight and W the head, `logit(v) = Σ_nodes node · (w ⊙ W_v) / s`. This
//! attribution is exact, because s is the scale of the same run (as in TransformerLens' `apply_ln`).

use anyhow::Result;
use burn::tensor::{Tensor, TensorData};

use crate::latent::{Sequence, sampling};
use crate::model::{Decoder, Hooks, Linear};
use crate::study::Study;

/// A token at one position and its strongest rival: the best other token that can be drawn there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rivals {
    pub token: u32,
    pub rival: u32,
    /// The token's logit.
    pub logit: f64,
    /// Margin: the token's logit minus the rival's, above 0 if the token is the most probable.
    pub lead: f64,
}

impl Rivals {
    /// `masked`: tokens that cannot be drawn. `None` if no other token is left, or the token has no logit.
    pub fn new(logits: &[f32], token: u32, masked: &[u32]) -> Option<Self> {
        let others = (0u32..).zip(logits).filter(|(t, _)| *t != token && !masked.contains(t));
        let (rival, best) = others.max_by(|a, b| a.1.total_cmp(b.1))?;
        let logit = f64::from(*logits.get(token as usize)?);
        Some(Self { token, rival, logit, lead: logit - f64::from(*best) })
    }
}

/// `w ⊙ W_v` per token; to be divided by the scale of the position.
pub(crate) fn directions(model: &Decoder, tokens: &[u32]) -> Result<Vec<Vec<f32>>> {
    let (ids, device): (Vec<usize>, _) = (tokens.iter().map(|&t| t as usize).collect(), model.device());
    let rows = match &model.lm_head {
        Some(head) => head.outputs(&ids, &device)?,
        None => model.embed_tokens.embedding(&ids, &device)?,
    };
    let rows = rows * model.norm.gain().unsqueeze();
    // LayerNorm subtracts the mean of the stream: equivalent to a subtraction from the direction.
    let rows = if model.norm.bias.is_some() { rows.clone() - rows.mean_dim(1) } else { rows };
    let rows = host(rows)?;
    Ok(rows.chunks(model.config().hidden_size).map(<[f32]>::to_vec).collect())
}

/// Output weights of a layer's heads: `[H · dh, D]`, head h in rows `h · dh ..`.
pub fn writes(model: &Decoder, layer: usize) -> Result<ndarray::Array2<f32>> {
    matrix(model, &model.layers[layer].self_attn.o_proj)
}

/// A matrix on the host, `[d_in, d_out]`.
pub(crate) fn matrix(model: &Decoder, linear: &Linear) -> Result<ndarray::Array2<f32>> {
    let weight = linear.floats(&model.device())?;
    let [rows, columns] = weight.dims();
    Ok(ndarray::Array2::from_shape_vec((rows, columns), host(weight)?)?)
}

/// Logits in memory at once, in floats: 16 MB per thread.
pub(crate) const LOGITS_HELD: usize = 1 << 22;

/// Logits of hidden states after the final norm, `[n][V]`.
pub fn logits(model: &Decoder, hidden: Tensor<2>) -> Result<Vec<Vec<f32>>> {
    let vocab = model.config().vocab_size;
    let logits = model.unembed(hidden.unsqueeze_dim(0)).try_into_vec_as::<f32>();
    let logits = logits.map_err(|e| anyhow::anyhow!("reading logits: {e:?}"))?;
    Ok(logits.chunks(vocab).map(<[f32]>::to_vec).collect())
}

/// Next-token log-probabilities of stream states after the final norm, `[n][V]`.
pub(crate) fn log_probs(model: &Decoder, states: Vec<f32>) -> Result<Vec<Vec<f64>>> {
    let logits = logits(model, model.norm.apply(tensor(model, states)))?;
    Ok(logits.iter().map(|row| sampling::log_softmax(row, 1.0, &[])).collect())
}

/// Concatenated states as `[n, D]` on the model's device, in its float type.
pub(crate) fn tensor(model: &Decoder, states: Vec<f32>) -> Tensor<2> {
    let (width, like) = (model.config().hidden_size, model.norm.weight.val());
    let shape = [states.len() / width, width];
    Tensor::from_data(TensorData::new(states, shape), (&like.device(), like.dtype()))
}

/// Logits at the end of each sequence, `[n][V]`, with these hooks.
pub(crate) fn at_ends(study: &Study, rows: &[Sequence], mut hooks: Hooks) -> Result<Vec<Vec<f32>>> {
    let all = study.unroll(rows, &mut hooks)?;
    logits(&study.model, all.hidden_at(&ends(rows))?)
}

/// The last position of each sequence, in the form of [`crate::latent::UnrolledStates::hidden_at`].
pub(crate) fn ends(rows: &[Sequence]) -> Vec<(usize, usize)> {
    rows.iter().enumerate().map(|(b, row)| (b, row.ids.len() - 1)).collect()
}

/// The logit of the first of two tokens minus that of the second.
pub(crate) fn lead(logits: &[f32], says: [u32; 2]) -> f64 {
    let [first, second] = says.map(|token| f64::from(logits[token as usize]));
    first - second
}

pub(crate) fn most_probable(logits: &[f32], masked: &[u32]) -> u32 {
    let drawable = (0u32..).zip(logits).filter(|(token, _)| !masked.contains(token));
    drawable.max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(token, _)| token)
}

pub(crate) fn host<const R: usize>(x: Tensor<R>) -> Result<Vec<f32>> {
    x.try_into_vec_as::<f32>().map_err(|e| anyhow::anyhow!("reading weights: {e:?}"))
}
