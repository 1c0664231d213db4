//! Latents that a rollout draws: a mixture of the vocabulary ([`gumbel`]), or a hidden state with noise ([`noisy_state`]). Each has a
//! log-density, which enters the ratio of GRPO as a token's log-probability does.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use burn::tensor::{Tensor, TensorData};
use serde::{Deserialize, Serialize};

use super::gumbel::{self, Mixture};
use super::noisy_state::{self, NoisyState};
use super::sampling::Key;
use super::source::LatentSource;
use super::trace::{Position, PositionRole, Trace};
use crate::model::{Decoder, Span, Step};

/// The input drawn for a latent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum DrawnInput {
    Mixture(Mixture),
    State(NoisyState),
}

/// Inputs that a decode draws, with their log-densities.
pub(crate) struct DrawLog {
    /// Problem and rollout of each row, by its name in the decode.
    rows: Vec<(usize, usize)>,
    /// By row and position.
    drawn: Mutex<HashMap<(usize, usize), (DrawnInput, f64)>>,
}

impl DrawLog {
    pub fn new(rows: Vec<(usize, usize)>) -> Self {
        Self { rows, drawn: Mutex::default() }
    }

    /// The key of the draw at a row's position.
    ///
    /// # Errors
    /// A row without a rollout.
    pub fn key(&self, (row, position): (usize, usize)) -> Result<Key> {
        let &(problem, rollout) = self.rows.get(row).with_context(|| format!("no rollout is named {row}"))?;
        Ok(Key { problem: problem as u64, rollout: rollout as u64, position: position as u64 })
    }

    pub fn record(&self, place: (usize, usize), input: DrawnInput, density: f64) {
        self.drawn.lock().unwrap_or_else(PoisonError::into_inner).insert(place, (input, density));
    }

    /// Writes the inputs into the traces of the decode; trace `i` is the row named `i`.
    pub fn remember_in(&self, traces: &mut [Trace]) {
        let mut drawn = self.drawn.lock().unwrap_or_else(PoisonError::into_inner);
        for (row, trace) in traces.iter_mut().enumerate() {
            let before = trace.prompt.len();
            let latents = trace.positions.iter_mut().enumerate().filter(|(_, p)| p.kind == PositionRole::Latent);
            for (at, position) in latents {
                // The last position of a row that ended there was never fed.
                let Some((input, density)) = drawn.remove(&(row, before + at)) else { continue };
                (position.logprob, position.drawn) = (Some(density), Some(input));
            }
        }
    }
}

/// Values stored in traces, by row (the index of the trace) and position.
pub(super) struct StoredByPlace<'t, T: ?Sized> {
    by_place: HashMap<(usize, usize), &'t T>,
    /// Number of positions of each row.
    lengths: Vec<usize>,
}

impl<'t, T: ?Sized> StoredByPlace<'t, T> {
    /// `None` if no position has a value.
    pub fn from_traces(traces: &'t [Trace], value: impl Fn(&'t Position) -> Option<&'t T>) -> Option<Self> {
        let mut by_place = HashMap::new();
        for (row, trace) in traces.iter().enumerate() {
            for (at, position) in trace.positions.iter().enumerate() {
                by_place.extend(value(position).map(|value| ((row, trace.prompt.len() + at), value)));
            }
        }
        let lengths = traces.iter().map(Trace::length).collect();
        (!by_place.is_empty()).then_some(Self { by_place, lengths })
    }

    /// The value at a row's position; `None` at its last one, which was never fed and after which nothing is decided.
    ///
    /// # Errors
    /// An earlier position without a value; `missing` says so.
    pub fn get(&self, row: usize, position: usize, missing: &str) -> Result<Option<&'t T>> {
        let value = self.by_place.get(&(row, position)).copied();
        let is_last = self.lengths.get(row).is_some_and(|length| position + 1 == *length);
        ensure!(value.is_some() || is_last, "row {row}: {missing} at position {position}");
        Ok(value)
    }
}

/// Feeds the drawn inputs of traces again.
pub(crate) struct StoredInputs<'t>(StoredByPlace<'t, DrawnInput>);

impl<'t> StoredInputs<'t> {
    /// `None` if nothing was drawn.
    pub fn from_traces(traces: &'t [Trace]) -> Option<Self> {
        StoredByPlace::from_traces(traces, |position| position.drawn.as_ref()).map(Self)
    }
}

impl LatentSource for StoredInputs<'_> {
    fn inject(&self, h: Tensor<3>, at: &Span, model: &Decoder) -> Result<Tensor<3>> {
        let [b, _, d] = h.dims();
        let mut states = vec![0.0_f32; b * d];
        let mut mixtures = vec![None; b];
        for (row, mixed) in mixtures.iter_mut().enumerate() {
            let Some(Step::Latent { .. }) = at.steps[row][0] else { continue };
            let name = at.rows[row];
            match self.0.get(name, at.positions[row][0], "no input was drawn")? {
                Some(DrawnInput::Mixture(mixture)) => *mixed = Some(mixture),
                Some(DrawnInput::State(NoisyState { state, .. })) => {
                    ensure!(state.len() == d, "row {name}: a state of width {}, the model has {d}", state.len());
                    states[row * d..(row + 1) * d].copy_from_slice(state);
                }
                None => {}
            }
        }
        if mixtures.iter().any(Option::is_some) {
            return gumbel::mixed(&mixtures, model);
        }
        Ok(Tensor::from_data(TensorData::new(states, [b, 1, d]), (&h.device(), h.dtype())))
    }

    fn name(&self) -> String {
        "stored_inputs".into()
    }
}

/// Log-densities `[n]` under a model, in its graph, of inputs drawn at this temperature, from the states before them `[n, D]`. All are of
/// one kind.
pub(super) fn log_densities(
    model: &Decoder,
    hidden: Tensor<2>,
    temperature: f64,
    drawn: &[&DrawnInput],
) -> Result<Tensor<1>> {
    let (mut mixtures, mut states) = (vec![], vec![]);
    for drawn in drawn {
        match drawn {
            DrawnInput::Mixture(mixture) => mixtures.push(mixture),
            DrawnInput::State(state) => states.push(state),
        }
    }
    ensure!(mixtures.is_empty() || states.is_empty(), "a batch of rollouts has both mixtures and noisy states");
    match mixtures.is_empty() {
        true => Ok(noisy_state::log_densities(hidden, &states)),
        false => gumbel::log_densities(model, hidden, temperature, &mixtures),
    }
}
