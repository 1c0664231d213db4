//! Activations at chosen positions and hook points, in f32 on the host: nothing else of a forward pass is kept.

use std::collections::HashMap;

use anyhow::{Result, bail, ensure};
use burn::tensor::{Int, Tensor, TensorData};
use ndarray::Array2;

use super::logits::in_batches;
use crate::latent::{Gradient, LatentSource, Sequence, unroll};
use crate::model::hooks::Site;
use crate::model::{Activation, Decoder, HookPoint, HookSpec, Hooks};
use crate::study::Study;

/// [`capture`] at the latents that `of` (row, block and step) knows by a name, and those names in the order of the rows.
pub(crate) fn at_latents<K>(
    study: &Study,
    sequences: &[Sequence],
    points: &[HookPoint],
    of: impl Fn(usize, usize, usize) -> Option<K>,
) -> Result<(Vec<K>, Vec<Array2<f32>>)> {
    let latents = sequences.iter().enumerate().flat_map(|(i, row)| row.latent_steps().map(move |at| (i, row.row, at)));
    let named = latents.filter_map(|(i, row, (position, block, step))| Some((of(row, block, step)?, (i, position))));
    let (names, places): (Vec<K>, Vec<(usize, usize)>) = named.unzip();
    let source = &study.reasoning.source;
    Ok((names, capture(&study.model, source, sequences, points, &places, study.threads)?))
}

/// Values at each of `points` (those with positions on the second axis, as `[B, L, D]`; `[B, L, H, dh]` is read as
/// `[B, L, H · dh]`), `[places, D]` each, rows in the order of `places`: `(sequence, position)`, sorted. Memory:
/// `4 · points · places · D` bytes, and one point's more while they are joined.
///
/// # Errors
/// A point that does not exist, places that are not sorted, and whatever the model returns.
pub(crate) fn capture(
    model: &Decoder,
    source: &dyn LatentSource,
    sequences: &[Sequence],
    points: &[HookPoint],
    places: &[(usize, usize)],
    threads: usize,
) -> Result<Vec<Array2<f32>>> {
    ensure!(places.is_sorted(), "positions to capture must be in the order of their sequences");
    if let Some(point) = points.iter().find(|point| point.kind.position_axis() != 1) {
        bail!("`{point}` has no row of values for each position");
    }
    // Sequences without a place are not run.
    let run = (0..sequences.len()).filter(|&i| !of_sequence(places, i).is_empty());
    let wanted: Vec<Sequence> = run.map(|i| sequences[i].clone()).collect();
    let index: HashMap<usize, usize> = sequences.iter().enumerate().map(|(i, s)| (s.row, i)).collect();
    let parts = in_batches(model, &wanted, threads, |batch| {
        let mut slots = HashMap::new();
        for sequence in batch {
            for &(_, position) in of_sequence(places, index[&sequence.row]) {
                slots.insert((sequence.row, position), slots.len());
            }
        }
        let mut stores = vec![Store::default(); points.len()];
        let mut hooks = Hooks::none();
        for (point, store) in points.iter().zip(&mut stores) {
            let (spec, slots) = (HookSpec::all(point), &slots);
            hooks.observe(&spec, model.layers.len(), move |site, value| store.keep(site, value, slots))?;
        }
        unroll(model, batch, source, Gradient::Through, &mut hooks)?;
        drop(hooks);
        Ok(vec![stores])
    })?;
    join(parts, points, places.len())
}

fn of_sequence(places: &[(usize, usize)], sequence: usize) -> &[(usize, usize)] {
    let from = places.partition_point(|&(s, _)| s < sequence);
    let until = places.partition_point(|&(s, _)| s <= sequence);
    &places[from..until]
}

/// The rows of one point, in the order of its slots.
#[derive(Clone, Default)]
struct Store {
    width: usize,
    values: Vec<f32>,
}

impl Store {
    /// Copies the wanted rows of `[B, L, ..]` to their slots.
    fn keep(&mut self, site: &Site, value: &Activation, slots: &HashMap<(usize, usize), usize>) -> Result<()> {
        let value = match value.clone() {
            Activation::Rank3(x) => x,
            Activation::Rank4(x) => x.flatten(2, 3),
        };
        let [b, l, d] = value.dims();
        if self.values.is_empty() {
            *self = Self { width: d, values: vec![f32::NAN; slots.len() * d] };
        }
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
            self.values[slot * d..(slot + 1) * d].copy_from_slice(row);
        }
        Ok(())
    }
}

/// `[batch][point]` → `[point]` of `[places, D]`, freeing the parts as it goes.
fn join(mut parts: Vec<Vec<Store>>, points: &[HookPoint], rows: usize) -> Result<Vec<Array2<f32>>> {
    (points.iter().enumerate())
        .map(|(i, point)| {
            let d = parts.iter().map(|part| part[i].width).max().unwrap_or(0);
            let mut all = Vec::with_capacity(rows * d);
            for part in &mut parts {
                all.extend(std::mem::take(&mut part[i].values));
            }
            let whole = all.len() == rows * d && all.iter().all(|v| !v.is_nan());
            ensure!(whole, "`{point}`: a captured activation is NaN, or a position was not reached");
            Ok(Array2::from_shape_vec((rows, d), all)?)
        })
        .collect()
}
