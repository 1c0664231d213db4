//! Activations of known rows, kept by position whatever the waves in which they were computed.

use anyhow::{Result, bail};

use super::edits::Edits;
use crate::latent::{Gradient, LatentSource, Sequence, Wave, Waves};
use crate::model::hooks::{Place, Recorded, Recording};
use crate::model::{Activation, Decoder, HookPoint, HookSpec, Hooks, Kind, Step};

/// Rows handed to the model at once.
const BATCH: usize = 16;

/// Refuses what no position of these rows would reach.
///
/// # Errors
/// The first such spec.
pub(crate) fn check<'s>(
    specs: impl IntoIterator<Item = &'s HookSpec>,
    layers: usize,
    sequences: &[Sequence],
) -> Result<()> {
    for spec in specs {
        let points = spec.resolve(layers)?;
        let fires = |(position, step): (usize, &Step)| {
            spec.select.admits(position, *step) && points.iter().any(|point| reaches(*point, *step))
        };
        if !sequences.iter().any(|sequence| sequence.steps.iter().enumerate().any(fires)) {
            bail!("hook `{spec}` would never fire: no position of these rows reaches it");
        }
    }
    Ok(())
}

/// Runs the rows under the edits and records what `specs` name and, where `logits`, the logits. Rows are numbered from 0.
///
/// # Errors
/// As [`Waves::next_wave`], and a hook that never fired.
pub(crate) fn run(
    model: &Decoder,
    source: &dyn LatentSource,
    sequences: &[Sequence],
    edits: &Edits,
    (specs, logits): (&[HookSpec], bool),
) -> Result<Vec<Recorded>> {
    let layers = model.config().num_hidden_layers;
    let recording = Recording::of(specs, layers)?;
    for batch in sequences.chunks(BATCH) {
        let mut hooks = Hooks::none();
        edits.attach(&mut hooks, layers)?;
        recording.attach(&mut hooks, layers)?;
        let mut waves = Waves::new(model, batch, source, Gradient::Through)?;
        while let Some(wave) = waves.next_wave(&mut hooks)? {
            if logits {
                let value = Activation::Rank3(model.unembed(wave.hidden.clone()));
                recording.keep_logits(&places(batch, &wave), &value)?;
            }
        }
    }
    recording.tensors(sequences.len())
}

/// Every position of a wave.
fn places(batch: &[Sequence], wave: &Wave) -> Vec<Place> {
    let mut places = vec![];
    for (row, columns) in wave.columns.iter().enumerate() {
        for (index, position) in columns.iter().enumerate() {
            if let Some(position) = *position {
                let Sequence { row: name, steps, .. } = &batch[row];
                places.push(Place { batch: row, index, row: *name, position, step: steps[position] });
            }
        }
    }
    places
}

/// Whether a known row's position passes the point at all.
fn reaches(point: HookPoint, step: Step) -> bool {
    match point.kind {
        Kind::LatentSource | Kind::LatentInjected => matches!(step, Step::Latent { .. }),
        // Only a decoder stands at a boundary.
        Kind::BoundaryLogits => false,
        _ => true,
    }
}
