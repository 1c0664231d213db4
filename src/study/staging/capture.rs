//! Activations at chosen positions and hook points, in f32 on the host: nothing else of a forward pass is kept.

use std::collections::HashMap;

use anyhow::{Result, ensure};
use burn::tensor::{Int, Tensor, TensorData};
use ndarray::Array2;

use super::logits::in_batches;
use crate::latent::{Gradient, LatentSource, Sequence, unroll};
use crate::model::hooks::Site;
use crate::model::{Activation, Decoder, HookPoint, HookSpec, Hooks, Select};

/// Values at each of `points` (those of shape `[B, L, D]`), `[places, D]` each, rows in the order of `places`:
/// `(sequence, position)`, sorted. Memory: `4 · points · places · D` bytes, and one point's more while they are joined.
///
/// # Errors
/// A point that does not exist, places that are not sorted, and whatever the model returns.
pub fn capture(
    model: &Decoder,
    source: &dyn LatentSource,
    sequences: &[Sequence],
    points: &[HookPoint],
    places: &[(usize, usize)],
    threads: usize,
) -> Result<Vec<Array2<f32>>> {
    ensure!(places.is_sorted(), "positions to capture must be in the order of their sequences");
    let d = model.config().hidden_size;
    // Sequences without a place are not run.
    let wanted: Vec<Sequence> = (sequences.iter().enumerate())
        .filter(|(i, _)| !of_sequence(places, *i).is_empty())
        .map(|(_, s)| s.clone())
        .collect();
    let index: HashMap<usize, usize> = sequences.iter().enumerate().map(|(i, s)| (s.row, i)).collect();
    let parts = in_batches(model, &wanted, threads, |batch| {
        let mut slots = HashMap::new();
        for sequence in batch {
            for &(_, position) in of_sequence(places, index[&sequence.row]) {
                slots.insert((sequence.row, position), slots.len());
            }
        }
        let mut stores = vec![vec![f32::NAN; slots.len() * d]; points.len()];
        let mut hooks = Hooks::none();
        for (point, store) in points.iter().zip(&mut stores) {
            let spec = HookSpec { pattern: point.to_string(), select: Select::All };
            let slots = &slots;
            hooks
                .observe(&spec, model.config().num_hidden_layers, move |site, value| keep(site, value, slots, store))?;
        }
        unroll(model, batch, source, Gradient::Through, &mut hooks)?;
        drop(hooks);
        Ok(vec![stores])
    })?;
    join(parts, points.len(), places.len(), d)
}

fn of_sequence(places: &[(usize, usize)], sequence: usize) -> &[(usize, usize)] {
    let from = places.partition_point(|&(s, _)| s < sequence);
    let until = places.partition_point(|&(s, _)| s <= sequence);
    &places[from..until]
}

/// Copies the wanted rows of `[B, L, D]` to their slots.
fn keep(site: &Site, value: &Activation, slots: &HashMap<(usize, usize), usize>, store: &mut [f32]) -> Result<()> {
    let value = value.clone().three()?;
    let [b, l, d] = value.dims();
    let found: Vec<(i64, usize)> = (site.places.iter())
        .filter_map(|p| slots.get(&(p.row, p.position)).map(|&slot| ((p.batch * l + p.index) as i64, slot)))
        .collect();
    if found.is_empty() {
        return Ok(());
    }
    let rows: Vec<i64> = found.iter().map(|f| f.0).collect();
    let rows = Tensor::<1, Int>::from_data(TensorData::new(rows, [found.len()]), &value.device());
    let values = value.reshape([b * l, d]).select(0, rows).try_into_vec_as::<f32>();
    let values = values.map_err(|e| anyhow::anyhow!("reading an activation: {e:?}"))?;
    for (&(_, slot), row) in found.iter().zip(values.chunks(d)) {
        store[slot * d..(slot + 1) * d].copy_from_slice(row);
    }
    Ok(())
}

/// `[batch][point][places · D]` → `[point]` of `[places, D]`, freeing the parts as it goes.
fn join(mut parts: Vec<Vec<Vec<f32>>>, points: usize, rows: usize, d: usize) -> Result<Vec<Array2<f32>>> {
    (0..points)
        .map(|point| {
            let mut all = Vec::with_capacity(rows * d);
            for part in &mut parts {
                all.extend(std::mem::take(&mut part[point]));
            }
            ensure!(all.iter().all(|v| !v.is_nan()), "a captured activation is NaN, or a position was not reached");
            Ok(Array2::from_shape_vec((rows, d), all)?)
        })
        .collect()
}
