//! Text whose tokens are mixed with states (HRPO, Yue et al. 2025, arXiv:2505.18454). While the model thinks, the input at a drawn token is
//! `a ⊙ e + √(1 − a² + ε) ⊙ (i ⊙ h)`: e is the token's embedding, a and i are the model's [`Gate`](crate::model::heads::Gate) of e, and h is
//! the expected embedding there,
//!
//! `h = Σ p_v E[v] / ‖p‖₂`, `p = softmax(logits / τ)` of the logits before the token.
//!
//! Such positions are text: they are drawn, read and graded as text. The prompt, the token that ends thinking and all later tokens are not
//! mixed. The [`Stream`](super::Stream) mixes, so that every program does. Hooks see the mixed input as `hook_embed`; no `latent.*` hook
//! fires.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use burn::tensor::{Tensor, TensorData, activation::softmax};
use serde::{Deserialize, Serialize};

use super::drawn::StoredByPlace;
use super::source::{LatentSource, Source};
use super::trace::{Position, Trace};
use crate::model::{Decoder, Span};

/// Source of the states that are mixed into text.
pub trait Mixing: Send + Sync {
    /// The token from which on a response is not mixed.
    fn end(&self) -> u32;

    /// Whether the states are known before the run, so that a row can be fed in one call.
    fn is_known(&self) -> bool {
        false
    }

    /// States for these positions, `[B, L, D]`, from the model's last states `[B, 1, D]`. L is 1 unless they are known before the run.
    /// `mixed`: the positions that use them, `[B][L]`.
    ///
    /// # Errors
    /// A position without a state.
    fn states(&self, last: Option<Tensor<3>>, at: &Span, mixed: &[Vec<bool>], model: &Decoder) -> Result<Tensor<3>>;

    /// Receives the used states and the gate's a, `[B, L, D]` each.
    ///
    /// # Errors
    /// A device that cannot be read.
    fn saw(&self, _states: &Tensor<3>, _a: &Tensor<3>, _at: &Span, _mixed: &[Vec<bool>]) -> Result<()> {
        Ok(())
    }
}

/// The state that was mixed into a token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MixedInput {
    /// h, `[D]`.
    pub state: Vec<f32>,
    /// Mean of a over the dimensions: the share of the token's own embedding.
    pub token_share: f32,
}

/// Mixes in the states that the running model computes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hybrid {
    /// τ, the temperature of p.
    pub temperature: f64,
    /// The token that ends thinking.
    pub end: u32,
}

impl Mixing for Hybrid {
    fn end(&self) -> u32 {
        self.end
    }

    fn states(&self, last: Option<Tensor<3>>, _at: &Span, _mixed: &[Vec<bool>], model: &Decoder) -> Result<Tensor<3>> {
        let last = last.context("a response before any prompt has no state to mix")?;
        let p = softmax(model.unembed(last).div_scalar(self.temperature), 2);
        let norm = p.clone().square().sum_dim(2).sqrt();
        Ok(model.embed_mixture(p) / norm)
    }
}

/// Mixed text has no latents.
pub(super) fn no_latents() -> Result<Tensor<3>> {
    bail!("this checkpoint has no latent positions: states are mixed into its text (`hybrid` in reasoning.json)")
}

/// [`Hybrid`] that records the mixed states, by the names of the rows.
pub(crate) struct MixMemory {
    hybrid: Hybrid,
    mixed: Mutex<HashMap<(usize, usize), MixedInput>>,
}

impl MixMemory {
    pub fn new(hybrid: Hybrid) -> Self {
        Self { hybrid, mixed: Mutex::default() }
    }

    /// Writes the mixed states into the traces of the decode; trace `i` is the row named `i`.
    pub fn remember_in(&self, traces: &mut [Trace]) {
        let mut mixed = self.mixed.lock().unwrap_or_else(PoisonError::into_inner);
        for (row, trace) in traces.iter_mut().enumerate() {
            let before = trace.prompt.len();
            for (at, position) in trace.positions.iter_mut().enumerate() {
                position.mixed = mixed.remove(&(row, before + at));
            }
        }
    }
}

impl Mixing for MixMemory {
    fn end(&self) -> u32 {
        self.hybrid.end
    }

    fn states(&self, last: Option<Tensor<3>>, at: &Span, mixed: &[Vec<bool>], model: &Decoder) -> Result<Tensor<3>> {
        self.hybrid.states(last, at, mixed, model)
    }

    fn saw(&self, states: &Tensor<3>, a: &Tensor<3>, at: &Span, mixed: &[Vec<bool>]) -> Result<()> {
        let [_, l, d] = states.dims();
        let host = |x: Tensor<3>| x.try_into_vec_as::<f32>().context("reading the mixed states");
        let (states, shares) = (host(states.clone())?, host(a.clone().mean_dim(2))?);
        let mut kept = self.mixed.lock().unwrap_or_else(PoisonError::into_inner);
        for (row, mixed) in mixed.iter().enumerate() {
            for (column, _) in mixed.iter().enumerate().filter(|(_, mixed)| **mixed) {
                let flat = row * l + column;
                let state = states[flat * d..(flat + 1) * d].to_vec();
                let place = (at.rows[row], at.positions[row][column]);
                kept.insert(place, MixedInput { state, token_share: shares[flat] });
            }
        }
        Ok(())
    }
}

impl LatentSource for MixMemory {
    fn inject(&self, _h: Tensor<3>, _at: &Span, _model: &Decoder) -> Result<Tensor<3>> {
        no_latents()
    }

    fn name(&self) -> String {
        Source::Hybrid(self.hybrid).name()
    }

    fn mixing(&self) -> Option<&dyn Mixing> {
        Some(self)
    }
}

/// Mixes in the states of traces again, as constants.
pub(crate) struct StoredStates<'t> {
    end: u32,
    states: StoredByPlace<'t, [f32]>,
}

impl<'t> StoredStates<'t> {
    /// `None` if the traces have no states.
    pub fn from_traces(end: u32, traces: &'t [Trace]) -> Option<Self> {
        let state = |position: &'t Position| position.mixed.as_ref().map(|mixed| mixed.state.as_slice());
        StoredByPlace::from_traces(traces, state).map(|states| Self { end, states })
    }
}

impl Mixing for StoredStates<'_> {
    fn end(&self) -> u32 {
        self.end
    }

    fn is_known(&self) -> bool {
        true
    }

    fn states(&self, _last: Option<Tensor<3>>, at: &Span, mixed: &[Vec<bool>], model: &Decoder) -> Result<Tensor<3>> {
        let (l, d) = (mixed.first().map_or(0, Vec::len), model.config().hidden_size);
        let mut states = vec![0.0_f32; mixed.len() * l * d];
        for (row, mixed) in mixed.iter().enumerate() {
            for (column, _) in mixed.iter().enumerate().filter(|(_, mixed)| **mixed) {
                let name = at.rows[row];
                let position = at.positions[row][column];
                let Some(state) = self.states.get(name, position, "no state was mixed in")? else { continue };
                ensure!(state.len() == d, "row {name}: a state of width {}, the model has {d}", state.len());
                let from = (row * l + column) * d;
                states[from..from + d].copy_from_slice(state);
            }
        }
        Ok(Tensor::from_data(TensorData::new(states, [mixed.len(), l, d]), &model.device()))
    }
}

impl LatentSource for StoredStates<'_> {
    fn inject(&self, _h: Tensor<3>, _at: &Span, _model: &Decoder) -> Result<Tensor<3>> {
        no_latents()
    }

    fn name(&self) -> String {
        "stored_states".into()
    }

    fn mixing(&self) -> Option<&dyn Mixing> {
        Some(self)
    }
}
