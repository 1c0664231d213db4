//! The residual stream of known sequences at chosen positions and layers, wave by wave. Knows nothing of lenses.

use std::cell::RefCell;
use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use burn::tensor::Tensor;

use crate::latent::{Gradient, Sequence, Waves};
use crate::model::hooks::{Place, rows_of};
use crate::model::{HookSpec, Hooks};
use crate::study::Study;
use crate::study::circuits::patch::Node;

/// Batch size.
pub(super) const BATCH: usize = 32;

/// Callback of a wave: its places, the input of the model's head there `[n, D]`, and the residual stream at each layer `[n, D]`.
pub(crate) type ResidualWave<'a> = dyn FnMut(&[Place], Tensor<2>, &[Tensor<2>]) -> Result<()> + 'a;

/// Runs the sequences and calls `each` with every wave that has wanted positions. `layers` as in the module docs of [`super`].
pub(crate) fn walk(
    study: &Study,
    layers: &[usize],
    sequences: &[Sequence],
    wanted: &dyn Fn(&Place) -> bool,
    each: &mut ResidualWave,
) -> Result<()> {
    let model = &study.model;
    for batch in sequences.chunks(BATCH) {
        let held: RefCell<Vec<Tensor<2>>> = RefCell::default();
        let chosen: RefCell<Vec<Place>> = RefCell::default();
        let mut hooks = Hooks::none();
        for &layer in layers {
            let spec = HookSpec::all(Node::Resid(layer).point());
            let (held, chosen) = (&held, &chosen);
            hooks.observe(&spec, model.config().num_hidden_layers, move |site, value| {
                // Every layer has the same places.
                let here: Vec<Place> = site.places.iter().copied().filter(|place| wanted(place)).collect();
                if !here.is_empty() {
                    held.borrow_mut().push(pick(value.clone().three()?, &here));
                }
                *chosen.borrow_mut() = here;
                Ok(())
            })?;
        }
        let mut waves = Waves::new(model, batch, &study.reasoning.source, Gradient::Through)?;
        while let Some(wave) = waves.next_wave(&mut hooks)? {
            let states = held.take();
            if !states.is_empty() {
                let places = chosen.take();
                each(&places, pick(wave.hidden, &places), &states)?;
            }
        }
    }
    Ok(())
}

/// `[B, L, D]` at some places → `[n, D]`.
fn pick(x: Tensor<3>, places: &[Place]) -> Tensor<2> {
    let [b, l, d] = x.dims();
    let index: Vec<usize> = places.iter().map(|place| place.batch * l + place.index).collect();
    rows_of(&x.reshape([b * l, d]), &index)
}

pub struct PositionSample {
    pub problems: Vec<usize>,
    /// The input of the model's head, `[n, D]`.
    pub own: Tensor<2>,
    /// The residual stream at each layer, `[n, D]`.
    pub states: Vec<Tensor<2>>,
}

impl PositionSample {
    /// The states at `(row, position)` of the sequences, in an order that does not depend on threads.
    pub fn collect(
        study: &Study,
        layers: &[usize],
        sequences: &[Sequence],
        places: &BTreeSet<(usize, usize)>,
    ) -> Result<Self> {
        let batches: Vec<&[Sequence]> = sequences.chunks(BATCH).collect();
        let waves = study.each("batches", &batches, |batch| {
            let mut waves = vec![];
            let wanted = |place: &Place| places.contains(&(place.row, place.position));
            walk(study, layers, batch, &wanted, &mut |places, own, states| {
                let problems = places.iter().map(|place| place.row).collect();
                waves.push(Self { problems, own, states: states.to_vec() });
                Ok(())
            })?;
            Ok(waves)
        })?;
        let waves: Vec<Self> = waves.into_iter().flatten().collect();
        ensure!(!waves.is_empty(), "no text position to look at: every response is empty");
        let joined = |of: &dyn Fn(&Self) -> Tensor<2>| Tensor::cat(waves.iter().map(of).collect(), 0);
        Ok(Self {
            problems: waves.iter().flat_map(|wave| wave.problems.clone()).collect(),
            own: joined(&|wave| wave.own.clone()),
            states: (0..layers.len()).map(|i| joined(&|wave| wave.states[i].clone())).collect(),
        })
    }

    /// The whole sample, a few hundred positions at a time.
    pub fn each(&self, mut f: impl FnMut(&[usize], Tensor<2>, &[Tensor<2>]) -> Result<()>) -> Result<()> {
        let all: Vec<usize> = (0..self.problems.len()).collect();
        for chunk in all.chunks(256) {
            let problems: Vec<usize> = chunk.iter().map(|&i| self.problems[i]).collect();
            let states: Vec<Tensor<2>> = self.states.iter().map(|state| rows_of(state, chunk)).collect();
            f(&problems, rows_of(&self.own, chunk), &states)?;
        }
        Ok(())
    }
}
