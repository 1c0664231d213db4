//! The last step from the residual stream to a logit, as a direction: what a node's output adds to it.
//!
//! With s the scale of the final norm at a position, w its weight and W the head, `logit(v) = Σ_nodes node · (w ⊙ W_v) / s`:
//! attribution along this path is exact, for the scale is that of the run itself (as TransformerLens' `apply_ln`).

use anyhow::Result;
use burn::tensor::Tensor;

use crate::model::{Decoder, Linear};

/// A token to explain at one position, and the best other one that could be drawn there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rivals {
    pub token: u32,
    pub rival: u32,
    /// The token's logit.
    pub logit: f64,
    /// The token's logit minus the rival's: above 0 it is the most probable.
    pub lead: f64,
}

impl Rivals {
    /// `masked` are tokens that cannot be drawn. `None` where no other token is left, or the token has no logit.
    pub fn of(logits: &[f32], token: u32, masked: &[u32]) -> Option<Self> {
        let others = (0u32..).zip(logits).filter(|(t, _)| *t != token && !masked.contains(t));
        let (rival, best) = others.max_by(|a, b| a.1.total_cmp(b.1))?;
        let logit = f64::from(*logits.get(token as usize)?);
        Some(Self { token, rival, logit, lead: logit - f64::from(*best) })
    }
}

/// `w ⊙ W_v`, to be divided by the scale of the position.
///
/// # Errors
/// A device that cannot hand its data over.
pub(crate) fn directions(model: &Decoder, tokens: &[u32]) -> Result<Vec<Vec<f32>>> {
    let (ids, device): (Vec<usize>, _) = (tokens.iter().map(|&t| t as usize).collect(), model.device());
    let rows = match &model.lm_head {
        Some(head) => head.outputs(&ids, &device)?,
        None => model.embed_tokens.embedding(&ids, &device)?,
    };
    let rows = rows * model.norm.gain().unsqueeze();
    // LayerNorm takes the mean off what is read along the direction, which is to take it off the direction.
    let rows = if model.norm.bias.is_some() { rows.clone() - rows.mean_dim(1) } else { rows };
    let rows = host(rows)?;
    Ok(rows.chunks(model.config().hidden_size).map(<[f32]>::to_vec).collect())
}

/// What the final norm multiplies by.
///
/// # Errors
/// A device that cannot hand its data over.
pub(crate) fn final_weight(model: &Decoder) -> Result<Vec<f32>> {
    host(model.norm.gain())
}

/// How each head of a layer writes to the stream: `[H · dh, D]`, head h in rows `h · dh ..`.
///
/// # Errors
/// No such layer, and a device that cannot hand its data over.
pub fn writes(model: &Decoder, layer: usize) -> Result<ndarray::Array2<f32>> {
    matrix(model, &model.layers[layer].self_attn.o_proj)
}

/// A matrix on the host, `[d_in, d_out]`.
///
/// # Errors
/// A device that cannot hand its data over.
pub(super) fn matrix(model: &Decoder, linear: &Linear) -> Result<ndarray::Array2<f32>> {
    let weight = linear.floats(&model.device())?;
    let [rows, columns] = weight.dims();
    Ok(ndarray::Array2::from_shape_vec((rows, columns), host(weight)?)?)
}

/// Logits of hidden states after the final norm, `[n][V]`.
///
/// # Errors
/// A device that cannot hand its data over.
pub fn logits(model: &Decoder, hidden: Tensor<2>) -> Result<Vec<Vec<f32>>> {
    let vocab = model.config().vocab_size;
    let logits = host(model.unembed(hidden.unsqueeze_dim(0)))?;
    Ok(logits.chunks(vocab).map(<[f32]>::to_vec).collect())
}

pub(super) fn host<const R: usize>(x: Tensor<R>) -> Result<Vec<f32>> {
    x.try_into_vec_as::<f32>().map_err(|e| anyhow::anyhow!("reading weights: {e:?}"))
}
