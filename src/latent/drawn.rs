//! Latents that a rollout draws: a mixture of the vocabulary ([`gumbel`]), or a hidden state with noise ([`noisy_state`]). Each has a
//! log-density, which enters the ratio of GRPO as a token's log-probability does.

use std::collections::HashMap;

use anyhow::{Result, ensure};
use burn::tensor::{Tensor, TensorData};
use serde::{Deserialize, Serialize};

use super::gumbel::{self, Mixture};
use super::noisy_state::{self, NoisyState};
use super::source::LatentSource;
use super::trace::Trace;
use crate::model::{Decoder, Span, Step};

/// The input drawn for a latent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum DrawnInput {
    Mixture(Mixture),
    State(NoisyState),
}

/// Feeds the drawn inputs of traces again; rows are named by their index.
pub(crate) struct StoredInputs<'t> {
    by_place: HashMap<(usize, usize), &'t DrawnInput>,
    /// Number of positions of each row.
    lengths: Vec<usize>,
}

impl<'t> StoredInputs<'t> {
    /// `None` if nothing was drawn.
    pub fn from_traces(traces: &'t [Trace]) -> Option<Self> {
        let mut by_place = HashMap::new();
        for (row, trace) in traces.iter().enumerate() {
            for (at, position) in trace.positions.iter().enumerate() {
                if let Some(drawn) = &position.drawn {
                    by_place.insert((row, trace.prompt.len() + at), drawn);
                }
            }
        }
        let lengths = traces.iter().map(Trace::length).collect();
        (!by_place.is_empty()).then_some(Self { by_place, lengths })
    }
}

impl LatentSource for StoredInputs<'_> {
    fn inject(&self, h: Tensor<3>, at: &Span, model: &Decoder) -> Result<Tensor<3>> {
        let of = |row: usize| {
            let Some(Step::Latent { .. }) = at.steps[row][0] else { return Ok(None) };
            let (name, position) = (at.rows[row], at.positions[row][0]);
            let drawn = self.by_place.get(&(name, position)).copied();
            // A row that ended with a latent was never fed it, and nothing is decided after it.
            let is_last = self.lengths.get(name).is_some_and(|length| position + 1 == *length);
            ensure!(drawn.is_some() || is_last, "row {name}: no input was drawn at position {position}");
            Ok(drawn)
        };
        let drawn = (0..at.rows.len()).map(of).collect::<Result<Vec<_>>>()?;
        let [b, _, d] = h.dims();
        let mut states = vec![0.0_f32; b * d];
        let mut mixtures = vec![None; b];
        for (row, drawn) in drawn.into_iter().enumerate() {
            match drawn {
                Some(DrawnInput::Mixture(mixture)) => mixtures[row] = Some(mixture),
                Some(DrawnInput::State(NoisyState { state, .. })) => {
                    ensure!(
                        state.len() == d,
                        "row {name}: a state of width {}, the model has {d}",
                        state.len(),
                        name = at.rows[row]
                    );
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
