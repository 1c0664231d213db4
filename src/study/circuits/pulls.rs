//! Gradient of the logit difference with respect to every receiver's input at every position: the gradients of [`super::gradient`],
//! propagated back through each receiver's projection and norm. Its product with the change of one edge's value is the first-order
//! effect of patching that edge.

use anyhow::{Context, Result};
use ndarray::{Array2, ArrayView1, aview1};

use super::edges::{EdgeWeights, Projection, Receiver, columns};
use super::gradient::{Slope, TargetRow, slopes};
use super::patch::RowCapture;
use crate::latent::LatentSource;
use crate::model::{Decoder, HookPoint, PointKind};

/// For each sequence and position the gradient at every receiver's input, `[receivers, D]`; 0 if it is not read there.
pub fn pulls(
    model: &Decoder,
    source: &dyn LatentSource,
    weights: &EdgeWeights,
    aimed: &[TargetRow],
) -> Result<Vec<Vec<Array2<f32>>>> {
    let layers = weights.graph.layers;
    let kinds =
        [PointKind::ResidPre, PointKind::Q, PointKind::K, PointKind::V, PointKind::ResidMid, PointKind::Ln2Normalized];
    let mut points: Vec<HookPoint> = (0..layers).flat_map(|l| kinds.map(|kind| HookPoint::at(l, kind))).collect();
    points.extend([HookPoint::at(layers - 1, PointKind::ResidPost), HookPoint::new(PointKind::LnFinalNormalized)]);
    let found = slopes(model, source, aimed, &points, |_, _| true)?;
    let of_row = |(aimed, slope): (&TargetRow, &Slope)| {
        (0..aimed.row.ids.len()).map(|p| at_position(weights, aimed, slope, p)).collect::<Result<Vec<_>>>()
    };
    aimed.iter().zip(&found).map(of_row).collect()
}

fn at_position(weights: &EdgeWeights, aimed: &TargetRow, slope: &Slope, position: usize) -> Result<Array2<f32>> {
    let graph = weights.graph;
    let of = |held: &RowCapture, point: HookPoint| -> Result<Vec<f32>> {
        held.get(&(point, position)).cloned().with_context(|| format!("no activation at `{point}`"))
    };
    let last = HookPoint::at(graph.layers - 1, PointKind::ResidPost);
    let mut out = Array2::zeros((graph.receivers().len(), weights.width));
    for (i, receiver) in graph.receivers().into_iter().enumerate() {
        let projected = |layer: usize, head: usize, kind: PointKind, projection: &Projection| {
            let x = of(&slope.values, HookPoint::at(layer, PointKind::ResidPre))?;
            let all = of(&slope.gradients, HookPoint::at(layer, kind))?;
            let own = &all[head * weights.head_dim..(head + 1) * weights.head_dim];
            let normed = columns(&projection.weight, head, weights.head_dim).dot(&aview1(own));
            anyhow::Ok(weights.before_attention[layer].backward(aview1(&x), normed.view()))
        };
        let pull = match receiver {
            Receiver::Query(l, h) => projected(l, h, PointKind::Q, &weights.query[l])?,
            Receiver::Key(l, h) => projected(l, h, PointKind::K, &weights.key[l])?,
            Receiver::Value(l, h) => projected(l, h, PointKind::V, &weights.value[l])?,
            Receiver::Mlp(l) => {
                let x = of(&slope.values, HookPoint::at(l, PointKind::ResidMid))?;
                let g = of(&slope.gradients, HookPoint::at(l, PointKind::Ln2Normalized))?;
                weights.before_mlp[l].backward_unit(aview1(&x), aview1(&g))
            }
            Receiver::Latent if !aimed.row.is_latent(position + 1) => continue,
            Receiver::Logits if aimed.row.is_latent(position + 1) => continue,
            Receiver::Latent | Receiver::Logits => {
                let (x, g) =
                    (of(&slope.values, last)?, of(&slope.gradients, HookPoint::new(PointKind::LnFinalNormalized))?);
                weights.last.backward_unit(aview1(&x), ArrayView1::from(&g))
            }
        };
        out.row_mut(i).assign(&pull);
    }
    Ok(out)
}
