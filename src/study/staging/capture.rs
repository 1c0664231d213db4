//! Captures activations at chosen positions and hook points, in f32 on the host. The rest of the forward is freed.

use std::collections::HashMap;

use anyhow::{Result, bail, ensure};
use ndarray::Array2;

use super::logits::in_batches;
use crate::latent::{LatentSource, Sequence};
use crate::model::{Decoder, HookPoint};
use crate::study::Study;
use crate::study::circuits::patch::record_of;

/// [`capture`] at the latent steps (sequence, block, step) for which `of` returns a name. Also returns the names, in row order.
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

/// Activations at each of `points`, `[places, D]` each, rows in the order of `places`: sorted pairs of (sequence, position). The
/// points must have positions on axis 1: `[B, L, D]`, or `[B, L, H, dh]`, read as `[B, L, H · dh]`. Memory: `4 · points · places · D`
/// bytes, and one point's again while its batches are concatenated.
///
/// # Errors
/// A point that does not exist, places that are not sorted, failures of the model.
pub(crate) fn capture(
    model: &Decoder,
    source: &dyn LatentSource,
    sequences: &[Sequence],
    points: &[HookPoint],
    places: &[(usize, usize)],
    threads: usize,
) -> Result<Vec<Array2<f32>>> {
    ensure!(places.is_sorted(), "positions to capture must be sorted by sequence");
    if let Some(point) = points.iter().find(|point| point.kind.position_axis() != 1) {
        bail!("`{point}` has no values per position");
    }
    // Skips sequences without a place.
    let run: Vec<usize> = (0..sequences.len()).filter(|&i| !places_in(places, i).is_empty()).collect();
    let wanted: Vec<Sequence> = run.iter().map(|&i| sequences[i].clone()).collect();
    let index: HashMap<usize, usize> = sequences.iter().enumerate().map(|(i, s)| (s.row, i)).collect();
    let mut held = in_batches(model, &wanted, threads, |batch| {
        let own = |row: usize| index[&batch[row].row];
        record_of(model, source, batch, points, |row, position| places.binary_search(&(own(row), position)).is_ok())
    })?;
    let mut of_point = |point: &HookPoint| {
        let mut all = vec![];
        // Frees each part once it is concatenated.
        for (held, &i) in held.iter_mut().zip(&run) {
            all.extend(places_in(places, i).iter().filter_map(|(_, position)| held.remove(&(*point, *position))));
        }
        let whole = all.len() == places.len() && all.iter().flatten().all(|v: &f32| !v.is_nan());
        ensure!(whole, "`{point}`: a captured activation is NaN, or a position was not reached");
        let shape = (all.len(), all.first().map_or(0, Vec::len));
        Ok(Array2::from_shape_vec(shape, all.concat())?)
    };
    points.iter().map(&mut of_point).collect()
}

fn places_in(places: &[(usize, usize)], sequence: usize) -> &[(usize, usize)] {
    let from = places.partition_point(|&(s, _)| s < sequence);
    let until = places.partition_point(|&(s, _)| s <= sequence);
    &places[from..until]
}
