//! How the final residual state changes with a state before it: the Jacobian `∂ Σ_to h_final / ∂ h`, through the recurrence (what
//! the Jacobian lens averages; TransformerLens 4.3 has it for text). Knows rows and points, no experiment.
//!
//! One backward pass gives one output dimension. A batch holds copies of the row, and each copy asks for another dimension: memory
//! is that of `together` rows and of one `[D, D]` matrix a point and group.

use std::cell::RefCell;
use std::collections::HashMap;

use anyhow::{Context, Result, ensure};
use burn::tensor::{FloatDType, Tensor, TensorData};

use super::gradient::{Leaf, Slope};
use super::patch::RowCapture;
use crate::latent::{Gradient, LatentSource, Sequence, unroll};
use crate::model::hooks::Site;
use crate::model::{Activation, Decoder, HookPoint, HookSpec, Hooks, PointKind};

/// From where to where a row is differentiated.
#[derive(Clone, Copy, Debug)]
pub struct Passage<'a> {
    pub row: &'a Sequence,
    /// Groups of positions: a group's Jacobian is the mean over its positions.
    pub from: &'a [Vec<usize>],
    /// Positions of the final state (the last block's output, before the final norm); their states are added up.
    pub to: &'a [usize],
}

/// What one row gives.
#[derive(Clone, Debug, Default)]
pub struct RowJacobian {
    /// By point and group, `[D, D]`: row i is the gradient of dimension i of the final state.
    pub jacobians: HashMap<(HookPoint, usize), Vec<f32>>,
    /// What stood at the points, `[D]`, by point and position.
    pub values: RowCapture,
}

/// The Jacobians of one row at points of the residual stream, `together` dimensions in one backward pass.
///
/// # Errors
/// No dimension at a time, no position to differentiate at or of, positions outside the row, points of another width, and as the
/// model's.
pub fn jacobians(
    model: &Decoder,
    source: &dyn LatentSource,
    passage: Passage,
    points: &[HookPoint],
    together: usize,
) -> Result<RowJacobian> {
    let (width, length) = (model.config().hidden_size, passage.row.ids.len());
    ensure!(together > 0, "no dimension at a time is differentiated");
    ensure!(!passage.to.is_empty() && passage.from.iter().all(|g| !g.is_empty()), "no position to differentiate");
    let beyond = passage.from.iter().flatten().chain(passage.to).find(|&&p| p >= length);
    ensure!(beyond.is_none(), "position {beyond:?} lies outside a row of {length}");
    let mut out = RowJacobian::default();
    for start in (0..width).step_by(together) {
        let slopes = pass(model, source, passage, points, start..width.min(start + together))?;
        for (i, slope) in slopes.iter().enumerate() {
            for &point in points {
                for (group, positions) in passage.from.iter().enumerate() {
                    let matrix = out.jacobians.entry((point, group)).or_insert_with(|| vec![0.0; width * width]);
                    let row = &mut matrix[(start + i) * width..(start + i + 1) * width];
                    for &position in positions {
                        let found = slope.gradients.get(&(point, position)).context("a position without a gradient")?;
                        ensure!(found.len() == width, "`{point}` is not as wide as the residual stream");
                        row.iter_mut().zip(found).for_each(|(sum, g)| *sum += g / positions.len() as f32);
                    }
                }
            }
        }
        out.values.extend(slopes.into_iter().next().map(|slope| slope.values).unwrap_or_default());
    }
    Ok(out)
}

/// One backward pass: copy i of the row gives the gradient of the i-th of these dimensions.
fn pass(
    model: &Decoder,
    source: &dyn LatentSource,
    passage: Passage,
    points: &[HookPoint],
    dimensions: std::ops::Range<usize>,
) -> Result<Vec<Slope>> {
    let layers = model.layers.len();
    let (leaves, aims) = (RefCell::new(vec![]), RefCell::new(vec![]));
    let wanted = |_: usize, position: usize| passage.from.iter().flatten().any(|&p| p == position);
    let mut hooks = Hooks::none();
    for &point in points {
        hooks.replace(&HookSpec::all(point), layers, |site, value| {
            let (value, leaf) = Leaf::under(site, value, wanted)?;
            leaves.borrow_mut().push(leaf);
            Ok(value)
        })?;
    }
    let last = HookPoint::at(layers - 1, PointKind::ResidPost);
    hooks.observe(&HookSpec::all(last), layers, |site, value| {
        aims.borrow_mut().extend(aim(site, value, passage.to, dimensions.start)?);
        Ok(())
    })?;
    let rows = vec![passage.row.clone(); dimensions.len()];
    unroll(model, &rows, source, Gradient::Through, &mut hooks)?;
    drop(hooks);
    let aim =
        aims.into_inner().into_iter().reduce(|a: Tensor<1>, b| a + b).context("the final state was never seen")?;
    let gradients = aim.backward();
    let mut out = vec![Slope::default(); rows.len()];
    leaves.into_inner().into_iter().try_for_each(|leaf: Leaf| leaf.read(&gradients, &mut out))?;
    Ok(out)
}

/// The sum of each copy's own dimension over the wave's positions that are asked for; nothing where it has none.
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
