//! Jacobian of the final residual state with respect to earlier states, `∂ Σ_to h_final / ∂ h`, through the recurrence (the quantity
//! that the Jacobian lens averages; TransformerLens 4.3 has it for text). Knows sequences and points, no experiment.
//!
//! One backward pass gives one output dimension per copy of the sequence in the batch. Memory: a batch of `together` copies and one
//! `[D, D]` matrix per point and group.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;

use anyhow::{Context, Result, bail, ensure};
use burn::tensor::{FloatDType, Tensor, TensorData};

use super::patch::RowCapture;
use crate::latent::{Gradient, LatentSource, Sequence, unroll};
use crate::model::hooks::{Place, Site};
use crate::model::{Activation, Decoder, HookPoint, HookSpec, Hooks, PointKind};
use crate::ops::{matmul, of_copies};
use crate::progress::go_on;

/// Source and target positions of the differentiation.
#[derive(Clone, Copy, Debug)]
pub struct Passage<'a> {
    pub row: &'a Sequence,
    /// Groups of positions: a group's Jacobian is the mean over its positions.
    pub from: &'a [Vec<usize>],
    /// Positions of the final state (the last block's output, before the final norm); their states are summed.
    pub to: &'a [usize],
}

/// Result of one sequence.
#[derive(Clone, Debug, Default)]
pub struct RowJacobian {
    /// By point and group, `[D, D]`: row i is the gradient of dimension i of the final state.
    pub jacobians: HashMap<(HookPoint, usize), Vec<f32>>,
    /// Activations `[D]` by point and position.
    pub values: RowCapture,
}

/// The Jacobians of one sequence at points of the residual stream, `together` dimensions per backward pass.
///
/// # Errors
/// `together` is 0, no source or target position, positions outside the sequence, points of another width, failures of the model.
pub fn jacobians(
    model: &Decoder,
    source: &dyn LatentSource,
    passage: Passage,
    points: &[HookPoint],
    together: usize,
) -> Result<RowJacobian> {
    let (width, length) = (model.config().hidden_size, passage.row.ids.len());
    ensure!(together > 0, "the number of dimensions per backward pass is 0");
    ensure!(
        !passage.to.is_empty() && passage.from.iter().all(|g| !g.is_empty()),
        "the target or a source group has no position"
    );
    if let Some(p) = passage.from.iter().flatten().chain(passage.to).find(|&&p| p >= length) {
        bail!("position {p} is outside the sequence of {length}");
    }
    let mut out = RowJacobian::default();
    for (&point, group) in points.iter().flat_map(|point| (0..passage.from.len()).map(move |group| (point, group))) {
        out.jacobians.insert((point, group), vec![0.0; width * width]);
    }
    for start in (0..width).step_by(together) {
        go_on()?;
        pass(model, source, passage, points, start..width.min(start + together), &mut out)?;
    }
    Ok(out)
}

/// One backward pass: copy i of the sequence gives the gradient of the i-th of these dimensions.
fn pass(
    model: &Decoder,
    source: &dyn LatentSource,
    passage: Passage,
    points: &[HookPoint],
    dimensions: Range<usize>,
    out: &mut RowJacobian,
) -> Result<()> {
    let (layers, width) = (model.layers.len(), model.config().hidden_size);
    let (leaves, values, aims) = (RefCell::new(vec![]), RefCell::new(RowCapture::new()), RefCell::new(vec![]));
    let mut hooks = Hooks::none();
    for &point in points {
        hooks.replace(&HookSpec::all(point), layers, |site, value| {
            let value = value.three()?;
            ensure!(value.dims()[2] == width, "`{}` is not as wide as the residual stream", site.point);
            if dimensions.start == 0 {
                let wanted = |p: &Place| p.batch == 0 && passage.from.iter().flatten().any(|&at| at == p.position);
                let states = site.values(&Activation::Rank3(value.clone()), wanted)?.into_iter();
                values.borrow_mut().extend(states.map(|(place, state)| ((site.point, place.position), state)));
            }
            let (value, leaf) = GroupLeaf::under(site, value, passage.from);
            leaves.borrow_mut().extend(leaf);
            Ok(Activation::Rank3(value))
        })?;
    }
    let last = HookPoint::at(layers - 1, PointKind::ResidPost);
    hooks.observe(&HookSpec::all(last), layers, |site, value| {
        aims.borrow_mut().extend(aim(site, value, passage.to, dimensions.start)?);
        Ok(())
    })?;
    let rows = vec![passage.row.clone(); dimensions.len()];
    of_copies(|| unroll(model, &rows, source, Gradient::Through, &mut hooks))?;
    drop(hooks);
    out.values.extend(values.into_inner());
    let aim =
        aims.into_inner().into_iter().reduce(|a: Tensor<1>, b| a + b).context("the final state was not reached")?;
    let gradients = aim.backward();
    for leaf in leaves.into_inner() {
        let GroupLeaf { point, groups, zeros } = leaf;
        // A leaf without a path to the final state (the last block at a position whose state is not read) has gradient 0.
        let Some(found) = zeros.grad(&gradients) else { continue };
        let found = Activation::Rank3(found).to_vec()?;
        for (i, gradient) in found.chunks(width).enumerate() {
            let (copy, group) = (i / groups.len(), groups[i % groups.len()]);
            let matrix = out.jacobians.get_mut(&(point, group)).context("an unknown group of positions")?;
            let row = &mut matrix[(dimensions.start + copy) * width..][..width];
            let positions = passage.from[group].len() as f32;
            row.iter_mut().zip(gradient).for_each(|(sum, g)| *sum += g / positions);
        }
    }
    Ok(())
}

/// The places of the first copy; all copies have the same.
fn first_copy<'a>(site: &'a Site) -> impl Iterator<Item = &'a Place> {
    site.places.iter().filter(|place| place.batch == 0)
}

/// Zeros `[copies, groups, D]` that require a gradient: added at all positions of a group, so that their gradient is the sum over them.
struct GroupLeaf {
    point: HookPoint,
    groups: Vec<usize>,
    zeros: Tensor<3>,
}

impl GroupLeaf {
    /// Adds a leaf to an activation; `None` if no group has a position in it.
    fn under(site: &Site, value: Tensor<3>, from: &[Vec<usize>]) -> (Tensor<3>, Option<Self>) {
        let [copies, length, width] = value.dims();
        let has = |group: &usize| first_copy(site).any(|place| from[*group].contains(&place.position));
        let groups: Vec<usize> = (0..from.len()).filter(has).collect();
        if groups.is_empty() {
            return (value, None);
        }
        let mut at = vec![0.0_f32; length * groups.len()];
        for place in first_copy(site) {
            for (column, &group) in groups.iter().enumerate() {
                let inside = from[group].contains(&place.position);
                at[place.index * groups.len() + column] = f32::from(u8::from(inside));
            }
        }
        let like = (&value.device(), value.dtype());
        let at = Tensor::<3>::from_data(TensorData::new(at, [1, length, groups.len()]), like);
        let zeros = Tensor::zeros([copies, groups.len(), width], like).autodiff().require_grad();
        let moved = matmul(at.expand([copies, length, groups.len()]), zeros.clone());
        (value + moved, Some(Self { point: site.point, groups, zeros }))
    }
}

/// The sum of each copy's dimension over the target positions in this wave; `None` if it has none.
fn aim(site: &Site, value: &Activation, to: &[usize], start: usize) -> Result<Option<Tensor<1>>> {
    let value = value.clone().three()?;
    let [b, l, d] = value.dims();
    let mut pick = vec![0.0_f32; b * l * d];
    for place in site.places.iter().filter(|place| to.contains(&place.position)) {
        pick[(place.batch * l + place.index) * d + start + place.batch] = 1.0;
    }
    if pick.iter().all(|&p| p == 0.0) {
        return Ok(None);
    }
    let pick = Tensor::<3>::from_data(TensorData::new(pick, [b, l, d]), &value.device()).cast(FloatDType::F32);
    Ok(Some((value.cast(FloatDType::F32) * pick).sum()))
}
