//! Gradient of the logit difference at a sequence's end with respect to every node's output at every position: one backward pass,
//! also through the recurrence (an injected state is the hidden state before it, so that gradients reach all earlier steps).
//!
//! A hook at each point adds zeros that require a gradient: their gradient is the node's. Nothing else is tracked; weights are
//! constants.

use std::cell::RefCell;
use std::collections::HashMap;

use anyhow::{Context, Result, ensure};
use burn::tensor::{FloatDType, Gradients, Tensor, TensorData};

use super::patch::RowCapture;
use crate::latent::{Gradient, LatentSource, Sequence, unroll};
use crate::model::hooks::Site;
use crate::model::{Activation, Decoder, HookPoint, HookSpec, Hooks, PointKind};
use crate::study::readout::ends;

/// A sequence whose logit difference is differentiated.
#[derive(Clone, Copy, Debug)]
pub struct TargetRow<'a> {
    pub row: &'a Sequence,
    /// The logit difference: first token minus second, at the sequence's end.
    pub says: [u32; 2],
    /// Another sequence of the same length, and the share of the way from this one's token embeddings to the other's: 0 to 1.
    pub toward: Option<(&'a Sequence, f64)>,
}

/// One sequence's logit difference, the activations at the points, and the gradients there; by point and position, heads concatenated.
#[derive(Clone, Debug, Default)]
pub struct Slope {
    pub lead: f64,
    pub values: RowCapture,
    pub gradients: RowCapture,
}

/// Differentiates the sequences in one batch, at the positions that `wanted` selects (index of the sequence, position).
///
/// # Errors
/// No sequences, two of different lengths to interpolate between, a token without logit, a point without values per position,
/// failures of the model.
pub fn slopes(
    model: &Decoder,
    source: &dyn LatentSource,
    aimed: &[TargetRow],
    points: &[HookPoint],
    wanted: impl Fn(usize, usize) -> bool,
) -> Result<Vec<Slope>> {
    ensure!(!aimed.is_empty(), "no rows to differentiate");
    for TargetRow { row, toward, .. } in aimed {
        let same = toward.is_none_or(|(other, _)| other.ids.len() == row.ids.len());
        ensure!(same, "a sequence of {} positions cannot be interpolated with one of another length", row.ids.len());
    }
    let (layers, leaves) = (model.layers.len(), RefCell::new(vec![]));
    let moves = embedding_differences(model, aimed)?;
    let mut hooks = Hooks::none();
    if !moves.is_empty() {
        hooks.replace(&HookSpec::all(HookPoint::new(PointKind::Embed)), layers, |site, value| {
            interpolate_embeddings(site, value, aimed, &moves)
        })?;
    }
    for &point in points {
        ensure!(point.kind.position_axis() == 1, "`{point}` has no values per position");
        hooks.replace(&HookSpec::all(point), layers, |site, value| {
            let (value, leaf) = Leaf::under(site, value, &wanted)?;
            leaves.borrow_mut().push(leaf);
            Ok(value)
        })?;
    }
    let rows: Vec<Sequence> = aimed.iter().map(|a| a.row.clone()).collect();
    let hidden = unroll(model, &rows, source, Gradient::Through, &mut hooks)?.hidden_at(&ends(&rows))?;
    drop(hooks);
    let leads = leads(model, hidden, aimed)?;
    let read = leads.clone().without_autodiff().try_into_vec_as::<f32>();
    let read = read.map_err(|e| anyhow::anyhow!("reading leads: {e:?}"))?;
    let gradients = leads.sum().backward();
    let mut out: Vec<Slope> = read.iter().map(|&lead| Slope { lead: f64::from(lead), ..Slope::default() }).collect();
    leaves.into_inner().into_iter().try_for_each(|leaf: Leaf| leaf.read(&gradients, &mut out))?;
    Ok(out)
}

/// Logit differences `[n, 1]` of states `[n, D]` after the final norm.
fn leads(model: &Decoder, hidden: Tensor<2>, aimed: &[TargetRow]) -> Result<Tensor<2>> {
    let vocab = model.config().vocab_size;
    let mut pick = vec![0.0_f32; aimed.len() * vocab];
    for (row, TargetRow { says, .. }) in aimed.iter().enumerate() {
        for (&token, sign) in says.iter().zip([1.0, -1.0]) {
            ensure!((token as usize) < vocab, "token id {token} has no logit: the head has {vocab} rows");
            pick[row * vocab + token as usize] += sign;
        }
    }
    let pick = Tensor::<2>::from_data(TensorData::new(pick, [aimed.len(), vocab]), &hidden.device());
    let logits = model.unembed(hidden.unsqueeze_dim(0)).squeeze_dim::<2>(0).cast(FloatDType::F32);
    Ok((logits * pick).sum_dim(1))
}

/// Embedding differences of interpolated tokens, by (own token, other token).
type Moves = HashMap<(u32, u32), Vec<f32>>;

fn embedding_differences(model: &Decoder, aimed: &[TargetRow]) -> Result<Moves> {
    let mut moves = Moves::new();
    for TargetRow { row, toward, .. } in aimed {
        let Some((other, share)) = toward else { continue };
        for (&own, &new) in row.ids.iter().zip(&other.ids).filter(|(own, new)| own != new && *share != 0.0) {
            if moves.contains_key(&(own, new)) {
                continue;
            }
            let both = Activation::Rank3(model.embed(&[vec![own, new]])?).to_vec()?;
            let (own_row, new_row) = both.split_at(both.len() / 2);
            moves.insert((own, new), own_row.iter().zip(new_row).map(|(a, b)| b - a).collect());
        }
    }
    Ok(moves)
}

/// `hook_embed` of interpolated sequences.
fn interpolate_embeddings(site: &Site, value: Activation, aimed: &[TargetRow], moves: &Moves) -> Result<Activation> {
    let old = value.three()?;
    let [b, l, d] = old.dims();
    let mut by = vec![0.0_f32; b * l * d];
    for place in site.places {
        let TargetRow { row, toward: Some((other, share)), .. } = aimed[place.batch] else { continue };
        let Some(step) = moves.get(&(row.ids[place.position], other.ids[place.position])) else { continue };
        let from = (place.batch * l + place.index) * d;
        by[from..from + d].iter_mut().zip(step).for_each(|(by, step)| *by = (share * f64::from(*step)) as f32);
    }
    let by = Tensor::<3>::from_data(TensorData::new(by, [b, l, d]), (&old.device(), old.dtype()));
    Ok(Activation::Rank3(old + by))
}

/// Zeros added to one activation, to read its gradient.
struct Leaf {
    point: HookPoint,
    /// `[B, L, width]`
    zeros: Tensor<3>,
    /// Batch row, position, offset of its values in the tensor.
    places: Vec<(usize, usize, usize)>,
    width: usize,
    /// The activation.
    values: Vec<f32>,
}

impl Leaf {
    /// Adds a leaf to an activation.
    fn under(site: &Site, value: Activation, wanted: impl Fn(usize, usize) -> bool) -> Result<(Activation, Self)> {
        let (dims, values) = (value.dims(), value.to_vec()?);
        let width: usize = dims[2..].iter().product();
        let places = site.places.iter().filter(|place| wanted(place.batch, place.position));
        let places = places.map(|p| (p.batch, p.position, (p.batch * dims[1] + p.index) * width)).collect();
        let zeros = |like| Tensor::zeros([dims[0], dims[1], width], like).autodiff().require_grad();
        let (value, zeros) = match value {
            Activation::Rank3(x) => {
                let zeros = zeros((&x.device(), x.dtype()));
                (Activation::Rank3(x + zeros.clone()), zeros)
            }
            Activation::Rank4(x) => {
                let zeros = zeros((&x.device(), x.dtype()));
                let shape = x.dims();
                (Activation::Rank4(x + zeros.clone().reshape(shape)), zeros)
            }
        };
        Ok((value, Self { point: site.point, zeros, places, width, values }))
    }

    /// Stores activations and gradients by sequence. A leaf without a path to the logits has gradient 0.
    fn read(self, gradients: &Gradients, out: &mut [Slope]) -> Result<()> {
        let found = match self.zeros.grad(gradients) {
            Some(found) => Activation::Rank3(found).to_vec()?,
            None => vec![0.0; self.values.len()],
        };
        for (row, position, from) in self.places {
            let slope = out.get_mut(row).context("an unknown row of the batch")?;
            let part = from..from + self.width;
            slope.values.insert((self.point, position), self.values[part.clone()].to_vec());
            slope.gradients.insert((self.point, position), found[part].to_vec());
        }
        Ok(())
    }
}
